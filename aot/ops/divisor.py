"""OPAQUE op `gcd`: the greatest common divisor of integers, by Euclid. It is not negative, but for the least number."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot import dims as dimension
from aot.ir import Array, TensorType
from aot.ops.helpers import INTEGER, integers, need_family, need_same_dtype
from aot.ops.opdef import Attrs, KernelSource, Kind, OpDef, OpError, Sample, register, same_extent


def _infer(attrs: Attrs, x: TensorType, y: TensorType) -> TensorType:
    need_family("the operands of gcd", x, INTEGER)
    dtype = need_same_dtype(x, y)
    if x.rank != y.rank:
        raise OpError(f"the operands of gcd must have one shape; they are {x} and {y}")
    for left, right in zip(x.shape, y.shape, strict=True):
        same_extent(left, right, "the operands of gcd")
    return TensorType(dtype, x.shape)


def _reference(attrs: Attrs, x: Array, y: Array) -> Array:
    return np.asarray(np.gcd(x, y)).astype(x.dtype)


# Sizes as u64: the size of the least i64 is not an i64.
_SOURCE = r"""
static inline u64 size_of(IN0_T x) { return x < 0 ? 0 - (u64)x : (u64)x; }
static void gcd(const aot_call *call) {
  i64 first, end;
  aot_share(call, call->outputs[0].elements, &first, &end);
  const IN0_T *x = call->inputs[0].data, *y = call->inputs[1].data;
  IN0_T *out = call->outputs[0].data;
  for (i64 k = first; k < end; k++) {
    u64 a = size_of(x[k]), b = size_of(y[k]);
    while (b) {
      const u64 rest = a % b;
      a = b;
      b = rest;
    }
    out[k] = (IN0_T)a;
  }
}
"""

_TRITON = """
@triton.jit
def size_of(x):
    if x.dtype.is_int_unsigned():
        size = x.to(tl.uint64)
    else:
        wide = x.to(tl.int64)
        size = tl.where(wide < 0, 0 - wide.to(tl.uint64, bitcast=True), wide.to(tl.uint64, bitcast=True))
    return size

@triton.jit
def gcd(program, in0, in1, out0, out0_elements):
    at = program.to(tl.int64) * 128 + tl.arange(0, 128)
    inside = at < out0_elements
    a = size_of(tl.load(in0 + at, mask=inside, other=0))
    b = size_of(tl.load(in1 + at, mask=inside, other=0))
    while tl.max((b != 0).to(tl.int32), axis=0) != 0:
        rest = tl.where(b == 0, 0, a % tl.where(b == 0, 1, b).to(tl.uint64)).to(tl.uint64)
        a = tl.where(b == 0, a, b)
        b = rest
    tl.store(out0 + at, a.to(out0.dtype.element_ty), mask=inside)
"""


def _samples(rng: Any) -> list[Sample]:
    odd = np.array([0, 0, 1, -1, 2**62, -(2**62), 12, -18, 7919]), np.array([0, -5, 0, 0, 2**40, 6, -18, 12, 7907])
    found = [Sample(odd)]
    for shape, dtype in (((3, 7), np.int64), ((), np.int32), ((0, 2), np.int64), ((50,), np.int16), ((9,), np.int8)):
        operands = [integers(rng, *shape, lo=-99, hi=100, dtype=dtype) for _ in range(2)]
        found.append(Sample((operands[0], operands[1])))
    found.append(Sample(tuple(integers(rng, 20, lo=0, hi=200, dtype=np.uint8) for _ in range(2))))
    return found


register(
    OpDef(
        name="gcd", doc="The greatest common divisor, which is not negative.", inputs=("x", "y"), kind=Kind.OPAQUE,
        infer=_infer, samples=_samples, reference=_reference, cost_flops=100,
        sources={
            "cpu": KernelSource(text=_SOURCE, function="gcd"),
            "cuda": KernelSource(
                text=_TRITON, function="gcd", programs=lambda attrs, x, y: dimension.ceildiv(x.elements, 128)
            ),
        },
    )
)  # fmt: skip
