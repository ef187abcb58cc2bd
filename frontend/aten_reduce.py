"""ATen converters of reductions, running results along an axis, orders and the softmax family."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend import data_sizes
from aot.frontend.aten_types import computing, convert, extreme, filled, pair, truth, typed
from aot.frontend.torch_registry import Context, Result, aten_op
from aot.ir import Value
from aot.ops.helpers import wide_dtype
from aot.ops.reduce import reduced_shape

_I64 = dtypes.I64


def reduced(c: Context, name: str, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    """The op reduce_`name`, of truth values too."""
    if not axes:
        return x
    if x.type.dtype.is_bool:
        return truth(c, reduced(c, name, c.cast(x, dtypes.U8), axes, keepdims))
    return c.op_(f"reduce_{name}", x, axes=axes, keepdims=keepdims)


def count_of(c: Context, x: Value, axes: tuple[int, ...]) -> Dim:
    """How many elements each result is of."""
    return dimension.product(x.type.shape[axis] for axis in axes)


def _keepdims(c: Context) -> bool:
    return c.flag("keepdim")


def _dropped(c: Context, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    """A result that was computed with its axes kept."""
    return x if keepdims else c.reshape(x, reduced_shape(x.type.shape, axes, False))


# Sums, products, extremes


@aten_op("sum", "nansum")
def _sum(c: Context) -> Result:
    x = c.cast(c.tensor("self"), c.dtype)
    if c.op.startswith("nansum") and c.dtype.is_float:
        x = c.op_("where", c.op_("isnan", x), c.scalar(0.0, c.dtype), x)
    return reduced(c, "sum", x, c.axes("dim", x.type.rank), _keepdims(c))


@aten_op("prod")
def _prod(c: Context) -> Result:
    x = c.cast(c.tensor("self"), c.dtype)
    return reduced(c, "prod", x, c.axes("dim", x.type.rank), _keepdims(c))


@aten_op("mean", "nanmean")
def _mean(c: Context) -> Result:
    x = c.cast(c.tensor("self"), c.dtype)
    axes = c.axes("dim", x.type.rank)
    if not c.op.startswith("nanmean"):
        return reduced(c, "mean", x, axes, _keepdims(c))
    odd = c.op_("isnan", x)
    total = reduced(c, "sum", c.op_("where", odd, c.scalar(0.0, c.dtype), x), axes, _keepdims(c))
    return c.op_("div", total, reduced(c, "sum", c.cast(c.op_("not", odd), c.dtype), axes, _keepdims(c)))


@aten_op("amax", "amin")
def _extremes(c: Context) -> Result:
    x = c.tensor("self")
    return reduced(c, c.op.partition(".")[0][1:], x, c.axes("dim", x.type.rank), _keepdims(c))


@aten_op("aminmax")
def _both_extremes(c: Context) -> Result:
    x = c.tensor("self")
    axes = c.axes("dim", x.type.rank)
    return [reduced(c, name, x, axes, _keepdims(c)) for name in ("min", "max")]


@aten_op("max", "min")
def _max(c: Context) -> Result:
    """The extreme of all; or values and places along an axis."""
    x, name = c.tensor("self"), c.op.partition(".")[0]
    axes = c.axes("dim", x.type.rank)
    values = reduced(c, name, x, axes, _keepdims(c))
    if not c.has("dim"):
        return values
    return values, _place(c, f"arg{name}", x, axes, _keepdims(c))


@aten_op("max.other", "min.other")
def _max_other(c: Context) -> Result:
    return extreme(c, c.op.partition(".")[0], *pair(c, c.dtype))


def _place(c: Context, name: str, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    if not x.type.rank:
        return c.scalar(0, _I64)
    if x.type.dtype.is_bool:
        x = c.cast(x, dtypes.U8)
    return c.op_(name, x, axis=axes[0], keepdims=keepdims)


@aten_op("argmax", "argmin")
def _arg(c: Context) -> Result:
    x, name = c.tensor("self"), c.op.partition(".")[0]
    if c.has("dim"):
        return _place(c, name, x, (c.axis("dim", x.type.rank),), _keepdims(c))
    found = _place(c, name, c.reshape(x, (x.type.elements,)), (0,), False)
    return c.reshape(found, (1,) * x.type.rank) if _keepdims(c) else found


@aten_op("any", "all")
def _any(c: Context) -> Result:
    x = truth(c, c.tensor("self"))
    name = "max" if c.op.startswith("any") else "min"
    given = c.arguments.get("dim")
    axes = () if isinstance(given, list) and not given else c.axes("dim", x.type.rank)
    return c.cast(reduced(c, name, x, axes, _keepdims(c)), c.dtype)


@aten_op("count_nonzero")
def _count_nonzero(c: Context) -> Result:
    x = c.cast(truth(c, c.tensor("self")), _I64)
    return reduced(c, "sum", x, c.axes("dim", x.type.rank), False)


# Spread and norms


def _moments(c: Context, x: Value, axes: tuple[int, ...], correction: float) -> tuple[Value, Value]:
    """Variance and mean, with the axes kept, of a tensor of a wide type."""
    dtype = x.type.dtype
    centre = reduced(c, "mean", x, axes, True)
    apart = c.op_("sub", x, centre)
    square = c.op_("mul", apart, apart)
    if correction == 0:
        return reduced(c, "mean", square, axes, True), centre
    total, count = reduced(c, "sum", square, axes, True), count_of(c, x, axes)
    if isinstance(count, int):
        return c.op_("div", total, c.scalar(max(count - correction, 0.0), dtype)), centre
    left = c.op_("sub", typed(c, count, dtype), c.scalar(correction, dtype))
    return c.op_("div", total, c.op_("max", left, c.scalar(0.0, dtype))), centre


@aten_op("var", "std", "var_mean", "std_mean")
def _spread(c: Context) -> Result:
    if "correction" in c.arguments:
        correction = c.number("correction", 1.0)
    else:
        correction = 1.0 if c.flag("unbiased") else 0.0
    x = c.cast(c.tensor("self"), wide_dtype(c.dtype))
    axes = c.axes("dim", x.type.rank)
    spread, centre = _moments(c, x, axes, correction)
    name = c.op.partition(".")[0]
    if name.startswith("std"):
        spread = c.op_("sqrt", spread)
    found = [c.cast(_dropped(c, part, axes, _keepdims(c)), c.dtype) for part in (spread, centre)]
    return found if name.endswith("_mean") else found[0]


def _log_sum_exp(c: Context, x: Value, axes: tuple[int, ...]) -> Value:
    """With the axes kept, of a wide type."""
    top = reduced(c, "max", x, axes, True)
    shift = c.op_("where", c.op_("isinf", top), c.scalar(0.0, x.type.dtype), top)  # inf - inf would be NaN
    total = reduced(c, "sum", c.op_("exp", c.op_("sub", x, shift)), axes, True)
    return c.op_("add", c.op_("log", total), shift)


@aten_op("logsumexp", "special_logsumexp")
def _logsumexp(c: Context) -> Result:
    x = c.cast(c.cast(c.tensor("self"), c.dtype), wide_dtype(c.dtype))
    axes = c.axes("dim", x.type.rank)
    return c.cast(_dropped(c, _log_sum_exp(c, x, axes), axes, _keepdims(c)), c.dtype)


@aten_op("linalg_vector_norm", "norm", "dist")
def _norm(c: Context) -> Result:
    order = c.number("ord" if "ord" in c.arguments else "p", 2.0)
    if c.op.startswith("dist"):
        return computing(c, c.dtype, lambda x, y: _length(c, c.op_("sub", x, y), order), c["self"], c["other"])
    return computing(c, c.dtype, lambda x: _length(c, x, order), c["self"])


def _length(c: Context, x: Value, order: float) -> Value:
    """The norm of an order, over the axes that the node names."""

    axes, keep = c.axes("dim", x.type.rank), _keepdims(c)
    size = c.op_("abs", x)
    if math.isinf(order):
        return reduced(c, "max" if order > 0 else "min", size, axes, keep)
    if order == 0:
        return reduced(c, "sum", c.cast(truth(c, x), x.type.dtype), axes, keep)
    if order == 1:
        return reduced(c, "sum", size, axes, keep)
    if order == 2:
        return c.op_("sqrt", reduced(c, "sum", c.op_("mul", x, x), axes, keep))
    total = reduced(c, "sum", c.op_("pow", size, c.scalar(order, x.type.dtype)), axes, keep)
    return c.op_("pow", total, c.scalar(1.0 / order, x.type.dtype))


# Running results


@aten_op("cumsum", "cumprod")
def _running(c: Context) -> Result:
    x = convert(c, c.tensor("self"), c.dtype)
    if not x.type.rank:
        return x
    name = c.op.partition(".")[0]
    return computing(c, c.dtype, lambda row: c.op_(name, row, axis=c.axis("dim", x.type.rank)), x)


@aten_op("logcumsumexp")
def _log_running(c: Context) -> Result:
    """In f64: what is far below the largest element still counts where it comes before it."""
    x = c.cast(c.tensor("self"), dtypes.F64)
    axis = c.axis("dim", x.type.rank)
    if not x.type.rank:
        return c.tensor("self")
    lowest = c.scalar(-math.inf, dtypes.F64)  # for a NaN, which only counts from its place on
    top = reduced(c, "max", c.op_("where", c.op_("isnan", x), lowest, x), (axis,), True)
    shift = c.op_("where", c.op_("isinf", top), c.scalar(0.0, dtypes.F64), top)
    total = c.op_("cumsum", c.op_("exp", c.op_("sub", x, shift)), axis=axis)
    return c.cast(c.op_("add", c.op_("log", total), shift), c.dtype)


@aten_op("cummax", "cummin")
def _running_extreme(c: Context) -> Result:
    x = c.tensor("self")
    if not x.type.rank:
        return x, c.scalar(0, _I64)
    axis, last = c.axis("dim", x.type.rank), x.type.rank - 1
    perm = tuple(last if k == axis else axis if k == last else k for k in range(x.type.rank))
    row = c.cast(c.transpose(x, perm), wide_dtype(x.type.dtype))
    values, places = c.builder.op(f"running_{c.op.partition('.')[0][3:]}", row)
    return c.cast(c.transpose(values, perm), x.type.dtype), c.transpose(places, perm)


# Softmax


@aten_op("_softmax", "softmax", "_log_softmax", "log_softmax", "special_softmax", "special_log_softmax")
def _softmax(c: Context) -> Result:
    x = c.cast(c.tensor("self"), c.dtype)
    name = "log_softmax" if "log_softmax" in c.op else "softmax"
    return c.op_(name, x, axis=c.axis("dim", x.type.rank))


@aten_op("_safe_softmax")
def _safe_softmax(c: Context) -> Result:
    """A row of -inf alone gives zeros."""
    x = c.cast(c.tensor("self"), c.dtype)
    axis = c.axis("dim", x.type.rank)
    axes = (axis,) if x.type.rank else ()
    lowest = c.op_("eq", reduced(c, "max", x, axes, True), c.scalar(-math.inf, c.dtype))
    return c.op_("where", lowest, c.scalar(0.0, c.dtype), c.op_("softmax", x, axis=axis))


# Orders


def ordered(c: Context, x: Value, axis: int, descending: bool = False) -> tuple[Value, Value]:
    """Values in order along an axis, and where they were."""
    if not x.type.rank:
        return x, c.scalar(0, _I64)
    values, places = c.builder.op("sort", x, axis=axis, descending=descending)
    return values, places


@aten_op("sort", "argsort", "msort")
def _sort(c: Context) -> Result:
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank) if c.has("dim") else 0
    values, places = ordered(c, x, axis, c.flag("descending"))
    name = c.op.partition(".")[0]
    return places if name == "argsort" else values if name == "msort" else (values, places)


@aten_op("topk")
def _top(c: Context) -> Result:
    x = c.tensor("self")
    if not x.type.rank:
        return x, c.scalar(0, _I64)
    axis = c.axis("dim", x.type.rank)
    values, places = c.builder.op("top_k", x, axis=axis, k=c.size("k"), largest=c.flag("largest"))
    return values, places


def _at(c: Context, parts: tuple[Value, Value], place: Value, axis: int, keepdims: bool) -> tuple[Value, Value]:
    """Values and places at one place of each ordered row; `place` has the axis with extent 1."""
    found = [c.op_("gather_elements", part, place, axis=axis) for part in parts]
    values, places = (_dropped(c, part, (axis,), keepdims) for part in found)
    return values, places


@aten_op("kthvalue")
def _kth(c: Context) -> Result:
    x = c.tensor("self")
    if not x.type.rank:
        return x, c.scalar(0, _I64)
    axis, keep = c.axis("dim", x.type.rank), _keepdims(c)
    parts = ordered(c, x, axis)
    first, size = c.size("k") - 1, 1
    values, places = (_dropped(c, c.slice_axis(part, axis, first, size), (axis,), keep) for part in parts)
    return values, places


@aten_op("median", "nanmedian")
def _median(c: Context) -> Result:
    """The lower of two in the middle; a NaN anywhere is the median, unless NaNs do not count."""
    x = c.tensor("self")
    given = c.has("dim")
    if not given:
        x = c.reshape(x, (x.type.elements,))
    if not x.type.rank:
        return x, c.scalar(0, _I64)
    axis = c.axis("dim", x.type.rank) if given else 0
    shape = tuple(1 if k == axis else extent for k, extent in enumerate(x.type.shape))
    extent = x.type.shape[axis]
    if extent == 0:
        return filled(c, math.nan if c.dtype.is_float else -(1 << (c.dtype.bits - 1)), c.dtype, ())
    place = filled(c, dimension.floordiv(extent - 1, 2), _I64, shape)
    if x.type.dtype.is_float:
        odd = c.cast(c.op_("isnan", x), _I64)
        numbers = c.op_("sub", typed(c, extent, _I64), reduced(c, "sum", odd, (axis,), True))
        one, two = c.scalar(1, _I64), c.scalar(2, _I64)
        if c.op.startswith("nanmedian"):
            place = c.op_("max", c.op_("div", c.op_("sub", numbers, one), two), c.scalar(0, _I64))
        else:  # NaNs are last
            place = c.op_("where", c.op_("lt", numbers, typed(c, extent, _I64)), numbers, place)
    values, places = _at(c, ordered(c, x, axis), place, axis, _keepdims(c))
    return (values, places) if given else values


@aten_op("mode")
def _mode(c: Context) -> Result:
    """The least of the most frequent elements, and its last place: each is counted against all."""
    x = c.tensor("self")
    if not x.type.rank:
        return x, c.scalar(0, _I64)
    axis = c.axis("dim", x.type.rank)
    parts = ordered(c, x, axis)
    shape, extent = parts[0].type.shape, parts[0].type.shape[axis]
    column = c.reshape(parts[0], (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    row = c.reshape(parts[0], (*shape[:axis], 1, *shape[axis:]))
    counts = reduced(c, "sum", c.cast(c.op_("eq", column, row), _I64), (axis + 1,), False)
    first = c.op_("argmax", counts, axis=axis, keepdims=True)
    most = reduced(c, "max", counts, (axis,), True)
    last = c.op_("sub", c.op_("add", first, c.op_("max", most, c.scalar(1, _I64))), c.scalar(1, _I64))
    if extent == 0:
        c.unsupported("the mode of no elements")
    return _at(c, parts, last, axis, _keepdims(c))


@aten_op("histc")
def _histogram(c: Context) -> Result:
    """How many elements fall into each of equal bins; those outside, and NaNs, into none."""
    x, bins = c.tensor("self"), c.integer("bins")
    low, high = c.number("min", 0.0), c.number("max", 0.0)
    wide = dtypes.F64 if x.type.dtype is dtypes.F64 or not x.type.dtype.is_float else dtypes.F32
    row = c.cast(c.reshape(x, (x.type.elements,)), wide)
    if low == high:
        least, most = (reduced(c, name, row, (0,), True) for name in ("min", "max"))
        same = c.op_("eq", least, most)
        one = c.scalar(1.0, wide)
        least, most = (
            c.op_("where", same, c.op_("sub", least, one), least),
            c.op_("where", same, c.op_("add", most, one), most),
        )
    else:
        least, most = c.scalar(low, wide), c.scalar(high, wide)
    inside = c.op_("and", c.op_("ge", row, least), c.op_("le", row, most))
    part = c.op_("div", c.op_("sub", row, least), c.op_("sub", most, least))
    place = c.op_("floor", c.op_("mul", part, c.scalar(float(bins), wide)))
    place = c.op_("clip", place, c.scalar(0.0, wide), c.scalar(float(bins - 1), wide))
    place = c.op_("where", inside, c.cast(place, _I64), c.scalar(bins, _I64))
    return _tally(c, place, c.cast(inside, _I64), bins, c.dtype)


@aten_op("bincount")
def _bincount(c: Context) -> Result:
    """As many bins as the largest element asks for."""
    x, weights = c.tensor("self"), c.optional("weights")
    one, least = c.scalar(1, _I64), typed(c, c["minlength"], _I64)
    x = c.cast(x, _I64)
    length = c.op_("max", c.op_("add", c.op_("reduce_max", x, axes=(0,), keepdims=False), one), least)
    bins = data_sizes.read(c.builder, length, "the number of bins")
    if weights is None:
        return _tally(c, x, filled(c, 1, _I64, x.type.shape), bins, c.dtype)
    return _tally(c, x, c.cast(weights, c.dtype), bins, c.dtype)


def _tally(c: Context, places: Value, ones: Value, bins: Dim, dtype: DType) -> Value:
    """The sum of what falls to each of 0 … bins - 1; a place outside counts nowhere."""
    zeros = filled(c, 0, ones.type.dtype, (bins,))
    return c.cast(c.op_("scatter_elements", zeros, places, ones, axis=0, reduction="add"), dtype)


# Distinct elements


def _is_nothing(shape: Sequence[object]) -> bool:
    return len(shape) == 1 and isinstance(shape[0], int) and shape[0] == 0


@aten_op("_unique2", "_unique", "unique_dim", "unique_consecutive", "unique_dim_consecutive")
def _unique(c: Context) -> Result:
    """The distinct elements, or slices, in order or where each run begins; which of them each is; how often."""
    x, rank = c.tensor("self"), c.tensor("self").type.rank
    axis = c.axis("dim", rank) if c.has("dim") else None
    perm = tuple(range(rank)) if axis is None else (axis, *(other for other in range(rank) if other != axis))
    front = c.reshape(x, (x.type.elements,)) if axis is None else c.transpose(x, perm)
    wide = c.cast(front, wide_dtype(front.type.dtype))
    if "consecutive" in c.op:
        first, inverse, counts = data_sizes.groups_of(c.builder, data_sizes.differs_from_before(c.builder, wide))
    else:
        first, inverse, counts = data_sizes.distinct(c.builder, wide)
    values = c.op_("gather", front, first, axis=0)
    if axis is None:
        inverse = c.reshape(inverse, x.type.shape)
    else:
        values = c.transpose(values, tuple(perm.index(k) for k in range(rank)))
    # What was not asked for is empty, in most forms.
    found = [
        filled(c, 0, _I64, (0,)) if _is_nothing(c.result(number).shape) else part
        for number, part in ((1, inverse), (2, counts))[: len(c.results) - 1]
    ]
    return [values, *found]
