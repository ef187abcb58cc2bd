"""ATen converters of normalizations: layer, RMS, group, instance and batch norm, composite and native forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aot import dims as dimension
from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend.aten_reduce import count_of, reduced
from aot.frontend.aten_types import filled, typed
from aot.frontend.torch_registry import Context, Result, aten_op, dtype_of
from aot.ir import Value
from aot.ops.helpers import wide_dtype


def _common(*parts: Value | None) -> DType:
    """The widest element type."""
    return max((part.type.dtype for part in parts if part is not None), key=lambda dtype: dtype.bits)


def _typed(c: Context, part: Value | None, dtype: DType) -> Value | None:
    return None if part is None else c.cast(part, dtype)


def _as_results(c: Context, values: Sequence[Value | None]) -> list[Value | None]:
    """The results with the element types and shapes that torch gives them; an empty tensor for None."""
    found: list[Value | None] = []
    for number, value in enumerate(values):
        fake = c.result(number)
        if fake is None:
            found.append(None)
        elif value is None:
            found.append(filled(c, 0, dtype_of(fake.dtype, c.where), (0,)))
        else:
            found.append(c.cast(value, dtype_of(fake.dtype, c.where)))
    return found


def _statistics(c: Context, x: Value, axes: tuple[int, ...], epsilon: float) -> tuple[Value, Value, Value]:
    """Mean, variance and 1 / sqrt(variance + epsilon), with the axes kept, in the wide type."""
    row = c.cast(x, wide_dtype(x.type.dtype))
    mean = reduced(c, "mean", row, axes, True)
    apart = c.op_("sub", row, mean)
    variance = reduced(c, "mean", c.op_("mul", apart, apart), axes, True)
    return mean, variance, _inverse(c, variance, epsilon)


def _inverse(c: Context, variance: Value, epsilon: float) -> Value:
    return c.op_("rsqrt", c.op_("add", variance, c.scalar(epsilon, variance.type.dtype)))


# Over trailing axes


def _first_axis(c: Context, x: Value) -> int:
    return x.type.rank - len(c["normalized_shape"])


def _layer(c: Context, x: Value) -> Value:
    scale, bias = c.optional("weight"), c.optional("bias")
    dtype = _common(x, scale, bias)
    parts = [_typed(c, part, dtype) for part in (scale, bias)]
    return c.cast(
        c.op_("layer_norm", c.cast(x, dtype), *parts, axis=_first_axis(c, x), epsilon=c.number("eps")), c.dtype
    )


@aten_op("layer_norm")
def _layer_norm(c: Context) -> Result:
    return _layer(c, c.tensor("input"))


@aten_op("native_layer_norm")
def _native_layer_norm(c: Context) -> Result:
    x = c.tensor("input")
    mean, _, inverse = _statistics(c, x, tuple(range(_first_axis(c, x), x.type.rank)), c.number("eps"))
    return _as_results(c, [_layer(c, x), mean, inverse])


@aten_op("rms_norm", "_fused_rms_norm")
def _rms_norm(c: Context) -> Result:
    import torch

    x, scale = c.tensor("input"), c.optional("weight")
    dtype = _common(x, scale)
    epsilon = c.number("eps", torch.finfo(getattr(torch, wide_dtype(x.type.dtype).numpy_name)).eps)
    axis = _first_axis(c, x)
    result = c.op_("rms_norm", c.cast(x, dtype), _typed(c, scale, dtype), axis=axis, epsilon=epsilon)
    if c.op.startswith("rms_norm"):
        return c.cast(result, c.dtype)
    row = c.cast(x, wide_dtype(x.type.dtype))
    mean = reduced(c, "mean", c.op_("mul", row, row), tuple(range(axis, x.type.rank)), True)
    return _as_results(c, [result, _inverse(c, mean, epsilon)])


# Per channel


def _channels(c: Context, part: Value | None, number: float, x: Value, dtype: DType) -> Value:
    """A parameter per channel (axis 1); the number where there is none."""
    return filled(c, number, dtype, (x.type.shape[1],)) if part is None else c.cast(part, dtype)


def _group(c: Context, x: Value, groups: int) -> Value:
    scale, bias = c.optional("weight"), c.optional("bias")
    dtype = _common(x, scale, bias)
    parts = (_channels(c, scale, 1.0, x, dtype), _channels(c, bias, 0.0, x, dtype))
    return c.cast(c.op_("group_norm", c.cast(x, dtype), *parts, groups=groups, epsilon=c.number("eps")), c.dtype)


@aten_op("group_norm")
def _group_norm(c: Context) -> Result:
    return _group(c, c.tensor("input"), c.integer("num_groups"))


@aten_op("native_group_norm")
def _native_group_norm(c: Context) -> Result:
    x, groups = c.tensor("input"), c.integer("group")
    batch, channels, *space = x.type.shape
    per_group = dimension.exact_div(channels, groups)
    if per_group is None:
        c.fail(f"{channels} channels do not divide into {groups} groups")
    row = c.reshape(x, (batch, groups, per_group * dimension.product(space)))
    mean, _, inverse = _statistics(c, row, (2,), c.number("eps"))
    flat = [c.reshape(part, (batch, groups)) for part in (mean, inverse)]
    return _as_results(c, [_group(c, x, groups), *flat])


@aten_op("instance_norm")
def _instance_norm(c: Context) -> Result:
    x = c.tensor("input")
    if not c.flag("use_input_stats"):
        return _fixed(c, x, c.tensor("running_mean"), c.tensor("running_var"))
    dtype = _common(x, c.optional("weight"), c.optional("bias"))
    parts = (
        _channels(c, c.optional("weight"), 1.0, x, dtype),
        _channels(c, c.optional("bias"), 0.0, x, dtype),
    )
    made = c.op_("instance_norm", *(c.cast(part, wide_dtype(dtype)) for part in (x, *parts)), epsilon=c.number("eps"))
    return c.cast(made, c.dtype)


def _fixed(c: Context, x: Value, mean: Value, variance: Value) -> Value:
    """Batch norm by statistics [C] that are given."""
    scale, bias = c.optional("weight"), c.optional("bias")
    dtype = _common(x, scale, bias, mean, variance)
    parts = (
        _channels(c, scale, 1.0, x, dtype), _channels(c, bias, 0.0, x, dtype), c.cast(mean, dtype),
        c.cast(variance, dtype),
    )  # fmt: skip
    return c.cast(c.op_("batch_norm", c.cast(x, dtype), *parts, epsilon=c.number("eps")), c.dtype)


def _by_batch(c: Context, x: Value) -> tuple[Value, Value, Value, Value]:
    """Batch norm by the batch's own statistics: the result, mean, variance and inverse deviation [C]."""
    axes = tuple(axis for axis in range(x.type.rank) if axis != 1)
    shape = (x.type.shape[1],)
    mean, variance, inverse = (c.reshape(part, shape) for part in _statistics(c, x, axes, c.number("eps")))
    return _fixed(c, x, mean, variance), mean, variance, inverse


