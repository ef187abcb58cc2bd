"""OPAQUE op `determinant`, by Gaussian elimination in double precision with the largest pivot of each column."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim
from aot.ir import Array, TensorType
from aot.ops.helpers import FLOAT, need_family, need_rank, normal, tile_extent, with_constants
from aot.ops.opdef import Attrs, KernelSource, Kind, OpDef, Sample, register, same_extent


def _infer(attrs: Attrs, x: TensorType) -> TensorType:
    need_family("determinant's operand", x, FLOAT)
    need_rank("determinant's operand", x, 2)
    same_extent(x.shape[-1], x.shape[-2], "the rows and columns of a determinant")
    return TensorType(x.dtype, x.shape[:-2])


_SOURCE = r"""
static void determinant(const aot_call *call) {
  const aot_tensor *x = call->inputs;
  const i64 n = x->shape[x->rank - 1];
  i64 first, end;
  aot_share(call, call->outputs[0].elements, &first, &end);
  f64 *rest = call->scratch;
  for (i64 unit = first; unit < end; unit++) {
    const IN0_T *matrix = (const IN0_T *)x->data + unit * n * n;
    for (i64 k = 0; k < n * n; k++) rest[k] = matrix[k];
    f64 product = 1;
    for (i64 step = 0; step < n; step++) {
      i64 best = step;
      for (i64 row = step + 1; row < n; row++)
        if (__builtin_fabs(rest[row * n + step]) > __builtin_fabs(rest[best * n + step])) best = row;
      const f64 pivot = rest[best * n + step];
      product *= best == step ? pivot : -pivot;
      if (pivot == 0) break;
      for (i64 column = step; column < n; column++) {
        const f64 other = rest[best * n + column];
        rest[best * n + column] = rest[step * n + column];
        rest[step * n + column] = other;
      }
      for (i64 row = step + 1; row < n; row++) {
        const f64 factor = rest[row * n + step] / pivot;
        for (i64 column = step + 1; column < n; column++) rest[row * n + column] -= factor * rest[step * n + column];
      }
    }
    ((IN0_T *)call->outputs[0].data)[unit] = product;
  }
}
"""

_TRITON = """
@triton.jit
def determinant(program, in0, out0):
    unit = program.to(tl.int64)
    i = tl.arange(0, HEIGHT)[:, None]
    j = tl.arange(0, HEIGHT)[None, :]
    a = tl.load(in0 + unit * (ROWS * ROWS) + i * ROWS + j, mask=(i < ROWS) & (j < ROWS), other=0).to(tl.float64)
    total = tl.full((1, 1), 1.0, tl.float64)
    for step in range(0, ROWS):
        column = tl.sum(tl.where(j == step, a, 0.0), axis=1)[:, None]
        size = tl.where((i >= step) & (i < ROWS), tl.abs(column), -1.0)
        best = tl.min(tl.where(size == tl.max(size, axis=0)[None, :], i, HEIGHT), axis=0)[None, :]
        best = tl.where(best < ROWS, best, step)
        own = tl.sum(tl.where(i == step, a, 0.0), axis=0)[None, :]
        other = tl.sum(tl.where(i == best, a, 0.0), axis=0)[None, :]
        pivot = tl.sum(tl.where(j == step, other, 0.0), axis=1)[:, None]
        a = tl.where(i == step, other, tl.where(i == best, own, a))
        column = tl.sum(tl.where(j == step, a, 0.0), axis=1)[:, None]
        a = tl.where((i > step) & (pivot != 0), a - column / tl.where(pivot == 0, 1.0, pivot) * other, a)
        total = tl.where(total == 0, total, total * tl.where(best == step, pivot, -pivot))
    tl.store(out0 + unit + tl.zeros((1, 1), tl.int32), total.to(out0.dtype.element_ty))
"""


def _triton(attrs: Attrs, x: TensorType) -> str:
    height = tile_extent("determinants of matrices with sides", x.shape[-1], 64)
    return with_constants(_TRITON, {"HEIGHT": height, "ROWS": int(x.shape[-1])})  # type: ignore[arg-type]  # known


def _scratch(attrs: Attrs, x: TensorType) -> Dim:
    return x.shape[-1] * x.shape[-1] * 8


def _reference(attrs: Attrs, x: Array) -> Array:
    return np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)


def _samples(rng: Any) -> list[Sample]:
    found = [Sample((normal(rng, *shape),), {}, 1e-4, 1e-4) for shape in ((1, 1), (2, 2), (4, 3, 3), (2, 2, 7, 7))]
    found.append(Sample((np.zeros((2, 3, 3), np.float32),), {}))
    found.append(Sample((np.eye(5)[::-1].copy(),), {}))
    found.append(Sample((normal(rng, 0, 3, 3),), {}))
    return found


register(
    OpDef(
        name="determinant", doc="The determinants of the matrices in the last two axes.", inputs=("x",),
        kind=Kind.OPAQUE, infer=_infer, samples=_samples, reference=_reference, cost_flops=64,
        sources={
            "cpu": KernelSource(text=_SOURCE, function="determinant", scratch_bytes=_scratch),
            "cuda": KernelSource(
                text=_triton, function="determinant", warps=8,
                programs=lambda attrs, x: dimension.product(x.shape[:-2]),
            ),
        },
        onnx=("Det",),
    )
)  # fmt: skip
