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

/* Of this header. A library whose aot_abi_version() differs has other structs or functions. */
#define AOT_ABI_VERSION 1

/* ---- Status and errors ---- */

/* What functions that can fail return. Getters fail only with AOT_ERROR_ARGUMENT: an index out of range, or NULL. */
typedef enum aot_status {
    AOT_OK = 0,
    AOT_ERROR_ARGUMENT = 1,  /* the caller misused this API */
    AOT_ERROR_DAMAGED = 2,   /* the artifact's bytes are not what was written */
    AOT_ERROR_VERSION = 3,   /* an artifact of another format version */
    AOT_ERROR_TARGET = 4,    /* no program for this machine */
    AOT_ERROR_GUARD = 5,     /* an input or output does not fit what the artifact was built for */
    AOT_ERROR_MEMORY = 6,    /* an allocator gave NULL, or a device has no memory left */
    AOT_ERROR_CANCELLED = 7, /* by the cancel flag or the deadline */
    AOT_ERROR_IO = 8,        /* a file cannot be opened or read */
    AOT_ERROR_WEIGHTS = 9,   /* external weights are missing or differ */
    AOT_ERROR_INTERNAL = 10, /* a defect of the library */
    AOT_ERROR_DEVICE = 11,   /* the GPU's driver refused something, or a kernel failed */
    AOT_ERROR_SIGNATURE = 12 /* no trusted key signed the artifact, or that cannot be verified here */
} aot_status;

/* Why, finer than the status, for programs that count or decide; the numbers never change. */
typedef enum aot_reason {
    AOT_REASON_NONE = 0, /* the status says all */
    /* Of AOT_ERROR_GUARD. All but DATA: nothing was run, and nothing changed. */
    AOT_REASON_MISSING = 1,   /* an input, its shape or its data is NULL */
    AOT_REASON_PLACE = 2,     /* memory of another device */
    AOT_REASON_DTYPE = 3,     /* another element type */
    AOT_REASON_RANK = 4,      /* another number of dimensions */
    AOT_REASON_EXTENT = 5,    /* a fixed extent differs, or an output has another shape */
    AOT_REASON_RANGE = 6,     /* an extent that varies is outside its bounds, or no multiple of its divisor */
    AOT_REASON_RELATION = 7,  /* extents contradict each other */
    AOT_REASON_VALUE = 8,     /* an input chooses the program, and there is none for its value */
    AOT_REASON_LAYOUT = 9,    /* not row-major, or with gaps */
    AOT_REASON_ALIGNMENT = 10, /* an address that is not aligned */
    AOT_REASON_OVERLAP = 11,  /* memory of an output or of state that something else uses */
    AOT_REASON_DATA = 12,     /* what the run computed contradicts the model, such as a size; state may have changed */
    AOT_REASON_CAPTURE = 13,  /* not possible while a stream is captured */
    AOT_REASON_SIZE = 14,     /* sizes that no plan can be made for, such as more bytes than there are addresses */
    /* Of AOT_ERROR_CANCELLED. */
    AOT_REASON_CANCEL_FLAG = 32,
    AOT_REASON_DEADLINE = 33,
    /* Of AOT_ERROR_DEVICE. */
    AOT_REASON_DEVICE_LOST = 48 /* every later call with this GPU fails too, until the process is started anew */
} aot_reason;

/* What a serving process does about a status. */
typedef enum aot_advice {
    AOT_ADVICE_NONE = 0,     /* it is AOT_OK */
    AOT_ADVICE_OTHER = 1,    /* this artifact cannot do it here: another one, or another program, may */
    AOT_ADVICE_RETRY = 2,    /* the same call may succeed later, when there is memory */
    AOT_ADVICE_GIVE_UP = 3,  /* the request is over: its time is up, or the caller's code is wrong */
    AOT_ADVICE_RESTART = 4   /* the GPU is lost to this process: serve from a CPU's program, and start the process anew */
} aot_advice;

/* What went wrong, in the names of the user's model. The caller owns it, and may give NULL where it wants none.
 * Written only by a call that fails; texts that are too long are cut. */
