"""Converters of reductions, arg-reductions, scans along an axis and the softmax family."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aot import dims as dimension
from aot import dtypes
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.ir import Value

# The first version in which the axes of a reduction are an operand.
_AXES_OPERAND = {"ReduceSum": 13}


def reduce_axes(c: Context) -> tuple[int, ...] | None:
    """The axes of a reduction; None where noop_with_empty_axes leaves the operand as it is."""
    rank = c.rank()
    axes: tuple[int, ...] = ()
    if c.opset >= _AXES_OPERAND.get(c.op_type, 18):
        if c.has(1):
            axes = c.ints(1, "axes")
        if not axes and c.bool_attribute("noop_with_empty_axes", False):
            return None
    else:
        axes = c.ints_attribute("axes", ())
    return c.axes(axes) if axes else tuple(range(rank))


def _plain(name: str) -> Callable[..., Value]:
    def apply(c: Context, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
        return c.op(name, x, axes=axes, keepdims=keepdims)

    return apply


def _mean(c: Context, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    if x.type.dtype.is_float:
        return c.op("reduce_mean", x, axes=axes, keepdims=keepdims)
    total = c.op("reduce_sum", x, axes=axes, keepdims=keepdims)
    return c.op("div", total, c.dim_scalar(dimension.product(x.type.shape[a] for a in axes), x.type.dtype))


def _log_sum_exp(c: Context, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    if not x.type.dtype.is_float:
        c.unsupported(f"ReduceLogSumExp of {x.type.dtype}")
    top = c.op("reduce_max", x, axes=axes, keepdims=True)
    infinite = c.op("isinf", top)
    shift = c.op("where", infinite, c.scalar(0.0, x.type.dtype), top)  # inf - inf would be NaN
    total = c.op("reduce_sum", c.op("exp", c.op("sub", x, shift)), axes=axes, keepdims=True)
    result = c.op("add", c.op("log", total), shift)
    if keepdims:
        return result
    return c.reshape(result, tuple(extent for i, extent in enumerate(x.type.shape) if i not in axes))


def _sum_square(c: Context, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    return c.op("reduce_sum", c.op("mul", x, x), axes=axes, keepdims=keepdims)


def _float_root(c: Context, x: Value) -> Value:
    if x.type.dtype.is_float:
        return c.op("sqrt", x)
    return c.cast(c.op("sqrt", c.cast(x, dtypes.F64)), x.type.dtype)


def _float_log(c: Context, x: Value) -> Value:
    if x.type.dtype.is_float:
        return c.op("log", x)
    return c.cast(c.op("log", c.cast(x, dtypes.F64)), x.type.dtype)


def _l1(c: Context, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    return c.op("reduce_sum", c.op("abs", x), axes=axes, keepdims=keepdims)


def _l2(c: Context, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    return _float_root(c, _sum_square(c, x, axes, keepdims))


def _log_sum(c: Context, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    return _float_log(c, c.op("reduce_sum", x, axes=axes, keepdims=keepdims))


_REDUCTIONS: Mapping[str, Callable[..., Value]] = {
    "ReduceSum": _plain("reduce_sum"),
    "ReduceMax": _plain("reduce_max"),
    "ReduceMin": _plain("reduce_min"),
    "ReduceProd": _plain("reduce_prod"),
    "ReduceMean": _mean,
    "ReduceL1": _l1,
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": _sum_square,
}
_UNARY_PARTS: Mapping[str, Callable[[Context, Value], Value]] = {
    "ReduceL1": lambda c, x: c.op("abs", x),
    "ReduceL2": lambda c, x: c.op("abs", x),
    "ReduceLogSum": _float_log,
    "ReduceLogSumExp": lambda c, x: x,
    "ReduceSumSquare": lambda c, x: c.op("mul", x, x),
}


@onnx_op(*_REDUCTIONS)
def _reduce(c: Context) -> Result:
    x = c.input(0)
    axes = reduce_axes(c)
    if axes is None:
        part = _UNARY_PARTS.get(c.op_type)
        return part(c, x) if part is not None else x
    keepdims = c.bool_attribute("keepdims", True)
    if x.type.dtype.is_bool:
        made = _REDUCTIONS[c.op_type](c, c.cast(x, dtypes.U8), axes, keepdims)
        return c.cast(made, dtypes.BOOL)
    return _REDUCTIONS[c.op_type](c, x, axes, keepdims)


@onnx_op("ArgMax", "ArgMin")
def _arg(c: Context) -> Result:
    return c.op(
        c.op_type.lower(),
        c.input(0),
        axis=c.axis(c.int_attribute("axis", 0)),
        keepdims=c.bool_attribute("keepdims", True),
        last=c.bool_attribute("select_last_index", False),
    )


@onnx_op("CumSum", "CumProd")
def _scan(c: Context) -> Result:
    return c.op(
        c.op_type.lower(),
        c.input(0),
        axis=c.axis(c.int_scalar(1, "axis")),
        exclusive=c.bool_attribute("exclusive", False),
        reverse=c.bool_attribute("reverse", False),
    )


@onnx_op("Softmax", "LogSoftmax", "Hardmax")
def _softmax(c: Context) -> Result:
    x = c.input(0)
    shape = x.type.shape
    if c.opset >= 13:
        return _along(c, x, c.axis(c.int_attribute("axis", -1)))
    axis = c.axis(c.int_attribute("axis", 1)) if c.rank() else 0
    if c.rank() == 0 or all(extent == 1 for extent in shape[axis + 1 :]):
        return _along(c, x, axis)
    # Before opset 13 the axes from `axis` on are one row.
    flat = c.reshape(x, (dimension.product(shape[:axis]), dimension.product(shape[axis:])))
    return c.reshape(_along(c, flat, 1), shape)


def _along(c: Context, x: Value, axis: int) -> Value:
    if c.op_type == "Softmax":
        return c.op("softmax", x, axis=axis)
    if c.op_type == "LogSoftmax":
        return c.op("log_softmax", x, axis=axis)
    # Hardmax: one where the first largest element is.
    place = c.op("argmax", x, axis=axis, keepdims=True, last=False)
    extents = [x.type.shape[axis] if i == axis else 1 for i in range(x.type.rank)]
    counter = c.op("iota", shape=tuple(extents), axis=axis, start=0, step=1, dtype=dtypes.I64)
    return c.cast(c.op("eq", counter, place), x.type.dtype)
