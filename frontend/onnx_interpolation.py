"""Resize with antialiasing or a crop: every axis is one known matrix, or one known list of places.

Both need sizes that are known when building. Without antialiasing the op `resize` serves any sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot.dims import Dim
from aot.frontend.onnx_registry import Context
from aot.frontend.shaping import times
from aot.ir import Array, Value
from aot.ops.helpers import float_attr, wide_dtype
from aot.ops.opdef import Attrs
from aot.ops.resize import resize_matrix, resize_nearest, resize_places, smooth_matrix

Window = tuple[float, float]


def interpolated(
    c: Context, attrs: Attrs, axes: Sequence[int], shape: Sequence[Dim], roi: Sequence[Window] | None, antialias: bool
) -> Value:
    """Operand 0 resized along `axes` to `shape`; `roi` holds a start and an end per axis, as parts of its length."""
    x = c.input(0)
    given = x.type.dtype
    if attrs["mode"] != "nearest" and x.type.dtype != wide_dtype(x.type.dtype):
        x = c.wide(x)
    elif attrs["mode"] != "nearest" and not x.type.dtype.is_float:
        c.unsupported("antialiasing or a crop of integers")
    outside: Value | None = None
    for number, axis in enumerate(axes):
        source, result = x.type.shape[axis], shape[axis]
        window = roi[number] if roi is not None else None
        if source == result and window in (None, (0.0, 1.0)):
            continue
        if not isinstance(source, int) or not isinstance(result, int):
            what = "tf_crop_and_resize" if roi is not None else "antialiasing"
            c.unsupported(f"{what} of a size that is only known when running", "Give it a value with --dim.")
        places = _cropped(window, source, result) if window else resize_places(attrs, axis, source, result)
        if attrs["mode"] == "nearest":
            chosen = resize_nearest(attrs, places, source, result < source)
            x = c.op("gather", x, c.builder.const(chosen), axis=axis)
        else:
            scale = _scale(attrs, axis, source, result)
            smooth = antialias and scale < 1.0
            matrix = _smooth(attrs, places, source, scale) if smooth else resize_matrix(attrs, places, source)
            x = times(c.builder, x, matrix, axis)
        if window is not None:
            beyond = (places < 0) | (places > source - 1)
            flags = c.builder.const(beyond.reshape(-1, *(1,) * (x.type.rank - 1 - axis)))
            if beyond.any():
                outside = flags if outside is None else c.op("or", outside, flags)
    if outside is not None:
        fill = c.scalar(c.float_attribute("extrapolation_value", 0.0), x.type.dtype)
        x = c.op("where", outside, fill, x)
    return c.cast(x, given)


def _scale(attrs: Attrs, axis: int, source: int, result: int) -> float:
    scales = attrs["scales"]
    return float(scales[axis]) if isinstance(scales, tuple) and scales else result / max(source, 1)  # type: ignore[arg-type]


def _cropped(window: Window, source: int, result: int) -> Array:
    """The places of tf_crop_and_resize."""
    start, end = (np.float32(part) for part in window)
    last = np.float32(source - 1)
    if result > 1:
        return start * last + np.arange(result, dtype=np.float32) * ((end - start) * last / np.float32(result - 1))
    return np.full(result, np.float32(0.5) * (start + end) * last, np.float32)


def _smooth(attrs: Attrs, places: Array, source: int, scale: float) -> Array:
    mode, a, outside = str(attrs["mode"]), float_attr(attrs, "cubic_a"), bool(attrs["exclude_outside"])
    return smooth_matrix(places, source, scale, mode=mode, cubic_a=a, exclude_outside=outside)
