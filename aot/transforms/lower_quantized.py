"""Products of dequantized tensors become products of their numbers in 8 bits.

With a = (qa - za) * sa and b = (qb - zb) * sb, the sum over k of a * b is sa * sb times a sum of integers:
qa * qb, less za times the sums of b's columns, less zb times the sums of a's rows, plus k * za * zb. The products
keep 8 bits, the rest are elementwise ops that become a part of their kernels, and the sums of weights are constants.
Backends say which types their products take; quantize gives those at once. Weights beside float activations stay in
8 or 4 bits too (`quantized_weights`), and moves between products move 8 bits (`quantized_moves`).

Invariant: sums of integers are exact, so results are those of the float arithmetic up to its rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from aot import dims as dimension
from aot.builder import Builder
from aot.dims import product
from aot.dtypes import F32, I8, I32, U8, DType
from aot.ir import Array, Graph, Level, Node, TensorType, Value
from aot.ops.helpers import int_attr
from aot.ops.quantized import FLOAT8, quantized_range
from aot.passes import Context, transform
from aot.pattern import SILENT, Match, Rule, View, op, rewrite, rule
from aot.quantized_sums import image_sums, in_type, matrix_sums
from aot.transforms.dedupe import dedupe
from aot.transforms.fold import fold_node
from aot.transforms.quantized_moves import (
    BYTES,
    MOVE_RULES,
    conversion_above_move,
    elements_of,
    in_bytes,
    is_single,
    is_zero,
    other_type,
    parameters,
    settle_types,
    shifted_zero,
)
from aot.transforms.quantized_weights import pack_weight, settle_weights
from aot.transforms.shapes import emit, reshaped
from aot.transforms.simplify_linear import add_integers

LARGEST_SUM = (1 << 31) - 1
"""Of what is summed in i32."""


@transform(
    takes=Level.CORE,
    gives=Level.CORE,
    rules=(
        *(each.name for each in MOVE_RULES),
        "product_in_8_bits",
        "conv_in_8_bits",
        "operand_types",
        "pack_weight",
        "conversion_above_move",
        "add_integers",
    ),
)
def lower_quantized(graph: Graph, context: Context) -> Graph:
    """Makes products of dequantized tensors products in 8 bits, and keeps what moves between them in 8 bits."""
    if not any(node.op in ("quantize", "dequantize", "matmul_8bit", "conv_8bit") for node in graph.nodes):
        return graph
    exact = context.options.exact
    rules = (*MOVE_RULES, *product_rules(context), pack_weight)
    graph = rewrite(graph, rules, context, fold=fold_node, exact=exact)
    graph = dedupe(graph, context)  # products of one tensor convert it once
    graph = rewrite(graph, (conversion_above_move, add_integers), context, fold=fold_node, exact=exact)
    return settle_weights(settle_types(graph, context), context)


def product_rules(context: Context) -> tuple[Rule, ...]:
    """The rules of products, for the types that the backend takes."""
    left, right = context.eight_bit_operands
    products = _Products(left, right, "float8" in context.target.features)
    return (
        rule(op("matmul"), check=products.check_matmul, measure=_float_products, exact=False, name="product_in_8_bits")(
            products.matmul
        ),
        rule(op("conv"), check=products.check_conv, measure=_float_products, exact=False, name="conv_in_8_bits")(
            products.conv
        ),
        rule(op("matmul_8bit conv_8bit"), check=products.check_types, measure=products.strange, name="operand_types")(
            products.in_types
        ),
    )


def _float_products(nodes: Sequence[Node], view: View) -> float:
    return sum(1.0 for node in nodes if node.op in ("matmul", "conv"))


@dataclass(frozen=True)
class Quantized:
    """An operand of a product: (numbers - zero) * scale, the parameters of the numbers' rank or single."""

    numbers: Value
    scale: Value | None
    zero: Value | None


def _aligned(type_: TensorType, rank: int) -> tuple[dimension.Dim, ...]:
    """A parameter's shape with as many axes as what it belongs to."""
    return (*(1,) * (rank - type_.rank), *type_.shape)


