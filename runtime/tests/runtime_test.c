/* Tests of the C API against tests/compat/dense-1.0.aot: relu(x @ w + b), x f32 [batch, 5], y f32 [batch, 19]. */
#define _GNU_SOURCE
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xmmintrin.h>

#ifdef AOT_COUNT_MALLOC
/* Every allocation of the process passes here, also those of the library. */
extern void *__libc_malloc(size_t);
extern void *__libc_memalign(size_t, size_t);
static atomic_long mallocs;
void *malloc(size_t bytes) {
    atomic_fetch_add(&mallocs, 1);
    return __libc_malloc(bytes);
}
int posix_memalign(void **out, size_t alignment, size_t bytes) {
    atomic_fetch_add(&mallocs, 1);
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : 12;
}
#endif

static aot_error error;
static const char *artifact_path;

static int32_t run(aot_session *session, Case *c) {
    error = (aot_error){.struct_size = sizeof error};
    return aot_session_run(session, c->inputs, 1, c->outputs, 1, NULL, &error);
}

static aot_session *new_session(const aot_model *model, uint32_t threads, const aot_allocator *allocator) {
    aot_session_options options = {.struct_size = sizeof options, .thread_count = threads, .allocator = allocator};
    aot_session *session = NULL;
    CHECK(aot_session_create(model, &options, &session, &error) == AOT_OK);
    return session;
}

static void test_getters(const aot_model *model) {
    CHECK(aot_abi_version() == AOT_ABI_VERSION && aot_version()[0]);
    CHECK(strcmp(aot_status_name(AOT_ERROR_GUARD), "guard") == 0 && strcmp(aot_status_name(99), "unknown") == 0);
    CHECK(aot_model_input_count(model) == 1 && aot_model_output_count(model) == 1);
    aot_port_info port = {.struct_size = sizeof port};
    CHECK(aot_model_input(model, 0, &port) == AOT_OK && strcmp(port.name, "x") == 0 && port.rank == 2 && !port.chooses);
    CHECK(strcmp(port.dtype, "f32") == 0 && aot_model_input(model, 1, &port) == AOT_ERROR_ARGUMENT);
    aot_dim_info dim = {.struct_size = sizeof dim};
    CHECK(aot_model_output_dim(model, 0, 0, &dim) == AOT_OK && strcmp(dim.text, "batch") == 0 && dim.value == -1);
    CHECK(aot_model_output_dim(model, 0, 1, &dim) == AOT_OK && dim.value == M);
    aot_symbol_info symbol = {.struct_size = sizeof symbol};
    CHECK(aot_model_symbol_count(model) == 1 && aot_model_symbol(model, 0, &symbol) == AOT_OK);
    CHECK(symbol.lo == 1 && symbol.hi == MAX_BATCH && symbol.divisor == 1);
    aot_step_info step = {.struct_size = sizeof step};
    CHECK(aot_model_step_count(model) == 2 && aot_model_step(model, 1, &step) == AOT_OK && step.loc_count == 2);
    CHECK(strcmp(aot_model_step_loc(model, 1, 1), "layer/Relu") == 0 && !aot_model_step_loc(model, 1, 2));
    aot_program_info program = {.struct_size = sizeof program};
    CHECK(aot_model_program(model, 0, &program) == AOT_OK && program.selected && program.supported);
    CHECK(aot_target_supported("cpu:x86-64") && !aot_target_supported("gpu") && !aot_target_supported(NULL));
    CHECK(aot_default_thread_count() >= 1);
    /* A caller that knows only the first fields gets only those. */
    struct { size_t size; const char *name; const char *canary; } old = {2 * sizeof(size_t), NULL, "canary"};
    CHECK(aot_model_input(model, 0, (aot_port_info *)&old) == AOT_OK);
    CHECK(strcmp(old.name, "x") == 0 && strcmp(old.canary, "canary") == 0 && old.size == 2 * sizeof(size_t));
}

