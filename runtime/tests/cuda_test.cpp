// Runs on a simulated GPU (fake_cuda.cpp): the artifact is made by tests/runtime/cuda_programs.py. next = x + w + cache
// and y = next + x + w, over n elements, with cache and next one piece of state.
#include <aot/runtime.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "fake_cuda.h"

extern "C" {
using namespace aot::cuda;
Result cuStreamCreate(Stream *, unsigned);
Result cuStreamDestroy_v2(Stream);
Result cuStreamSynchronize(Stream);
Result cuStreamBeginCapture_v2(Stream, int);
Result cuStreamEndCapture(Stream, Graph *);
Result cuGraphInstantiateWithFlags(Executable *, Graph, unsigned long long);
Result cuGraphLaunch(Executable, Stream);
Result cuGraphExecDestroy(Executable);
Result cuGraphDestroy(Graph);
Result cuCtxGetCurrent(Context *);
Result cuCtxPushCurrent_v2(Context);
Result cuCtxPopCurrent_v2(Context *);
Result cuDevicePrimaryCtxRetain(Context *, Ordinal);
Result cuDevicePrimaryCtxRelease_v2(Ordinal);
Result cuMemAlloc_v2(Address *, size_t);
Result cuMemFree_v2(Address);
Result cuModuleLoadDataEx(Module *, const void *, unsigned, const int *, void *const *);
Result cuModuleUnload(Module);
Result cuModuleGetFunction(Function *, Module, const char *);
Result cuGraphCreate(Graph *, unsigned);
Result cuGraphAddKernelNode_v2(Node *, Graph, const Node *, size_t, const KernelNode *);
Result cuLaunchKernelEx(const LaunchConfig *, Function, void **, void **);
}

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

