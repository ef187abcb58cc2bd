/* The C API of libaot_runtime: load an artifact that aotc built, and run it.
 *
 * Every function may be called from any thread unless its type says otherwise. None aborts, throws,
 * prints or reads the environment. `load` and `create`: the caller owns the result and must `unload`
 * or `destroy` it. Other getters: borrowed, valid while the parent lives. `struct_size` is the first
 * field of every struct that may grow: set it to sizeof; fields behind it count as zero.
 * A run with shapes that were seen before allocates nothing.
 */
#ifndef AOT_RUNTIME_H
#define AOT_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define AOT_API __attribute__((visibility("default")))
#else
#define AOT_API
#endif

#define AOT_ABI_VERSION 1

typedef enum aot_status {
    AOT_OK = 0,
    AOT_ERROR_ARGUMENT = 1,  /* the caller misused this API */
    AOT_ERROR_DAMAGED = 2,   /* the artifact's bytes are not what was written */
    AOT_ERROR_VERSION = 3,   /* an artifact of another format version */
    AOT_ERROR_TARGET = 4,    /* no program for this CPU */
    AOT_ERROR_GUARD = 5,     /* an input or output does not fit what the artifact was built for */
    AOT_ERROR_MEMORY = 6,
    AOT_ERROR_CANCELLED = 7, /* by the cancel flag or the deadline */
    AOT_ERROR_IO = 8,
    AOT_ERROR_WEIGHTS = 9,   /* external weights are missing or differ */
    AOT_ERROR_INTERNAL = 10
} aot_status;

/* What went wrong, in the names of the user's model. The library never frees it. */
typedef struct aot_error {
    size_t struct_size;
    int32_t status;
    int32_t reserved;
    char where[160];   /* the tensor or file */
    char message[512]; /* what was expected and what was found */
    char hint[256];    /* the remedy, one sentence, or empty */
} aot_error;

/* Where memory comes from; NULL anywhere means the C library's. `release` gets the same size. */
typedef struct aot_allocator {
    size_t struct_size;
    void *user;
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *pointer, size_t bytes);
} aot_allocator;

/* Laid out as DLPack's DLTensor, so that one may be passed as the other. strides: elements; NULL is row-major. */
typedef struct aot_tensor {
    void *data;
    int32_t device_type; /* 1: CPU */
    int32_t device_id;
    int32_t rank;
    uint8_t dtype_code; /* 0 int, 1 uint, 2 float, 4 bfloat, 6 bool, 10 f8e4m3, 12 f8e5m2 */
    uint8_t dtype_bits;
    uint16_t dtype_lanes; /* 1 */
    const int64_t *shape;
    const int64_t *strides;
    uint64_t byte_offset;
} aot_tensor;

/* Immutable after load. Any number of threads may use it. */
typedef struct aot_model aot_model;
/* Mutable: one thread at a time. */
typedef struct aot_session aot_session;
/* Threads that sessions share. A run takes the whole pool; concurrent runs on one pool take turns. */
typedef struct aot_pool aot_pool;

/* A weight of the source model, row-major, for artifacts built with --weights none (or external). */
typedef struct aot_named_tensor {
    const char *name;
    const aot_tensor *tensor;
} aot_named_tensor;

enum {
    AOT_LOAD_MAP_WEIGHTS = 1, /* use the file mapping (or the caller's bytes, which must then outlive the model) */
    AOT_LOAD_ANY_WEIGHTS = 2  /* accept given weights whose bytes differ from those of the build */
};

typedef struct aot_load_options {
    size_t struct_size;
    const aot_allocator *allocator;
    const char *target; /* such as "cpu:x86-64-v3"; NULL: the first that this CPU supports */
    uint32_t flags;
    uint32_t weight_count;
    const aot_named_tensor *weights;
    const char *weights_path;        /* the external weights file; NULL: where the artifact says, beside it */
    const char *temporary_directory; /* a private folder for code, only where memfd_create is forbidden; or NULL */
} aot_load_options;