static void test_shapes(const aot_model *model) {
    static const int64_t batches[] = {1, 2, 3, 64, 65, 4096, 1, 7};
    for (uint32_t threads = 1; threads <= 4; ++threads) {
        aot_session *session = new_session(model, threads, NULL);
        CHECK(aot_session_thread_count(session) == threads);
        for (size_t i = 0; i < sizeof batches / sizeof *batches; ++i) {
            Case c;
            make(&c, batches[i]);
            CHECK(run(session, &c) == AOT_OK && right(c.x, c.y, batches[i]));
            drop(&c);
        }
        aot_session_destroy(session);
    }
}

static void test_outputs(const aot_model *model) {
    aot_session *session = new_session(model, 1, NULL);
    Case c;
    make(&c, 9);
    aot_tensor found;
    CHECK(aot_session_output(session, 0, &found) == AOT_ERROR_ARGUMENT);
    CHECK(aot_session_run(session, c.inputs, 1, NULL, 0, NULL, &error) == AOT_OK);
    CHECK(aot_session_output(session, 0, &found) == AOT_OK && found.rank == 2);
    CHECK(found.shape[0] == 9 && found.shape[1] == M && right(c.x, found.data, 9));
    CHECK(aot_session_prepare(session, c.inputs, 1, &error) == AOT_OK);
    CHECK(aot_session_output(session, 0, &found) == AOT_OK && !found.data && found.shape[0] == 9);
    aot_session_destroy(session);
    drop(&c);
}

static void *take_output(void *user, uint32_t index, const aot_tensor *tensor, size_t bytes) {
    CHECK(index == 0 && tensor->rank == 2 && bytes == sizeof(float) * (size_t)tensor->shape[0] * M);
    return *(void **)user = malloc(bytes);
}

static void test_output_callback(const aot_model *model) {
    aot_session *session = new_session(model, 2, NULL);
    Case c;
    make(&c, 5);
    void *taken = NULL;
    aot_run_options options = {.struct_size = sizeof options, .allocate_output = take_output, .user = &taken};
    CHECK(aot_session_run(session, c.inputs, 1, NULL, 0, &options, &error) == AOT_OK);
    aot_session_destroy(session);
    CHECK(right(c.x, taken, 5)); /* it outlives the session */
    free(taken);
    drop(&c);
}

typedef struct Budget {
    atomic_int refuse;
    atomic_long live_bytes, calls;
} Budget;

static void *budget_allocate(void *user, size_t bytes, size_t alignment) {
    Budget *budget = user;
    void *pointer = NULL;
    if (atomic_load(&budget->refuse)) return NULL;
    if (posix_memalign(&pointer, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes)) return NULL;
    atomic_fetch_add(&budget->live_bytes, (long)bytes);
    atomic_fetch_add(&budget->calls, 1);
    return pointer;
}

static void budget_release(void *user, void *pointer, size_t bytes) {
    Budget *budget = user;
    atomic_fetch_sub(&budget->live_bytes, (long)bytes);
    free(pointer);
}

