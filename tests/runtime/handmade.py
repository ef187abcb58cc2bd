"""Programs made by hand, with C kernels compiled on the spot: the runtime is tested without the compiler."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from aot import dtypes, recipe
from aot.artifacts import Artifact
from aot.dims import Symbol
from aot.ir import Array, TensorType, const_of
from aot.program import (
    Argument,
    Buffer,
    Constant,
    Guard,
    GuardKind,
    KernelCode,
    Port,
    Program,
    Source,
    Space,
    Step,
    StepResult,
)

PRELUDE = """
typedef long long i64;
struct args { void *const *buffers; const i64 *dims; void *scratch; int thread; int thread_count; };
"""

DENSE_SOURCE = (
    PRELUDE
    + """
void dense_matmul(const struct args *a) {
    const float *x = a->buffers[0], *w = a->buffers[1];
    float *t = a->buffers[2];
    float *row = a->scratch;
    const i64 n = a->dims[0], k = a->dims[1], m = a->dims[2];
    for (i64 i = a->thread; i < n; i += a->thread_count) {
        for (i64 j = 0; j < m; ++j) {
            const float *panel = w + (j / 16) * k * 16 + j % 16;
            float sum = 0;
            for (i64 c = 0; c < k; ++c) sum += x[i * k + c] * panel[c * 16];
            row[j] = sum;
        }
        for (i64 j = 0; j < m; ++j) t[i * m + j] = row[j];
    }
}
void dense_relu(const struct args *a) {
    const float *t = a->buffers[0], *b = a->buffers[1];
    float *y = a->buffers[2];
    const i64 n = a->dims[0], m = a->dims[1];
    for (i64 i = a->thread; i < n; i += a->thread_count)
        for (i64 j = 0; j < m; ++j) {
            float v = t[i * m + j] + b[j];
            y[i * m + j] = v > 0 ? v : 0;
        }
}
"""
)
K, M = 5, 19
BATCH = Symbol("batch", 1, 4096)


@cache
def compiled(source: str) -> bytes:
    """A shared object of C source, without any library."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.c"
        path.write_text(source)
        target = Path(folder) / "kernels.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-nostdlib", "-o", target, path], check=True)
        return target.read_bytes()


def weights() -> tuple[Array, Array]:
    """w [K, M] and b [M], f32: small fractions, so that sums of small inputs are exact in any order.

    runtime/tests/runtime_test.c has the same formula.
    """
    w = ((np.arange(K * M) * 7 % 23 - 11) / 8).reshape(K, M)
    b = (np.arange(M) * 5 % 11 - 5) / 4
    return w.astype(np.float32), b.astype(np.float32)


def batch_of(n: int) -> Array:
    """An input [n, K] of small fractions."""
    return ((np.arange(n * K) * 3 % 17 - 8) / 4).reshape(n, K).astype(np.float32)


def expected(x: Array) -> Array:
    """What the program computes; exact for `batch_of`."""
    w, b = weights()
    return np.maximum(x.astype(np.float64) @ w.astype(np.float64) + b, 0).astype(np.float32)


def program(target: str = "cpu:x86-64", variant: str = "") -> Program:
    """relu(x @ w + b), batch 1..4096: two steps, a buffer in the arena, scratch memory, packed weights."""
    w, b = weights()
    batch = BATCH.dim
    f32 = dtypes.F32
    return Program(
        target=target,
        variant=variant,
        symbols=(BATCH,),
        inputs=(Port("x", TensorType(f32, (batch, K))),),
        outputs=(Port("y", TensorType(f32, (batch, M))),),
        state=(),
        guards=(
            Guard(GuardKind.BIND, port=0, axis=0, symbol=0, lo=1, hi=4096),
            Guard(GuardKind.EQUAL, port=0, axis=1, expected=K),
        ),
        sources=(Source("layer.weight", const_of(w, "layer.weight")), Source("layer.bias", const_of(b, "layer.bias"))),
        constants=(
            Constant("layer.weight", f32.number, (2, K, 16), (recipe.source(0), recipe.pack_matrix(K, M))),
            Constant("layer.bias", f32.number, (M,), (recipe.source(1),)),
        ),
        buffers=(
            Buffer(Space.INPUT, 0, batch * K * 4, name="x"),
            Buffer(Space.CONST, 0, 2 * K * 16 * 4, name="layer.weight"),
            Buffer(Space.CONST, 1, M * 4, name="layer.bias"),
            Buffer(Space.ARENA, 0, 256, first_step=0, last_step=1, name="first"),
            Buffer(Space.ARENA, 0, batch * M * 4, below=(3,), first_step=0, last_step=1, name="product"),
            Buffer(Space.OUTPUT, 0, batch * M * 4, name="y"),
        ),
        kernels=(
            KernelCode("dense_matmul", "CONTRACT", "matmul 5x19", ("layer/MatMul",), "rows", DENSE_SOURCE),
            KernelCode("dense_relu", "MAP", "add + relu", ("layer/Add", "layer/Relu"), "rows", DENSE_SOURCE),
        ),
        steps=(
            Step(
                0,
                (Argument(0), Argument(1), Argument(4)),
                (batch, K, M),
                M * 4,
                locs=("layer/MatMul",),
                results=(StepResult(2, "product", f32, (batch, M), (M, 1)),),
            ),
            Step(
                1,
                (Argument(4), Argument(2), Argument(5)),
                (batch, M),
                locs=("layer/Add", "layer/Relu"),
                results=(StepResult(2, "y", f32, (batch, M), (M, 1)),),
            ),
        ),
        code=compiled(DENSE_SOURCE),
        peak_bytes=256 + batch * M * 4,
        lower_bound_bytes=256 + batch * M * 4,
        planner="by hand",
    )


def artifact(*programs: Program, **options: Any) -> Artifact:
    """An artifact of the programs, or of `program()`."""
    options.setdefault("debug", {"graph": "handmade"})
    return Artifact.build(programs or (program(),), meta={"compiler": "handmade"}, **options)


def fixed_variant(batch: int) -> Program:
    """A variant of `program` for one batch size; its second step is a no-op that shows in the profile."""
    base = program(variant=f"batch={batch}")
    guards = (replace(base.guards[0], lo=batch, hi=batch), *base.guards[1:])
    return replace(base, guards=guards)