#define CHECK_TEXT(text, part)                                                                            \
    do {                                                                                                  \
        if (!strstr(text, part)) {                                                                        \
            fprintf(stderr, "%s:%d: \"%s\" is not in \"%s\"\n", __FILE__, __LINE__, part, std::string(text).c_str()); \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

#define CHECK_CLEAN(live)                                                        \
    do {                                                                         \
        const std::string misuse_ = fake_misuse();                               \
        if (!misuse_.empty()) fprintf(stderr, "misuse: %s\n", misuse_.c_str()); \
        CHECK(misuse_.empty());                                                  \
        CHECK(fake_live() == (live));                                            \
    } while (0)

namespace {

const char *path;

float weight(int64_t i) { return static_cast<float>(i % 37 - 18) / 8; }

aot_error new_error() {
    aot_error error{};
    error.struct_size = sizeof error;
    return error;
}

aot_model *load(aot_error *error, int device = 0, void *context = nullptr) {
    aot_load_options options{};
    options.struct_size = sizeof options;
    options.device = device;
    options.context = context;
    aot_model *model = nullptr;
    aot_model_load_file(path, &options, &model, error);
    return model;
}

aot_model *load() {
    aot_error error = new_error();
    aot_model *model = load(&error);
    if (!model) fprintf(stderr, "%s: %s\n", error.where, error.message);
    CHECK(model);
    return model;
}

aot_session *session_of(const aot_model *model, uint32_t flags = 0, uint32_t plans = 0) {
    aot_session_options options{};
    options.struct_size = sizeof options;
    options.flags = flags;
    options.plan_cache_size = plans;
    aot_session *session = nullptr;
    CHECK(aot_session_create(model, &options, &session, nullptr) == AOT_OK);
    return session;
}

// Inputs and outputs of n elements, in host memory, and in a model's device memory where it has one.
struct Case {
    explicit Case(int64_t n, int seed = 0) : n(n), shape{n}, x(n + 1), cache(n + 1), y(n + 1, -1), next(n + 1, -1) {
        for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>((i * 3 + seed) % 17), cache[i] = static_cast<float>((i + seed) % 5);
        for (int i = 0; i < 2; ++i) in[i] = &tensors[i], out[i] = &tensors[2 + i];
        on_host();
    }
    ~Case() {
        for (void *piece : pieces) aot_device_free(model, piece);
    }
    aot_tensor tensor(void *data, int type) const { return aot_tensor{data, type, 0, 1, 2, 32, 1, &shape[0], nullptr, 0}; }
    void on_host() {
        float *const data[] = {x.data(), cache.data(), y.data(), next.data()};
        for (int i = 0; i < 4; ++i) tensors[i] = tensor(data[i], 1);
    }
    // False where there is no memory.
    bool on_device(const aot_model *of, bool in_place = false) {
        model = of;
        const float *const data[] = {x.data(), cache.data(), y.data(), next.data()};
        for (int i = 0; i < 4; ++i) {
            if (i == 3 && in_place) {
                tensors[3] = tensors[1];
                break;
            }
            void *piece = nullptr;
            if (aot_device_allocate(model, static_cast<size_t>(n) * 4, &piece, nullptr) != AOT_OK) return false;
            pieces.push_back(piece);
            if (aot_device_copy(model, piece, data[i], static_cast<size_t>(n) * 4, nullptr, nullptr) != AOT_OK) return false;
            tensors[i] = tensor(piece, 2);
        }
        return true;
    }
    int32_t run(aot_session *session, aot_error *error = nullptr, void *stream = nullptr, bool bind = true) {
        aot_run_options options{};
        options.struct_size = sizeof options;
        options.stream = stream;
        return aot_session_run(session, in, 2, bind ? out : nullptr, bind ? 2 : 0, &options, error);
    }
    // With the steps counted.
    int32_t trace(aot_session *session, aot_error *error = nullptr, void *stream = nullptr) {
        aot_run_options options{};
        options.struct_size = sizeof options;
        options.stream = stream;
        steps = 0;
        const aot_trace_function told = [](void *user, const aot_trace_step *step) -> int32_t {
            Case &self = *static_cast<Case *>(user);
            const aot_tensor &tensor = *step->tensors[0].tensor;
            CHECK(step->step == self.steps++ && step->tensor_count == 1 && tensor.shape[0] == self.n && tensor.device_type == 1);
            const float *const found = static_cast<const float *>(tensor.data);
            for (int64_t i = 0; i < self.n; ++i) {
                const float sum = self.x[i] + weight(i), next = sum + self.cache[i];
                CHECK(found[i] == (step->step == 0 ? sum : step->step == 3 ? next + sum : next));
            }
            return 0;
        };
        return aot_session_trace(session, in, 2, out, 2, &options, told, this, error);
    }
    bool fetch(void *stream = nullptr) {
        if (tensors[2].device_type != 2) return true;
        return aot_device_copy(model, y.data(), tensors[2].data, static_cast<size_t>(n) * 4, stream, nullptr) == AOT_OK &&
               aot_device_copy(model, next.data(), tensors[3].data, static_cast<size_t>(n) * 4, stream, nullptr) == AOT_OK;
    }
    bool right() const {
        for (int64_t i = 0; i < n; ++i) {
            const float sum = x[i] + weight(i);
            if (next[i] != sum + cache[i] || y[i] != sum + cache[i] + sum) return false;
        }
        return true;
    }

    const aot_model *model = nullptr;
    int64_t n, shape[1];
    uint32_t steps = 0;
    std::vector<float> x, cache, y, next;
    std::vector<void *> pieces;
    aot_tensor tensors[4];
    const aot_tensor *in[2], *out[2];
};

void too_old_or_missing() {
    aot_error error = new_error();
    fake_machine(1, 90, 11040, 1 << 30);
    CHECK(!load(&error));
    CHECK_TEXT(aot_status_name(error.status), "target");
    CHECK_TEXT(error.message, "cuda:sm_90a: the driver supports CUDA 11.4, 12.0 or newer is needed");
    fake_machine(0, 90, 13000, 1 << 30);
    CHECK(!load(&error));
    CHECK_TEXT(error.message, "the driver does not start");
    fake_machine(1, 80, 13000, 1 << 30);
    CHECK(!load(&error));
    CHECK_TEXT(error.message, "device 0 (Simulated GPU) has compute capability 8.0, 9.0 is needed");
    fake_machine(1, 90, 13000, 1 << 30);
    CHECK(!load(&error, 3));
    CHECK_TEXT(error.message, "there is no device 3 (the driver has 1)");
    CHECK(aot_target_supported("cuda:sm_90a") && aot_target_supported("cuda:sm_90") && aot_target_supported("cuda:compute_80"));
    CHECK(!aot_target_supported("cuda:sm_80") && !aot_target_supported("cuda:sm_100a") && !aot_target_supported("cuda:what"));
    char reason[64];
    aot_machine here{sizeof here, 0, 0, 0, 7}, none{sizeof none, 3, 0, 0, 0};
    aot_this_machine(0, &here);
    CHECK(here.capability == 90 && here.driver == 13000 && here.cpu_level > 0 && (here.cpu_level == 4 || !here.cpu_extras));
    aot_this_machine(5, &here);
    CHECK(here.capability == 0 && here.driver == 13000);
    CHECK(aot_target_rank("cuda:sm_90a", 0, nullptr, reason, sizeof reason) > aot_target_rank("cuda:compute_90", 0, nullptr, nullptr, 0));
    CHECK(!*reason && aot_target_rank("cuda:sm_90a", 0, &none, reason, sizeof reason) == 0);
    CHECK_TEXT(reason, "there is no GPU");
    CHECK(aot_target_rank("cuda:sm_100a", 0, nullptr, reason, 20) == 0 && strcmp(reason, "device 0 (Simulated") == 0);
    CHECK(aot_target_rank(nullptr, 0, nullptr, reason, sizeof reason) == 0 && strcmp(reason, "no target was given") == 0);
    fake_machine(1, 89, 13000, 1 << 30);
    CHECK(aot_target_supported("cuda:sm_86") && aot_target_supported("cuda:sm_80") && !aot_target_supported("cuda:sm_90a"));
    fake_machine(1, 90, 13000, 1 << 30);
    CHECK_CLEAN(0);
}

void runs() {
    for (uint32_t flags : {0u, unsigned(AOT_SESSION_NO_GRAPH), unsigned(AOT_SESSION_PROFILE), unsigned(AOT_SESSION_FULL_EDGES),
                           unsigned(AOT_SESSION_POISON), unsigned(AOT_SESSION_POISON | AOT_SESSION_NO_GRAPH)}) {
        fake_machine(1, 90, 13000, 1 << 30);
        aot_model *model = load();
        aot_session *session = session_of(model, flags);
        for (int64_t n : {300, 8, 0, 4096, 300, 1}) {
            Case host(n), device(n, 3), state(n, 5);
            CHECK(host.run(session) == AOT_OK && host.right());
            CHECK(device.on_device(model) && device.run(session) == AOT_OK && device.fetch() && device.right());
            CHECK(state.on_device(model, true) && state.run(session) == AOT_OK && state.fetch() && state.right());
            CHECK(device.run(session, nullptr, nullptr, false) == AOT_OK);
            aot_tensor found{};
            CHECK(aot_session_output(session, 0, &found) == AOT_OK && found.device_type == 2 && found.device_id == 0);
            CHECK(host.run(session, nullptr, nullptr, false) == AOT_OK);
            CHECK(aot_session_output(session, 0, &found) == AOT_OK && found.device_type == 1);
            CHECK(!n || memcmp(found.data, host.y.data(), static_cast<size_t>(n) * 4) == 0);
        }
        const bool plain = flags & (AOT_SESSION_NO_GRAPH | AOT_SESSION_PROFILE);
        CHECK((fake_count("graph_launch") == 0) == plain);
        CHECK((fake_count("early") == 0) == (flags == AOT_SESSION_FULL_EDGES || flags == AOT_SESSION_PROFILE));
        CHECK((fake_count("set_bytes") > 0) == ((flags & AOT_SESSION_POISON) != 0));
        uint64_t times[4];
        uint32_t program = 9;
        CHECK(aot_session_profile(session, times, 4, &program) == (flags == AOT_SESSION_PROFILE ? 4u : 0u));
        CHECK(flags != AOT_SESSION_PROFILE || (times[0] == 500000 && times[3] == 500000 && program == 1));
        aot_session_destroy(session);
        aot_model_unload(model);
        CHECK_CLEAN(0);
    }
}

// Each step many times in a graph of its own, and the whole run; the simulated driver takes half a millisecond for either.
void kernels_are_timed() {
    for (uint32_t flags : {0u, unsigned(AOT_SESSION_NO_GRAPH), unsigned(AOT_SESSION_FULL_EDGES)}) {
        fake_machine(1, 90, 13000, 1 << 30);
        aot_model *model = load();
        aot_session *session = session_of(model, flags);
        aot_error error = new_error();
        aot_step_time steps[5] = {{9, 9, 9}, {9, 9, 9}, {9, 9, 9}, {9, 9, 9}, {9, 9, 9}};
        uint64_t run_ns = 0;
        uint32_t count = 0;
        CHECK(aot_session_time_steps(session, 50, steps, 4, &count, &run_ns, &error) == AOT_ERROR_ARGUMENT);
        CHECK_TEXT(error.message, "there are no kernels to time");
        Case host(300), empty(0), device(64, 3);
        CHECK(device.on_device(model) && device.run(session) == AOT_OK);  // in a stream, perhaps still running
        CHECK(aot_session_time_steps(session, 50, steps, 4, nullptr, &run_ns, &error) == AOT_OK);
        CHECK(host.run(session) == AOT_OK);
        const long launched = fake_count("graph_launch"), early = fake_count("early");
        CHECK(aot_session_time_steps(session, 0, steps, 4, &count, &run_ns, &error) == AOT_ERROR_ARGUMENT);
        CHECK(aot_session_time_steps(session, 50, steps, 4, &count, &run_ns, &error) == AOT_OK);
        CHECK(count == 4 && run_ns == 10000 && fake_count("graph_launch") == launched + 51 + 4 * 2);
        for (uint32_t i = 0; i < 4; ++i) {
            CHECK(steps[i].ns == 10000 && steps[i].starts_early == (i && flags != AOT_SESSION_FULL_EDGES) && !steps[i].reserved);
        }
        CHECK(steps[4].ns == 9);
        CHECK((fake_count("early") == early) == (flags == AOT_SESSION_FULL_EDGES));
        CHECK(host.right());  // what the caller got before
        CHECK(aot_session_time_steps(session, 3, steps, 2, &count, &run_ns, &error) == AOT_OK && count == 4);
        CHECK(host.run(session) == AOT_OK && host.right());  // the session is none the worse
        CHECK(empty.run(session) == AOT_OK && aot_session_time_steps(session, 2, steps, 5, &count, &run_ns, &error) == AOT_OK);
        CHECK(count == 4 && steps[0].ns == 0 && steps[4].ns == 0);
        aot_session_destroy(session);
        for (void *piece : device.pieces) aot_device_free(model, piece);
        device.pieces.clear();
        aot_model_unload(model);
        CHECK_CLEAN(0);
    }
}

// Only the launches whose addresses changed are touched, and shapes come and go within the limit.
void graphs_are_kept() {
    fake_machine(1, 90, 13000, 1 << 30);
    aot_model *model = load();
    aot_session *session = session_of(model, 0, 2);
    Case first(300), second(300, 1);
    CHECK(first.on_device(model) && second.on_device(model));
    CHECK(first.run(session) == AOT_OK);
    const long sets = fake_count("set");
    CHECK(first.run(session) == AOT_OK && fake_count("set") == sets && fake_count("instantiate") == 1);
    second.in[1] = first.in[1], second.out[0] = first.out[0], second.out[1] = first.out[1];
    CHECK(second.run(session) == AOT_OK && fake_count("set") == sets + 1);  // x is read by one launch
    CHECK(fake_count("early") == 3);
    Case wide(4000);
    CHECK(wide.on_device(model));
    const long live = fake_live();
    for (int round = 0; round < 3; ++round) {
        for (int64_t n : {300, 40, 41, 42}) {
            Case c(n, round);
            CHECK(c.run(session) == AOT_OK && c.right());
        }
    }
    CHECK(fake_live() <= live + 8);  // two graphs with their executables, the stream and staging memory
    CHECK(wide.run(session) == AOT_OK && wide.fetch() && wide.right());
    aot_dim_value dim{"n", 77};
    CHECK(aot_session_reserve(session, &dim, 1, nullptr) == AOT_OK);
    const long made = fake_count("instantiate");
    Case reserved(77);
    CHECK(reserved.run(session) == AOT_OK && reserved.right() && fake_count("instantiate") == made);
    aot_session_destroy(session);
    for (Case *c : {&first, &second, &wide}) {
        for (void *piece : c->pieces) aot_device_free(model, piece);
        c->pieces.clear();
    }
    aot_model_unload(model);
    CHECK_CLEAN(0);
}

void captured() {
    fake_machine(1, 90, 13000, 1 << 30);
    aot_model *model = load();
    aot_session *session = session_of(model);
    Stream stream;
    {
        Case c(300), host(300), wide(4096);
        CHECK(c.on_device(model) && wide.on_device(model));
        Context context;
        CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxPushCurrent_v2(context) == 0 && cuStreamCreate(&stream, kNonBlocking) == 0);
        CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
        CHECK(c.run(session, nullptr, stream) == AOT_OK);  // also the first run: it allocates while the stream is captured
        aot_error error = new_error();
        CHECK(host.run(session, &error, stream) == AOT_ERROR_GUARD);
        CHECK_TEXT(error.message, "while a stream is captured");
        CHECK(c.trace(session, &error, stream) == AOT_ERROR_ARGUMENT);
        CHECK_TEXT(error.message, "a run cannot be traced while a stream is captured");
        Graph graph;
        Executable executable;
        CHECK(cuStreamEndCapture(stream, &graph) == 0 && cuGraphInstantiateWithFlags(&executable, graph, 0) == 0);
        CHECK(fake_count("captured") == 4 && fake_count("launch") == 0);
        CHECK(wide.run(session, nullptr, stream) == AOT_OK);  // a larger arena: the captured one stays
        CHECK(cuGraphLaunch(executable, stream) == 0 && c.fetch(stream) && c.right() && wide.fetch(stream) && wide.right());
        CHECK(cuGraphExecDestroy(executable) == 0 && cuGraphDestroy(graph) == 0 && cuStreamDestroy_v2(stream) == 0);
        CHECK(cuCtxPopCurrent_v2(&context) == 0 && cuDevicePrimaryCtxRelease_v2(0) == 0);
        aot_session_destroy(session);
    }
    aot_model_unload(model);
    CHECK_CLEAN(0);
}

void weights_are_shared() {
    fake_machine(1, 90, 13000, 1 << 30);
    aot_model *first = load();
    const long copied = fake_count("copy_in");
    CHECK(copied == 4096 * 4);
    CHECK(aot_model_shared_weight_bytes(first) == 0);
    aot_model *second = load();
    CHECK(fake_count("copy_in") == copied);
    CHECK(aot_model_shared_weight_bytes(first) == 4096 * 4 && aot_model_shared_weight_bytes(second) == 4096 * 4);
    aot_model_unload(first);
    CHECK(aot_model_shared_weight_bytes(second) == 0 && aot_model_weight_bytes(second) >= 4096 * 4);
    aot_session *session = session_of(second);
    Case c(8);
    CHECK(c.run(session) == AOT_OK && c.right());
    aot_session_destroy(session);
    aot_model_unload(second);
    CHECK_CLEAN(0);
}

void context_of_the_caller() {
    fake_machine(2, 90, 13000, 1 << 30);
    Context context, now;
    CHECK(cuDevicePrimaryCtxRetain(&context, 1) == 0);
    aot_error error = new_error();
    aot_model *model = load(&error, 0, context);
    CHECK(model && aot_model_device(model) == 1);
    aot_session *session = session_of(model);
    Case c(300);
    CHECK(c.run(session) == AOT_OK && c.right());
    CHECK(cuCtxGetCurrent(&now) == 0 && !now);
    aot_session_destroy(session);
    aot_model_unload(model);
    CHECK(cuDevicePrimaryCtxRelease_v2(1) == 0);
    CHECK(!load(&error, 0, context));
    CHECK_TEXT(error.message, "the given context cannot be used");
    CHECK_CLEAN(0);
}

void wrong_tensors() {
    fake_machine(2, 90, 13000, 1 << 30);
    aot_error error = new_error();
    aot_model *model = load(), *other = load(&error, 1);
    CHECK(other);
    aot_session *session = session_of(model);
    {
        Case c(300), there(300);
        CHECK(c.on_device(model) && there.on_device(other));
        const aot_tensor good = c.tensors[0];
        auto refused = [&](const char *message, const char *hint) {
            CHECK(c.run(session, &error) == AOT_ERROR_GUARD);
            CHECK_TEXT(error.where, "input 'x'");
            CHECK_TEXT(error.message, message);
            CHECK_TEXT(error.hint, hint);
            c.tensors[0] = good;
            CHECK(c.run(session) == AOT_OK);
        };
        c.tensors[0].data = c.x.data();
        refused("which the driver knows as no memory of a device", "say that it is in host memory");
        c.tensors[0].data = static_cast<char *>(good.data) + 4;
        refused("aligned to 16 bytes", "memory of its own");
        c.tensors[0].data = there.tensors[0].data;
        refused("expected memory of device 0, got memory of device 1", "Copy the tensor to the model's device");
        c.tensors[0].device_id = 1;
        refused("expected memory of device 0, got memory of device 1", "Copy the tensor to the model's device");
        c.tensors[0].device_type = 10;
        refused("DLPack device type 10", "Copy the tensor to the GPU");
        c.tensors[2].data = good.data;
        CHECK(c.run(session, &error) == AOT_ERROR_GUARD);
        CHECK_TEXT(error.message, "overlaps that of input 'x'");
    }
    aot_session_destroy(session);
    aot_model_unload(model);
    aot_model_unload(other);
    CHECK_CLEAN(0);
}

void memory_runs_out() {
    fake_machine(1, 90, 13000, 1000);
    aot_error error = new_error();
    CHECK(!load(&error) && error.status == AOT_ERROR_MEMORY);
    CHECK_TEXT(error.message, "device 0 has no 16384 bytes for weights: 1000 of its 1000 bytes are free");
    CHECK_TEXT(error.where, "layer.weight");
    fake_machine(1, 90, 13000, 30000);
    aot_model *model = load();
    aot_session *session = session_of(model);
    Case small(100), large(4096);
    CHECK(large.run(session, &error) == AOT_ERROR_MEMORY);
    CHECK_TEXT(error.message, "for intermediate values");
    CHECK(small.run(session) == AOT_OK && small.right());
    aot_session_destroy(session);
    aot_model_unload(model);
    CHECK_CLEAN(0);
}

void sticky_error() {
    fake_machine(1, 90, 13000, 1 << 30);
    aot_model *model = load();
    aot_session *session = session_of(model);
    Case c(300);
    CHECK(c.run(session) == AOT_OK);
    aot_error error = new_error();
    fake_fail(6, 700);
    CHECK(c.run(session, &error) == AOT_ERROR_DEVICE);
    CHECK_TEXT(error.message, "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered");
    CHECK_TEXT(error.hint, "restart the process");
    CHECK(c.run(session, &error) == AOT_ERROR_DEVICE);
    CHECK(strcmp(aot_status_name(error.status), "device") == 0);
    CHECK(error.reason == AOT_REASON_DEVICE_LOST);
    CHECK(aot_status_advice(error.status, error.reason) == AOT_ADVICE_RESTART);
    aot_statistics counts = {};
    counts.struct_size = sizeof counts;
    aot_model_statistics(model, &counts);
    CHECK(counts.by_status[AOT_OK] == 1 && counts.by_status[AOT_ERROR_DEVICE] == 2);
    CHECK(counts.by_reason[AOT_REASON_DEVICE_LOST] == 2);
    aot_session_destroy(session);
    aot_model_unload(model);
    fake_fail(0, 0);
    CHECK_CLEAN(0);
}

void unload_first() {
    fake_machine(1, 90, 13000, 1 << 30);
    aot_model *model = load();
    aot_session *session = session_of(model);
    void *piece = nullptr;
    CHECK(aot_device_allocate(model, 10, &piece, nullptr) == AOT_OK);
    aot_model_unload(model);
    Case c(300);
    CHECK(c.run(session) == AOT_OK && c.right());
    aot_session_destroy(session);
    aot_device_free(model, piece);
    CHECK_CLEAN(0);
}

// A session's runs on several streams wait for each other; two sessions' updates of one state must be ordered.
void streams() {
    fake_machine(1, 90, 13000, 1 << 30);
    aot_model *model = load();
    Context context;
    Stream one, two;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxPushCurrent_v2(context) == 0);
    CHECK(cuStreamCreate(&one, kNonBlocking) == 0 && cuStreamCreate(&two, kNonBlocking) == 0);
    aot_session *session = session_of(model), *other = session_of(model);
    {
        Case first(300), second(300, 4);
        CHECK(first.on_device(model) && second.on_device(model));
        for (int i = 0; i < 4; ++i) {
            CHECK(first.run(session, nullptr, one) == AOT_OK && second.run(session, nullptr, two) == AOT_OK);
        }
        CHECK(first.fetch(one) && first.right() && second.fetch(two) && second.right());
        Case state(300, 2);
        aot_error error = new_error();
        CHECK(state.on_device(model, true) && state.run(session, nullptr, one) == AOT_OK);
        state.tensors[2] = second.tensors[2];
        CHECK(state.run(other, &error, two) == AOT_ERROR_GUARD);
        CHECK_TEXT(error.where, "input 'cache'");
        CHECK_TEXT(error.message, "a run of another session, on another stream, is updating this state in place");
        CHECK(state.run(other, &error, one) == AOT_OK);
        CHECK(cuStreamSynchronize(one) == 0);
        CHECK(state.run(session, &error, two) == AOT_OK);
    }
    aot_session_destroy(session);
    aot_session_destroy(other);
    CHECK(cuStreamDestroy_v2(one) == 0 && cuStreamDestroy_v2(two) == 0);
    CHECK(cuCtxPopCurrent_v2(&context) == 0 && cuDevicePrimaryCtxRelease_v2(0) == 0);
    aot_model_unload(model);
    CHECK_CLEAN(0);
}

// Everything that a program does with the library; stops at the first error, and gives back what it has.
int32_t all_of_it(uint32_t flags, aot_error *error) {
    aot_model *model = load(error);
    if (!model) return error->status;
    aot_session_options options{};
    options.struct_size = sizeof options;
    options.flags = flags;
    aot_session *session = nullptr;
    int32_t status = aot_session_create(model, &options, &session, error);
    {
        Case host(300), device(300, 1), other(8, 2);
        bool found = status == AOT_OK;
        if (status == AOT_OK) status = host.run(session, error);
        if (status == AOT_OK) CHECK(host.right());
        if (status == AOT_OK) status = other.run(session, error);
        if (status == AOT_OK) CHECK(other.right());
        if (found && !device.on_device(model, true)) found = false;
        if (status == AOT_OK && found) status = device.run(session, error);
        if (status == AOT_OK && found && device.fetch()) CHECK(device.right());
        if (status == AOT_OK && found) status = device.run(session, error, nullptr, false);
        if (status == AOT_OK) status = other.trace(session, error);
        if (status == AOT_OK) CHECK(other.right() && other.steps == 4);
        aot_step_time times[4];
        uint64_t run_ns = 0;
        if (status == AOT_OK && found) status = host.run(session, error);
        if (status == AOT_OK && found) status = aot_session_time_steps(session, 2, times, 4, nullptr, &run_ns, error);
    }
    aot_session_destroy(session);
    aot_model_unload(model);
    return status;
}

void every_error_at_every_call() {
    for (uint32_t flags : {0u, unsigned(AOT_SESSION_NO_GRAPH), unsigned(AOT_SESSION_PROFILE)}) {
        fake_machine(1, 90, 13000, 1 << 30);
        aot_error error = new_error();
        CHECK(all_of_it(flags, &error) == AOT_OK);
        const long calls = fake_calls();
        for (int code : {999, 700, 2, 1, 719, 900}) {
            if (flags && code < 700) continue;
            long failed = 0;
            for (long at = 0; at < calls; ++at) {
                fake_fail(at, code);
                error = new_error();
                const int32_t status = all_of_it(flags, &error);
                failed += status != AOT_OK;
                CHECK(status == error.status && (status == AOT_OK || (*error.message && status != AOT_ERROR_INTERNAL)));
                CHECK(status != AOT_ERROR_DEVICE || code < 700 || code > 719 || error.reason == AOT_REASON_DEVICE_LOST);
                fake_fail(0, 0);
                CHECK_CLEAN(0);
            }
            CHECK(failed > calls / 3);
            CHECK(all_of_it(flags, &error) == AOT_OK);
        }
    }
}

// The simulated driver is worth nothing unless it notices.
void the_driver_notices() {
    fake_machine(1, 90, 13000, 1 << 30);
    Context context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0);
    CHECK(cuStreamSynchronize(nullptr) == 0);
    Address memory[3], gone;
    CHECK(cuMemAlloc_v2(&gone, 64) == 0);
    CHECK_TEXT(fake_misuse(), "without a current context");
    CHECK(cuCtxPushCurrent_v2(context) == 0 && cuMemFree_v2(gone) == 0);
    for (Address &piece : memory) CHECK(cuMemAlloc_v2(&piece, 400) == 0);
    Module module;
    Function function;
    alignas(16) const char image[] = "FAKE 90 k_add";
    CHECK(cuModuleLoadDataEx(&module, image, 0, nullptr, nullptr) == 0 && cuModuleGetFunction(&function, module, "k_add") == 0);
    Address nothing = 0;
    int32_t n = 100;
    void *first[] = {&memory[0], &memory[1], &memory[2], &n, &nothing, &nothing};
    void *second[] = {&memory[2], &memory[1], &memory[0], &n, &nothing, &nothing};
    void *freed[] = {&gone, &memory[1], &memory[2], &n, &nothing, &nothing};
    const KernelNode one{function, {1, 1, 1}, {128, 1, 1}, 0, first, nullptr, nullptr, nullptr};
    KernelNode two = one;
    two.parameters = second;
    for (bool ordered : {true, false}) {
        Graph graph;
        Executable executable;
        Node before, after;
        CHECK(cuGraphCreate(&graph, 0) == 0 && cuGraphAddKernelNode_v2(&before, graph, nullptr, 0, &one) == 0);
        CHECK(cuGraphAddKernelNode_v2(&after, graph, &before, ordered ? 1 : 0, &two) == 0);
        CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0) == 0 && cuGraphLaunch(executable, nullptr) == 0);
        const std::string found = fake_misuse();
        CHECK(ordered ? found.empty() : found.find("are not ordered and overlap") != std::string::npos);
        CHECK(cuGraphExecDestroy(executable) == 0 && cuGraphDestroy(graph) == 0);
    }
    Stream streams[2];
    for (Stream &stream : streams) CHECK(cuStreamCreate(&stream, kNonBlocking) == 0);
    CHECK(cuStreamSynchronize(nullptr) == 0);
    LaunchConfig config{{1, 1, 1}, {128, 1, 1}, 0, streams[0], nullptr, 0};
    CHECK(cuLaunchKernelEx(&config, function, first, nullptr) == 0 && !*fake_misuse());
    config.stream = streams[1];
    CHECK(cuLaunchKernelEx(&config, function, second, nullptr) == 0);
    CHECK_TEXT(fake_misuse(), "not ordered behind a write on another stream");
    CHECK(cuLaunchKernelEx(&config, function, freed, nullptr) == 0);
    CHECK_TEXT(fake_misuse(), "outside of device memory");
    CHECK(cuMemFree_v2(gone) != 0);
    CHECK_TEXT(fake_misuse(), "freed twice");
    CHECK(fake_live() == 7);  // the context, three pieces, two streams, the module
    for (Address piece : memory) CHECK(cuMemFree_v2(piece) == 0);
    for (Stream stream : streams) CHECK(cuStreamDestroy_v2(stream) == 0);
    CHECK(cuModuleUnload(module) == 0 && cuCtxPopCurrent_v2(&context) == 0 && cuDevicePrimaryCtxRelease_v2(0) == 0);
    CHECK_CLEAN(0);
}

