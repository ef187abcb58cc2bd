"""Finds softmax, layer norm and RMS norm in the chains of reductions that exporters write."""

from __future__ import annotations

from collections.abc import Sequence

from aot.builder import Builder
from aot.ir import Node, Value
from aot.pattern import SILENT, Match, View, op, rule
from aot.transforms.recognize_factors import Product, dies, mean_of, product_of, split_number, trailing_axis
from aot.transforms.shapes import as_int, emit, ints, maker_of, reshaped, value_fits

_OTHERS = "a part of it is read by others too"


# Softmax.


def _check_softmax(m: Match) -> str | None:
    powers_value, total_value = m.root.operands
    nodes: list[Node] = []
    inverse = maker_of(m.view, total_value, "reciprocal")
    if m.root.op == "mul":
        if inverse is None:
            return SILENT
        nodes.append(inverse)
        total_value = inverse.operands[0]
    powers, total = maker_of(m.view, powers_value, "exp"), maker_of(m.view, total_value, "reduce_sum")
    if powers is None or total is None or total.operands[0] is not powers.output or not total.attrs["keepdims"]:
        return SILENT
    axes = [axis for axis in ints(total.attrs["axes"]) if powers.output.type.shape[axis] != 1]
    if len(axes) != 1:
        return "it sums over several axes"
    x = powers.operands[0]
    nodes += [powers, total]
    shifted = maker_of(m.view, x, "sub")
    top = maker_of(m.view, shifted.operands[1], "reduce_max") if shifted is not None else None
    if shifted is not None and top is not None and top.operands[0] is shifted.operands[0]:
        if [axis for axis in ints(top.attrs["axes"]) if x.type.shape[axis] != 1] == axes:
            x = shifted.operands[0]
            nodes += [shifted, top]
    if not dies(m, *nodes):
        return _OTHERS
    m.facts["x"], m.facts["axis"] = x, axes[0]
    return None


@rule(op("div mul"), check=_check_softmax, exact=False)
def softmax(b: Builder, m: Match) -> Value:
    """exp(x - max x) / sum exp(x - max x) is softmax."""
    return emit(b, "softmax", m.facts["x"], axis=m.facts["axis"])


@rule(op("log", op("softmax", "x", name="inner")), exact=False)
def log_softmax(b: Builder, m: Match) -> Value:
    """log(softmax(x)) is log_softmax(x)."""
    return emit(b, "log_softmax", m["x"], axis=m.node("inner").attrs["axis"])


# Norms.


def _deviation(m: Match, value: Value) -> tuple[Value, Value, list[Node]] | None:
    """For sub(x, mean of x): the value x, the mean, and the node."""
    node = maker_of(m.view, value, "sub")
    if node is None:
        return None
    x, mean = node.operands
    found = mean_of(m.view, mean)
    return (x, mean, [node, *found[2]]) if found is not None and found[0] is x else None


def _root_factor(m: Match) -> tuple[Product, Node, list[Node]] | None:
    """The root as a product with one rsqrt(variance + epsilon) in it, or a quotient by its root."""
    view, root = m.view, m.root
    if root.op == "div":
        outer = maker_of(view, root.operands[1], "sqrt")
        product = Product(values=[root.operands[0]], nodes=[])
        nodes: list[Node] = []
    else:
        product = product_of(view, root.output, root)
        roots = [v for v in product.values if maker_of(view, v, "rsqrt") is not None]
        if len(roots) != 1 or product.number != 1.0:
            return None
        outer = maker_of(view, roots[0], "rsqrt")
        product.values.remove(roots[0])
        nodes = [node for node in product.nodes if node is not root]
    return None if outer is None else (product, outer, nodes)


def _variance(m: Match, outer: Node) -> tuple[Value, float, list[Node]] | None:
    """For (r)sqrt(variance + epsilon): the variance, epsilon, the nodes."""
    total = maker_of(m.view, outer.operands[0], "add")
    parts = split_number(m.view, total) if total is not None else None
    if total is None or parts is None or not 0 <= parts[1] < 1:
        return None
    return parts[0], parts[1], [outer, total]


def _mean_square(m: Match, value: Value) -> tuple[Value, tuple[int, ...], list[Node]] | None:
    """For the mean of y * y: y, the axes, the nodes."""
    found = mean_of(m.view, value)
    square = maker_of(m.view, found[0], "mul") if found is not None else None
    if found is None or square is None or square.operands[0] is not square.operands[1]:
        return None
    return square.operands[0], found[1], [*found[2], square]


def _check_layer_norm(m: Match) -> str | None:
    parts = _root_factor(m)
    variance = _variance(m, parts[1]) if parts is not None else None
    if parts is None or variance is None:
        return SILENT
    product, _, nodes = parts
    value, epsilon, more = variance
    nodes = [*nodes, *more]
    deviations = [v for v in product.values if _deviation(m, v) is not None]
    if not deviations:
        return SILENT
    found = _deviation(m, deviations[0])
    assert found is not None
    x, mean, steps = found
    nodes += steps
    squares = _mean_square(m, value)
    if squares is not None and squares[0] is not deviations[0]:
        again = _deviation(m, squares[0])  # the same deviation, computed once more
        squares = (squares[0], squares[1], [*squares[2], *again[2]]) if again is not None and again[0] is x else None
    if squares is None:
        squares = _as_difference(m, value, x, mean)
    if squares is None:
        return "its variance is no mean of squared deviations"
    nodes += squares[2]
    return _plan_norm(m, x, squares[1], epsilon, [v for v in product.values if v is not deviations[0]], nodes)