typedef struct aot_error {
    size_t struct_size;
    int32_t status; /* an aot_status */
    int32_t reason; /* an aot_reason */
    char where[160];   /* the tensor or file */
    char message[512]; /* what was expected and what was found */
    char hint[256];    /* the remedy, one sentence, or empty */
} aot_error;

/* The name of a status, such as "guard"; "unknown" for another number. */
AOT_API const char *aot_status_name(int32_t status);

/* The name of a reason, such as "dtype"; "none" for AOT_REASON_NONE, "unknown" for another number. */
AOT_API const char *aot_reason_name(int32_t reason);

/* The aot_advice for a status with its reason. */
AOT_API int32_t aot_status_advice(int32_t status, int32_t reason);

/* ---- Tensors and memory ---- */

/* Where a model's or session's memory comes from; NULL, or NULL functions, mean the C library's. Copied by the call
 * that takes it; `user` and the functions must outlive what was made with it. `allocate` may return NULL (the call
 * then fails with AOT_ERROR_MEMORY) and must honour `alignment`, a power of two in bytes; `release` gets the same
 * `bytes`. Both are called only inside calls of this API, by the thread that calls: an allocator that several
 * sessions or models share must allow several threads. */
typedef struct aot_allocator {
    size_t struct_size;
    void *user; /* handed to both functions */
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *pointer, size_t bytes);
} aot_allocator;

/* Memory with a type and a shape, all of it borrowed. Laid out as DLPack's DLTensor, so that one may be passed as the
 * other. Inputs and outputs are row-major without gaps, in CPU memory and aligned to their element, or, of a model on a
 * GPU, also in memory of its device and aligned to 16 bytes. */
typedef struct aot_tensor {
    void *data; /* may be NULL where an extent is 0 */
    int32_t device_type; /* 1: CPU; 2: CUDA device; 3: pinned host memory; 13: managed memory of CUDA */
    int32_t device_id;   /* the ordinal of a CUDA device; not looked at for the CPU */
    int32_t rank;
    uint8_t dtype_code; /* 0 int, 1 uint, 2 float, 4 bfloat, 6 bool, 10 f8e4m3, 12 f8e5m2 */
    uint8_t dtype_bits;
    uint16_t dtype_lanes; /* 1 */
    const int64_t *shape;   /* `rank` extents, in elements */
    const int64_t *strides; /* in elements; NULL is row-major */
    uint64_t byte_offset;   /* from `data` to the first element */
} aot_tensor;

/* ---- Handles ---- */

/* A loaded artifact: code and weights. Immutable after load; any number of threads may use it. */
typedef struct aot_model aot_model;

/* What one run at a time needs: plans of recent shapes, the arena, memory of outputs. Mutable: one thread at a time. */
typedef struct aot_session aot_session;

/* Threads that sessions share. A run takes the whole pool; concurrent runs on one pool take turns. */
typedef struct aot_pool aot_pool;

/* ---- The library and this machine ---- */

/* AOT_ABI_VERSION of the library that was loaded. */
AOT_API uint32_t aot_abi_version(void);

/* The library's version, such as "0.1.0". */
AOT_API const char *aot_version(void);

/* 1 if this machine runs code of a target such as "cpu:x86-64-v4" or, on its first GPU, "cuda:sm_90a"; else 0. */
AOT_API int32_t aot_target_supported(const char *target);

/* Dot products of 8-bit integers (a target's "+vnni") and of bfloat16 ("+bf16"), with AVX-512. */
#define AOT_CPU_VNNI 1u
#define AOT_CPU_BF16 2u

/* A machine, this one or one that is only described. */
typedef struct aot_machine {
    size_t struct_size;
    int32_t cpu_level;  /* x86-64 micro-architecture level, 1 to 4; 0: the CPU is another one */
    int32_t capability; /* ten times the compute capability of its GPU, such as 89; 0: there is none */
    int32_t driver;     /* the GPU's driver, as the version of CUDA that it supports, such as 12040; 0: new enough */
    uint32_t cpu_extras; /* AOT_CPU_…: what a CPU of level 4 has beyond it */
} aot_machine;

/* Fills in this machine, with the GPU of an ordinal where there is one and a driver for it. */
AOT_API void aot_this_machine(int32_t device, aot_machine *out_machine);

