"""OPAQUE ops `running_max` and `running_min`: the extreme so far along the last axis, and where it is.

Of equal elements the last counts. From the first NaN on, the result is NaN; each later NaN takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot.dtypes import I64
from aot.ir import Array, TensorType
from aot.ops.helpers import ANY, integers, need_family, need_rank, normal
from aot.ops.opdef import Attrs, KernelSource, Kind, OpDef, OpError, Sample, register


def _infer(attrs: Attrs, x: TensorType) -> tuple[TensorType, ...]:
    need_family("what is followed", x, ANY)
    need_rank("what is followed", x, 1)
    if x.dtype.is_float and x.dtype.bits < 32:
        raise OpError(f"rows of {x.dtype} must be cast to f32 first")
    return TensorType(x.dtype, x.shape), TensorType(I64, x.shape)


def _reference(is_max: bool) -> Callable[..., tuple[Array, Array]]:
    def run(attrs: Attrs, x: Array) -> tuple[Array, Array]:
        values, places = x.copy(), np.zeros(x.shape, np.int64)
        for row in np.ndindex(*x.shape[:-1]):
            best = 0
            for k, element in enumerate(x[row]):
                kept = x[row][best]
                if element != element or (kept == kept and (element >= kept if is_max else element <= kept)):
                    best = k
                values[(*row, k)], places[(*row, k)] = x[row][best], best
        return values, places

    return run


_SOURCE = r"""
static void running(const aot_call *call) {
  const i64 rank = call->inputs[0].rank, length = call->inputs[0].shape[rank - 1];
  if (!length) return;
  i64 first, end;
  aot_share(call, call->inputs[0].elements / length, &first, &end);
  for (i64 row = first; row < end; row++) {
    const IN0_T *x = (const IN0_T *)call->inputs[0].data + row * length;
    IN0_T *values = (IN0_T *)call->outputs[0].data + row * length;
    i64 *places = (i64 *)call->outputs[1].data + row * length, best = 0;
    for (i64 k = 0; k < length; k++) {
      if (x[k] != x[k] || (x[best] == x[best] && x[k] ORDER x[best])) best = k;
      values[k] = x[best];
      places[k] = best;
    }
  }
}
"""


def _samples(rng: Any) -> list[Sample]:
    odd = np.array([[1, np.nan, 2, 3], [0.0, -0.0, 0.0, -1], [-np.inf, np.inf, np.nan, np.nan]], np.float32)
    operands = [
        normal(rng, 3, 17), normal(rng, 2, 3, 5, dtype=np.float64), integers(rng, 40, lo=0, hi=3), odd,
        integers(rng, 4, 9, lo=0, hi=255, dtype=np.uint8), integers(rng, 2, 6, lo=0, hi=2).astype(np.bool_),
        normal(rng, 5, 0), normal(rng, 0, 3), normal(rng, 1),
    ]  # fmt: skip
    return [Sample((x,)) for x in operands]


for _name, _order in (("max", ">="), ("min", "<=")):
    register(
        OpDef(
            name=f"running_{_name}", doc=f"The {_name}imum so far along the last axis, and its last place.",
            inputs=("x",), kind=Kind.OPAQUE, infer=_infer, samples=_samples, reference=_reference(_name == "max"),
            sources={"cpu": KernelSource(text=_SOURCE.replace("ORDER", _order), function="running")},
        )
    )  # fmt: skip