def _as_difference(m: Match, value: Value, x: Value, mean: Value) -> tuple[Value, tuple[int, ...], list[Node]] | None:
    """For a variance written as max(mean(x * x) - mean * mean, 0)."""
    nodes: list[Node] = []
    positive = maker_of(m.view, value, "relu")
    if positive is not None:
        nodes.append(positive)
        value = positive.operands[0]
    difference = maker_of(m.view, value, "sub")
    if difference is None:
        return None
    squares = _mean_square(m, difference.operands[0])
    square = maker_of(m.view, difference.operands[1], "mul")
    if squares is None or square is None or squares[0] is not x or square.operands != (mean, mean):
        return None
    return x, squares[1], [*nodes, difference, square, *squares[2]]


def _check_rms_norm(m: Match) -> str | None:
    parts = _root_factor(m)
    variance = _variance(m, parts[1]) if parts is not None else None
    squares = _mean_square(m, variance[0]) if variance is not None else None
    if parts is None or variance is None or squares is None:
        return SILENT
    x = squares[0]
    if x not in parts[0].values or _deviation(m, x) is not None:
        return SILENT
    nodes = [*parts[2], *variance[2], *squares[2]]
    rest = list(parts[0].values)
    rest.remove(x)
    return _plan_norm(m, x, squares[1], variance[1], rest, nodes)


def _plan_norm(
    m: Match, x: Value, axes: tuple[int, ...], epsilon: float, scales: list[Value], nodes: list[Node]
) -> str | None:
    axis = trailing_axis(x, axes)
    if axis is None:
        return f"it reduces over axes {list(axes)}, not over the last ones"
    if len(scales) > 1 or (scales and _as_parameter(scales[0], x, axis) is None):
        return "what it multiplies with does not vary along the normalized axes only"
    if x.type.shape != m.root.output.type.shape:
        return "the scale widens the result"
    if not dies(m, *nodes):
        return _OTHERS
    m.facts.update(x=x, axis=axis, epsilon=epsilon, scale=scales[0] if scales else None)
    return None


def _as_parameter(value: Value, x: Value, axis: int) -> tuple[object, ...] | None:
    """The shape of a scale or bias over the axes from `axis`; None where it varies along others."""
    shape = value.type.shape
    trailing = x.type.rank - axis
    if any(extent != 1 for extent in shape[: max(len(shape) - trailing, 0)]):
        return None
    short = shape[max(len(shape) - trailing, 0) :]
    return short if value_fits(value, x.type.shape) else None


def _parameter(b: Builder, value: Value, axis: int, rank: int) -> Value:
    trailing = rank - axis
    return reshaped(b, value, value.type.shape[max(value.type.rank - trailing, 0) :])


def _norm(b: Builder, m: Match, name: str) -> Value:
    x, axis, scale = m.facts["x"], m.facts["axis"], m.facts["scale"]
    inputs = [x] if scale is None else [x, _parameter(b, scale, axis, x.type.rank)]
    return emit(b, name, *inputs, axis=axis, epsilon=m.facts["epsilon"])


@rule(op("mul div"), check=_check_layer_norm, exact=False)
def layer_norm(b: Builder, m: Match) -> Value:
    """(x - mean x) / sqrt(variance + epsilon) over the last axes is a layer norm."""
    return _norm(b, m, "layer_norm")


@rule(op("mul div"), check=_check_rms_norm, exact=False)
def rms_norm(b: Builder, m: Match) -> Value:
    """x / sqrt(mean of x * x + epsilon) over the last axes is an RMS norm."""
    return _norm(b, m, "rms_norm")


def _check_parameter(m: Match, place: int) -> str | None:
    node = m.node("norm")
    present = (*node.inputs, None, None)[:3]
    if present[place] is not None or (place == 1 and present[2] is not None):
        return SILENT
    x, axis = node.operands[0], as_int(node.attrs["axis"]) % node.output.type.rank
    if _as_parameter(m["c"], x, axis) is None or m.root.output.type.shape != x.type.shape:
        return "the operand does not vary along the normalized axes only"
    m.facts["axis"] = axis
    return None


def _steps(nodes: Sequence[Node], view: View) -> float:
    """How many multiplications and additions there are: a parameter may need a reshape to become one."""
    return sum(1.0 for node in nodes if node.op in ("mul", "add"))


@rule(
    op("mul", op("layer_norm rms_norm", name="norm"), "c"),
    check=lambda m: _check_parameter(m, 1),
    measure=_steps,
    exact=False,
)
def scale_of_norm(b: Builder, m: Match) -> Value:
    """A multiplication after a norm is its scale."""
    node = m.node("norm")
    x = node.operands[0]
    return emit(b, node.op, x, _parameter(b, m["c"], m.facts["axis"], x.type.rank), **node.attrs)


@rule(
    op("add", op("layer_norm", name="norm"), "c"), check=lambda m: _check_parameter(m, 2), measure=_steps, exact=False
)
def bias_of_norm(b: Builder, m: Match) -> Value:
    """An addition after a layer norm is its bias."""
    node = m.node("norm")
    x, scale = (*node.inputs, None)[:2]
    assert x is not None
    return emit(b, node.op, x, scale, _parameter(b, m["c"], m.facts["axis"], x.type.rank), **node.attrs)


NORM_RULES = (softmax, log_softmax, layer_norm, rms_norm, scale_of_norm, bias_of_norm)