def _varies_only(value: Value | None, rank: int, axes: tuple[int, ...]) -> bool:
    """Whether a parameter of a tensor of a rank differs along some axes alone."""
    if value is None:
        return True
    return all(extent == 1 or axis in axes for axis, extent in enumerate(_aligned(value.type, rank)))


def _source(m: Match, value: Value) -> Quantized | None:
    """The numbers that a float operand was dequantized from."""
    maker = m.view.producer.get(value)
    if maker is None or maker.op != "dequantize":
        return None
    m.include(maker)
    return Quantized(maker.operands[0], *parameters(maker))


class _Products:
    """Checks and replacements for operands of the types `left` and `right`."""

    def __init__(self, left: DType, right: DType, float8: bool) -> None:
        self.wanted = (left, right)
        self.float8 = float8

    # Checks.

    def _check_operands(self, m: Match, summed: dimension.Dim) -> str | None:
        sources = [_source(m, value) for value in m.root.operands[:2]]
        if sources[0] is None or sources[1] is None:
            return SILENT
        a, b = sources[0], sources[1]
        found = [_kind(m.view, each) for each in (a, b)]
        if found == ["float8", "float8"]:
            if not self.float8:
                return "the target has no products of 8-bit floats"
            if not all(is_zero(m.view, each.zero) for each in (a, b)):
                return "an 8-bit float has a zero point"
        elif found != ["byte", "byte"]:
            types = " and ".join(each.numbers.type.dtype.name for each in (a, b))
            return f"its operands are {types}: no 8-bit integers"
        m.facts["most"] = self._largest_sum(m.view, b, summed)
        if found[0] == "byte" and m.facts["most"] > LARGEST_SUM:
            return "its sums may be larger than 32 bits hold"
        if m.root.output.type.dtype.bits > 32:
            return "it is computed in double precision"
        m.facts["a"], m.facts["b"] = a, b
        return None

    def _largest_sum(self, view: View, b: Quantized, summed: dimension.Dim) -> int:
        """What sums of products cannot exceed; sizes that only the run knows are taken to be small."""
        held = elements_of(view, b.numbers)
        if held is None or not held.size:
            return int(dimension.bounds(summed)[0]) * 256 * 256
        wide = held.astype(np.int64)
        zero = np.zeros((), np.int8) if b.zero is None else elements_of(view, b.zero)
        reach = np.abs(wide - zero.astype(np.int64)) if zero is not None else np.abs(wide) + 256
        return 256 * int(reach.sum(axis=-2 if wide.ndim == 2 else tuple(range(1, wide.ndim))).max())

    def check_matmul(self, m: Match) -> str | None:
        left, right = m.root.operands
        reason = self._check_operands(m, left.type.shape[-1])
        if reason is not None:
            return reason
        a, b = m.facts["a"], m.facts["b"]
        lead, tail = tuple(range(left.type.rank - 1)), right.type.rank - 1
        if not all(_varies_only(each, left.type.rank, lead) for each in (a.scale, a.zero)):
            return "the left operand has several scales along what is summed"
        columns = (*range(tail - 1), tail)
        if not all(_varies_only(each, right.type.rank, columns) for each in (b.scale, b.zero)):
            return "the right operand has several scales along what is summed"
        return None

    def check_conv(self, m: Match) -> str | None:
        image, weight = m.root.operands[:2]
        reason = self._check_operands(m, product(weight.type.shape[1:]))
        if reason is not None:
            return reason
        x, w = m.facts["a"], m.facts["b"]
        if not _varies_only(x.scale, image.type.rank, (0,)) or not is_single(x.zero):
            return "its image has several scales along what is summed"
        if not all(_varies_only(each, weight.type.rank, (0,)) for each in (w.scale, w.zero)):
            return "its weight has several scales along what is summed"
        return None

    def check_types(self, m: Match) -> str | None:
        return None if self._strange(m.root) else SILENT

    def _strange(self, node: Node) -> int:
        types = [value.type.dtype for value in node.operands[:2]]
        return sum(own in BYTES and own is not wanted for own, wanted in zip(types, self.wanted, strict=True))

    def strange(self, nodes: Sequence[Node], view: View) -> float:
        """How many operands of 8-bit products the backend does not take."""
        return sum(self._strange(node) for node in nodes if node.op in ("matmul_8bit", "conv_8bit"))

    # Replacements.

    def matmul(self, b: Builder, m: Match) -> Value:
        """The product of quantized matrices is one of their numbers, corrected and scaled."""
        b.locs = _product_first(b, m)
        left, right = (
            _prepared(b, m.view, m.facts[name], dtype) for name, dtype in zip("ab", self.wanted, strict=True)
        )
        scales = [scale for scale in (left.scale, right.scale) if scale is not None]
        return _finished(b, m.view, m.root, _matrix_sums(b, left, right), scales)

    def conv(self, b: Builder, m: Match) -> Value:
        """The convolution of a quantized image is one of its numbers, corrected and scaled."""
        b.locs = _product_first(b, m)
        x, w = (_prepared(b, m.view, m.facts[name], dtype) for name, dtype in zip("ab", self.wanted, strict=True))
        rank = m.root.output.type.rank
        rows = [_of_channels(b, each, rank) for each in (w.scale, w.zero)]
        sums = _image_sums(b, m.view, x, replace(w, zero=rows[1]), m.root)
        scales = [scale for scale in (x.scale, rows[0]) if scale is not None]
        bias = m.root.inputs[2] if len(m.root.inputs) > 2 else None
        if bias is None:
            return _finished(b, m.view, m.root, sums, scales)
        channels = (bias.type.shape[0], *(1,) * (rank - 2))
        whole = _whole_bias(b, m.view, bias, scales) if sums.type.dtype is I32 else None
        if whole is not None and m.facts["most"] + int(np.abs(whole.astype(np.int64)).max(initial=0)) < LARGEST_SUM:
            sums = emit(b, "add", sums, reshaped(b, b.const(whole), channels))
            return _finished(b, m.view, m.root, sums, scales)
        return _finished(b, m.view, m.root, sums, scales, reshaped(b, bias, channels))

    def in_types(self, b: Builder, m: Match) -> Value:
        """The product of numbers in 8 bits as one of numbers of the types that the backend takes."""
        plain = [Quantized(value, None, None) for value in m.root.operands]
        left = plain[0] if plain[0].numbers.type.dtype is self.wanted[0] else _shifted(b, m.view, plain[0])
        right = _prepared(b, m.view, plain[1], self.wanted[1])
        if m.root.op == "matmul_8bit":
            return _matrix_sums(b, left, right)
        fill = int_attr(m.root.attrs, "fill")
        if left is not plain[0]:
            fill += _SHIFTS[plain[0].numbers.type.dtype]
        zero = _of_channels(b, right.zero, m.root.output.type.rank)
        return _image_sums(b, m.view, left, replace(right, zero=zero), m.root, fill)


