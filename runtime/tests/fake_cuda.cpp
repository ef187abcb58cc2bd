// A simulated CUDA driver for tests without a GPU: it has devices, memory and streams, checks every handle and the order
// of work, fails where it is told to, and runs kernels that it knows by name. Work is done at once, in the order of the
// calls; whether that order was promised is checked apart, by the knowledge that streams have of each other.
//
// A kernel's image is the text "FAKE <capability> <symbols>", or, as PTX, ".version <number> .target sm_<capability> <symbols>",
// of which a driver of CUDA 12.n knows the versions to 8.n and one of 13.n those to 9.n. Symbols begin with what they do:
// k_add(a, b, out, n) in f32, k_addscratch the same with scratch memory, k_copy(from, to, bytes with 64 bits).
#include "fake_cuda.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda/driver.h"

using namespace aot::cuda;

namespace {

// How far the work of each stream is known to be done. Stream 0 is the default one, which waits for the others.
using Knowledge = std::map<const void *, long>;

void learn(Knowledge &to, const Knowledge &from) {
    for (const auto &[stream, step] : from) to[stream] = std::max(to[stream], step);
}

struct Access {
    const void *stream;
    long step;
};

struct Piece {
    size_t bytes;
    int device;
    std::vector<Access> reads;
    Access write{nullptr, 0};
};

struct FakeStream {
    bool blocking = true;
    int device = 0;
    long step = 0;
    Knowledge knows;
    std::vector<struct FakeNode *> captured;
    bool capturing = false;
};

struct FakeNode {
    KernelNode kernel;
    std::vector<std::vector<uint8_t>> values;  // of the parameters
    std::vector<FakeNode *> before;
};

struct FakeModule {
    int device;
    std::set<std::string> symbols;
};

struct FakeFunction {
    FakeModule *module;
    std::string symbol;
    int shared_limit = 48 << 10;
};

struct FakeGraph {
    std::vector<FakeNode *> nodes;
};

struct FakeContext {
    int device = 0;
    int holders = 0;
};

struct World {
    std::mutex mutex;
    int devices = 1, capability = 90, version = 13000;
    size_t limit = size_t{1} << 30, used = 0;
    long calls = 0, fail_after = -1;
    int fail_code = 0, sticky = 0;
    bool context_failed = false;  // then there may be no current one where there should be
    std::string misuse, misuse_read;
    std::map<std::string, long> counts;
    FakeContext contexts[8];
    std::map<Address, Piece> pieces;
    std::set<FakeStream *> streams;
    std::vector<FakeStream *> ended;  // what is known of them stays true
    FakeStream null_stream;
    std::map<void *, Knowledge> events;
    std::set<FakeModule *> modules;
    std::vector<FakeFunction *> functions;
    std::set<FakeGraph *> graphs, executables;
    Knowledge host;
};

World &world() {
    static World *const made = new World;
    return *made;
}

thread_local std::vector<FakeContext *> stack;
thread_local int capture_mode = 0;

void wrong(const char *format, ...) {
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (world().misuse.empty()) world().misuse = text;
}

// Counts a call; the code that it must fail with, or 0.
Result call(const char *name) {
    World &w = world();
    const long number = w.calls++;
    const bool failing = w.sticky || (w.fail_after >= 0 && number == w.fail_after);
    if (failing && strncmp(name, "cuCtx", 5) == 0) w.context_failed = true;
    if (w.sticky) return w.sticky;
    if (w.fail_after < 0 || number != w.fail_after) return 0;
    if (w.fail_code >= 700 && w.fail_code < 800) w.sticky = w.fail_code;
    return w.fail_code;
}

#define ENTER(name)                                      \
    std::lock_guard<std::mutex> lock_(world().mutex);    \
    World &w = world();                                  \
    (void)w;                                             \
    const Result failing = call(name)
#define BEGIN(name) \
    ENTER(name);    \
    if (failing) return failing

FakeContext *current() {
    if (stack.empty()) {
        if (!world().context_failed) wrong("a call without a current context");
        return nullptr;
    }
    if (!stack.back()->holders) wrong("a call in a context that was released");
    return stack.back();
}

FakeStream *stream_of(Stream handle) {
    World &w = world();
    if (!handle || reinterpret_cast<uintptr_t>(handle) <= 2) return &w.null_stream;
    FakeStream *found = reinterpret_cast<FakeStream *>(handle);
    if (w.streams.count(found)) return found;
    wrong("a stream that does not live");
    return nullptr;
}

// The stream takes up another piece of work, which knows what the host and the default stream know.
void step(FakeStream *stream) {
    World &w = world();
    learn(stream->knows, w.host);
    if (stream == &w.null_stream) {
        for (FakeStream *other : w.streams) {
            if (other->blocking) learn(stream->knows, other->knows);
        }
    } else if (stream->blocking) {
        learn(stream->knows, w.null_stream.knows);
    }
    stream->knows[stream] = ++stream->step;
}

bool known(FakeStream *stream, const Access &access) {
    if (!access.step || access.stream == stream) return true;
    auto found = stream->knows.find(access.stream);
    return found != stream->knows.end() && found->second >= access.step;
}

Piece *piece_of(Address address, size_t bytes, const char *what) {
    World &w = world();
    auto above = w.pieces.upper_bound(address);
    if (above != w.pieces.begin()) {
        --above;
        if (address >= above->first && address + bytes <= above->first + above->second.bytes) return &above->second;
    }
    if (bytes) wrong("%s outside of device memory: %zu bytes at %llx", what, bytes, address);
    return nullptr;
}

void touch(FakeStream *stream, Address address, size_t bytes, bool writes, const char *what) {
    Piece *piece = bytes ? piece_of(address, bytes, what) : nullptr;
    if (!piece) return;
    if (!known(stream, piece->write)) wrong("%s: not ordered behind a write on another stream", what);
    for (const Access &read : piece->reads) {
        if (writes && !known(stream, read)) wrong("%s: not ordered behind a read on another stream", what);
    }
    if (writes) piece->write = {stream, stream->step}, piece->reads.clear();
    else piece->reads.push_back({stream, stream->step});
    if (piece->reads.size() > 64) piece->reads.erase(piece->reads.begin());
}

FakeFunction *function_of(Function handle) {
    FakeFunction *found = reinterpret_cast<FakeFunction *>(handle);
    for (FakeFunction *each : world().functions) {
        if (each == found && world().modules.count(each->module)) return found;
    }
    wrong("a kernel whose module does not live");
    return nullptr;
}

struct Range {
    Address address;
    size_t bytes;
    bool writes;
};

template <class T> T value_of(const FakeNode &node, size_t index) {
    T value{};
    if (index < node.values.size()) memcpy(&value, node.values[index].data(), sizeof value);
    return value;
}

size_t argument_count(const std::string &symbol) { return symbol.compare(0, 6, "k_copy") == 0 ? 5 : 6; }

void take_values(FakeNode &node, const std::string &symbol) {
    node.values.clear();
    const bool copy = argument_count(symbol) == 5;
    for (size_t i = 0; i < argument_count(symbol); ++i) {
        const size_t bytes = !copy && i == 3 ? 4 : 8;
        const uint8_t *from = static_cast<const uint8_t *>(node.kernel.parameters[i]);
        node.values.emplace_back(from, from + bytes);
    }
}

std::vector<Range> ranges_of(const FakeNode &node, const FakeFunction &function) {
    if (argument_count(function.symbol) == 5) {
        const size_t bytes = static_cast<size_t>(value_of<int64_t>(node, 2));
        return {{value_of<Address>(node, 0), bytes, false}, {value_of<Address>(node, 1), bytes, true}};
    }
    const size_t bytes = 4 * static_cast<size_t>(value_of<int32_t>(node, 3));
    std::vector<Range> ranges{{value_of<Address>(node, 0), bytes, false},
                              {value_of<Address>(node, 1), bytes, false},
                              {value_of<Address>(node, 2), bytes, true}};
    if (function.symbol.compare(0, 12, "k_addscratch") == 0) {
        ranges.push_back({value_of<Address>(node, 4), size_t{128} * node.kernel.grid[0], true});
    } else if (value_of<Address>(node, 4)) {
        wrong("scratch memory for a kernel without");
    }
    if (value_of<Address>(node, 5)) wrong("profile scratch");
    return ranges;
}

bool check_kernel(const FakeNode &node, FakeFunction *function) {
    const KernelNode &k = node.kernel;
    if (!function) return false;
    if (!k.grid[0] || !k.grid[1] || !k.grid[2]) wrong("a grid without blocks");
    if (k.block[0] != 128 || k.block[1] != 1 || k.block[2] != 1) wrong("%u threads instead of 128", k.block[0]);
    if (k.shared_bytes > static_cast<unsigned>(function->shared_limit)) wrong("more shared memory than was asked for");
    return true;
}

void execute(const FakeNode &node, FakeStream *stream) {
    FakeFunction *function = function_of(node.kernel.function);
    if (!check_kernel(node, function)) return;
    ++world().counts["launch"];
    bool inside = true;
    for (const Range &range : ranges_of(node, *function)) {
        if (range.bytes && !piece_of(range.address, range.bytes, function->symbol.c_str())) inside = false;
        touch(stream, range.address, range.bytes, range.writes, function->symbol.c_str());
    }
    if (!inside) return;
    if (argument_count(function->symbol) == 5) {
        memmove(reinterpret_cast<void *>(value_of<Address>(node, 1)), reinterpret_cast<void *>(value_of<Address>(node, 0)),
                static_cast<size_t>(value_of<int64_t>(node, 2)));
        return;
    }
    const float *a = reinterpret_cast<float *>(value_of<Address>(node, 0)), *b = reinterpret_cast<float *>(value_of<Address>(node, 1));
    float *out = reinterpret_cast<float *>(value_of<Address>(node, 2));
    for (int32_t i = 0; i < value_of<int32_t>(node, 3); ++i) out[i] = a[i] + b[i];
}

bool overlap(const Range &a, const Range &b) {
    return (a.writes || b.writes) && a.address < b.address + b.bytes && b.address < a.address + a.bytes;
}

// Nodes that are not ordered by edges must not touch the same bytes, unless both read.
void check_order(const FakeGraph &graph) {
    std::map<const FakeNode *, std::set<const FakeNode *>> behind;
    for (const FakeNode *node : graph.nodes) {
        for (const FakeNode *before : node->before) {
            behind[node].insert(before);
            behind[node].insert(behind[before].begin(), behind[before].end());
        }
    }
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
            if (behind[graph.nodes[i]].count(graph.nodes[j])) continue;
            const FakeFunction *first = function_of(graph.nodes[i]->kernel.function), *second = function_of(graph.nodes[j]->kernel.function);
            if (!first || !second) continue;
            for (const Range &a : ranges_of(*graph.nodes[i], *first)) {
                for (const Range &b : ranges_of(*graph.nodes[j], *second)) {
                    if (overlap(a, b)) wrong("kernels %s and %s are not ordered and overlap", first->symbol.c_str(), second->symbol.c_str());
                }
            }
        }
    }
}

