"""Quantizes products as a record says: quantize and dequantize around them, weights in few bits.

The graph then says in plain ops what is computed; `lower_quantized` makes products in 8 bits of it, and the reference
interpreter computes the same with floats. Invariant: without a record, and for nodes whose form is float, nothing
changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from aot import rounding
from aot.builder import Builder
from aot.dtypes import F8E4M3, F32, I8, U8, DType
from aot.errors import OptionError
from aot.ir import Array, Graph, Level, Node, TensorType, Value, live
from aot.ops.quantized import FLOAT8_MOST, NIBBLE_ZERO, pack_rows, unpacked_weight
from aot.passes import Context, transform
from aot.quantization import FLOAT, Method, NodeRecord, Quantization
from aot.transforms.products import Product, products, source_of, weight_array
from aot.transforms.shapes import inverse, joined_axes, perm_of

_HOMOGENEOUS = frozenset({"relu", "max_pool", "avg_pool"})
"""f(s x) = s f(x) for s > 0, channel by channel."""

_LEAST = 1e-12
"""The least scale that is found at run time: what zeros are divided by."""


@transform(takes=Level.CORE, gives=Level.CORE)
def quantize(graph: Graph, context: Context) -> Graph:
    """The graph with the products of options.quantization in the forms that it says."""
    record = context.options.quantization
    return graph if record is None else quantized(graph, record, context)


def quantized(graph: Graph, record: Quantization, context: Context, switch: Value | None = None) -> Graph:
    """The graph with its products quantized.

    With `switch`, bool [number of products], an input that the graph gets: both forms of each product, of which the run
    takes the quantized one where the switch of the product's number in the record is set.
    """
    return _Quantizer(graph, record, context, switch).run()


@dataclass(frozen=True)
class _Weight:
    """A product's weight and bias as they are quantized: after what equalization did to them."""

    array: Array
    bias: Array | None


