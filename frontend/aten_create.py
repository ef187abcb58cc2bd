"""ATen converters of tensors made from sizes and numbers: filled ones, ranges, triangles, random numbers.

Random numbers come from a counter and a seed (aot/ops/random.py), and the seed from the node's name: every run of
an artifact gives the same ones. They are not torch's; only the distribution is the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim, DimExpr
from aot.dtypes import DType
from aot.frontend.aten_types import convert, filled, typed
from aot.frontend.torch_registry import Context, Result, aten_op
from aot.ir import Value
from aot.ops.helpers import wide_dtype

_F32, _F64, _I64 = dtypes.F32, dtypes.F64, dtypes.I64

# Filled


@aten_op("full", "new_full")
def _full(c: Context) -> Result:
    return filled(c, c["fill_value"], c.dtype, c.sizes("size"))


@aten_op("full_like")
def _full_like(c: Context) -> Result:
    return filled(c, c["fill_value"], c.dtype, c.tensor("self").type.shape)


@aten_op("zeros", "new_zeros", "empty", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")
def _zeros(c: Context) -> Result:
    """Memory that torch leaves as it is holds zeros here."""
    return filled(c, 0, c.dtype, c.sizes("size"))


@aten_op("zeros_like", "empty_like", "zero")
def _zeros_like(c: Context) -> Result:
    return filled(c, 0, c.dtype, c.tensor("self").type.shape)


@aten_op("ones", "new_ones")
def _ones(c: Context) -> Result:
    return filled(c, 1, c.dtype, c.sizes("size"))


@aten_op("ones_like")
def _ones_like(c: Context) -> Result:
    return filled(c, 1, c.dtype, c.tensor("self").type.shape)


@aten_op("scalar_tensor")
def _scalar_tensor(c: Context) -> Result:
    return typed(c, c["s"], c.dtype)


# Ranges


def counter(c: Context, extent: Dim) -> Value:
    """0, 1, … as i64."""
    return c.op_("iota", shape=(extent,), axis=0, start=0, step=1, dtype=_I64)


def progression(c: Context, start: object, step: object, extent: Dim, dtype: DType) -> Value:
    """start + i * step, in i64 or f64, rounded once."""
    if isinstance(start, int) and isinstance(step, int) and (dtype.is_integer or abs(start) + abs(step) < 1 << 20):
        if dtype.is_integer or dtype is _F32 or dtype is _F64:
            return c.op_("iota", shape=(extent,), axis=0, start=start, step=step, dtype=dtype)
    wide = _F64 if dtype.is_float else _I64
    row = c.cast(counter(c, extent), wide)
    if step != 1:
        row = c.op_("mul", row, typed(c, step, wide))
    if not isinstance(start, int | float) or start != 0:
        row = c.op_("add", row, typed(c, start, wide))
    return c.cast(row, dtype)


@aten_op("arange")
def _arange(c: Context) -> Result:
    start = c["start"] if c.has("start") else 0
    step = c["step"] if c.has("step") else 1
    end = c["end"]
    if any(isinstance(bound, Value) for bound in (start, step, end)):
        c.unsupported("a range whose bounds are only known when running")
    start, step, end = (int(bound) if isinstance(bound, bool) else bound for bound in (start, step, end))
    if any(isinstance(bound, float) for bound in (start, step, end)):
        if any(isinstance(bound, DimExpr) for bound in (start, step, end)):
            c.unsupported("a range of sizes in steps that are not whole")
        extent: Dim = max(math.ceil((end - start) / step), 0)
        if not c.dtype.is_float:  # torch takes the bounds as whole numbers; of i64, for their count too
            start, end, step = int(start), int(end), int(step)
            extent = max(-(-(end - start) // step), 0) if step and c.dtype is _I64 else extent
    elif isinstance(step, DimExpr) or step > 0:
        extent = dimension.maximum(dimension.ceildiv(end - start, step), 0)
    else:
        extent = dimension.maximum(dimension.ceildiv(start - end, -step), 0)
    return progression(c, start, step, extent, c.dtype)


@aten_op("prims::iota")
def _iota(c: Context) -> Result:
    return progression(c, c["start"], c["step"], c.size("length"), c.dtype)


@aten_op("linspace")
def _linspace(c: Context) -> Result:
    """From both ends to the middle, so that the last is exact."""
    steps = c.size("steps")
    start, end = c["start"], c["end"]
    if steps == 1:
        return c.expand(c.reshape(convert(c, typed(c, start, _F64), c.dtype), (1,)), (1,))
    low, high = typed(c, start, _F64), typed(c, end, _F64)
    if not c.dtype.is_float:
        low, high = c.op_("trunc", low), c.op_("trunc", high)
    place, last = c.cast(counter(c, steps), _F64), typed(c, steps - 1, _F64)
    step = c.op_("div", c.op_("sub", high, low), last)
    near = c.op_("add", low, c.op_("mul", place, step))
    far = c.op_("sub", high, c.op_("mul", c.op_("sub", last, place), step))
    half = c.op_("lt", counter(c, steps), typed(c, dimension.floordiv(steps, 2), _I64))
    return convert(c, c.op_("where", half, near, far), c.dtype)


@aten_op("logspace")
def _logspace(c: Context) -> Result:
    steps = c.size("steps")
    low, high = typed(c, c["start"], _F64), typed(c, c["end"], _F64)
    last = typed(c, dimension.maximum(steps - 1, 1), _F64)
    step = c.op_("div", c.op_("sub", high, low), last)
    powers = c.op_("add", low, c.op_("mul", c.cast(counter(c, steps), _F64), step))
    return convert(c, c.op_("pow", c.scalar(c.number("base", 10.0), _F64), powers), c.dtype)


# Triangles


@aten_op("eye")
def _eye(c: Context) -> Result:
    rows = c.size("n")
    columns = c.size("m") if "m" in c.arguments else rows
    down = c.op_("iota", shape=(rows, 1), axis=0, start=0, step=1, dtype=_I64)
    across = c.op_("iota", shape=(1, columns), axis=1, start=0, step=1, dtype=_I64)
    return c.cast(c.op_("eq", down, across), c.dtype)


@aten_op("tril", "triu")
def _triangle(c: Context) -> Result:
    return c.op_("trilu", c.tensor("self"), k=c.integer("diagonal"), upper=c.op.startswith("triu"))


@aten_op("tril_indices", "triu_indices")
def _triangle_indices(c: Context) -> Result:
    rows, columns, offset = c.integer("row"), c.integer("col"), c.integer("offset")
    find = np.tril_indices if c.op.startswith("tril") else np.triu_indices
    return c.cast(c.builder.const(np.stack(find(rows, offset, columns)).astype(np.int64)), c.dtype)


# Random numbers


def _seed(c: Context) -> int:
    """56 bits from the node's name."""
    note = "random numbers are this compiler's own, the same in every run; torch draws others"
    if note not in c.notes:
        c.notes.append(note)
    name = c.where.split(" ")[0]
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")