/* How well code for a target fits a machine, or, if NULL, this one with its first GPU. 0: it does not run, and `reason`
 * says why, cut at `reason_bytes`. Loading an artifact takes the program with the largest number, and of equals the first:
 * machine code for exactly the GPU, for the nearest older one of its major version, text for the nearest older one, and
 * then code for a CPU. `lowest_driver`: the oldest driver that takes the code (0: any), as artifacts record it. */
AOT_API int32_t aot_target_rank(const char *target, int32_t lowest_driver, const aot_machine *machine, char *reason,
                                size_t reason_bytes);

/* CPUs that this process may use: its affinity, limited by the cgroup's quota. At least 1. */
AOT_API uint32_t aot_default_thread_count(void);

/* ---- Loading ---- */

/* A weight of the source model, row-major, for artifacts built with --weights none (or external). */
typedef struct aot_named_tensor {
    const char *name;
    const aot_tensor *tensor;
} aot_named_tensor;

/* Flags of aot_load_options. */
enum {
    AOT_LOAD_MAP_WEIGHTS = 1, /* use the file mapping (or the caller's bytes, which must then outlive the model) */
    AOT_LOAD_ANY_WEIGHTS = 2, /* accept given weights whose bytes differ from those of the build */
    /* Without it, constants that another model of this process has too, byte by byte, are in memory once: of models on
     * the CPU with the same allocator. With it, the model has all of them in one block of its own, as on machines with
     * several memory nodes, where each shall have them near. */
    AOT_LOAD_OWN_WEIGHTS = 4
};

/* How to load. Borrowed for the call, with all that it points to (but see aot_allocator). */
typedef struct aot_load_options {
    size_t struct_size;
    const aot_allocator *allocator; /* of the weights and tables that the model holds */
    const char *target; /* such as "cpu:x86-64-v3" or "cuda:sm_90a"; NULL: what fits this machine best */
    uint32_t flags;                  /* AOT_LOAD_... */
    uint32_t weight_count;           /* entries of `weights` */
    const aot_named_tensor *weights; /* in any order; NULL: none */
    const char *weights_path;        /* the external weights file; NULL: where the artifact says, beside it */
    const char *temporary_directory; /* a private folder for code, only where memfd_create is forbidden; or NULL */
    int32_t device; /* the ordinal of the GPU, for programs that run on one */
    int32_t reserved;
    void *context; /* a CUcontext to use, which must outlive the model; NULL: the device's primary context, retained */
    /* Raw Ed25519 public keys, 32 bytes each, one behind the other. Where given, only an artifact that one of them signed
     * (aotc sign) is loaded. That is decided before its code or weights are looked at, with the system's libcrypto, and
     * no byte is used but those that were checked: not with AOT_LOAD_MAP_WEIGHTS for a file, and AOT_LOAD_ANY_WEIGHTS
     * does not count. NULL and 0: any artifact. */
    const uint8_t *trusted_keys;
    uint32_t trusted_key_count;
    uint32_t reserved2;
} aot_load_options;

/* Loads an artifact: checks every byte of it, then its code and weights come into memory. `options` may be NULL. On
 * failure *out_model is NULL. The file may be replaced by a rename at any time, but must not change while it is read.
 * Errors: IO, DAMAGED, VERSION, SIGNATURE, TARGET (no code for this CPU, or loading code is forbidden), WEIGHTS, MEMORY. */
AOT_API int32_t aot_model_load_file(const char *path, const aot_load_options *options, aot_model **out_model,
                                    aot_error *error);

/* As aot_model_load_file, from memory. `bytes` may go after the call, unless AOT_LOAD_MAP_WEIGHTS is set. */
AOT_API int32_t aot_model_load_memory(const void *bytes, size_t size, const aot_load_options *options,
                                      aot_model **out_model, aot_error *error);

/* Frees a model, or, while it has sessions or device memory, lets the last of those take it along. NULL is allowed. */
AOT_API void aot_model_unload(aot_model *model);

/* ---- What a model is ---- */

