/* What a run costs the host beside the driver's own launch call: see gpu_host.py.
 *
 * The same kernels are put into a stream in turns by aot_session_run, whose graph is cached, and by the driver's
 * cuGraphLaunch of a graph that was captured from such a run. */

#include <aot/runtime.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 200
#define CALLS 20

static int fail(const char *what, const aot_error *error) {
    fprintf(stderr, "%s: %s\n", what, error ? error->message : "failed");
    return 1;
}

static double now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec * 1e-3;
}

static int by_size(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: %s MODEL.aot\n", argv[0]), 2;
    aot_error error = {.struct_size = sizeof error};
    aot_model *model = NULL;
    if (aot_model_load_file(argv[1], NULL, &model, &error)) return fail("load", &error);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || aot_model_device(model) < 0) return fail("no GPU", NULL);
    int (*create)(void **, unsigned) = (int (*)(void **, unsigned))dlsym(driver, "cuStreamCreate");
    int (*synchronize)(void *) = (int (*)(void *))dlsym(driver, "cuStreamSynchronize");
    int (*begin)(void *, int) = (int (*)(void *, int))dlsym(driver, "cuStreamBeginCapture_v2");
    int (*end)(void *, void **) = (int (*)(void *, void **))dlsym(driver, "cuStreamEndCapture");
    int (*make)(void **, void *, unsigned long long) =
        (int (*)(void **, void *, unsigned long long))dlsym(driver, "cuGraphInstantiateWithFlags");
    int (*launch)(void *, void *) = (int (*)(void *, void *))dlsym(driver, "cuGraphLaunch");
    int (*current)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");

    void *context = NULL, *stream = NULL, *graph = NULL, *executable = NULL;
    if (retain(&context, aot_model_device(model)) || current(context) || create(&stream, 1)) return fail("stream", NULL);
    aot_session *session = NULL;
    if (aot_session_create(model, NULL, &session, &error)) return fail("session", &error);

    /* One input and one output of fixed shapes, on the device. */
    aot_port_info port = {.struct_size = sizeof port};
    aot_tensor tensors[2];
    int64_t shapes[2][8];
    for (uint32_t which = 0; which < 2; ++which) {
        if (which ? aot_model_output(model, 0, &port) : aot_model_input(model, 0, &port)) return fail("port", NULL);
        size_t bytes = port.dtype_bits / 8;
        for (uint32_t axis = 0; axis < port.rank; ++axis) {
            aot_dim_info dim = {.struct_size = sizeof dim};
            if (which) aot_model_output_dim(model, 0, axis, &dim);
            else aot_model_input_dim(model, 0, axis, &dim);
            shapes[which][axis] = dim.value;
            bytes *= (size_t)dim.value;
        }
        void *data = NULL, *zeros = calloc(bytes, 1);
        if (aot_device_allocate(model, bytes, &data, &error)) return fail("memory", &error);
        if (aot_device_copy(model, data, zeros, bytes, stream, &error)) return fail("copy", &error);
        free(zeros);
        tensors[which] = (aot_tensor){.data = data, .device_type = 2, .device_id = aot_model_device(model),
                                      .rank = (int32_t)port.rank, .dtype_code = port.dtype_code,
                                      .dtype_bits = port.dtype_bits, .dtype_lanes = port.dtype_lanes,
                                      .shape = shapes[which]};
    }
    const aot_tensor *inputs[] = {&tensors[0]}, *outputs[] = {&tensors[1]};
    aot_run_options options = {.struct_size = sizeof options, .stream = stream};
    for (int i = 0; i < 3; ++i) {
        if (aot_session_run(session, inputs, 1, outputs, 1, &options, &error)) return fail("run", &error);
    }
    if (synchronize(stream)) return fail("synchronize", NULL);
    if (begin(stream, 0)) return fail("capture", NULL);
    if (aot_session_run(session, inputs, 1, outputs, 1, &options, &error)) return fail("captured run", &error);
    if (end(stream, &graph) || make(&executable, graph, 0)) return fail("graph", NULL);

    static double samples[2][ROUNDS];
    for (int round = 0; round < ROUNDS; ++round) {
        for (int which = 0; which < 2; ++which) {
            const double start = now_us();
            for (int i = 0; i < CALLS; ++i) {
                if (which ? launch(executable, stream)
                          : aot_session_run(session, inputs, 1, outputs, 1, &options, &error)) {
                    return fail("timed run", &error);
                }
            }
            samples[which][round] = (now_us() - start) / CALLS;
            synchronize(stream);
        }
    }
    for (int which = 0; which < 2; ++which) qsort(samples[which], ROUNDS, sizeof(double), by_size);
    printf("{\"aot_session_run us\": %.2f, \"cuGraphLaunch us\": %.2f}\n", samples[0][ROUNDS / 2], samples[1][ROUNDS / 2]);
    aot_session_destroy(session);
    aot_model_unload(model);
    return 0;
}