typedef struct aot_program_info {
    size_t struct_size;
    const char *target;
    const char *variant;
    const char *planner; /* which method placed the buffers */
    int32_t supported;   /* by this CPU */
    int32_t selected;
    uint32_t kernel_count;
    uint32_t step_count;
    uint64_t code_bytes;
} aot_program_info;

typedef struct aot_port_info {
    size_t struct_size;
    const char *name;
    const char *dtype; /* such as "f32" */
    uint8_t dtype_code;
    uint8_t dtype_bits;
    uint16_t dtype_lanes;
    uint32_t rank;
} aot_port_info;

typedef struct aot_dim_info {
    size_t struct_size;
    const char *text;   /* such as "batch" or "2*width + 1" */
    int64_t value;      /* -1 where the extent is not the same in every run */
} aot_dim_info;

typedef struct aot_symbol_info {
    size_t struct_size;
    const char *name;
    int64_t lo;
    int64_t hi; /* -1: no bound */
    int64_t divisor;
} aot_symbol_info;

typedef struct aot_step_info {
    size_t struct_size;
    const char *label;
    const char *kind;
    const char *symbol;
    const char *schedule;
    uint32_t loc_count; /* nodes of the user's model that the step computes */
} aot_step_info;

AOT_API uint32_t aot_abi_version(void);
AOT_API const char *aot_version(void);
AOT_API const char *aot_status_name(int32_t status);
/* Whether this CPU and operating system run code of a target such as "cpu:x86-64-v4". */
AOT_API int32_t aot_target_supported(const char *target);
/* CPUs that this process may use: its affinity, limited by the cgroup's quota. */
AOT_API uint32_t aot_default_thread_count(void);

AOT_API int32_t aot_model_load_file(const char *path, const aot_load_options *options, aot_model **out_model,
                                    aot_error *error);
/* `bytes` may go after the call, unless AOT_LOAD_MAP_WEIGHTS is set. */
AOT_API int32_t aot_model_load_memory(const void *bytes, size_t size, const aot_load_options *options,
                                      aot_model **out_model, aot_error *error);
/* All sessions must be gone. NULL is allowed. */
AOT_API void aot_model_unload(aot_model *model);

AOT_API uint32_t aot_model_program_count(const aot_model *model);
AOT_API int32_t aot_model_program(const aot_model *model, uint32_t index, aot_program_info *out_info);
AOT_API uint32_t aot_model_input_count(const aot_model *model);
AOT_API uint32_t aot_model_output_count(const aot_model *model);
AOT_API int32_t aot_model_input(const aot_model *model, uint32_t index, aot_port_info *out_info);
AOT_API int32_t aot_model_output(const aot_model *model, uint32_t index, aot_port_info *out_info);
AOT_API int32_t aot_model_input_dim(const aot_model *model, uint32_t index, uint32_t axis, aot_dim_info *out_info);
AOT_API int32_t aot_model_output_dim(const aot_model *model, uint32_t index, uint32_t axis, aot_dim_info *out_info);
AOT_API uint32_t aot_model_symbol_count(const aot_model *model);
AOT_API int32_t aot_model_symbol(const aot_model *model, uint32_t index, aot_symbol_info *out_info);
/* Steps of the selected program that runs when no variant fits (the last). */
AOT_API uint32_t aot_model_step_count(const aot_model *model);
AOT_API int32_t aot_model_step(const aot_model *model, uint32_t index, aot_step_info *out_info);
AOT_API const char *aot_model_step_loc(const aot_model *model, uint32_t step, uint32_t loc);
/* JSON for people, not NUL-terminated. */
AOT_API const char *aot_model_meta(const aot_model *model, size_t *out_bytes);
/* Bytes of constants that the model holds. */
AOT_API uint64_t aot_model_weight_bytes(const aot_model *model);

/* `thread_count` includes the thread that calls run; 0 is the default count. */
AOT_API int32_t aot_pool_create(uint32_t thread_count, aot_pool **out_pool, aot_error *error);
/* All sessions that use it must be gone. NULL is allowed. */
AOT_API void aot_pool_destroy(aot_pool *pool);

