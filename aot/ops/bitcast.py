"""OPAQUE op `bitcast`: the same bits as another element type of the same width."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dtypes import F16, F32, F64, I8, I16, I32, I64, U8, U32
from aot.ir import Array, TensorType
from aot.ops.helpers import dtype_attr, integers, normal
from aot.ops.opdef import Attrs, AttrSpec, KernelSource, Kind, OpDef, OpError, Sample, register


def _infer(attrs: Attrs, x: TensorType) -> TensorType:
    to = dtype_attr(attrs, "to")
    if to.bits != x.dtype.bits or to.bits < 8 or to.is_bool != x.dtype.is_bool:
        raise OpError(f"{x.dtype} has no bits in common with {to}: both must be numbers of one width, 8 bits or more")
    return TensorType(to, x.shape)


_SOURCE = r"""
static void bitcast(const aot_call *call) {
  i64 first, end;
  aot_share(call, call->inputs[0].elements, &first, &end);
  const u8 *from = call->inputs[0].data;
  u8 *to = call->outputs[0].data;
  for (i64 k = first * sizeof(IN0_T); k < end * (i64)sizeof(IN0_T); k++) to[k] = from[k];
}
"""

_TRITON = """
@triton.jit
def bitcast(program, in0, out0, out0_elements):
    at = program.to(tl.int64) * 1024 + tl.arange(0, 1024)
    x = tl.load(in0 + at, mask=at < out0_elements, other=0)
    tl.store(out0 + at, x.to(out0.dtype.element_ty, bitcast=True), mask=at < out0_elements)
"""


def _reference(attrs: Attrs, x: Array) -> Array:
    return np.ascontiguousarray(x).view(dtype_attr(attrs, "to").numpy).reshape(x.shape)


def _samples(rng: Any) -> list[Sample]:
    return [
        Sample((normal(rng, 3, 5),), {"to": I32}),
        Sample((normal(rng, 7),), {"to": U32}),
        Sample((integers(rng, 2, 3, lo=-(1 << 20), hi=1 << 20, dtype=np.int32),), {"to": F32}),
        Sample((normal(rng, 4, dtype=np.float64),), {"to": I64}),
        Sample((integers(rng, 9),), {"to": F64}),
        Sample((normal(rng, 6, dtype=np.float16),), {"to": I16}),
        Sample((integers(rng, 5, dtype=np.int16),), {"to": F16}),
        Sample((integers(rng, 4, dtype=np.int8),), {"to": U8}),
        Sample((integers(rng, 4, dtype=np.uint8, lo=0),), {"to": I8}),
        Sample((normal(rng),), {"to": I32}),
        Sample((normal(rng, 0, 3),), {"to": I32}),
    ]


register(
    OpDef(
        name="bitcast", doc="The bits of x as another element type.", inputs=("x",), kind=Kind.OPAQUE, infer=_infer,
        samples=_samples, reference=_reference, attrs={"to": AttrSpec("dtype")},
        sources={
            "cpu": KernelSource(text=_SOURCE, function="bitcast"),
            "cuda": KernelSource(
                text=_TRITON, function="bitcast", programs=lambda attrs, x: dimension.ceildiv(x.elements, 1024)
            ),
        },
    )
)  # fmt: skip
