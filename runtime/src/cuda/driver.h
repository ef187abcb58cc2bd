// The functions of the CUDA driver that the library uses, found at run time. No header of CUDA is needed to build.
#pragma once

#include <string>

#include "base.h"

namespace aot::cuda {

using Result = int;
using Address = unsigned long long;  // in device memory
using Ordinal = int;
// The driver's handles, which only it can look into.
using Context = struct ContextTag *;
using Module = struct ModuleTag *;
using Function = struct FunctionTag *;
using Stream = struct StreamTag *;
using Event = struct EventTag *;
using Graph = struct GraphTag *;
using Node = struct NodeTag *;
using Executable = struct ExecutableTag *;

// What cuGraphAddKernelNode_v2 takes.
struct KernelNode {
    Function function;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    void **parameters;
    void **extra;
    void *kernel;
    Context context;
};
static_assert(sizeof(KernelNode) == 72);

// An edge that lets its second kernel start when all blocks of the first have said so (port and type 1), or ended.
struct Edge {
    unsigned char from_port;
    unsigned char to_port;
    unsigned char type;
    unsigned char reserved[5];
};
static_assert(sizeof(Edge) == 8);

struct LaunchAttribute {
    unsigned id;
    char padding[4];
    union {
        char room[64];
        int value;
    };
};
static_assert(sizeof(LaunchAttribute) == 72);

struct LaunchConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    Stream stream;
    LaunchAttribute *attributes;
    unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56);

namespace result {
enum : Result {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    STUB_LIBRARY = 34,
    NO_DEVICE = 100,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNCORRECTABLE = 214,
    NVLINK_UNCORRECTABLE = 220,
    INVALID_PTX = 218,
    NO_JIT_COMPILER = 221,
    UNSUPPORTED_PTX = 222,
    CONTAINED = 226,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    CONTEXT_DESTROYED = 709,
    ASSERT = 710,
    STACK_ERROR = 714,
    LAUNCH_FAILED = 719,
    SYSTEM_NOT_READY = 802,
    DRIVER_MISMATCH = 803,
    CAPTURE_FIRST = 900,
    CAPTURE_LAST = 908,
};
}

enum : int {
    kMultiprocessors = 16,
    kCapabilityMajor = 75,
    kCapabilityMinor = 76,
    kDynamicShared = 8,      // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    kMemoryType = 2,         // CU_POINTER_ATTRIBUTE_...
    kIsManaged = 8,
    kDeviceOrdinal = 9,
    kDeviceMemory = 2,       // CU_MEMORYTYPE_DEVICE
    kJitErrorLog = 5,
    kJitErrorLogBytes = 6,
    kNonBlocking = 1,        // a stream that does not wait for the NULL stream
    kNoTiming = 2,           // an event
    kProgrammatic = 1,       // CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
    kSerialization = 6,      // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    kNotCapturing = 0,
    kCaptureRelaxed = 2,
};