static void test_no_allocation(const aot_model *model) {
    Budget budget = {0};
    const aot_allocator allocator = {sizeof allocator, &budget, budget_allocate, budget_release};
    aot_session *session = new_session(model, 2, &allocator);
    Case small, large, unknown;
    make(&small, 3), make(&large, 1000), make(&unknown, 2000);
    CHECK(run(session, &small) == AOT_OK && run(session, &large) == AOT_OK);
    CHECK(aot_session_run(session, large.inputs, 1, NULL, 0, NULL, &error) == AOT_OK);
    atomic_store(&budget.refuse, 1);
#ifdef AOT_COUNT_MALLOC
    const long before = atomic_load(&mallocs);
#endif
    for (int i = 0; i < 100; ++i) {
        CHECK(run(session, i % 2 ? &small : &large) == AOT_OK);
        CHECK(aot_session_run(session, large.inputs, 1, NULL, 0, NULL, &error) == AOT_OK);
    }
#ifdef AOT_COUNT_MALLOC
    CHECK(atomic_load(&mallocs) == before);
#endif
    CHECK(right(small.x, small.y, 3) && right(large.x, large.y, 1000));
    CHECK(run(session, &unknown) == AOT_ERROR_MEMORY && strstr(error.message, "memory"));
    atomic_store(&budget.refuse, 0);
    CHECK(run(session, &unknown) == AOT_OK && right(unknown.x, unknown.y, 2000));
    CHECK(run(session, &small) == AOT_OK && right(small.x, small.y, 3));

    /* Reserved shapes are prepaid. */
    const aot_dim_value dims[] = {{"batch", 4096}};
    CHECK(aot_session_reserve(session, dims, 1, &error) == AOT_OK);
    atomic_store(&budget.refuse, 1);
    Case reserved;
    make(&reserved, 4096);
    CHECK(run(session, &reserved) == AOT_OK && right(reserved.x, reserved.y, 4096));
    CHECK(aot_session_arena_bytes(session) >= sizeof(float) * 4096 * M);
    CHECK(aot_session_memory_bytes(session) >= aot_session_arena_bytes(session));
    const aot_dim_value wrong[] = {{"batch", 5000}};
    CHECK(aot_session_reserve(session, wrong, 1, &error) == AOT_ERROR_GUARD);
    CHECK(aot_session_reserve(session, NULL, 0, &error) == AOT_ERROR_ARGUMENT && strcmp(error.where, "batch") == 0);
    aot_session_destroy(session);
    CHECK(atomic_load(&budget.live_bytes) == 0);
    drop(&small), drop(&large), drop(&unknown), drop(&reserved);
}

static void test_model_allocator(void) {
    Budget budget = {0};
    const aot_allocator allocator = {sizeof allocator, &budget, budget_allocate, budget_release};
    aot_load_options options = {.struct_size = sizeof options, .allocator = &allocator};
    aot_model *model = NULL;
    CHECK(aot_model_load_file(artifact_path, &options, &model, &error) == AOT_OK);
    CHECK(atomic_load(&budget.calls) > 0);
    aot_model_unload(model);
    CHECK(atomic_load(&budget.live_bytes) == 0);
    atomic_store(&budget.refuse, 1);
    CHECK(aot_model_load_file(artifact_path, &options, &model, &error) == AOT_ERROR_MEMORY && !model);
}

static void test_plan_cache(const aot_model *model) {
    aot_session_options options = {.struct_size = sizeof options, .thread_count = 1, .plan_cache_size = 2};
    aot_session *session = NULL;
    CHECK(aot_session_create(model, &options, &session, &error) == AOT_OK);
    for (int round = 0; round < 3; ++round) {
        for (int64_t batch = 1; batch < 7; ++batch) {
            Case c;
            make(&c, batch);
            CHECK(run(session, &c) == AOT_OK && right(c.x, c.y, batch));
            drop(&c);
        }
    }
    aot_session_destroy(session);
}