void many_threads() {
    fake_machine(1, 90, 13000, 1 << 30);
    aot_model *model = load();
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&, t] {
            aot_session *session = session_of(model, t % 4 == 3 ? AOT_SESSION_NO_GRAPH : 0, 3);
            {
                Case device(100 + t, t);
                wrong += !device.on_device(model);
                for (int i = 0; i < 60; ++i) {
                    Case host(1 + (t * 7 + i) % 9 * 100, i);
                    wrong += host.run(session) != AOT_OK || !host.right();
                    wrong += device.run(session) != AOT_OK || !device.fetch() || !device.right();
                }
            }
            aot_session_destroy(session);
        });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(wrong == 0);
    aot_model_unload(model);
    CHECK_CLEAN(0);
}

}  // namespace

int main(int count, char **arguments) {
    if (count != 2) return fprintf(stderr, "usage: %s ARTIFACT\n", arguments[0]), 2;
    path = arguments[1];
    too_old_or_missing();
    the_driver_notices();
    runs();
    kernels_are_timed();
    graphs_are_kept();
    captured();
    weights_are_shared();
    context_of_the_caller();
    wrong_tensors();
    memory_runs_out();
    sticky_error();
    unload_first();
    streams();
    every_error_at_every_call();
    many_threads();
    return 0;
}