def _product_first(b: Builder, m: Match) -> tuple[str, ...]:
    """The names of all nodes that are replaced, the product's first: people look for it, not for its conversions."""
    return tuple(dict.fromkeys((*m.root.locs, *b.locs)))


_SHIFTS = {I8: 128, U8: -128}
"""What is added to a number of one type of bytes where it becomes one of the other."""


def _kind(view: View, operand: Quantized) -> str:
    """What an operand's numbers are: "byte", "float8" or nothing."""
    dtype = operand.numbers.type.dtype
    if dtype in BYTES or (dtype.is_integer and dtype.bits < 8 and view.const(operand.numbers) is not None):
        return "byte"
    return "float8" if dtype in FLOAT8 else ""


def _centred(view: View, operand: Quantized, dtype: DType) -> tuple[Array, Array] | None:
    """A constant's numbers in a type of bytes, and the zero point that is left to them: 0 if the type allows it.

    None for what is no constant, or does not fit.
    """
    held = elements_of(view, operand.numbers)
    zero = np.zeros((), np.int32) if operand.zero is None else elements_of(view, operand.zero)
    if held is None or zero is None:
        return None
    low, high = quantized_range(dtype)
    zero = zero.astype(np.int32)
    for taken in (zero, np.zeros((), np.int32)):
        moved = held.astype(np.int32) - taken
        if moved.size == 0 or (moved.min() >= low and moved.max() <= high):
            return moved.astype(dtype.numpy), np.asarray(zero - taken, np.int32)
    return None