static void test_guards(const aot_model *model) {
    aot_session *session = new_session(model, 1, NULL);
    Case c;
    make(&c, 4);
#define REFUSED(text) (run(session, &c) == AOT_ERROR_GUARD && strstr(error.message, text))
    c.in.dtype_bits = 64;
    CHECK(REFUSED("expected element type f32, got f64") && strcmp(error.where, "input 'x'") == 0);
    c.in.dtype_bits = 32, c.in.dtype_lanes = 2;
    CHECK(REFUSED("element type"));
    c.in.dtype_lanes = 1, c.in.rank = 1;
    CHECK(REFUSED("expected 2 dimensions [batch, 5], got 1"));
    c.in.rank = 2, c.in_shape[1] = 4;
    CHECK(REFUSED("dimension 1: expected 5, got 4"));
    c.in_shape[1] = K, c.in_shape[0] = 0;
    CHECK(REFUSED("dimension 0 (batch): expected 1 to 4096, got 0"));
    c.in_shape[0] = -3;
    CHECK(REFUSED("impossible extent"));
    c.in_shape[0] = INT64_MAX;
    CHECK(REFUSED("impossible extent"));
    c.in_shape[0] = 4;
    c.in.device_type = 2;
    CHECK(REFUSED("CPU memory"));
    c.in.device_type = 1;
    const int64_t strides[] = {6, 1}, dense[] = {K, 1};
    c.in.strides = strides;
    CHECK(REFUSED("dimension 0 should have stride 5, got 6"));
    c.in.strides = dense;
    CHECK(run(session, &c) == AOT_OK);
    c.in.strides = NULL, c.in.data = NULL;
    CHECK(REFUSED("no data"));
    c.in.data = (char *)c.x + 1;
    CHECK(REFUSED("aligned to 4 bytes"));
    c.in.data = c.x - 2, c.in.byte_offset = 8;
    CHECK(run(session, &c) == AOT_OK && right(c.x, c.y, 4));
    c.in.data = c.x, c.in.byte_offset = 0;
    c.out_shape[0] = 5;
    CHECK(REFUSED("dimension 0: expected 4, got 5") && strcmp(error.where, "output 'y'") == 0);
    c.out_shape[0] = 4, c.out.data = c.x + 3;
    CHECK(REFUSED("overlaps that of input 'x'"));
    c.out.data = c.y;
    error.struct_size = offsetof(aot_error, where);
    CHECK(aot_session_run(session, c.inputs, 0, NULL, 0, NULL, &error) == AOT_ERROR_ARGUMENT);
    CHECK(error.status == AOT_ERROR_ARGUMENT && strcmp(error.where, "output 'y'") == 0); /* left alone */
    CHECK(aot_session_run(session, c.inputs, 0, NULL, 0, NULL, NULL) == AOT_ERROR_ARGUMENT);
    CHECK(aot_session_run(session, c.inputs, 1, c.outputs, 2, NULL, NULL) == AOT_ERROR_ARGUMENT);
    CHECK(aot_session_run(NULL, c.inputs, 1, NULL, 0, NULL, NULL) == AOT_ERROR_ARGUMENT);
    CHECK(run(session, &c) == AOT_OK && right(c.x, c.y, 4));
    aot_session_destroy(session);
    drop(&c);
}

static void test_cancel(const aot_model *model) {
    Case c;
    make(&c, 64);
    for (uint32_t threads = 1; threads <= 3; ++threads) {
        aot_session *session = new_session(model, threads, NULL);
        int32_t cancel = 1;
        aot_run_options options = {.struct_size = sizeof options, .cancel = &cancel};
        CHECK(aot_session_run(session, c.inputs, 1, c.outputs, 1, &options, &error) == AOT_ERROR_CANCELLED);
        CHECK(strstr(error.message, "cancel flag"));
        cancel = 0, options.deadline_ns = 1;
        CHECK(aot_session_run(session, c.inputs, 1, c.outputs, 1, &options, &error) == AOT_ERROR_CANCELLED);
        CHECK(strstr(error.message, "deadline"));
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        options.deadline_ns = (uint64_t)(now.tv_sec + 3600) * 1000000000u;
        CHECK(aot_session_run(session, c.inputs, 1, c.outputs, 1, &options, &error) == AOT_OK);
        aot_session_destroy(session);
    }
    drop(&c);
}

static void test_profile(const aot_model *model) {
    aot_session_options options = {.struct_size = sizeof options, .thread_count = 2, .flags = AOT_SESSION_PROFILE};
    aot_session *session = NULL;
    CHECK(aot_session_create(model, &options, &session, &error) == AOT_OK);
    Case c;
    make(&c, 4096);
    uint32_t program = 99;
    uint64_t ns[2] = {0, 0};
    CHECK(aot_session_profile(session, ns, 2, &program) == 0);
    CHECK(run(session, &c) == AOT_OK && right(c.x, c.y, 4096));
    CHECK(aot_session_profile(session, ns, 2, &program) == 2 && program == 0 && ns[0] > 0 && ns[1] > 0);
    aot_session_destroy(session);
    drop(&c);
}

typedef struct Traced {
    int steps, stop_at;
    const aot_model *model;
} Traced;

