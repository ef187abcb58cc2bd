"""Folds constants into the weights of convolutions and matrix products, and paddings into windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aot.builder import Builder
from aot.ir import Node, Value
from aot.pattern import SILENT, AnyValue, Constant, Match, View, op, rule
from aot.transforms.shapes import (
    as_float,
    as_int,
    channel_vector,
    dims_of,
    emit,
    fits,
    flat,
    ints,
    reshaped,
)

_LINEAR = "conv conv_transpose matmul"
_NORM = (Constant("scale"), Constant("bias"), Constant("mean"), Constant("var"))


def _statistics(b: Builder, m: Match) -> tuple[Value, Value]:
    """A batch norm as x * scale + shift: both [channels]."""
    variance = emit(b, "add", m["var"], b.scalar(as_float(m.root.attrs["epsilon"]), m["var"].type.dtype))
    scale = emit(b, "div", m["scale"], emit(b, "sqrt", variance))
    return scale, emit(b, "sub", m["bias"], emit(b, "mul", m["mean"], scale))


def _scaled(b: Builder, node: Node, factor: Value) -> Value:
    """The weights of a linear node times a factor per output channel ([channels] or [1])."""
    weight = node.operands[1]
    rank = weight.type.rank
    if node.op == "matmul" or factor.type.shape == (1,):
        return emit(b, "mul", weight, reshaped(b, factor, ()) if factor.type.shape == (1,) else factor)
    (channels,) = factor.type.shape
    if node.op == "conv":
        return emit(b, "mul", weight, reshaped(b, factor, (channels, *(1,) * (rank - 1))))
    groups = as_int(node.attrs["groups"])
    inputs, outputs, *window = weight.type.shape
    grouped = reshaped(b, weight, (groups, inputs // groups, outputs, *window))
    scaled = emit(b, "mul", grouped, reshaped(b, factor, (groups, 1, outputs, *(1 for _ in window))))
    return reshaped(b, scaled, weight.type.shape)


def _channels(node: Node) -> int | None:
    """How many output channels a linear node has; None where it is not known."""
    extent = node.output.type.shape[-1 if node.op == "matmul" else 1]
    return extent if isinstance(extent, int) else None


def _channel_axis(node: Node) -> int:
    return node.output.type.rank - 1 if node.op == "matmul" else 1


def _bias(node: Node) -> Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _check_weights(m: Match, names: Sequence[str]) -> str | None:
    """Whether the linear node has constant weights and the named constants vary by channel only."""
    node = m.node("linear")
    channels = _channels(node)
    for value in (node.operands[1], _bias(node)):
        if value is not None and m.view.const(value) is None:
            return "its weights are not constant"
    if channels is None:
        return "its channels are not known"
    for name in names:
        if channel_vector(m.view, m[name], node.output.type.rank, _channel_axis(node), channels) is None:
            return "the constant does not vary by output channel only"
    if node.output.type.shape != m.root.output.type.shape:
        return "the constant widens the result"
    return None


def _rebuilt(b: Builder, node: Node, weight: Value, bias: Value | None) -> Value:
    operands = (node.operands[0], weight) if node.op == "matmul" else (node.operands[0], weight, bias)
    return emit(b, node.op, *operands, **node.attrs)


@rule(
    op("batch_norm", op("conv conv_transpose", name="linear"), *_NORM),
    check=lambda m: _check_weights(m, ()),
    exact=False,
)
def conv_batch_norm(b: Builder, m: Match) -> Value:
    """A batch norm after a convolution goes into its weights and bias."""
    node = m.node("linear")
    scale, shift = _statistics(b, m)
    bias = _bias(node)
    if bias is not None:
        shift = emit(b, "add", emit(b, "mul", bias, scale), shift)
    return _rebuilt(b, node, _scaled(b, node, scale), shift)


@rule(
    op("batch_norm", "x", *_NORM),
    measure=lambda nodes, view: sum(1.0 for n in nodes if n.op == "batch_norm"),
    exact=False,
    check=lambda m: (
        "a convolution before it may take it"
        if (maker := m.view.producer.get(m["x"])) is not None
        and maker.op in ("conv", "conv_transpose")
        and m.view.sole_user(m["x"]) is m.root
        and all(v in m.view.consts for v in maker.operands[1:])
        else None
    ),
)
def batch_norm_to_scale(b: Builder, m: Match) -> Value:
    """A batch norm with constant statistics is one multiplication and one addition."""
    scale, shift = _statistics(b, m)
    shape = (*scale.type.shape, *(1,) * (m["x"].type.rank - 2))
    return emit(b, "add", emit(b, "mul", m["x"], reshaped(b, scale, shape)), reshaped(b, shift, shape))


@rule(
    op("mul", op(_LINEAR, name="linear"), Constant("c")),
    check=lambda m: _check_weights(m, ("c",)),
    exact=False,
)
def scale_into_weights(b: Builder, m: Match) -> Value:
    """A multiplication by a constant per output channel goes into the weights and the bias."""
    node = m.node("linear")
    channels = _channels(node)
    assert channels is not None
    factor = flat(b, m["c"], channels)
    bias = _bias(node)
    return _rebuilt(b, node, _scaled(b, node, factor), None if bias is None else emit(b, "mul", bias, factor))


@rule(op("neg", op(_LINEAR, name="linear")), check=lambda m: _check_weights(m, ()))
def neg_into_weights(b: Builder, m: Match) -> Value:
    """The negative of a linear op has negative weights; every bit stays."""
    node = m.node("linear")
    bias = _bias(node)
    weight = emit(b, "neg", node.operands[1])
    return _rebuilt(b, node, weight, None if bias is None else emit(b, "neg", bias))


@rule(
    op("mul", op("add", op("matmul", name="linear"), Constant("c1")), Constant("c2")),
    check=lambda m: _check_weights(m, ("c1", "c2")),
    exact=False,
)
def scale_through_bias(b: Builder, m: Match) -> Value:
    """(x W + b) * c is x (W * c) + b * c."""
    node = m.node("linear")
    channels = _channels(node)
    assert channels is not None
    factor = flat(b, m["c2"], channels)
    product = _rebuilt(b, node, _scaled(b, node, factor), None)
    return emit(b, "add", product, emit(b, "mul", m["c1"], m["c2"]))


@rule(
    op("add sub", op("conv conv_transpose", name="linear"), Constant("c")),
    check=lambda m: "the convolution is subtracted" if m.root.inputs[0] is m["c"] else _check_weights(m, ("c",)),
    exact=False,
)
def add_into_bias(b: Builder, m: Match) -> Value:
    """A constant per channel that is added after a convolution joins its bias."""
    node = m.node("linear")
    channels = _channels(node)
    assert channels is not None
    amount = flat(b, m["c"], channels)
    if amount.type.shape != (channels,):
        amount = emit(b, "expand", amount, shape=(channels,))
    bias = _bias(node)
    if bias is None:
        total = emit(b, "neg", amount) if m.root.op == "sub" else amount
    else:
        total = emit(b, m.root.op, bias, amount)
    return _rebuilt(b, node, node.operands[1], total)


def _check_row_scale(m: Match) -> str | None:
    weight = m["w"]
    rows = weight.type.shape[-2]
    if not isinstance(rows, int):
        return "its rows are not known"
    x = m["x"]
    if channel_vector(m.view, m["c"], x.type.rank, x.type.rank - 1, rows) is None:
        return "the constant does not vary along the summed axis only"
    return None if x.type.shape == m.node("scaled").output.type.shape else "the constant widens the operand"


@rule(op("matmul", op("mul", "x", Constant("c"), name="scaled"), Constant("w")), check=_check_row_scale, exact=False)
def scale_into_rows(b: Builder, m: Match) -> Value:
    """(x * c) W is x (c * W), c by row."""
    rows = m["w"].type.shape[-2]
    assert isinstance(rows, int)
    factor = flat(b, m["c"], rows)
    count = factor.type.shape[0]
    return emit(b, "matmul", m["x"], emit(b, "mul", m["w"], reshaped(b, factor, (count, 1))))


def _check_before_conv(m: Match) -> str | None:
    node = m.root
    if m["x"].type.shape != m.node("inner").output.type.shape:
        return "the constant widens the operand"
    if node.attrs["groups"] != 1:
        return "the convolution has groups"
    if any(v is not None and m.view.const(v) is None for v in node.inputs[1:]):
        return "its weights are not constant"
    channels = m["w"].type.shape[1]
    assert isinstance(channels, int)
    if channel_vector(m.view, m["c"], m["x"].type.rank, 1, channels) is None:
        return "the constant does not vary by input channel only"
    if m.node("inner").op != "mul" and any(ints(node.attrs["pads"])):
        return "the convolution's own zeros would be shifted too"
    return None


def _by_input(b: Builder, m: Match) -> Value:
    """The constant per input channel, as [1, channels, 1, …]."""
    channels = m["w"].type.shape[1]
    assert isinstance(channels, int)
    vector = flat(b, m["c"], channels)
    return reshaped(b, vector, (1, vector.type.shape[0], *(1,) * (m["w"].type.rank - 2)))


_BIAS = AnyValue("b", optional=True)


@rule(
    op("conv", op("mul", "x", Constant("c"), name="inner"), Constant("w"), _BIAS),
    check=_check_before_conv,
    exact=False,
)
def scale_before_conv(b: Builder, m: Match) -> Value:
    """A multiplication by a constant per channel before a convolution goes into its weights."""
    weight = emit(b, "mul", m["w"], _by_input(b, m))
    return emit(b, "conv", m["x"], weight, m.get("b"), **m.root.attrs)


@rule(
    op("conv", op("add", "x", Constant("c"), name="inner"), Constant("w"), _BIAS),
    check=_check_before_conv,
    exact=False,
)
def shift_before_conv(b: Builder, m: Match) -> Value:
    """A constant per channel that is added before a convolution without pads goes into its bias."""
    weight = m["w"]
    products = emit(b, "mul", weight, _by_input(b, m))
    shift = emit(b, "reduce_sum", products, axes=tuple(range(1, weight.type.rank)), keepdims=False)
    bias = m.get("b")
    return emit(b, "conv", m["x"], weight, shift if bias is None else emit(b, "add", bias, shift), **m.root.attrs)


# Chains of constants.


def _check_chain(m: Match) -> str | None:
    x = m["x"]
    first, second = m.view.consts[m["c1"]], m.view.consts[m["c2"]]
    if not fits(first, x.type.shape) or not fits(second, x.type.shape):
        return "a constant widens the result"
    if not (fits(first, second.shape) or fits(second, first.shape)):
        return "the joined constant would be larger than both"
    return None


def _joined(b: Builder, m: Match) -> Value:
    inner, outer = m.node("inner").op, m.root.op
    if outer == "mul":
        return emit(b, "mul", m["x"], emit(b, "mul", m["c1"], m["c2"]))
    same = inner == outer
    return emit(b, inner, m["x"], emit(b, "add" if same else "sub", m["c1"], m["c2"]))


_ADDED_TWICE = op("add sub", op("add sub", "x", Constant("c1"), name="inner"), Constant("c2"))
_SCALED_TWICE = op("mul", op("mul", "x", Constant("c1"), name="inner"), Constant("c2"))


def _outer_products(nodes: Sequence[Node], view: View) -> float:
    return sum(1.0 for n in nodes if n.op == "mul" and all(v.type.shape != n.output.type.shape for v in n.operands))


def _check_outer(m: Match) -> str | None:
    inner = m.node("inner")
    if m["x"].type.shape != m.root.output.type.shape or m.view.const(m["s"]) is not None:
        return SILENT
    return None if all(v.type.shape != inner.output.type.shape for v in inner.operands) else SILENT


@rule(
    op("mul", "x", op("mul", "s", Constant("c"), name="inner")),
    check=_check_outer,
    measure=_outer_products,
    exact=False,
)
def scale_by_both(b: Builder, m: Match) -> Value:
    """x * (s * c), where s * c is larger than either, is (x * s) * c."""
    return emit(b, "mul", emit(b, "mul", m["x"], m["s"]), m["c"])


def _check_integers(m: Match) -> str | None:
    return _check_chain(m) if m["x"].type.dtype.is_integer else SILENT


def _check_floats(m: Match) -> str | None:
    return _check_chain(m) if m["x"].type.dtype.is_float else SILENT


@rule(_ADDED_TWICE, check=_check_floats, exact=False)
def add_constants(b: Builder, m: Match) -> Value:
    """(x + c1) + c2 is x + (c1 + c2)."""
    return _joined(b, m)


@rule(_ADDED_TWICE, check=_check_integers)
def add_integers(b: Builder, m: Match) -> Value:
    """(x + c1) + c2 is x + (c1 + c2); integers wrap alike."""
    return _joined(b, m)


@rule(_SCALED_TWICE, check=_check_floats, exact=False)
def multiply_constants(b: Builder, m: Match) -> Value:
    """(x * c1) * c2 is x * (c1 * c2)."""
    return _joined(b, m)


@rule(_SCALED_TWICE, check=_check_integers)
def multiply_integers(b: Builder, m: Match) -> Value:
    """(x * c1) * c2 is x * (c1 * c2); integers wrap alike."""
    return _joined(b, m)


# Paddings.


def _pad_reads(nodes: Sequence[Node], view: View) -> float:
    return sum(
        2.0 if (maker := view.producer.get(n.operands[0])) is not None and maker.op == "pad" else 1.0 for n in nodes
    )


def _check_padding(m: Match, fills: Sequence[float]) -> str | None:
    pad = m.node("pad")
    if pad.attrs["mode"] != "constant":
        return f"it pads by {pad.attrs['mode']}"
    value = pad.inputs[1] if len(pad.inputs) > 1 else None
    fill = 0.0 if value is None else m.view.number(value)
    if fill not in fills:
        return f"it pads with {'something unknown' if fill is None else fill}"
    amounts = (*dims_of(pad.attrs["before"]), *dims_of(pad.attrs["after"]))
    if not all(isinstance(amount, int) for amount in amounts):
        return "how much it pads is not known"
    rank = m.root.output.type.rank
    if any(amounts[axis] != 0 or amounts[rank + axis] != 0 for axis in (0, 1)):
        return "it pads the batch or the channels"
    return None


def _window_pads(m: Match) -> tuple[int, ...]:
    """The root's pads together with those of the pad before it."""
    pad = m.node("pad")
    spatial = (*ints(pad.attrs["before"])[2:], *ints(pad.attrs["after"])[2:])
    return tuple(own + more for own, more in zip(ints(m.root.attrs["pads"]), spatial, strict=True))