class _Quantizer:
    def __init__(self, graph: Graph, record: Quantization, context: Context, switch: Value | None) -> None:
        self.graph, self.record, self.context, self.switch = graph, record, context, switch
        self.builder = Builder(graph.name)
        self.new: dict[Value, Value] = {}
        self.chosen: dict[Node, tuple[Product, NodeRecord, int]] = {}
        by_node = {node.node: (node, number) for number, node in enumerate(record.nodes)}
        for product in products(graph):
            found = by_node.get(product.name)
            if found is not None and found[0].form != FLOAT and context.allow("quantize", product.node.where):
                self.chosen[product.node] = (product, *found)
        self.divided: dict[Node, Array] = {}  # what the outputs of products and biases are divided by
        self.equalized: set[Node] = set()
        if record.method.equalize and switch is None:
            self._equalize()

    def run(self) -> Graph:
        if not self.chosen:
            return self.graph if self.switch is None else self.graph.with_(inputs=(*self.graph.inputs, self.switch))
        for node in self.graph.nodes:
            node = replace(node, inputs=tuple(None if v is None else self.new.get(v, v) for v in node.inputs))
            original = self.graph.producer[node.outputs[0]]
            if original in self.chosen:
                self._replace(original, node)
            elif original in self.divided:
                self._divide(original, node)
            else:
                self.builder.nodes.append(node)
        outputs = tuple(self.new.get(value, value) for value in self.graph.outputs)
        renamed = {
            v: Value(v.type, old.name) for v, old in zip(outputs, self.graph.outputs, strict=True) if v is not old
        }
        nodes = tuple(
            replace(n, outputs=tuple(renamed.get(v, v) for v in n.outputs),
                    inputs=tuple(None if v is None else renamed.get(v, v) for v in n.inputs))
            for n in self.builder.nodes
        )  # fmt: skip
        state = tuple((source, renamed.get(self.new.get(o, o), self.new.get(o, o))) for source, o in self.graph.state)
        inputs = self.graph.inputs if self.switch is None else (*self.graph.inputs, self.switch)
        consts = {**self.graph.consts, **self.builder.consts}
        final = tuple(renamed.get(v, v) for v in outputs)
        return live(self.graph.with_(inputs=inputs, nodes=nodes, consts=consts, outputs=final, state=state))

    # Equalization: the balance of a product's channels becomes part of the layer before.

    def _equalize(self) -> None:
        for node, (_, record, _) in self.chosen.items():
            if record.balance.size and (maker := self._layer_before(node)) is not None:
                self.divided[maker] = record.balance
                self.equalized.add(node)

    def _layer_before(self, node: Node) -> Node | None:
        """The product whose outputs are the node's channels, through what keeps a positive factor; else None."""
        graph, value = self.graph, node.operands[0]
        while True:
            maker = graph.producer.get(value)
            if maker is None or len(graph.users.get(value, ())) != 1 or value in graph.outputs:
                return None
            if maker.op == "conv" and node.op == "conv":
                is_new = maker not in self.divided and maker.operands[1] in graph.consts
                if maker in self.chosen and not self.record.method.per_channel:
                    return None  # its outputs share a scale: those that are divided by much would lose bits
                bias = maker.operands[2] if len(maker.operands) > 2 else None
                return maker if is_new and (bias is None or bias in graph.consts) else None
            if maker.op not in _HOMOGENEOUS:
                return None
            value = maker.operands[0]

    def _divide(self, original: Node, node: Node) -> None:
        """A convolution that stays float, with its outputs divided."""
        weight = self._weight(original, np.asarray(self.graph.consts[original.operands[1]].array(), np.float32))
        operands = [node.inputs[0], self.builder.const(weight.array)]
        if weight.bias is not None:
            operands.append(self.builder.const(weight.bias))
        with self.builder.at(*node.locs):
            self.new[original.output] = self.builder.op("conv", *operands, **node.attrs)[0]

    def _weight(self, node: Node, array: Array) -> _Weight:
        bias = None
        if (
            node.op == "conv"
            and len(node.operands) > 2
            and (const := self.graph.consts.get(node.operands[2])) is not None
        ):
            bias = np.asarray(const.array(), np.float32)
        by = self.divided.get(node)
        if by is not None:
            array = array / by.reshape(-1, *(1,) * (array.ndim - 1))
            bias = None if bias is None else np.asarray(bias / by, np.float32)
        return _Weight(array, bias)

    # One product.

    def _replace(self, original: Node, node: Node) -> None:
        product, record, number = self.chosen[original]
        if record.balance.size not in (0, product.channels) or record.means.size not in (0, product.channels):
            raise OptionError(
                f"the record has {record.balance.size or record.means.size} channels, the node {product.channels}",
                where=node.where, hint="The record is of another model: quantize again.",
            )  # fmt: skip
        with self.builder.at(*node.locs):
            x = node.inputs[0]
            assert x is not None
            result = self._product(product, record, node, x)
            if self.switch is not None:
                self.builder.nodes.append(node)
                single = self.builder.slice(self.switch, starts=(number,), sizes=(1,), steps=(1,))
                result = self.builder.where(self.builder.reshape(single, shape=()), result, node.output)
        self.new[original.output] = result

    def _product(self, product: Product, record: NodeRecord, node: Node, x: Value) -> Value:
        builder, method = self.builder, self.record.method
        own = self._weight(product.node, weight_array(product))
        weight = own.array
        if record.form.endswith("-weights"):
            return self._packed(product, record, x, weight)
        factor = np.ones((1,) * product.x.type.rank)  # what the activation is multiplied with before it is rounded
        if record.balance.size:
            weight = weight * product.by_channel(record.balance)
            if product.node not in self.equalized:
                factor = product.per_channel(1 / record.balance.astype(np.float64))
        stored = F8E4M3 if record.form.startswith("fp8") else I8
        if record.form.endswith("-dynamic"):
            left = self._at_run_time(product, x, stored)
        else:
            left = self._static(product, record, x, factor, stored)
        numbers, spread = rounded_weight(product, weight, record.form, method)
        kept = builder.const(numbers, product.weight.source)
        right = builder.dequantize(kept, builder.const(np.asarray(spread, np.float32)))
        correction = None
        if record.means.size and method.bias_correction:
            correction = _correction(product, record, weight - numbers.astype(np.float32) * spread)
        if product.node.op == "matmul":
            result: Value = builder.matmul(left, right)
            return result if correction is None else builder.add(result, builder.const(correction))
        bias: Value | None = node.inputs[2] if len(node.inputs) > 2 else None
        if own.bias is not None or (correction is not None and bias is None):
            whole = own.bias if own.bias is not None else np.zeros(weight.shape[0], np.float32)
            bias = builder.const(whole if correction is None else whole + correction)
        elif correction is not None:
            bias = builder.add(bias, builder.const(correction))
        made: Value = builder.op("conv", left, right, *(() if bias is None else (bias,)), **node.attrs)[0]
        return made

    def _static(self, product: Product, record: NodeRecord, x: Value, factor: Array, stored: DType) -> Value:
        """x in few bits and back. It is quantized where it is made, before views of it: there it costs nothing.

        The scale is a multiplication by its reciprocal, one with the balance, and only with --exact a division.
        """
        builder = self.builder
        views = self._views(product.x, factor)
        source, factor = (product.x, factor) if views is None else (views[0], views[1])
        before = self.new.get(source, source) if views is not None else x
        scale = builder.const(np.asarray(record.scale, np.float32))
        divisor = scale
        if not self.context.options.exact:
            factor = factor / np.float64(np.float32(record.scale))
            divisor = builder.scalar(1.0, F32)
        if factor.size > 1 or factor.item() != 1:
            multiplier = factor if factor.size > 1 else factor.reshape(())
            before = builder.mul(before, builder.const(np.asarray(multiplier, np.float32)))
        zero = None
        if stored is I8:
            stored = U8
            zero = builder.const(np.asarray(record.zero_point, np.uint8))
        made = Value(TensorType(stored, before.type.shape), f"{product.name} input in 8 bits")
        operands = (before, divisor) if zero is None else (before, divisor, zero)
        builder.nodes.append(Node("quantize", operands, (made,), {"to": stored}, builder.locs))
        for view in reversed(views[2] if views is not None else []):
            (made,) = builder.op(view.op, made, **view.attrs)
        result: Value = builder.dequantize(made, scale, zero)
        return result

    def _views(self, x: Value, factor: Array) -> tuple[Value, Array, list[Node]] | None:
        """The value that x is a view of, what it is multiplied with if x is with `factor`, and the views, x's first.

        None where a view does not keep what belongs to one channel apart from the rest.
        """
        source, chain = source_of(self.graph, x), []
        while x is not source:
            view = self.graph.producer[x]
            (x,) = view.operands
            if factor.size > 1:
                moved = _before_view(view, factor)
                if moved is None:
                    return None
                factor = moved
            chain.append(view)
        return source, factor, chain

    def _at_run_time(self, product: Product, x: Value, stored: DType) -> Value:
        """x in few bits and back, with a scale for each row of a matmul, or each image of a convolution."""
        builder = self.builder
        axes = (x.type.rank - 1,) if product.node.op == "matmul" else tuple(range(1, x.type.rank))
        most = builder.reduce_max(builder.abs(x), axes=axes, keepdims=True)
        levels = FLOAT8_MOST[stored] if stored is F8E4M3 else 127.0
        least = builder.const(np.asarray(_LEAST, np.float32))
        scale = builder.max(builder.mul(most, builder.const(np.asarray(1 / levels, np.float32))), least)
        result: Value = builder.dequantize(builder.quantize(x, scale, to=stored), scale)
        return result

    def _packed(self, product: Product, record: NodeRecord, x: Value, weight: Array) -> Value:
        """A weight of 8 or 4 bits; the product of floats."""
        numbers, scale, bits, block = packed_weight(weight, record, self.record.method.block)
        builder = self.builder
        made: Value = builder.matmul_packed(
            x, builder.const(numbers, product.weight.source), builder.const(scale), bits=bits, block=block
        )
        if record.means.size and self.record.method.bias_correction:
            rounded = unpacked_weight(bits, block, weight.shape[0], numbers, scale, None)
            made = builder.add(made, builder.const(_correction(product, record, weight - rounded)))
        return made


