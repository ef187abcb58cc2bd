"""OPAQUE op `order_rows`: the rows of a matrix in lexicographic order, and which differ from the one before.

Elements are in the order of the op `sort`: NaN above all numbers, -0 equal to 0, equal rows in the order of their
places. A row with a NaN differs from every other one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim
from aot.dtypes import BOOL, I64
from aot.ir import Array, TensorType
from aot.ops.helpers import ANY, integers, need_family, need_rank, normal
from aot.ops.opdef import Attrs, KernelSource, Kind, OpDef, OpError, Sample, register
from aot.ops.sort import order_of


def _infer(attrs: Attrs, x: TensorType) -> tuple[TensorType, ...]:
    need_family("what is ordered", x, ANY)
    need_rank("what is ordered", x, 2, 2)
    if x.dtype.is_float and x.dtype.bits < 32:
        raise OpError(f"rows of {x.dtype} must be cast to f32 first")
    return TensorType(I64, x.shape[:1]), TensorType(BOOL, x.shape[:1])


def _reference(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    order = np.arange(len(x))
    for column in reversed(range(x.shape[1])):
        order = order[order_of(x[order, column], 0, False)]
    ordered = x[order]
    first = np.ones(len(x), np.bool_)
    first[1:] = np.any(ordered[1:] != ordered[:-1], axis=1)
    return order.astype(np.int64), first


_SOURCE = r"""
static inline i32 compare(const IN0_T *a, const IN0_T *b, i64 columns) {
  for (i64 k = 0; k < columns; k++) {
    const i32 a_odd = a[k] != a[k], b_odd = b[k] != b[k];
    if (a_odd != b_odd) return a_odd - b_odd;
    if (a[k] < b[k]) return -1;
    if (a[k] > b[k]) return 1;
  }
  return 0;
}
static inline i32 differ(const IN0_T *a, const IN0_T *b, i64 columns) {
  for (i64 k = 0; k < columns; k++) if (a[k] != b[k]) return 1;
  return 0;
}
/* A merge sort from runs of one row upwards; the first thread does it. */
static void order_rows(const aot_call *call) {
  if (call->thread) return;
  const IN0_T *x = call->inputs[0].data;
  const i64 rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  i64 *order = call->outputs[0].data, *from = order, *to = call->scratch;
  for (i64 row = 0; row < rows; row++) order[row] = row;
  for (i64 width = 1; width < rows; width *= 2) {
    for (i64 start = 0; start < rows; start += 2 * width) {
      const i64 middle = start + width < rows ? start + width : rows;
      const i64 end = middle + width < rows ? middle + width : rows;
      i64 i = start, j = middle;
      for (i64 k = start; k < end; k++) {
        const IN0_T *one = x + from[i < middle ? i : start] * columns, *other = x + from[j < end ? j : start] * columns;
        const i32 left = j == end || (i < middle && compare(one, other, columns) <= 0);
        to[k] = left ? from[i++] : from[j++];
      }
    }
    i64 *other = from;
    from = to;
    to = other;
  }
  for (i64 row = 0; row < rows && from != order; row++) order[row] = from[row];
  u8 *first = call->outputs[1].data;
  for (i64 row = 0; row < rows; row++)
    first[row] = !row || differ(x + order[row] * columns, x + order[row - 1] * columns, columns);
}
"""

# A row's place is the number of rows before it; it differs from the one before unless an equal row has a lower place.
_TRITON = """
@triton.jit
def order_rows(program, in0, in0_shape, out0, out1):
    rows = in0_shape[0]
    columns = in0_shape[1]
    i = program.to(tl.int64) * 32 + tl.arange(0, 32)[:, None]
    inside = i < rows
    odd = tl.zeros((32, 1), tl.int32)
    for column in range(0, columns):
        x = tl.load(in0 + i * columns + column, mask=inside, other=0)
        odd = odd | (x != x).to(tl.int32)
    before = tl.zeros((32, 64), tl.int32)
    same = tl.zeros((32, 64), tl.int32)
    for begin in range(0, rows, 64):
        j = begin + tl.arange(0, 64)[None, :].to(tl.int64)
        there = j < rows
        is_less = tl.zeros((32, 64), tl.int32)
        is_equal = tl.full((32, 64), 1, tl.int32)
        for column in range(0, columns):
            x = tl.load(in0 + i * columns + column, mask=inside, other=0)
            y = tl.load(in0 + j * columns + column, mask=there, other=0)
            less = ((y < x) | ((x != x) & (y == y))).to(tl.int32)
            more = ((y > x) | ((y != y) & (x == x))).to(tl.int32)
            is_less = is_less | (is_equal & less)
            is_equal = is_equal & (1 - (less | more))
        earlier = (is_equal != 0) & (j < i) & there
        before += (earlier | ((is_less != 0) & there)).to(tl.int32)
        same += earlier.to(tl.int32)
    rank = tl.sum(before, axis=1)[:, None]
    if out0 is not None:
        tl.store(out0 + rank, i, mask=inside)
    if out1 is not None:
        first = (tl.sum(same, axis=1)[:, None] == 0) | (odd != 0)
        tl.store(out1 + rank, first.to(tl.uint8), mask=inside)
"""


def _scratch(attrs: Attrs, x: TensorType) -> Dim:
    return x.shape[0] * 8


def _samples(rng: Any) -> list[Sample]:
    odd = np.array(
        [[0.0, np.nan], [-0.0, np.nan], [0, 1], [-0.0, 1], [np.nan, 0], [np.inf, 0], [-np.inf, 2]], np.float32
    )
    operands = [
        normal(rng, 9, 3), integers(rng, 40, 2, lo=0, hi=3), integers(rng, 100, 1, lo=0, hi=20, dtype=np.uint8),
        integers(rng, 33, 4, lo=0, hi=2).astype(np.bool_), normal(rng, 7, 5, dtype=np.float64), odd,
        normal(rng, 1, 4), normal(rng, 0, 3), normal(rng, 5, 0), integers(rng, 64, 3, lo=-2, hi=1, dtype=np.int8),
        integers(rng, 17, 2, lo=-(2**62), hi=2**62),
    ]  # fmt: skip
    return [Sample((x,)) for x in operands]


register(
    OpDef(
        name="order_rows", doc="The rows of a matrix in order, and which of these differ from the one before.",
        inputs=("x",), kind=Kind.OPAQUE, infer=_infer, samples=_samples, reference=_reference, cost_flops=32,
        sources={
            "cpu": KernelSource(text=_SOURCE, function="order_rows", scratch_bytes=_scratch),
            "cuda": KernelSource(
                text=_TRITON, function="order_rows", programs=lambda attrs, x: dimension.ceildiv(x.shape[0], 32)
            ),
        },
    )
)  # fmt: skip