def _prepared(b: Builder, view: View, operand: Quantized, dtype: DType) -> Quantized:
    """The operand with its numbers in the type that the product takes; constants lose their zero point if they can."""
    own = operand.numbers.type.dtype
    if own in FLOAT8:
        return replace(operand, zero=None)
    found = _centred(view, operand, dtype)
    if found is not None:
        numbers, zero = found
        is_same = own is dtype and not (operand.zero is not None and not zero.any() and not is_zero(view, operand.zero))
        kept = operand.numbers if is_same else b.const(numbers)
        return Quantized(kept, operand.scale, b.const(zero) if zero.any() else None)
    if own is not dtype:
        return _shifted(b, view, operand)
    return replace(operand, zero=None) if is_zero(view, operand.zero) else operand


def _shifted(b: Builder, view: View, operand: Quantized) -> Quantized:
    """The operand with its numbers in the other type of bytes; numbers of 4 bits become i8 first."""
    numbers, zero = in_bytes(b, view, operand.numbers, operand.zero)
    return Quantized(other_type(b, numbers), operand.scale, shifted_zero(b, zero, numbers.type.dtype))


def _held(b: Builder, view: View, value: Value | None) -> Array | None:
    """The elements of a constant, new or old."""
    const = None if value is None else b.consts.get(value)
    return elements_of(view, value) if const is None else const.array()


def _matrix_sums(b: Builder, left: Quantized, right: Quantized) -> Value:
    return matrix_sums(b, left.numbers, right.numbers, left.zero, right.zero)


def _image_sums(b: Builder, view: View, x: Quantized, w: Quantized, node: Node, fill: int | None = None) -> Value:
    """The sums of a convolution over (x - its zero) * (w - its zero), w's zero being of the result's channels."""
    return image_sums(b, x.numbers, w.numbers, x.zero, w.zero, node.attrs, lambda value: _held(b, view, value), fill)


def _of_channels(b: Builder, value: Value | None, rank: int) -> Value | None:
    """A parameter of a weight's first axis as one of the result's channels."""
    if value is None or is_single(value):
        return None if value is None else reshaped(b, value, ())
    return reshaped(b, value, (value.type.elements, *(1,) * (rank - 2)))


def _whole_bias(b: Builder, view: View, bias: Value, scales: Sequence[Value]) -> Array | None:
    """A bias as i32 in units of the scales' product, where it is exactly that: a bias that was quantized so."""
    held, factors = elements_of(view, bias), [_held(b, view, scale) for scale in scales]
    if held is None or held.dtype != np.float32:
        return None
    unit = np.ones(1, np.float32)
    for factor in factors:
        if factor is None or factor.dtype != np.float32 or factor.size not in (1, held.size):
            return None
        unit = np.asarray(unit * factor.reshape(-1), np.float32)
    with np.errstate(all="ignore"):
        whole = np.rint(held.astype(np.float64) / unit)
        is_whole = np.all(np.abs(whole) < LARGEST_SUM) and np.array_equal(whole.astype(np.float32) * unit, held)
    return whole.astype(np.int32) if is_whole else None


def _finished(
    b: Builder, view: View, node: Node, sums: Value, scales: Sequence[Value], bias: Value | None = None
) -> Value:
    """Sums times their scales, plus a bias, in the type of the float product."""
    result = in_type(b, sums, F32)
    wide = [in_type(b, reshaped(b, scale, ()) if is_single(scale) else scale, F32) for scale in scales]
    wide.sort(key=lambda scale: _held(b, view, scale) is None)
    known = all(_held(b, view, scale) is not None for scale in wide)
    if len(wide) == 2 and (known or all(map(is_single, wide))):  # as kernels of integers do, the unit of the sums first
        wide = [emit(b, "mul", *wide)]
    for scale in wide:
        result = emit(b, "mul", result, scale)
    if bias is not None:
        result = emit(b, "add", result, in_type(b, bias, F32))
    return in_type(b, result, node.output.type.dtype)