/* A program of the artifact: one target, and perhaps one variant (fixed sizes). The texts live as long as the model. */
typedef struct aot_program_info {
    size_t struct_size;
    const char *target;    /* such as "cpu:x86-64-v3" */
    const char *variant;   /* such as "batch=8"; empty for the program that takes every shape */
    const char *planner;   /* which method placed the buffers */
    int32_t supported;     /* 1: this CPU, or the first GPU, runs it */
    int32_t selected;      /* 1: of the target that was chosen at load, so runs may use it */
    uint32_t kernel_count; /* distinct kernels */
    uint32_t step_count;   /* kernel launches of a run */
    uint64_t code_bytes;
    const char *reason; /* why the program was not selected, such as "no driver (libcuda.so.1 not found)"; else empty */
    uint32_t host_step_count; /* nodes that it runs on the CPU while the others run on a GPU */
    uint32_t reserved;
} aot_program_info;

/* An input or output. */
typedef struct aot_port_info {
    size_t struct_size;
    const char *name;     /* as the source model has it */
    const char *dtype;    /* such as "f32" */
    uint8_t dtype_code;   /* these three as in aot_tensor */
    uint8_t dtype_bits;
    uint16_t dtype_lanes;
    uint32_t rank;
    uint32_t chooses; /* 1: an input of one element whose value decides which of the model's programs runs */
} aot_port_info;

/* An extent of an input or output. */
typedef struct aot_dim_info {
    size_t struct_size;
    const char *text; /* such as "8", "batch" or "2*width + 1" */
    int64_t value;    /* -1 where the extent is not the same in every run */
} aot_dim_info;

/* A named extent that varies, and its values that the artifact was built for: lo to hi, multiples of divisor. */
typedef struct aot_symbol_info {
    size_t struct_size;
    const char *name;
    int64_t lo;
    int64_t hi;      /* inclusive; -1: no bound */
    int64_t divisor; /* at least 1 */
} aot_symbol_info;

/* A step of a program: one kernel launch. */
typedef struct aot_step_info {
    size_t struct_size;
    const char *label;    /* for people, such as "conv+add+relu" */
    const char *kind;     /* such as "window" or "map" */
    const char *symbol;   /* of its function in the code */
    const char *schedule; /* how the kernel loops, tiles and vectorizes */
    uint32_t loc_count; /* nodes of the user's model that the step computes */
} aot_step_info;

/* Programs of the artifact, also those that this CPU cannot run. */
AOT_API uint32_t aot_model_program_count(const aot_model *model);

/* Describes a program, in the order in which they are tried. */
AOT_API int32_t aot_model_program(const aot_model *model, uint32_t index, aot_program_info *out_info);

/* Inputs of the model; a run wants all of them. */
AOT_API uint32_t aot_model_input_count(const aot_model *model);

/* Outputs of the model. */
AOT_API uint32_t aot_model_output_count(const aot_model *model);

/* Describes an input. */
AOT_API int32_t aot_model_input(const aot_model *model, uint32_t index, aot_port_info *out_info);

/* Describes an output. */
AOT_API int32_t aot_model_output(const aot_model *model, uint32_t index, aot_port_info *out_info);

/* An extent of an input. */
AOT_API int32_t aot_model_input_dim(const aot_model *model, uint32_t index, uint32_t axis, aot_dim_info *out_info);

/* An extent of an output. */
AOT_API int32_t aot_model_output_dim(const aot_model *model, uint32_t index, uint32_t axis, aot_dim_info *out_info);

/* Extents that vary. */
AOT_API uint32_t aot_model_symbol_count(const aot_model *model);

/* Describes an extent that varies. */
AOT_API int32_t aot_model_symbol(const aot_model *model, uint32_t index, aot_symbol_info *out_info);

/* State: an input that `output` replaces, such as a cache. A run may be given one piece of memory for both, and then
 * updates it in place, only where it changes; with two pieces it fills the second. The caller keeps that memory. */
typedef struct aot_state_info {
    size_t struct_size;
    uint32_t input;
    uint32_t output;
    int32_t has_initial; /* 1: the model knows what the input holds before the first run */
} aot_state_info;

/* Pairs of state. */
AOT_API uint32_t aot_model_state_count(const aot_model *model);

/* Describes a pair. */
AOT_API int32_t aot_model_state(const aot_model *model, uint32_t index, aot_state_info *out_info);

/* Writes what the input of a pair holds before the first run. AOT_ERROR_ARGUMENT where the model does not know, or
 * `bytes` is not the size of that input. */