enum {
    AOT_SESSION_PROFILE = 1 /* take the time of every step, with a barrier behind each */
};

typedef struct aot_session_options {
    size_t struct_size;
    const aot_allocator *allocator;
    uint32_t thread_count;    /* 0: the default count; 1: no pool */
    uint32_t plan_cache_size; /* shapes whose plans are kept; 0 means 8 */
    aot_pool *pool;           /* NULL: the pool of the process */
    uint32_t flags;
} aot_session_options;

typedef struct aot_run_options {
    size_t struct_size;
    const volatile int32_t *cancel; /* looked at between steps; non-zero: stop. Outputs are then undefined */
    uint64_t deadline_ns;           /* of CLOCK_MONOTONIC; 0: none */
    /* Gives the memory of outputs that the caller did not bind, which is then the caller's; NULL: the session's. */
    void *(*allocate_output)(void *user, uint32_t index, const aot_tensor *tensor, size_t bytes);
    void *user;
} aot_run_options;

typedef struct aot_dim_value {
    const char *name;
    int64_t value;
} aot_dim_value;

/* The model must outlive its sessions. */
AOT_API int32_t aot_session_create(const aot_model *model, const aot_session_options *options,
                                   aot_session **out_session, aot_error *error);
AOT_API void aot_session_destroy(aot_session *session);

/* Runs. `inputs` are all inputs in the order of the model. `outputs` may be NULL, as may any entry and its
 * data: such outputs are allocated. Tensors are borrowed for the call. Guards are checked first: a failed
 * guard changes nothing. Whether or not an output was bound, aot_session_output describes it afterwards. */
AOT_API int32_t aot_session_run(aot_session *session, const aot_tensor *const *inputs, uint32_t input_count,
                                const aot_tensor *const *outputs, uint32_t output_count,
                                const aot_run_options *options, aot_error *error);
/* Checks inputs and makes the plan for their shapes without running; outputs then have their shapes, no data. */
AOT_API int32_t aot_session_prepare(aot_session *session, const aot_tensor *const *inputs, uint32_t input_count,
                                    aot_error *error);
/* Makes the plan and the memory for given values of the model's symbols ahead of time; all must be given. */
AOT_API int32_t aot_session_reserve(aot_session *session, const aot_dim_value *dims, uint32_t count, aot_error *error);
/* An output of the last run or prepare: borrowed until the next call with this session. */
AOT_API int32_t aot_session_output(const aot_session *session, uint32_t index, aot_tensor *out_tensor);
/* Bytes of the arena and of all memory that the session holds now. */
AOT_API uint64_t aot_session_arena_bytes(const aot_session *session);
AOT_API uint64_t aot_session_memory_bytes(const aot_session *session);
AOT_API uint32_t aot_session_thread_count(const aot_session *session);
/* Nanoseconds of each step of the last run of a session made with AOT_SESSION_PROFILE, and the index of its
 * program. Writes at most `count` values and returns how many steps there are; 0 where nothing was measured. */
AOT_API uint32_t aot_session_profile(const aot_session *session, uint64_t *out_ns, uint32_t count,
                                     uint32_t *out_program);
/* As aot_model_step, for any program of the artifact that was selected at load. */
AOT_API int32_t aot_model_program_step(const aot_model *model, uint32_t program, uint32_t index,
                                       aot_step_info *out_info);
AOT_API const char *aot_model_program_step_loc(const aot_model *model, uint32_t program, uint32_t step, uint32_t loc);

/* How generated kernels are called; every thread of a run calls every kernel. */
typedef struct aot_kernel_args {
    void *const *buffers;
    const int64_t *dims;
    void *scratch; /* the thread's own, 64-byte aligned */
    int32_t thread;
    int32_t thread_count;
} aot_kernel_args;

#ifdef __cplusplus
}
#endif

#endif
