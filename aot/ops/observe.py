"""OPAQUE op `observe`: what calibration wants to know of a tensor, in one pass and in memory that does not grow.

The histogram has a fixed bin for every float: the sign, the exponent and the first bits of the mantissa. So it needs
no range before it starts, is exact in its counts, and two of them add up in any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.dtypes import F32, F64, I64
from aot.ir import Array, TensorType
from aot.observations import BINS, SHIFT
from aot.ops.helpers import SPECIAL, int_attr, need_rank, normal, with_constants
from aot.ops.opdef import Attrs, AttrSpec, KernelSource, Kind, OpDef, OpError, Sample, normalize_axis, register


def _infer(attrs: Attrs, x: TensorType) -> tuple[TensorType, ...]:
    need_rank("what is observed", x, 1)
    if x.dtype != F32:
        raise OpError(f"observe takes f32; it is {x.dtype}")
    channels = x.shape[normalize_axis(int_attr(attrs, "axis"), x.rank)]
    each = (channels,)
    return (TensorType(I64, (BINS,)), *(TensorType(dtype, each) for dtype in (F32, F32, F64, F64)))


def _reference(attrs: Attrs, x: Array) -> tuple[Array, ...]:
    axis = normalize_axis(int_attr(attrs, "axis"), x.ndim)
    counts = np.bincount(np.ascontiguousarray(x).view(np.uint32).reshape(-1) >> SHIFT, minlength=BINS)
    rows = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
    finite = np.isfinite(rows)
    low = np.min(np.where(finite, rows, np.float32(np.inf)), axis=0, initial=np.inf)
    high = np.max(np.where(finite, rows, np.float32(-np.inf)), axis=0, initial=-np.inf)
    wide = np.where(finite, rows, 0).astype(np.float64)
    # Row after row, as the kernel adds.
    sums, squares = (np.add.accumulate(a, axis=0)[-1:].sum(0) for a in (wide, wide * wide))
    return counts.astype(np.int64), low.astype(np.float32), high.astype(np.float32), sums, squares


# Outer axes by an odometer, channels innermost: memory order where channels are last. One thread: counts are shared.
_SOURCE = r"""
static void observe(const aot_call *call) {
  if (call->thread) return;
  const aot_tensor *const in = &call->inputs[0];
  i64 *restrict const counts = call->outputs[0].data;
  f32 *restrict const low = call->outputs[1].data, *restrict const high = call->outputs[2].data;
  f64 *restrict const sums = call->outputs[3].data, *restrict const squares = call->outputs[4].data;
  const i64 channels = call->outputs[1].elements, step = in->strides[AXIS];
  for (i64 k = 0; k < call->outputs[0].elements; k++) counts[k] = 0;
  for (i64 c = 0; c < channels; c++) {
    low[c] = __builtin_inff(); high[c] = -__builtin_inff(); sums[c] = 0; squares[c] = 0;
  }
  i64 place[RANK] = {0}, offset = 0;
  for (i64 left = channels ? in->elements / channels : 0; left > 0; left--) {
    const f32 *const row = (const f32 *)in->data + offset;
    for (i64 c = 0; c < channels; c++) {
      union { f32 number; u32 bits; } x;
      x.number = row[c * step];
      counts[x.bits >> SHIFT]++;
      if ((x.bits >> 23 & 255) == 255) continue;
      const f64 wide = x.number;
      low[c] = x.number < low[c] ? x.number : low[c];
      high[c] = x.number > high[c] ? x.number : high[c];
      sums[c] += wide;
      squares[c] += wide * wide;
    }
    for (i32 axis = RANK - 1; axis >= 0; axis--) {
      if (axis == AXIS) continue;
      offset += in->strides[axis];
      if (++place[axis] < in->shape[axis]) break;
      offset -= place[axis] * in->strides[axis];
      place[axis] = 0;
    }
  }
}
"""


def _text(attrs: Attrs, x: TensorType) -> str:
    return with_constants(
        _SOURCE, {"RANK": x.rank, "AXIS": normalize_axis(int_attr(attrs, "axis"), x.rank), "SHIFT": SHIFT}
    )


def _samples(rng: Any) -> list[Sample]:
    return [
        Sample((normal(rng, 5, 7),), {"axis": 1}, 1e-9, 1e-9),
        Sample((normal(rng, 2, 3, 4, 5),), {"axis": 1}, 1e-9, 1e-9),
        Sample((np.stack([SPECIAL, SPECIAL]),), {"axis": -1}, 1e-9, 1e-9),
        Sample((normal(rng, 33),), {"axis": 0}, 1e-9, 1e-9),
        Sample((normal(rng, 0, 4),), {"axis": 1}),
    ]


register(
    OpDef(
        name="observe",
        doc="How often each bin of floats occurs; of each channel least, greatest, sum and sum of squares.",
        inputs=("x",), kind=Kind.OPAQUE, infer=_infer, samples=_samples, attrs={"axis": AttrSpec("int")},
        reference=_reference, cost_flops=8,
        sources={"cpu": KernelSource(text=_text, function="observe", row_major=False)},
    )
)  # fmt: skip
