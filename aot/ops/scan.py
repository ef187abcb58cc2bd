"""SCAN_AXIS ops: running sums and products along one axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.ir import Array, TensorType
from aot.ops.helpers import NUMERIC, int_attr, integers, need_family, need_rank, normal
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, Sample, normalize_axis, register


def _infer(attrs: Attrs, x: TensorType) -> TensorType:
    need_family("a scan's operand", x, NUMERIC)
    need_rank("a scan's operand", x, 1)
    normalize_axis(int_attr(attrs, "axis"), x.rank)
    return TensorType(x.dtype, x.shape)


def _reference(function: Any, identity: int) -> Any:
    def run(attrs: Attrs, x: Array) -> Array:
        axis = normalize_axis(int_attr(attrs, "axis"), x.ndim)
        rows = np.moveaxis(x, axis, -1)
        rows = rows[..., ::-1] if attrs["reverse"] else rows
        if attrs["exclusive"]:
            first = np.full((*rows.shape[:-1], 1), identity, x.dtype)
            rows = np.concatenate([first, rows[..., :-1]], axis=-1) if rows.shape[-1] else rows
        wide = x.dtype if x.dtype.kind in "iu" else np.float64
        with np.errstate(all="ignore"):
            rows = function(rows, axis=-1, dtype=wide).astype(x.dtype)
        rows = rows[..., ::-1] if attrs["reverse"] else rows
        return np.ascontiguousarray(np.moveaxis(rows, -1, axis))

    return run


def _samples(rng: Any) -> list[Sample]:
    found = []
    for exclusive in (False, True):
        for reverse in (False, True):
            attrs = {"exclusive": exclusive, "reverse": reverse}
            found.append(Sample((normal(rng, 3, 7, scale=1.0),), {"axis": -1, **attrs}, 1e-5, 1e-5))
            found.append(Sample((normal(rng, 3, 5, 2, scale=1.0),), {"axis": 1, **attrs}, 1e-5, 1e-5))
            found.append(Sample((integers(rng, 9, lo=-2, hi=3),), {"axis": 0, **attrs}))
    found.append(Sample((normal(rng, 4, 1),), {"axis": 1, "exclusive": True}))
    found.append(Sample((integers(rng, 2, 6, lo=0, hi=4, dtype=np.int32),), {"axis": 0}))
    found.append(Sample((np.array([1, np.inf, np.nan, 2], np.float32),), {"axis": 0, "exclusive": True}))
    return found


for _name, _function, _identity in (("cumsum", np.cumsum, 0), ("cumprod", np.cumprod, 1)):
    register(
        OpDef(
            name=_name, doc=f"The running {_name[3:]} along an axis; exclusive leaves the element itself out.",
            inputs=("x",), kind=Kind.SCAN_AXIS, infer=_infer, samples=_samples,
            attrs={"axis": AttrSpec("int"), "exclusive": AttrSpec("bool", False), "reverse": AttrSpec("bool", False)},
            reference=_reference(_function, _identity),
        )
    )  # fmt: skip