def uniform(c: Context, shape: Sequence[Dim], dtype: DType, low: float = 0.0, high: float = 1.0) -> Value:
    """Uniform numbers low <= x < high."""
    wide = wide_dtype(dtype)
    made = c.op_("random_uniform", shape=tuple(shape), dtype=wide, seed=_seed(c), low=low, high=high)
    return c.cast(made, dtype)


def gauss(c: Context, shape: Sequence[Dim], dtype: DType, mean: float = 0.0, scale: float = 1.0) -> Value:
    """Normally distributed numbers."""
    wide = wide_dtype(dtype)
    made = c.op_("random_normal", shape=tuple(shape), dtype=wide, seed=_seed(c), mean=mean, scale=scale)
    return c.cast(made, dtype)


def _shape(c: Context) -> tuple[Dim, ...]:
    return c.sizes("size") if c.has("size") else c.tensor("self").type.shape


@aten_op("rand", "rand_like")
def _rand(c: Context) -> Result:
    return uniform(c, _shape(c), c.dtype)


@aten_op("randn", "randn_like")
def _randn(c: Context) -> Result:
    return gauss(c, _shape(c), c.dtype)


@aten_op("uniform")
def _uniform(c: Context) -> Result:
    return uniform(c, _shape(c), c.dtype, c.number("from", 0.0), c.number("to", 1.0))


@aten_op("normal_functional", "normal.float_float")
def _normal(c: Context) -> Result:
    return gauss(c, _shape(c), c.dtype, c.number("mean", 0.0), c.number("std", 1.0))