static int32_t look(void *user, const aot_trace_step *step) {
    Traced *traced = user;
    CHECK(step->struct_size == sizeof *step && step->program == 0 && (int)step->step == traced->steps);
    CHECK(step->tensor_count == 0 && step->reserved == 0);  // format 1.0 knew of none
    CHECK(aot_model_program_step_loc(traced->model, step->program, step->step, 0) != NULL);
    CHECK(strcmp(step->label, step->step ? "add + relu" : "matmul 5x19") == 0);
    return traced->steps++ == traced->stop_at;
}

static void test_trace(const aot_model *model) {
    for (uint32_t threads = 1; threads < 4; ++threads) {
        aot_session_options options = {.struct_size = sizeof options, .thread_count = threads,
                                       .flags = AOT_SESSION_ALL_THREADS | (threads == 3 ? AOT_SESSION_PROFILE : 0)};
        aot_session *session = NULL;
        CHECK(aot_session_create(model, &options, &session, &error) == AOT_OK);
        Case c;
        make(&c, 7);
        Traced traced = {.stop_at = -1, .model = model};
        CHECK(aot_session_trace(session, c.inputs, 1, c.outputs, 1, NULL, look, &traced, &error) == AOT_OK);
        CHECK(right(c.x, c.y, 7) && traced.steps == 2);
        for (int stop = 0; stop < 2; ++stop) {
            traced.steps = 0, traced.stop_at = stop;
            CHECK(aot_session_trace(session, c.inputs, 1, c.outputs, 1, NULL, look, &traced, &error) == AOT_ERROR_CANCELLED);
            CHECK(traced.steps == stop + 1 && strstr(error.message, "stopped by the function"));
        }
        CHECK(run(session, &c) == AOT_OK && right(c.x, c.y, 7) && traced.steps == 2);
        CHECK(aot_session_trace(session, c.inputs, 1, NULL, 0, NULL, NULL, NULL, &error) == AOT_ERROR_ARGUMENT);
        CHECK(aot_session_trace(NULL, c.inputs, 1, NULL, 0, NULL, look, NULL, &error) == AOT_ERROR_ARGUMENT);
        const int32_t cancel = 1;
        aot_run_options cancelled = {.struct_size = sizeof cancelled, .cancel = &cancel};
        traced.steps = 0;
        CHECK(aot_session_trace(session, c.inputs, 1, NULL, 0, &cancelled, look, &traced, &error) == AOT_ERROR_CANCELLED);
        CHECK(traced.steps == 0);
        aot_session_destroy(session);
        drop(&c);
    }
}

typedef struct Worker {
    pthread_t thread;
    const aot_model *model;
    aot_pool *pool;
    int number;
} Worker;

static void *work(void *argument) {
    const Worker *worker = argument;
    aot_session_options options = {.struct_size = sizeof options, .thread_count = 3, .pool = worker->pool};
    aot_session *session = NULL;
    aot_error own = {.struct_size = sizeof own};
    CHECK(aot_session_create(worker->model, &options, &session, &own) == AOT_OK);
    for (int64_t round = 0; round < 40; ++round) {
        Case c;
        const int64_t batch = 1 + (round * 37 + worker->number) % 200;
        make(&c, batch);
        CHECK(aot_session_run(session, c.inputs, 1, c.outputs, 1, NULL, &own) == AOT_OK);
        CHECK(right(c.x, c.y, batch));
        drop(&c);
    }
    aot_session_destroy(session);
    return NULL;
}

static void test_threads(const aot_model *model) {
    aot_pool *pool = NULL;
    CHECK(aot_pool_create(3, &pool, &error) == AOT_OK);
    Worker workers[6];
    for (int i = 0; i < 6; ++i) {
        workers[i] = (Worker){.model = model, .pool = i % 2 ? pool : NULL, .number = i};
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < 6; ++i) CHECK(pthread_join(workers[i].thread, NULL) == 0);
    aot_pool_destroy(pool);
}