// X(field, exported name, arguments). Names with their versions: the structs above are those versions' structs.
#define AOT_CUDA_FUNCTIONS(X)                                                                                     \
    X(init, "cuInit", (unsigned flags))                                                                           \
    X(driver_version, "cuDriverGetVersion", (int *version))                                                       \
    X(error_name, "cuGetErrorName", (Result code, const char **name))                                             \
    X(error_text, "cuGetErrorString", (Result code, const char **text))                                           \
    X(device_get, "cuDeviceGet", (Ordinal *device, int ordinal))                                                  \
    X(device_count, "cuDeviceGetCount", (int *count))                                                             \
    X(device_name, "cuDeviceGetName", (char *name, int bytes, Ordinal device))                                    \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, Ordinal device))                      \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (Context *context, Ordinal device))                             \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", (Ordinal device))                                          \
    X(context_current, "cuCtxGetCurrent", (Context *context))                                                     \
    X(context_push, "cuCtxPushCurrent_v2", (Context context))                                                     \
    X(context_pop, "cuCtxPopCurrent_v2", (Context *context))                                                      \
    X(context_device, "cuCtxGetDevice", (Ordinal *device))                                                        \
    X(module_load, "cuModuleLoadDataEx",                                                                          \
      (Module *module, const void *image, unsigned count, const int *options, void *const *values))               \
    X(module_unload, "cuModuleUnload", (Module module))                                                           \
    X(module_function, "cuModuleGetFunction", (Function *function, Module module, const char *name))              \
    X(function_set, "cuFuncSetAttribute", (Function function, int attribute, int value))                          \
    X(memory_allocate, "cuMemAlloc_v2", (Address *address, size_t bytes))                                         \
    X(memory_free, "cuMemFree_v2", (Address address))                                                             \
    X(memory_info, "cuMemGetInfo_v2", (size_t *free_bytes, size_t *total_bytes))                                  \
    X(copy_in, "cuMemcpyHtoD_v2", (Address to, const void *from, size_t bytes))                                   \
    X(copy_out, "cuMemcpyDtoH_v2", (void *to, Address from, size_t bytes))                                        \
    X(copy_in_async, "cuMemcpyHtoDAsync_v2", (Address to, const void *from, size_t bytes, Stream stream))         \
    X(copy_out_async, "cuMemcpyDtoHAsync_v2", (void *to, Address from, size_t bytes, Stream stream))              \
    X(copy_any_async, "cuMemcpyAsync", (Address to, Address from, size_t bytes, Stream stream))                   \
    X(memory_set_async, "cuMemsetD8Async", (Address to, unsigned char value, size_t bytes, Stream stream))        \
    X(pointer_attributes, "cuPointerGetAttributes",                                                               \
      (unsigned count, const int *attributes, void *const *values, Address pointer))                              \
    X(stream_create, "cuStreamCreate", (Stream *stream, unsigned flags))                                          \
    X(stream_destroy, "cuStreamDestroy_v2", (Stream stream))                                                      \
    X(stream_synchronize, "cuStreamSynchronize", (Stream stream))                                                 \
    X(stream_wait, "cuStreamWaitEvent", (Stream stream, Event event, unsigned flags))                             \
    X(stream_is_capturing, "cuStreamIsCapturing", (Stream stream, int *status))                                   \
    X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                                    \
    X(event_create, "cuEventCreate", (Event *event, unsigned flags))                                              \
    X(event_destroy, "cuEventDestroy_v2", (Event event))                                                          \
    X(event_record, "cuEventRecord", (Event event, Stream stream))                                                \
    X(event_query, "cuEventQuery", (Event event))                                                                 \
    X(event_synchronize, "cuEventSynchronize", (Event event))                                                     \
    X(event_elapsed, "cuEventElapsedTime", (float *milliseconds, Event start, Event end))                         \
    X(launch, "cuLaunchKernelEx",                                                                                 \
      (const LaunchConfig *config, Function function, void **parameters, void **extra))                           \
    X(graph_create, "cuGraphCreate", (Graph *graph, unsigned flags))                                              \
    X(graph_destroy, "cuGraphDestroy", (Graph graph))                                                             \
    X(graph_add_kernel, "cuGraphAddKernelNode_v2",                                                                \
      (Node *node, Graph graph, const Node *before, size_t count, const KernelNode *kernel))                      \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", (Executable *executable, Graph graph, unsigned long long))\
    X(executable_destroy, "cuGraphExecDestroy", (Executable executable))                                          \
    X(executable_set_kernel, "cuGraphExecKernelNodeSetParams_v2",                                                 \
      (Executable executable, Node node, const KernelNode *kernel))                                               \
    X(graph_launch, "cuGraphLaunch", (Executable executable, Stream stream))

// What drivers before CUDA 12.3 and 12.4 lack. NULL there: all edges are full ones, and kernels are loaded when they first run.
#define AOT_CUDA_NEWER_FUNCTIONS(X)                                                                               \
    X(function_load, "cuFuncLoad", (Function function))                                                           \
    X(graph_add_edges, "cuGraphAddDependencies_v2",                                                               \
      (Graph graph, const Node *from, const Node *to, const Edge *edges, size_t count))

inline constexpr int kLowestDriver = 12000;  // CUDA 12.0, as cuDriverGetVersion says it

struct Driver {
#define AOT_FIELD(field, name, arguments) Result(*field) arguments = nullptr;
    AOT_CUDA_FUNCTIONS(AOT_FIELD)
    AOT_CUDA_NEWER_FUNCTIONS(AOT_FIELD)
#undef AOT_FIELD
    int version = 0;
};

// The initialized driver, or NULL; then `reason` says why there is none. It is never unloaded.
const Driver *find_driver(std::string *reason);

// What is wrong with a driver of that version.
std::string too_old(int version, int lowest);

// A Failure for a driver's error code: `doing` is what was tried, such as "loading kernel 'matmul'".
Failure driver_failure(const Driver &driver, Result code, const char *where, const char *doing);

inline void check(const Driver &driver, Result code, const char *where, const char *doing) {
    if (code != result::OK) throw driver_failure(driver, code, where, doing);
}

}  // namespace aot::cuda