AOT_API int32_t aot_model_initial_state(const aot_model *model, uint32_t index, void *data, size_t bytes);

/* Steps of the selected program that runs when no variant fits (the last). */
AOT_API uint32_t aot_model_step_count(const aot_model *model);

/* Describes a step of that program. */
AOT_API int32_t aot_model_step(const aot_model *model, uint32_t index, aot_step_info *out_info);

/* A node of the user's model that a step computes; NULL where there is none. */
AOT_API const char *aot_model_step_loc(const aot_model *model, uint32_t step, uint32_t loc);

/* As aot_model_step, for any program of the artifact that was selected at load. */
AOT_API int32_t aot_model_program_step(const aot_model *model, uint32_t program, uint32_t index,
                                       aot_step_info *out_info);

/* As aot_model_step_loc, for any program of the artifact that was selected at load. */
AOT_API const char *aot_model_program_step_loc(const aot_model *model, uint32_t program, uint32_t step, uint32_t loc);

/* What the build recorded: JSON, `*out_bytes` long and not NUL-terminated. */
AOT_API const char *aot_model_meta(const aot_model *model, size_t *out_bytes);

/* Bytes of constants that the model holds, also those that other models share. */
AOT_API uint64_t aot_model_weight_bytes(const aot_model *model);

/* Of these, bytes that other models of this process hold too at this moment: unloading this model frees the others.
 * Pages of a file that is mapped are not among them: the system shares those. */
AOT_API uint64_t aot_model_shared_weight_bytes(const aot_model *model);

/* Checks the guards of inputs, as a run does first, without a session: which of several models takes a request can be
 * decided before it waits for one. Nothing is read of the tensors but their description, and the elements of inputs that
 * choose the program; those must be in host memory. Any number of threads may call it. Errors: GUARD, ARGUMENT, MEMORY. */
AOT_API int32_t aot_model_check(const aot_model *model, const aot_tensor *const *inputs, uint32_t input_count,
                                aot_error *error);

/* What sessions of a model did since it was loaded, also those that are gone. */
typedef struct aot_statistics {
    size_t struct_size;
    uint64_t sessions;      /* that there are now */
    uint64_t run_ns;        /* of all runs that ended well; of those that were only put into a stream, until they were */
    uint64_t by_status[16]; /* runs, by their aot_status; [AOT_OK] ended well */
    uint64_t by_reason[64]; /* runs that failed, by their aot_reason */
} aot_statistics;

/* Counts runs; those that are traced, and calls of prepare or reserve, are not among them. Costs runs a few nanoseconds,
 * and no lock. */
AOT_API void aot_model_statistics(const aot_model *model, aot_statistics *out_statistics);

/* ---- Device memory ---- */

/* The ordinal of the GPU that the model runs on; -1: it runs on the CPU. */
AOT_API int32_t aot_model_device(const aot_model *model);

/* Allocates memory of the model's GPU, for callers without a library of their own for that. It is aligned to 256
 * bytes. Errors: ARGUMENT (a model on the CPU), MEMORY, DEVICE. */
AOT_API int32_t aot_device_allocate(const aot_model *model, size_t bytes, void **out_data, aot_error *error);

/* Frees what aot_device_allocate gave, when everything that the GPU was told to do has ended. NULL is allowed. */
AOT_API void aot_device_free(const aot_model *model, void *data);

/* Copies between host and device memory, in whichever direction the addresses say, behind what `stream` (a CUstream, or
 * NULL) holds, and returns when all of that is done. With 0 bytes it only waits. */
AOT_API int32_t aot_device_copy(const aot_model *model, void *to, const void *from, size_t bytes, void *stream,
                                aot_error *error);

/* ---- Threads ---- */

/* Makes a pool. `thread_count` includes the thread that calls run; 0 is the default count, 1023 the most. The threads
 * take over the affinity of the thread that makes them. After a fork the child's first run makes new threads. */
AOT_API int32_t aot_pool_create(uint32_t thread_count, aot_pool **out_pool, aot_error *error);

/* Ends the threads of a pool. All sessions that use it must be gone. NULL is allowed. */
AOT_API void aot_pool_destroy(aot_pool *pool);

/* ---- Sessions ---- */