void drop(FakeGraph *graph) {
    for (FakeNode *node : graph->nodes) delete node;
    delete graph;
}

void copy(FakeStream *stream, void *to, const void *from, size_t bytes, bool to_device, bool from_device) {
    if (!stream) return;
    step(stream);
    if (to_device) touch(stream, reinterpret_cast<Address>(to), bytes, true, "a copy");
    if (from_device) touch(stream, reinterpret_cast<Address>(from), bytes, false, "a copy");
    if (to_device && !piece_of(reinterpret_cast<Address>(to), bytes, "a copy")) return;
    if (from_device && !piece_of(reinterpret_cast<Address>(from), bytes, "a copy")) return;
    memmove(to, from, bytes);
}

bool is_device(const void *pointer) {
    auto above = world().pieces.upper_bound(reinterpret_cast<Address>(pointer));
    if (above == world().pieces.begin()) return false;
    --above;
    return reinterpret_cast<Address>(pointer) < above->first + above->second.bytes;
}

}  // namespace

extern "C" {

void fake_machine(int devices, int capability, int version, size_t bytes) {
    std::lock_guard<std::mutex> lock(world().mutex);
    World &w = world();
    w.devices = devices, w.capability = capability, w.version = version, w.limit = bytes;
    w.fail_after = -1, w.calls = 0, w.sticky = 0;
    w.counts.clear();
}

void fake_fail(long after, int code) {
    std::lock_guard<std::mutex> lock(world().mutex);
    world().calls = 0, world().fail_after = code ? after : -1, world().fail_code = code, world().sticky = 0, world().context_failed = false;
}

long fake_calls(void) {
    std::lock_guard<std::mutex> lock(world().mutex);
    return world().calls;
}

long fake_live(void) {
    std::lock_guard<std::mutex> lock(world().mutex);
    World &w = world();
    long contexts = 0;
    for (const FakeContext &context : w.contexts) contexts += context.holders;
    return contexts + static_cast<long>(w.pieces.size() + w.streams.size() + w.events.size() + w.modules.size() +
                                        w.graphs.size() + w.executables.size());
}

size_t fake_bytes(void) {
    std::lock_guard<std::mutex> lock(world().mutex);
    return world().used;
}

const char *fake_misuse(void) {
    std::lock_guard<std::mutex> lock(world().mutex);
    world().misuse_read.swap(world().misuse);
    world().misuse.clear();
    return world().misuse_read.c_str();
}

long fake_count(const char *what) {
    std::lock_guard<std::mutex> lock(world().mutex);
    return world().counts[what];
}

Result cuInit(unsigned) {
    BEGIN("cuInit");
    return w.devices ? 0 : result::NO_DEVICE;
}
Result cuDriverGetVersion(int *version) {
    BEGIN("cuDriverGetVersion");
    *version = w.version;
    return 0;
}
Result cuGetErrorName(Result code, const char **name) {
    *name = code == result::OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == result::ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_SOME";
    return 0;
}
Result cuGetErrorString(Result code, const char **text) {
    *text = code == result::ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "simulated";
    return 0;
}
Result cuDeviceGetCount(int *count) {
    BEGIN("cuDeviceGetCount");
    *count = w.devices;
    return 0;
}
Result cuDeviceGet(Ordinal *device, int ordinal) {
    BEGIN("cuDeviceGet");
    if (ordinal < 0 || ordinal >= w.devices) return 101;
    *device = ordinal;
    return 0;
}
Result cuDeviceGetName(char *name, int bytes, Ordinal) {
    BEGIN("cuDeviceGetName");
    snprintf(name, static_cast<size_t>(bytes), "Simulated GPU");
    return 0;
}
Result cuDeviceGetAttribute(int *value, int attribute, Ordinal device) {
    BEGIN("cuDeviceGetAttribute");
    if (device < 0 || device >= w.devices) return 101;
    *value = attribute == kCapabilityMajor ? w.capability / 10 : attribute == kCapabilityMinor ? w.capability % 10 : attribute == kMultiprocessors ? 4 : 0;
    return 0;
}
Result cuDevicePrimaryCtxRetain(Context *context, Ordinal device) {
    BEGIN("cuDevicePrimaryCtxRetain");
    if (device < 0 || device >= w.devices) return 101;
    w.contexts[device].device = device;
    ++w.contexts[device].holders;
    *context = reinterpret_cast<Context>(&w.contexts[device]);
    return 0;
}
Result cuDevicePrimaryCtxRelease_v2(Ordinal device) {
    ENTER("cuDevicePrimaryCtxRelease");
    if (--w.contexts[device].holders < 0) wrong("a context that is released too often");
    return failing;
}
Result cuCtxGetCurrent(Context *context) {
    BEGIN("cuCtxGetCurrent");
    *context = stack.empty() ? nullptr : reinterpret_cast<Context>(stack.back());
    return 0;
}
Result cuCtxPushCurrent_v2(Context context) {
    BEGIN("cuCtxPushCurrent");
    FakeContext *found = reinterpret_cast<FakeContext *>(context);
    if (found < w.contexts || found >= w.contexts + 8 || !found->holders) return result::INVALID_CONTEXT;
    stack.push_back(found);
    return 0;
}
Result cuCtxPopCurrent_v2(Context *context) {
    ENTER("cuCtxPopCurrent");
    if (stack.empty()) return wrong("a pop without a push"), result::INVALID_CONTEXT;
    *context = reinterpret_cast<Context>(stack.back());
    stack.pop_back();
    return failing;
}
Result cuCtxGetDevice(Ordinal *device) {
    BEGIN("cuCtxGetDevice");
    if (stack.empty()) return result::INVALID_CONTEXT;
    *device = stack.back()->device;
    return 0;
}
Result cuModuleLoadDataEx(Module *module, const void *image, unsigned count, const int *options, void *const *values) {
    BEGIN("cuModuleLoadDataEx");
    const char *text = static_cast<const char *>(image);
    if (reinterpret_cast<uintptr_t>(image) % 16) wrong("a misaligned image");
    int capability = 0, used = 0, major = 0, minor = 0;
    auto log = [&](const char *format, int first, int second) {
        for (unsigned i = 0; i + 1 < count; ++i) {
            if (options[i] != kJitErrorLog || options[i + 1] != kJitErrorLogBytes) continue;
            snprintf(static_cast<char *>(values[i]), reinterpret_cast<size_t>(values[i + 1]), format, first, second);
        }
    };
    if (sscanf(text, ".version %d.%d .target sm_%d %n", &major, &minor, &capability, &used) == 3) {
        if (10 * major + minor > 10 * (w.version / 1000 - 4) + w.version % 1000 / 10) {
            return log("ptxas fatal\nUnsupported .version %d.%d", major, minor), result::UNSUPPORTED_PTX;
        }
        if (capability > w.capability) return log("SM version sm_%d is above sm_%d", capability, w.capability), result::INVALID_PTX;
        ++w.counts["jit"];
    } else if (sscanf(text, "FAKE %d %n", &capability, &used) != 1) {
        return log("not an image", 0, 0), result::INVALID_IMAGE;
    } else if (capability / 10 != w.capability / 10 || capability > w.capability) {
        return result::NO_BINARY_FOR_GPU;
    }
    FakeContext *context = current();
    FakeModule *made = new FakeModule{context ? context->device : 0, {}};
    char symbol[64];
    for (const char *at = text + used; sscanf(at, "%63s %n", symbol, &used) == 1; at += used) made->symbols.insert(symbol);
    w.modules.insert(made);
    *module = reinterpret_cast<Module>(made);
    return 0;
}
Result cuModuleUnload(Module module) {
    ENTER("cuModuleUnload");
    current();
    FakeModule *found = reinterpret_cast<FakeModule *>(module);
    if (!w.modules.erase(found)) return wrong("a module is unloaded twice"), result::INVALID_VALUE;
    for (size_t i = w.functions.size(); i-- > 0;) {
        if (w.functions[i]->module != found) continue;
        delete w.functions[i];
        w.functions.erase(w.functions.begin() + static_cast<long>(i));
    }
    delete found;
    return failing;
}
Result cuModuleGetFunction(Function *function, Module module, const char *name) {
    BEGIN("cuModuleGetFunction");
    FakeModule *found = reinterpret_cast<FakeModule *>(module);
    if (!w.modules.count(found)) return wrong("a module that does not live"), result::INVALID_VALUE;
    if (!found->symbols.count(name)) return 500;
    w.functions.push_back(new FakeFunction{found, name});
    *function = reinterpret_cast<Function>(w.functions.back());
    return 0;
}
Result cuFuncSetAttribute(Function function, int attribute, int value) {
    BEGIN("cuFuncSetAttribute");
    FakeFunction *found = function_of(function);
    if (!found || attribute != kDynamicShared || value > (228 << 10)) return result::INVALID_VALUE;
    found->shared_limit = value;
    return 0;
}
Result cuFuncLoad(Function function) {
    BEGIN("cuFuncLoad");
    return function_of(function) ? 0 : result::INVALID_VALUE;
}
Result cuMemAlloc_v2(Address *address, size_t bytes) {
    BEGIN("cuMemAlloc");
    FakeContext *context = current();
    if (!bytes) return result::INVALID_VALUE;
    for (FakeStream *stream : w.streams) {
        if (stream->capturing && capture_mode != kCaptureRelaxed) return result::CAPTURE_FIRST;
    }
    if (w.used + bytes > w.limit) return result::OUT_OF_MEMORY;
    void *made = nullptr;
    if (posix_memalign(&made, 256, bytes)) return result::OUT_OF_MEMORY;
    memset(made, 0xff, bytes);  // so that what was not written shows
    w.used += bytes;
    *address = reinterpret_cast<Address>(made);
    w.pieces[*address] = Piece{bytes, context ? context->device : 0, {}, {}};
    return 0;
}
Result cuMemFree_v2(Address address) {
    ENTER("cuMemFree");
    current();
    auto found = w.pieces.find(address);
    if (found == w.pieces.end()) return wrong("memory is freed twice"), result::INVALID_VALUE;
    w.used -= found->second.bytes;
    w.pieces.erase(found);
    free(reinterpret_cast<void *>(address));
    if (w.pieces.empty() && w.streams.empty()) {  // nothing is left to know of
        w.host.clear(), w.null_stream.knows.clear();
        for (FakeStream *stream : w.ended) delete stream;
        w.ended.clear();
    }
    return failing;
}
Result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    BEGIN("cuMemGetInfo");
    *free_bytes = w.limit - w.used, *total_bytes = w.limit;
    return 0;
}
Result cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) {
    BEGIN("cuMemcpyHtoD");
    current();
    w.counts["copy_in"] += static_cast<long>(bytes);
    copy(&w.null_stream, reinterpret_cast<void *>(to), from, bytes, true, false);
    learn(w.host, w.null_stream.knows);
    return 0;
}
Result cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) {
    BEGIN("cuMemcpyDtoH");
    current();
    copy(&w.null_stream, to, reinterpret_cast<void *>(from), bytes, false, true);
    learn(w.host, w.null_stream.knows);
    return 0;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Stream stream) {
    BEGIN("cuMemcpyHtoDAsync");
    current();
    w.counts["copy_in"] += static_cast<long>(bytes);
    copy(stream_of(stream), reinterpret_cast<void *>(to), from, bytes, true, false);
    return 0;
}
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Stream stream) {
    BEGIN("cuMemcpyDtoHAsync");
    current();
    copy(stream_of(stream), to, reinterpret_cast<void *>(from), bytes, false, true);
    return 0;
}
Result cuMemcpyAsync(Address to, Address from, size_t bytes, Stream stream) {
    BEGIN("cuMemcpyAsync");
    current();
    void *target = reinterpret_cast<void *>(to), *source = reinterpret_cast<void *>(from);
    copy(stream_of(stream), target, source, bytes, is_device(target), is_device(source));
    return 0;
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Stream stream) {
    BEGIN("cuMemsetD8Async");
    current();
    w.counts["set_bytes"] += static_cast<long>(bytes);
    const std::vector<unsigned char> values(bytes, value);
    copy(stream_of(stream), reinterpret_cast<void *>(to), values.data(), bytes, true, false);
    return 0;
}
Result cuPointerGetAttributes(unsigned count, const int *attributes, void *const *values, Address pointer) {
    BEGIN("cuPointerGetAttributes");
    auto above = w.pieces.upper_bound(pointer);
    const Piece *piece = nullptr;
    if (above != w.pieces.begin() && pointer < std::prev(above)->first + std::prev(above)->second.bytes) piece = &std::prev(above)->second;
    for (unsigned i = 0; i < count; ++i) {
        const int value = !piece ? (attributes[i] == kDeviceOrdinal ? -2 : 0)
                          : attributes[i] == kMemoryType ? kDeviceMemory : attributes[i] == kDeviceOrdinal ? piece->device : 0;
        memcpy(values[i], &value, sizeof value);
    }
    return 0;
}
Result cuStreamCreate(Stream *stream, unsigned flags) {
    BEGIN("cuStreamCreate");
    FakeContext *context = current();
    FakeStream *made = new FakeStream;
    made->blocking = !(flags & kNonBlocking);
    made->device = context ? context->device : 0;
    w.streams.insert(made);
    *stream = reinterpret_cast<Stream>(made);
    return 0;
}
Result cuStreamDestroy_v2(Stream stream) {
    ENTER("cuStreamDestroy");
    FakeStream *found = stream_of(stream);
    if (found && found != &w.null_stream) {
        w.streams.erase(found);
        w.ended.push_back(found);
        for (FakeNode *node : found->captured) delete node;
        found->captured.clear();
    }
    return failing;
}
Result cuStreamSynchronize(Stream stream) {
    BEGIN("cuStreamSynchronize");
    FakeStream *found = stream_of(stream);
    if (found && found->capturing) return result::CAPTURE_FIRST;
    if (found) step(found), learn(w.host, found->knows);
    return 0;
}
Result cuStreamWaitEvent(Stream stream, Event event, unsigned) {
    BEGIN("cuStreamWaitEvent");
    FakeStream *found = stream_of(stream);
    if (!w.events.count(event)) return wrong("an event that does not live"), result::INVALID_VALUE;
    if (found && found->capturing) return result::CAPTURE_FIRST + 5;
    if (found) learn(found->knows, w.events[event]);
    return 0;
}
Result cuStreamIsCapturing(Stream stream, int *status) {
    BEGIN("cuStreamIsCapturing");
    FakeStream *found = stream_of(stream);
    *status = found && found->capturing;
    return found ? 0 : result::INVALID_VALUE;
}
Result cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER("cuThreadExchangeStreamCaptureMode");
    if (failing && *mode == kCaptureRelaxed) return failing;
    std::swap(*mode, capture_mode);
    return failing;
}
Result cuStreamBeginCapture_v2(Stream stream, int) {
    BEGIN("cuStreamBeginCapture");
    stream_of(stream)->capturing = true;
    return 0;
}
Result cuStreamEndCapture(Stream stream, Graph *graph) {
    BEGIN("cuStreamEndCapture");
    FakeStream *found = stream_of(stream);
    found->capturing = false;
    FakeGraph *made = new FakeGraph{std::move(found->captured)};
    found->captured.clear();
    w.graphs.insert(made);
    *graph = reinterpret_cast<Graph>(made);
    return 0;
}
Result cuEventCreate(Event *event, unsigned) {
    BEGIN("cuEventCreate");
    current();
    char *made = new char;
    w.events[made] = {};
    *event = reinterpret_cast<Event>(made);
    return 0;
}
Result cuEventDestroy_v2(Event event) {
    ENTER("cuEventDestroy");
    if (!w.events.erase(event)) return wrong("an event is destroyed twice"), result::INVALID_VALUE;
    delete reinterpret_cast<char *>(event);
    return failing;
}
Result cuEventRecord(Event event, Stream stream) {
    BEGIN("cuEventRecord");
    if (!w.events.count(event)) return wrong("an event that does not live"), result::INVALID_VALUE;
    FakeStream *found = stream_of(stream);
    if (found) step(found), w.events[event] = found->knows;
    return 0;
}
Result cuEventQuery(Event event) {
    BEGIN("cuEventQuery");
    for (const auto &[stream, done] : w.events[event]) {
        auto seen = w.host.find(stream);
        if (seen == w.host.end() || seen->second < done) return result::NOT_READY;
    }
    return 0;
}
Result cuEventSynchronize(Event event) {
    BEGIN("cuEventSynchronize");
    if (!w.events.count(event)) return wrong("an event that does not live"), result::INVALID_VALUE;
    learn(w.host, w.events[event]);
    return 0;
}
Result cuEventElapsedTime(float *milliseconds, Event, Event) {
    BEGIN("cuEventElapsedTime");
    *milliseconds = 0.5f;
    return 0;
}
Result cuLaunchKernelEx(const LaunchConfig *config, Function function, void **parameters, void **) {
    BEGIN("cuLaunchKernelEx");
    current();
    FakeFunction *found = function_of(function);
    FakeStream *stream = stream_of(config->stream);
    if (!found || !stream) return result::INVALID_VALUE;
    FakeNode *node = new FakeNode{};
    node->kernel.function = function;
    memcpy(node->kernel.grid, config->grid, sizeof config->grid);
    memcpy(node->kernel.block, config->block, sizeof config->block);
    node->kernel.shared_bytes = config->shared_bytes;
    node->kernel.parameters = parameters;
    take_values(*node, found->symbol);
    if (config->attribute_count) ++w.counts["early"];
    if (stream->capturing) {
        ++w.counts["captured"];
        if (!stream->captured.empty()) node->before.push_back(stream->captured.back());
        stream->captured.push_back(node);
        return 0;
    }
    step(stream);
    execute(*node, stream);
    delete node;
    return 0;
}
Result cuGraphCreate(Graph *graph, unsigned) {
    BEGIN("cuGraphCreate");
    FakeGraph *made = new FakeGraph;
    w.graphs.insert(made);
    *graph = reinterpret_cast<Graph>(made);
    return 0;
}
Result cuGraphDestroy(Graph graph) {
    ENTER("cuGraphDestroy");
    FakeGraph *found = reinterpret_cast<FakeGraph *>(graph);
    if (!w.graphs.erase(found)) return wrong("a graph is destroyed twice"), result::INVALID_VALUE;
    drop(found);
    return failing;
}
Result cuGraphAddKernelNode_v2(Node *node, Graph graph, const Node *before, size_t count, const KernelNode *kernel) {
    BEGIN("cuGraphAddKernelNode");
    FakeGraph *found = reinterpret_cast<FakeGraph *>(graph);
    FakeFunction *function = function_of(kernel->function);
    if (!w.graphs.count(found) || !function) return wrong("a graph or kernel that does not live"), result::INVALID_VALUE;
    FakeNode *made = new FakeNode{*kernel, {}, {}};
    take_values(*made, function->symbol);
    for (size_t i = 0; i < count; ++i) made->before.push_back(reinterpret_cast<FakeNode *>(before[i]));
    found->nodes.push_back(made);
    *node = reinterpret_cast<Node>(made);
    return 0;
}
Result cuGraphAddDependencies_v2(Graph, const Node *from, const Node *to, const Edge *edges, size_t count) {
    BEGIN("cuGraphAddDependencies");
    for (size_t i = 0; i < count; ++i) {
        reinterpret_cast<FakeNode *>(to[i])->before.push_back(reinterpret_cast<FakeNode *>(from[i]));
        if (edges && edges[i].type != edges[i].from_port) wrong("an edge of a kind that does not exist");
        if (edges && edges[i].type == kProgrammatic) ++w.counts["early"];
    }
    return 0;
}
Result cuGraphInstantiateWithFlags(Executable *executable, Graph graph, unsigned long long) {
    BEGIN("cuGraphInstantiate");
    FakeGraph *found = reinterpret_cast<FakeGraph *>(graph);
    if (!w.graphs.count(found)) return wrong("a graph that does not live"), result::INVALID_VALUE;
    ++w.counts["instantiate"];
    FakeGraph *made = new FakeGraph;
    std::map<FakeNode *, FakeNode *> twin;
    for (FakeNode *node : found->nodes) {
        made->nodes.push_back(twin[node] = new FakeNode(*node));
        made->nodes.back()->kernel.extra = reinterpret_cast<void **>(node);  // which it is a copy of
        for (FakeNode *&before : made->nodes.back()->before) before = twin[before];
    }
    w.executables.insert(made);
    *executable = reinterpret_cast<Executable>(made);
    return 0;
}
Result cuGraphExecDestroy(Executable executable) {
    ENTER("cuGraphExecDestroy");
    FakeGraph *found = reinterpret_cast<FakeGraph *>(executable);
    if (!w.executables.erase(found)) return wrong("an executable is destroyed twice"), result::INVALID_VALUE;
    drop(found);
    return failing;
}
Result cuGraphExecKernelNodeSetParams_v2(Executable executable, Node node, const KernelNode *kernel) {
    BEGIN("cuGraphExecKernelNodeSetParams");
    FakeGraph *found = reinterpret_cast<FakeGraph *>(executable);
    if (!w.executables.count(found)) return wrong("an executable that does not live"), result::INVALID_VALUE;
    for (FakeNode *each : found->nodes) {
        if (each->kernel.extra != reinterpret_cast<void **>(node)) continue;
        ++w.counts["set"];
        each->kernel = *kernel;
        each->kernel.extra = reinterpret_cast<void **>(node);
        take_values(*each, function_of(kernel->function)->symbol);
        return 0;
    }
    return wrong("a node of another graph"), result::INVALID_VALUE;
}
Result cuGraphLaunch(Executable executable, Stream stream) {
    BEGIN("cuGraphLaunch");
    current();
    FakeGraph *found = reinterpret_cast<FakeGraph *>(executable);
    FakeStream *queue = stream_of(stream);
    if (!w.executables.count(found) || !queue) return wrong("an executable that does not live"), result::INVALID_VALUE;
    if (queue->capturing) return result::CAPTURE_FIRST;
    ++w.counts["graph_launch"];
    check_order(*found);
    step(queue);
    for (const FakeNode *node : found->nodes) execute(*node, queue);
    return 0;
}

}  // extern "C"
