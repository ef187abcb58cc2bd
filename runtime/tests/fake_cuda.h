/* Controls of the simulated driver in fake_cuda.cpp, which is built as libcuda.so.1. */
#ifndef AOT_TEST_FAKE_CUDA_H
#define AOT_TEST_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The machine: devices of one capability (such as 90), the driver's version (such as 13000), bytes of each device. */
void fake_machine(int devices, int capability, int version, size_t bytes);
/* The call that comes `after` others (0: the next one) fails with `code`, once; a code of 700 and more stays. */
void fake_fail(long after, int code);
/* Calls since the last fake_fail or fake_machine. */
long fake_calls(void);
/* Contexts, modules, pieces of memory, streams, events, graphs and executables that nobody gave back. */
long fake_live(void);
/* Bytes of device memory in use. */
size_t fake_bytes(void);
/* What the driver's user did wrong: the first such thing, or empty. Reading it forgets it. */
const char *fake_misuse(void);
/* How often something happened: "launch" (kernels, in graphs too), "graph_launch", "set" (patched nodes),
 * "instantiate", "early" (edges and launches that start early), "copy_in" and "copy_out" (bytes), "set_bytes" (filled),
 * "wait" (for a stream),
 * "captured" (kernels), "jit" (texts compiled). */
long fake_count(const char *what);

#ifdef __cplusplus
}
#endif

#endif