/* Flags of aot_session_options. */
enum {
    AOT_SESSION_PROFILE = 1,    /* take the time of every step, with a barrier behind each */
    AOT_SESSION_ALL_THREADS = 2, /* all threads also for runs so small that one alone is faster; for tests */
    AOT_SESSION_NO_GRAPH = 4,    /* on a GPU: launch kernels one by one; the results have the same bits */
    AOT_SESSION_FULL_EDGES = 8,  /* on a GPU: no kernel starts before the one ahead of it has ended; the same bits */
    AOT_SESSION_POISON = 16      /* on a GPU: all bits of intermediate values and of outputs that are not updated in
                                  * place are 1 when a run begins; for tests */
};

/* How to make a session. Borrowed for the call (but see aot_allocator). */
typedef struct aot_session_options {
    size_t struct_size;
    const aot_allocator *allocator; /* of the arena, scratch memory, plans and outputs */
    uint32_t thread_count;          /* 0: the pool's, or the default count; 1: no pool; never more than the pool has */
    uint32_t plan_cache_size;       /* shapes whose plans are kept; 0 means 8 */
    aot_pool *pool;                 /* must outlive the session; NULL: the pool of the process */
    uint32_t flags;                 /* AOT_SESSION_... */
} aot_session_options;

/* Flags of aot_run_options: where outputs lie that nobody bound, of a model on a GPU. Without one, in host memory if
 * all inputs are there, else in the session's device memory. */
enum {
    AOT_RUN_HOST_OUTPUTS = 1,
    AOT_RUN_DEVICE_OUTPUTS = 2
};

/* How to run. Borrowed for the call. */
typedef struct aot_run_options {
    size_t struct_size;
    const volatile int32_t *cancel; /* looked at between steps; non-zero: stop. Outputs are then undefined */
    uint64_t deadline_ns;           /* of CLOCK_MONOTONIC; 0: none */
    /* Gives the memory of outputs that the caller did not bind, which is then the caller's; NULL: the session's. */
    void *(*allocate_output)(void *user, uint32_t index, const aot_tensor *tensor, size_t bytes);
    void *user; /* handed to allocate_output */
    /* A CUstream of the model's context: a run whose tensors are all on the device is only put into it. NULL: the
     * context's default stream, or a stream of the session's own where all tensors are in host memory. The stream may
     * be one that the caller is capturing. A run with a tensor in host memory returns when it has ended. */
    void *stream;
    uint32_t flags; /* AOT_RUN_... */
    uint32_t reserved;
} aot_run_options;

/* A value for a symbol of the model. */
typedef struct aot_dim_value {
    const char *name;
    int64_t value;
} aot_dim_value;

/* Makes a session. The model must outlive it. `options` may be NULL. On failure *out_session is NULL. */
AOT_API int32_t aot_session_create(const aot_model *model, const aot_session_options *options,
                                   aot_session **out_session, aot_error *error);

/* Frees a session, and the outputs that it allocated. No call with it may be in progress. NULL is allowed. */
AOT_API void aot_session_destroy(aot_session *session);

/* Runs. `inputs` are all inputs in the order of the model. `outputs` may be NULL, as may any entry and its
 * data: such outputs are allocated. Tensors are borrowed for the call. Guards are checked first: a failed
 * guard changes nothing. Whether or not an output was bound, aot_session_output describes it afterwards.
 * `options` may be NULL. Errors: GUARD, ARGUMENT, CANCELLED, MEMORY. */
AOT_API int32_t aot_session_run(aot_session *session, const aot_tensor *const *inputs, uint32_t input_count,
                                const aot_tensor *const *outputs, uint32_t output_count,
                                const aot_run_options *options, aot_error *error);

/* Checks inputs and makes the plan for their shapes without running; outputs then have their shapes, no data. */
AOT_API int32_t aot_session_prepare(aot_session *session, const aot_tensor *const *inputs, uint32_t input_count,
                                    aot_error *error);

/* Makes the plan and the memory for given values of the model's symbols ahead of time; all must be given. */
AOT_API int32_t aot_session_reserve(aot_session *session, const aot_dim_value *dims, uint32_t count, aot_error *error);

/* An output of the last run or prepare: borrowed until the next call with this session. AOT_ERROR_ARGUMENT where
 * there is none. */