@aten_op("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def _normal_of(c: Context) -> Result:
    """Mean and deviation of each element."""
    wide = wide_dtype(c.dtype)
    mean = typed(c, c["mean"] if c.has("mean") else 0.0, wide)
    scale = typed(c, c["std"] if c.has("std") else 1.0, wide)
    shape = (mean if mean.type.rank else scale).type.shape
    return c.cast(c.op_("add", mean, c.op_("mul", scale, gauss(c, shape, wide))), c.dtype)


@aten_op("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def _randint(c: Context) -> Result:
    low = c.number("low", 0.0)
    draw = uniform(c, _shape(c), _F64, low, c.number("high"))
    return convert(c, c.op_("floor", draw), c.dtype)


@aten_op("randperm")
def _randperm(c: Context) -> Result:
    """The order of random keys."""
    _, places = c.builder.op("sort", uniform(c, (c.size("n"),), _F64), axis=0, descending=False)
    return c.cast(places, c.dtype)


@aten_op("bernoulli")
def _bernoulli(c: Context) -> Result:
    x = c.tensor("self")
    chance = typed(c, c["p"], _F32) if c.has("p") else c.cast(x, _F32)
    return c.cast(c.op_("lt", uniform(c, x.type.shape, _F32), chance), c.dtype)


@aten_op("exponential")
def _exponential(c: Context) -> Result:
    x = c.tensor("self")
    draw = c.op_("log1p", c.op_("neg", uniform(c, x.type.shape, _F64)))
    return c.cast(c.op_("mul", draw, c.scalar(-1.0 / c.number("lambd", 1.0), _F64)), c.dtype)


@aten_op("cauchy")
def _cauchy(c: Context) -> Result:
    """The tangent of an angle, by which it is a quotient of two normal numbers."""
    turns = uniform(c, c.tensor("self").type.shape, _F64, -0.5, 0.5)
    angle = c.op_("mul", turns, c.scalar(math.pi, _F64))
    draw = c.op_("mul", c.op_("tan", angle), c.scalar(c.number("sigma", 1.0), _F64))
    return c.cast(c.op_("add", draw, c.scalar(c.number("median", 0.0), _F64)), c.dtype)


@aten_op("log_normal")
def _log_normal(c: Context) -> Result:
    draw = gauss(c, c.tensor("self").type.shape, _F64, c.number("mean", 1.0), c.number("std", 2.0))
    return c.cast(c.op_("exp", draw), c.dtype)


@aten_op("geometric")
def _geometric(c: Context) -> Result:
    """How many trials the first success takes."""
    draw = c.op_("log1p", c.op_("neg", uniform(c, c.tensor("self").type.shape, _F64)))
    trials = c.op_("mul", draw, c.scalar(1.0 / math.log1p(-c.number("p")), _F64))
    return convert(c, c.op_("max", c.op_("ceil", trials), c.scalar(1.0, _F64)), c.dtype)


@aten_op("multinomial")
def _multinomial(c: Context) -> Result:
    """With replacement by running sums; without, the largest of log(weight) plus Gumbel noise (Kool, 2019)."""
    x, count = c.tensor("self"), c.size("num_samples")
    *batch, classes = x.type.shape
    weights = c.cast(x, _F32)
    if not c.flag("replacement"):
        noise = c.op_("log", c.op_("neg", c.op_("log1p", c.op_("neg", uniform(c, x.type.shape, _F64)))))
        keys = c.op_("sub", c.op_("log", c.cast(x, _F64)), noise)
        return c.builder.op("top_k", keys, axis=-1, k=count, largest=True)[1]
    sums = c.op_("cumsum", weights, axis=len(batch))
    total = c.slice_axis(sums, len(batch), classes - 1, 1)
    draws = c.op_("mul", uniform(c, (*batch, count), _F32), total)
    passed = c.op_("le", c.reshape(sums, (*batch, 1, classes)), c.reshape(draws, (*batch, count, 1)))
    number = c.op_("reduce_sum", c.cast(passed, _I64), axes=(len(batch) + 1,), keepdims=False)
    return c.op_("min", number, typed(c, classes - 1, _I64))


@aten_op("rrelu_with_noise_functional")
def _rrelu(c: Context) -> Result:
    """Slopes of their own for what is negative; the slopes, and 1 elsewhere, are the second result."""
    x = c.tensor("self")
    low, high = c.number("lower", 0.125), c.number("upper", 1.0 / 3.0)
    if not c.flag("training"):
        return c.op_("leaky_relu", x, alpha=(low + high) / 2.0), c.tensor("noise")
    slopes = uniform(c, x.type.shape, c.dtype, low, high)
    noise = c.op_("where", c.op_("le", x, c.scalar(0.0, c.dtype)), slopes, c.scalar(1.0, c.dtype))
    return c.op_("mul", x, noise), noise


@aten_op("native_dropout", "dropout")
def _dropout(c: Context) -> Result:
    x, chance = c.tensor("input"), c.number("p")
    native = c.op.startswith("native_dropout")
    if chance == 0.0 or not c.flag("train"):
        return (x, filled(c, True, dtypes.BOOL, x.type.shape)) if native else x
    kept = c.op_("ge", uniform(c, x.type.shape, _F32), c.scalar(chance, _F32))
    factor = c.scalar(1.0 / (1.0 - chance) if chance < 1.0 else 0.0, c.dtype)
    result = c.op_("mul", c.op_("mul", x, c.cast(kept, c.dtype)), factor)
    return (result, kept) if native else result
