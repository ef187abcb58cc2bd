/* Shared by the native tests: the sample artifact tests/compat/dense-1.0.aot computes relu(x @ w + b),
 * x f32 [batch, 5], y f32 [batch, 19]. */
#ifndef AOT_TEST_COMMON_H
#define AOT_TEST_COMMON_H

#include <aot/runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                             \
    do {                                                                             \
        if (!(condition)) {                                                          \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);  \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

enum { K = 5, M = 19, MAX_BATCH = 4096 };

static inline void fill(float *x, int64_t batch) {
    for (int64_t i = 0; i < batch * K; ++i) x[i] = (float)(i * 3 % 17 - 8) / 4;
}

static inline int right(const float *x, const float *y, int64_t batch) {
    for (int64_t i = 0; i < batch; ++i) {
        for (int j = 0; j < M; ++j) {
            float sum = (float)(j * 5 % 11 - 5) / 4;
            for (int c = 0; c < K; ++c) sum += x[i * K + c] * ((float)((c * M + j) * 7 % 23 - 11) / 8);
            if (y[i * M + j] != (sum > 0 ? sum : 0)) return 0;
        }
    }
    return 1;
}

typedef struct Case {
    int64_t in_shape[2], out_shape[2];
    aot_tensor in, out;
    const aot_tensor *inputs[1], *outputs[1];
    float *x, *y;
} Case;

static inline void make(Case *c, int64_t batch) {
    c->x = malloc(sizeof(float) * (size_t)batch * K + 64);
    c->y = malloc(sizeof(float) * (size_t)batch * M + 64);
    fill(c->x, batch);
    memset(c->y, 0xff, sizeof(float) * (size_t)batch * M);
    c->in_shape[0] = c->out_shape[0] = batch;
    c->in_shape[1] = K, c->out_shape[1] = M;
    c->in = (aot_tensor){.data = c->x, .device_type = 1, .rank = 2, .dtype_code = 2, .dtype_bits = 32,
                         .dtype_lanes = 1, .shape = c->in_shape};
    c->out = c->in;
    c->out.data = c->y, c->out.shape = c->out_shape;
    c->inputs[0] = &c->in, c->outputs[0] = &c->out;
}

static inline void drop(Case *c) { free(c->x), free(c->y); }

#endif
