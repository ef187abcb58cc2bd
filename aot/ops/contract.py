"""CONTRACT: matrix multiplication with batch dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.ir import Array, TensorType
from aot.ops.helpers import NUMERIC, integers, need_family, need_rank, need_same_dtype, normal
from aot.ops.opdef import Attrs, Kind, OpDef, Sample, broadcast_shapes, register, same_extent

# Multiply-adds up to which the reference accumulates f32 in f64; beyond, real models would take minutes.
WIDE_REFERENCE_LIMIT = 1 << 28

MATMULS = frozenset({"matmul", "matmul_8bit", "matmul_packed"})
"""Matrix products, of whatever element types."""


def _infer(attrs: Attrs, a: TensorType, b: TensorType) -> TensorType:
    need_family("matmul's operands", a, NUMERIC)
    dtype = need_same_dtype(a, b)
    need_rank("matmul's left operand", a, 2)
    need_rank("matmul's right operand", b, 2)
    same_extent(a.shape[-1], b.shape[-2], "matmul's inner extents")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return TensorType(dtype, (*batch, a.shape[-2], b.shape[-1]))


def matmul_array(a: Array, b: Array) -> Array:
    """np.matmul, accumulated in f64 (f32 for large f32 operands); integers wrap around."""
    dtype = a.dtype
    with np.errstate(all="ignore"):
        if dtype.kind in "iu":
            return np.asarray(np.matmul(a, b))
        work = a.size * b.shape[-1]
        accumulate = np.float64 if work <= WIDE_REFERENCE_LIMIT or dtype == np.float64 else np.float32
        return np.asarray(np.matmul(a.astype(accumulate), b.astype(accumulate))).astype(dtype)


def _samples(rng: Any) -> list[Sample]:
    special = np.array([[1, np.inf], [np.nan, 0]], np.float32)
    return [
        Sample((normal(rng, 5, 7), normal(rng, 7, 3)), {}, 1e-5, 1e-5),
        Sample((normal(rng, 1, 64), normal(rng, 64, 33)), {}, 1e-5, 1e-4),
        Sample((normal(rng, 2, 3, 17, 19), normal(rng, 2, 3, 19, 16)), {}, 1e-5, 1e-4),
        Sample((normal(rng, 2, 1, 4, 5), normal(rng, 3, 5, 6)), {}, 1e-5, 1e-5),
        Sample((normal(rng, 3, 4, 5), normal(rng, 5, 6)), {}, 1e-5, 1e-5),
        Sample((normal(rng, 1, 1), normal(rng, 1, 1))),
        Sample((normal(rng, 3, 0), normal(rng, 0, 2))),
        Sample((special, normal(rng, 2, 3))),
        Sample((integers(rng, 4, 5), integers(rng, 5, 3))),
        Sample((integers(rng, 4, 5, dtype=np.int32), integers(rng, 2, 5, 3, dtype=np.int32))),
        Sample((normal(rng, 4, 5, dtype=np.float64), normal(rng, 5, 3, dtype=np.float64))),
    ]


register(
    OpDef(
        name="matmul", doc="The matrix product over the last two axes; leading axes broadcast.", inputs=("a", "b"),
        kind=Kind.CONTRACT, infer=_infer, samples=_samples, reference=lambda attrs, a, b: matmul_array(a, b),
        cost_flops=2,
    )
)  # fmt: skip