def _before_view(view: Node, factor: Array) -> Array | None:
    """A factor of a view's result, with extent 1 along what it does not depend on, as one of the view's operand."""
    (operand,) = view.operands
    if view.op == "transpose":
        return factor.transpose(inverse(perm_of(view)))
    runs = joined_axes(operand.type.shape, view.output.type.shape)
    if runs is None:
        return None
    shape: list[int] = [1] * operand.type.rank
    for place, axes in enumerate(runs):
        if factor.shape[place] == 1:
            continue
        for axis in axes:
            extent = operand.type.shape[axis]
            if not isinstance(extent, int):
                return None
            shape[axis] = extent
    return factor.reshape(shape) if int(np.prod(shape)) == factor.size else None


def rounded_weight(product: Product, weight: Array, form: str, method: Method) -> tuple[Array, Array]:
    """(numbers of 8 bits, scale that broadcasts over them) of a product's weight in a form whose operands both are."""
    axis = product.output_axis if method.per_channel else None
    if form.startswith("fp8"):
        scale, to = rounding.scales(weight, axis, int(FLOAT8_MOST[F8E4M3]), shrink=False), rounding.to_float8
    else:
        scale, to = rounding.scales(weight, axis, 127), rounding.to_int8
    spread = product.per_output(scale) if scale.size > 1 else scale.reshape(())
    return to(weight, spread), spread


def packed_weight(weight: Array, record: NodeRecord, block: int) -> tuple[Array, Array, int, int]:
    """(numbers, scales [blocks, N], bits, block) of a weight [K, N]; those of the record, where it has them."""
    bits = 4 if record.form == "int4-weights" else 8
    block = block or weight.shape[0] + weight.shape[0] % 2
    if record.weight.size:
        return record.weight, record.weight_scale, bits, block
    levels = 7 if bits == 4 else 127
    scale = rounding.block_scales(weight, block, levels)
    spread = np.repeat(scale, block, axis=0)[: weight.shape[0]]
    if bits == 8:
        return rounding.to_int8(weight, spread), scale, bits, block
    numbers = np.clip(np.rint(weight / spread), -NIBBLE_ZERO, NIBBLE_ZERO - 1) + NIBBLE_ZERO
    return pack_rows(numbers), scale, bits, block


def _correction(product: Product, record: NodeRecord, error: Array) -> Array:
    """f32 [outputs]: what the rounding of the weight takes away on average; `error` is weight minus rounded weight."""
    balance = record.balance.astype(np.float64) if record.balance.size else np.ones(product.channels)
    means = product.by_channel(record.means.astype(np.float64) / balance)
    summed = tuple(axis for axis in range(error.ndim) if axis != product.output_axis)
    return np.asarray((error * means).sum(axis=summed), np.float32)