static void test_parked(const aot_model *model) {
    aot_session *session = new_session(model, 3, NULL);
    Case c;
    make(&c, 33);
    for (int i = 0; i < 5; ++i) {
        CHECK(run(session, &c) == AOT_OK && right(c.x, c.y, 33));
        nanosleep(&(struct timespec){0, 2000000}, NULL); /* longer than workers spin */
    }
    aot_session_destroy(session);
    drop(&c);
}

#if !defined(__SANITIZE_THREAD__)
static void test_fork(const aot_model *model) {
    aot_session *session = new_session(model, 3, NULL);
    Case c;
    make(&c, 50);
    CHECK(run(session, &c) == AOT_OK);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        memset(c.y, 0xff, sizeof(float) * 50 * M);
        alarm(20);
        _exit(run(session, &c) == AOT_OK && right(c.x, c.y, 50) ? 0 : 1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(run(session, &c) == AOT_OK && right(c.x, c.y, 50));
    aot_session_destroy(session);
    drop(&c);
}
#endif

static void test_loading(void) {
    FILE *file = fopen(artifact_path, "rb");
    CHECK(file);
    static char bytes[1 << 20];
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    aot_model *model = NULL;
    const unsigned rounding = _mm_getcsr();
    CHECK(aot_model_load_memory(bytes, size, NULL, &model, &error) == AOT_OK);
    CHECK(_mm_getcsr() == rounding);
    aot_model *second = NULL; /* twice at once, and one after the other */
    CHECK(aot_model_load_memory(bytes, size, NULL, &second, &error) == AOT_OK);
    aot_model_unload(model);
    test_shapes(second);
    size_t meta = 0;
    CHECK(aot_model_meta(second, &meta) && meta > 2);
    aot_model_unload(second);
    aot_load_options options = {.struct_size = sizeof options, .flags = AOT_LOAD_MAP_WEIGHTS};
    CHECK(aot_model_load_file(artifact_path, &options, &model, &error) == AOT_OK);
    test_shapes(model);
    aot_model_unload(model);
    options = (aot_load_options){.struct_size = sizeof options, .target = "cpu:other"};
    CHECK(aot_model_load_file(artifact_path, &options, &model, &error) == AOT_ERROR_TARGET && !model);
    CHECK(strstr(error.message, "cpu:other") && strstr(error.message, "cpu:x86-64"));
    for (size_t cut = 0; cut < size; cut += 61) {
        CHECK(aot_model_load_memory(bytes, cut, NULL, &model, &error) == AOT_ERROR_DAMAGED && !model);
    }
    for (size_t at = 0; at < size; at += 13) {
        bytes[at] ^= 4;
        CHECK(aot_model_load_memory(bytes, size, NULL, &model, &error) == AOT_ERROR_DAMAGED && !model);
        CHECK(strstr(error.message, "damaged"));
        bytes[at] ^= 4;
    }
    CHECK(aot_model_load_file("/nowhere/model.aot", NULL, &model, &error) == AOT_ERROR_IO);
    CHECK(strcmp(error.where, "/nowhere/model.aot") == 0);
    CHECK(aot_model_load_file(NULL, NULL, &model, &error) == AOT_ERROR_ARGUMENT);
    CHECK(aot_model_load_memory(NULL, 0, NULL, &model, NULL) == AOT_ERROR_DAMAGED);
    aot_model_unload(NULL);
    aot_session_destroy(NULL);
    aot_pool_destroy(NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    artifact_path = argv[1];
    error.struct_size = sizeof error;
    aot_model *model = NULL;
    if (aot_model_load_file(artifact_path, NULL, &model, &error) != AOT_OK) {
        fprintf(stderr, "%s: %s\n", error.where, error.message);
        return 1;
    }
    test_getters(model);
    test_shapes(model);
    test_outputs(model);
    test_output_callback(model);
    test_no_allocation(model);
    test_plan_cache(model);
    test_guards(model);
    test_cancel(model);
    test_profile(model);
    test_trace(model);
    test_threads(model);
    test_parked(model);
#if !defined(__SANITIZE_THREAD__)
    test_fork(model);
#endif
    aot_model_unload(model);
    test_model_allocator();
    test_loading();
    puts("ok");
    return 0;
}