@rule(op("conv"), check=lambda m: _check_conv_padding(m), measure=_pad_reads)
def pad_into_conv(b: Builder, m: Match) -> Value:
    """Zeros put around a convolution's input are pads of the convolution."""
    node = m.root
    attrs = {**node.attrs, "pads": _window_pads(m)}
    return emit(b, "conv", m.node("pad").operands[0], *node.inputs[1:], **attrs)


def _bind_pad(m: Match) -> bool:
    maker = m.view.producer.get(m.root.operands[0])
    if maker is None or maker.op != "pad":
        return False
    m.nodes["pad"] = maker
    m.include(maker)
    return True


def _check_conv_padding(m: Match) -> str | None:
    return _check_padding(m, (0.0,)) if _bind_pad(m) else SILENT


def _check_pool_padding(m: Match) -> str | None:
    if not _bind_pad(m):
        return SILENT
    if m.root.attrs["ceil"]:
        return "the pool rounds up"
    if m.root.op == "max_pool":
        return _check_padding(m, (-math.inf,))
    if not m.root.attrs["include_pad"] and any(ints(m.root.attrs["pads"])):
        return "the pool has pads that it does not count"
    return _check_padding(m, (0.0,))


@rule(op("max_pool avg_pool"), check=_check_pool_padding, measure=_pad_reads)
def pad_into_pool(b: Builder, m: Match) -> Value:
    """Zeros around an average pool's input are pads that count; likewise -inf around a max pool's."""
    attrs = {**m.root.attrs, "pads": _window_pads(m)}
    if m.root.op == "avg_pool":
        attrs["include_pad"] = True
    return emit(b, m.root.op, m.node("pad").operands[0], **attrs)


LINEAR_RULES = (
    conv_batch_norm,
    batch_norm_to_scale,
    scale_into_weights,
    neg_into_weights,
    scale_through_bias,
    add_into_bias,
    scale_into_rows,
    scale_before_conv,
    shift_before_conv,
    add_constants,
    add_integers,
    multiply_constants,
    scale_by_both,
    multiply_integers,
    pad_into_conv,
    pad_into_pool,
)