AOT_API int32_t aot_session_output(const aot_session *session, uint32_t index, aot_tensor *out_tensor);

/* Bytes of the arena: the memory of intermediate values, as large as the largest shape so far needed. */
AOT_API uint64_t aot_session_arena_bytes(const aot_session *session);

/* Bytes of all memory that the session holds now: arena, scratch memory, plans, outputs of its own. */
AOT_API uint64_t aot_session_memory_bytes(const aot_session *session);

/* Threads that a run may use, the calling one included; one with little work stays on the calling thread. */
AOT_API uint32_t aot_session_thread_count(const aot_session *session);

/* Blocks of host steps that runs of this session have made so far: CPU code between the kernels of a GPU, for nodes that
 * it has no kernel for. */
AOT_API uint64_t aot_session_host_steps(const aot_session *session);

/* Nanoseconds of each step of the last run of a session made with AOT_SESSION_PROFILE, and the index of its
 * program. Writes at most `count` values and returns how many steps there are; 0 where nothing was measured. */
AOT_API uint32_t aot_session_profile(const aot_session *session, uint64_t *out_ns, uint32_t count,
                                     uint32_t *out_program);

/* The time of a step, as aot_session_time_steps takes it. */
typedef struct aot_step_time {
    uint64_t ns;          /* of one launch; 0: nothing is launched for these shapes */
    uint32_t starts_early; /* 1: in a run the kernel may begin before the one ahead of it has ended */
    uint32_t reserved;
} aot_step_time;

/* Takes the time of each kernel of the last run, on a GPU, without the cost of launching it: `repeats` launches in a
 * graph of their own, one behind the other as in a run, with warm caches. `*out_run_ns`: one of as many runs in a row,
 * each a graph, without copies of inputs and outputs. Writes at most `count` steps; `*out_count` (or NULL): how many
 * there are. The memory of the last run is written over and over: its outputs in device memory, and state that it
 * updates in place, hold nothing of use afterwards. Errors: ARGUMENT (not on a GPU, no run, or a program with control
 * flow), MEMORY, DEVICE. */
AOT_API int32_t aot_session_time_steps(aot_session *session, uint32_t repeats, aot_step_time *out_steps, uint32_t count,
                                       uint32_t *out_count, uint64_t *out_run_ns, aot_error *error);

/* A step of a run that is traced: it has ended, and the next one has not begun. All of it is borrowed for the call. */
typedef struct aot_trace_step {
    size_t struct_size;
    uint32_t program; /* these two as aot_model_program_step takes them, */
    uint32_t step;    /* which also describes the step and its nodes of the user's model */
    const char *label; /* for people, such as "conv+add+relu" */
    /* What the step wrote, in host memory, with strides: by the name of the value in the user's model, or "". Of an
     * artifact without debug information (--strip-debug) there are none. */
    const aot_named_tensor *tensors;
    uint32_t tensor_count;
    uint32_t reserved;
} aot_trace_step;

/* Is told of each step, by the thread that runs. Must not use the session. Other than 0: the run stops. */
typedef int32_t (*aot_trace_function)(void *user, const aot_trace_step *step);

/* As aot_session_run, one step after the other, with a call of `trace` behind each; in loops, each time. On a GPU, each
 * kernel is waited for, and what it wrote is copied to the host: a kernel that fails is the one that the error names.
 * Outputs are the same, bit for bit. For tools: other runs are no slower for it. Errors: as aot_session_run, CANCELLED
 * where `trace` stopped it, ARGUMENT in a stream that is captured. */
AOT_API int32_t aot_session_trace(aot_session *session, const aot_tensor *const *inputs, uint32_t input_count,
                                  const aot_tensor *const *outputs, uint32_t output_count,
                                  const aot_run_options *options, aot_trace_function trace, void *user,
                                  aot_error *error);

/* ---- Generated code ---- */

/* How generated kernels are called; every thread of a run calls every kernel. */
typedef struct aot_kernel_args {
    void *const *buffers; /* in the order of the step's arguments */
    const int64_t *dims;  /* extents that the kernel asks for */
    void *scratch; /* the thread's own, 64-byte aligned */
    int32_t thread;
    int32_t thread_count;
} aot_kernel_args;

#ifdef __cplusplus
}
#endif

#endif