def _updated(c: Context, x: Value, mean: Value, variance: Value) -> list[Value | None]:
    """The running mean and variance after this batch; of the variance, the unbiased one counts."""
    count: Dim = count_of(c, x, tuple(axis for axis in range(x.type.rank) if axis != 1))
    dtype, momentum = variance.type.dtype, c.number("momentum")
    whole = typed(c, count, dtype)
    unbiased = c.op_("div", c.op_("mul", variance, whole), c.op_("sub", whole, c.scalar(1.0, dtype)))
    found: list[Value | None] = []
    for name, own in (("running_mean", mean), ("running_var", unbiased)):
        old = c.optional(name)
        if old is None:
            found.append(None)
            continue
        kept = c.op_("mul", c.cast(old, dtype), c.scalar(1.0 - momentum, dtype))
        found.append(c.cast(c.op_("add", kept, c.op_("mul", own, c.scalar(momentum, dtype))), old.type.dtype))
    return found


@aten_op("batch_norm")
def _batch_norm(c: Context) -> Result:
    x = c.tensor("input")
    mean, variance = c.optional("running_mean"), c.optional("running_var")
    if c.flag("training") or mean is None or variance is None:
        return _by_batch(c, x)[0]
    return _fixed(c, x, mean, variance)


@aten_op("_native_batch_norm_legit_no_training", "_batch_norm_no_update")
def _batch_norm_no_training(c: Context) -> Result:
    x = c.tensor("input")
    fixed = _fixed(c, x, c.tensor("running_mean"), c.tensor("running_var"))
    return _as_results(c, _fit(c, [fixed, None, None, None]))


@aten_op("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional")
def _native_batch_norm(c: Context) -> Result:
    """Result, mean, inverse deviation; then, of the functional form, the running statistics."""
    x = c.tensor("input")
    mean, variance = c.optional("running_mean"), c.optional("running_var")
    if not c.flag("training") and mean is not None and variance is not None:
        return _as_results(c, _fit(c, [_fixed(c, x, mean, variance), None, None, mean, variance]))
    result, own_mean, own_variance, inverse = _by_batch(c, x)
    return _as_results(c, _fit(c, [result, own_mean, inverse, *_updated(c, x, own_mean, own_variance)]))


@aten_op("_batch_norm_with_update_functional")
def _batch_norm_with_update(c: Context) -> Result:
    x = c.tensor("input")
    result, mean, variance, inverse = _by_batch(c, x)
    return _as_results(c, [result, mean, inverse, None, *_updated(c, x, mean, variance)])


def _fit(c: Context, values: list[Value | None]) -> list[Value | None]:
    """As many as torch has results."""
    results: Any = c.results
    return values[: len(results)]
