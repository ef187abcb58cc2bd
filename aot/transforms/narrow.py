"""Half precision: what lies between kernels, and what products multiply, becomes f16 or bf16.

Inside of kernels arithmetic stays f32: a kernel casts what it reads, and rounds what it stores; a product rounds its
operands and adds in f32. Narrowed are activations (what products make, and what is computed from these), on CPUs too,
where products read a factor in place only if it lies in 16 bits, and the weights of products and lookups. The model's
inputs, outputs and state keep their types, and f32 stays whatever has another range or another use than an activation:
results of reductions, scans, sorts and random numbers, row statistics, and all that does not descend from a weight's
product, such as positions times frequencies.

Invariant: the graph says it all with casts, so that the reference interpreter computes what a kernel does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType

import numpy as np

from aot.dims import typical
from aot.dtypes import BF16, F16, F32, DType
from aot.ir import Array, Const, Graph, Level, Node, Value, live
from aot.lower import OWNED_KINDS
from aot.ops import OPS, Kind
from aot.ops.helpers import int_attr
from aot.passes import Context, precisions_of, transform
from aot.transforms.fold import cast_const

HALVES: Mapping[str, DType] = {"fp16": F16, "bf16": BF16}
"""The element type of each half precision."""

SMALL_ELEMENTS = 256
"""Values of fewer elements stay f32: their bytes cost nothing."""

FACTORS: Mapping[str, int] = {"matmul": 2, "conv": 2, "attention": 3, "matmul_packed": 1}
"""Ops that multiply numbers of 16 bits, and how many of their first operands are factors."""

_QUANTIZED = frozenset({"matmul_8bit", "conv_8bit", "dequantize"})
"""Ops whose results, integers or not, are activations: what is quantized stands for one."""

_SCALE = 2
"""The operand of matmul_packed that holds the scales of its weight, which is narrow already."""

_LOOKUPS = frozenset({"gather", "gather_elements", "gather_nd"})
_WIDE_KINDS = frozenset(
    kind.value for kind in (Kind.REDUCE, Kind.SCAN_AXIS, Kind.RANDOM, *OWNED_KINDS)
)  # of kernels whose results stay f32
_SAMPLE = 4096  # elements that tell most weights from a table of integers
_CHUNK = 1 << 20
_LOSS = {F16: 2.0**-10, BF16: 2.0**-7}  # of a weight's norm: twice what rounding alone can cost


class Nature(IntEnum):
    """What a value descends from: integers and constants alone; numbers of the caller's; products of weights."""

    EXACT = 0
    DATA = 1
    ACTIVE = 2


@transform(takes=Level.FUSED, gives=Level.FUSED)
def narrow(graph: Graph, context: Context) -> Graph:
    """The graph with activations, weights and the operands of products in 16 bits, where --precision asks for it."""
    precision = context.options.precision
    if context.backend is not None and precision not in (known := precisions_of(context.backend, context.target)):
        has = ", ".join(sorted(known))
        context.note(f"programs for {context.target.name} are {has}, not {precision}: that target has no other")
        return graph
    half = HALVES.get(precision)
    return graph if half is None else _Narrowing(graph, context, half).run()


@dataclass
class _Group:
    """Values that share bytes, or lie in one tensor: all are narrowed or none."""

    members: list[Value] = field(default_factory=list)
    where: str = ""


class _Narrowing:
    def __init__(self, graph: Graph, context: Context, half: DType) -> None:
        self.graph = graph
        self.context = context
        self.half = half
        self.nature: dict[Value, Nature] = {v: Nature.DATA for v in graph.inputs if v.type.dtype.is_float}
        self.huge: set[Value] = set()  # may hold numbers that are no f16, such as those of a mask
        self.products: set[Node] = set()  # nodes in kernels whose operands are rounded
        # Constants that products may read: in 16 bits, or None where they do not fit; and those that are no weights.
        self.weights: dict[Value, Const | None] = {}
        self.tables: set[Value] = set()
        self.uses: dict[Value, list[tuple[Node, int]]] = {}  # (kernel or bare node, operand) of each value
        self.only_factor: dict[Value, bool] = {}  # constants: whether every use is as a factor or a table
        self.group = _groups(graph)

    def run(self) -> Graph:
        for node in self.graph.nodes:
            for number, value in enumerate(node.operands):
                self.uses.setdefault(value, []).append((node, number))
            if node.op == "kernel":
                self._look_inside(node)
            else:
                natures = [self._nature(value) for value in node.operands]
                for value in node.outputs:
                    self.nature[value] = max(natures, default=Nature.EXACT)
                    if any(operand in self.huge for operand in node.operands):
                        self.huge.add(value)
        chosen = {
            value
            for group in {id(group): group for group in self.group.values()}.values()
            if self._why_not(group.members) is None and self.context.allow("narrow", group.where)
            for value in group.members
        }
        if not chosen and not self.products:
            return self.graph
        return self._rebuilt(chosen)

    # What values are.

    def _nature(self, value: Value) -> Nature:
        return self.nature.get(value, Nature.EXACT)

    def _root(self, value: Value) -> Value:
        """Where a view's bytes come from."""
        while (node := self.graph.producer.get(value)) is not None and node.op not in ("kernel", "concat"):
            value = node.operands[0]
        return value

    def _is_weight(self, value: Value) -> bool:
        """Whether a value is a constant that products may read in 16 bits, if it fits."""
        value = self._root(value)
        const = self.graph.consts.get(value)
        if const is None or value in self.tables:
            return False
        if value not in self.weights:
            if const.dtype != F32 or len(const.shape) < 2 or _is_whole(const):
                self.tables.add(value)
                return False
            self.weights[value] = self._half_const(const, value.name)
        return True

    def _half_const(self, const: Const, name: str) -> Const | None:
        """The constant in 16 bits; None where that loses more than rounding does, and then a note says so."""
        wide = const.array()
        made = cast_const(const, self.half)
        label = const.source or name or f"a constant of shape {list(const.shape)}"
        lost, norm = _loss(wide.reshape(-1), made.array().reshape(-1))
        if not math.isfinite(lost):
            largest = float(np.max(np.abs(wide)))
            self.context.note(f"{label} stays f32: its largest element, {largest:.3g}, is beyond {self.half}")
            return None
        if lost > _LOSS[self.half] * norm:
            self.context.note(f"{label} stays f32: {lost / norm:.1%} of it lies below the range of {self.half}")
            return None
        return made

    def _look_inside(self, kernel: Node) -> None:
        """Finds the natures of what a kernel makes, and its products."""
        (body,) = kernel.regions
        outside = dict(zip(body.inputs, kernel.operands, strict=True))
        nature = {inner: self._nature(outer) for inner, outer in outside.items()}
        huge = {inner for inner, outer in outside.items() if outer in self.huge}
        limit = float(np.finfo(np.float16).max) if self.half is F16 else math.inf
        big = {value for value, const in body.consts.items() if limit < _size(const) < math.inf}
        factors: set[tuple[Value, Node]] = set()
        for node in body.nodes:
            found = max((nature.get(value, Nature.EXACT) for value in node.operands), default=Nature.EXACT)
            kind = OPS[node.op].kind
            if node.op in FACTORS and node.operands[0].type.dtype == F32:
                operands = node.operands[: FACTORS[node.op]]
                if self._is_product(node):
                    has_weight = any(v in outside and self._is_weight(outside[v]) for v in operands)
                    if node.op == "matmul_packed":
                        has_weight, scale = True, node.operands[_SCALE]
                        if scale in outside and self._is_weight(outside[scale]):
                            factors.add((scale, node))
                    found = Nature.ACTIVE if has_weight or found > Nature.EXACT else found
                    factors |= {(value, node) for value in operands}
                    if self._is_rounded(node, [outside.get(value) for value in operands], nature):
                        self.products.add(node)
            elif node.op in FACTORS or node.op in _QUANTIZED or kind is Kind.RECUR:
                found = Nature.ACTIVE
            elif node.op in _LOOKUPS and node.operands[0] in outside and self._is_weight(outside[node.operands[0]]):
                found = Nature.ACTIVE
                factors.add((node.operands[0], node))
            elif kind is Kind.RANDOM:
                found = Nature.DATA
            is_huge = kind is Kind.MAP and any(value in huge or value in big for value in node.operands)
            # Sums of products in 8 bits are integers, until scales make floats of them; other integers are exact.
            is_sum = node.op in _QUANTIZED or any(
                nature.get(value) is Nature.ACTIVE and value.type.dtype.is_integer for value in node.operands
            )
            for value in node.outputs:
                is_number = value.type.dtype.is_float or (is_sum and value.type.dtype.is_integer)
                nature[value] = found if is_number else Nature.EXACT
                if is_huge and value.type.dtype.is_float:
                    huge.add(value)
        for inner, outer in outside.items():
            root = self._root(outer)
            if root in self.graph.consts:
                every = all((inner, node) in factors for node in body.users.get(inner, ()))
                self.only_factor[root] = self.only_factor.get(root, True) and every
        for outer, inner in zip(kernel.outputs, body.outputs, strict=True):
            self.nature[outer] = nature.get(inner, Nature.EXACT)
            if inner in huge:
                self.huge.add(outer)

    @staticmethod
    def _is_product(node: Node) -> bool:
        """Whether anything is added: a product of columns and rows is no more than elements times elements."""
        return node.op != "matmul" or node.operands[0].type.shape[-1] != 1

    def _is_rounded(self, node: Node, operands: Sequence[Value | None], nature: Mapping[Value, Nature]) -> bool:
        """Whether a product's operands become 16 bits wide: none is made of integers alone, and the weights fit."""
        if node.op == "conv" and int_attr(node.attrs, "groups") != 1:
            return False  # a sum over few elements, without tensor cores
        for inner, outer in zip(node.operands, operands, strict=False):
            if outer is not None and self._is_weight(outer):
                if self.weights[self._root(outer)] is None:
                    return False
            elif nature.get(inner, Nature.EXACT) is Nature.EXACT:
                self.context.refuse("narrow", node.where, "an operand is made of integers alone")
                return False
        return self.context.allow("narrow", node.where)

    # What is narrowed.

    def _why_not(self, members: Sequence[Value]) -> str | None:
        """Why the values of a group stay f32, or None."""
        fixed = {*self.graph.inputs, *self.graph.outputs}
        is_small = all(typical(value.type.elements) < SMALL_ELEMENTS for value in members)
        for value in members:
            if value.type.dtype != F32 or value in fixed:
                return "an input, an output, or of another type"
            if any(_is_owned(node) and not _only_moves(node) for node, _ in self.uses.get(value, ())):
                return "read by an op that owns its loops"
            if value in self.graph.consts:
                if self.weights.get(value) is None or not self.only_factor.get(value):
                    return "a constant with other uses"
                continue
            node = self.graph.producer[value]
            # What was 16 bits wide may be so again, and what only moves elements follows where they come from.
            if node.op == "kernel" and _widened(node, self.half) is None and not _only_moves(node):
                reason = "small" if is_small else self._why_not_made(node, value)
                if reason is not None:
                    return reason
        return None

    def _why_not_made(self, node: Node, value: Value) -> str | None:
        if self.nature[value] is not Nature.ACTIVE:
            return "no activation"
        if node.attrs["kind"] in _WIDE_KINDS:
            return f"the result of a {node.attrs['kind']}"
        if typical(value.type.elements) < max(typical(other.type.elements) for other in node.outputs):
            return "a row statistic"
        if self._is_in_parts(value):
            return "parts of a sum"
        return "beyond the range of f16" if value in self.huge else None

    def _is_in_parts(self, value: Value) -> bool:
        """Whether a value is what split_sums made of a product: readers take one part of its first axis each."""
        cuts = [node for node, _ in self.uses.get(value, ())]
        shape = (1, *value.type.shape[1:])
        return len(cuts) > 1 and all(node.op == "slice" and node.output.type.shape == shape for node in cuts)

    # The new graph.

    def _rebuilt(self, chosen: set[Value]) -> Graph:
        renamed: dict[Value, Value] = {}
        consts: dict[Value, Const] = {}
        for value, const in self.graph.consts.items():
            held = self.weights.get(value)
            if value in chosen and held is not None:
                renamed[value] = Value(value.type.with_dtype(self.half), value.name)
                consts[renamed[value]] = held
            else:
                consts[value] = const
        in_concat = {value for node in self.graph.nodes if node.op == "concat" for value in node.operands}
        nodes: list[Node] = []
        for node in self.graph.nodes:
            source = _widened(node, self.half)
            if source is not None and node.outputs[0] in chosen - in_concat:
                held_as = renamed.get(source, source)
                if held_as.type == node.outputs[0].type.with_dtype(self.half):
                    renamed[node.outputs[0]] = held_as
                    continue
            for value in node.outputs:
                if value in chosen:
                    renamed[value] = Value(value.type.with_dtype(self.half), value.name)
            nodes.append(self._kernel(node, renamed) if node.op == "kernel" else _renamed(node, renamed))
        result = self.graph.with_(nodes=tuple(nodes), consts=consts)
        return live(result)

    def _kernel(self, kernel: Node, renamed: Mapping[Value, Value]) -> Node:
        (body,) = kernel.regions
        is_changed = any(value in renamed for value in (*kernel.operands, *kernel.outputs))
        if not is_changed and not any(node in self.products for node in body.nodes):
            return kernel
        if _only_moves(kernel):
            inside = {
                inner: Value(inner.type.with_dtype(renamed[outer].type.dtype), inner.name)
                for inner, outer in zip((*body.inputs, *body.outputs), (*kernel.operands, *kernel.outputs), strict=True)
                if outer in renamed
            }
            region = body.with_(
                inputs=tuple(inside.get(value, value) for value in body.inputs),
                nodes=tuple(_renamed(node, inside) for node in body.nodes),
                outputs=tuple(inside.get(value, value) for value in body.outputs),
            )
            return replace(_renamed(kernel, renamed), regions=(region,))
        nodes: list[Node] = []
        wide: dict[Value, Value] = {}  # the f32 form of what is 16 bits wide outside
        narrow_form: dict[Value, Value] = {}

        def cast(value: Value, dtype: DType, locs: tuple[str, ...]) -> Value:
            made = Value(value.type.with_dtype(dtype), value.name)
            nodes.append(Node("cast", (value,), (made,), MappingProxyType({"to": dtype}), locs))
            return made

        inputs = []
        for inner, outer in zip(body.inputs, kernel.operands, strict=True):
            held = renamed.get(outer, outer)
            if held.type.dtype == inner.type.dtype:
                inputs.append(inner)
                continue
            inputs.append(Value(inner.type.with_dtype(held.type.dtype), inner.name))
            narrow_form[inner] = inputs[-1]
            wide[inner] = cast(inputs[-1], inner.type.dtype, kernel.locs[:1])
        exact = set(wide.values())
        rounded: dict[Value, Value] = {}
        for node in body.nodes:
            operands = [None if value is None else wide.get(value, value) for value in node.inputs]
            if node.op == "matmul_packed":  # its kernel reads them where they lie, in whatever type
                scale = node.operands[_SCALE]
                operands[_SCALE] = narrow_form.get(scale, scale)
            if node in self.products:
                for number, value in enumerate(operands[: FACTORS[node.op]]):
                    if value is None or value in exact:
                        continue
                    if value not in rounded:
                        rounded[value] = cast(cast(value, self.half, node.locs), F32, node.locs)
                    operands[number] = rounded[value]
            nodes.append(replace(node, inputs=tuple(operands)))
        outputs = []
        for inner, outer in zip(body.outputs, kernel.outputs, strict=True):
            inner = wide.get(inner, inner)
            outputs.append(cast(inner, self.half, kernel.locs[-1:]) if outer in renamed else inner)
        region = live(body.with_(inputs=tuple(inputs), nodes=tuple(nodes), outputs=tuple(outputs)))
        return replace(_renamed(kernel, renamed), regions=(region,))


def _renamed(node: Node, renamed: Mapping[Value, Value]) -> Node:
    inputs = tuple(None if value is None else renamed.get(value, value) for value in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(renamed.get(value, value) for value in node.outputs))


def _widened(node: Node, half: DType) -> Value | None:
    """What a kernel reads that does nothing but make f32 of it."""
    if node.op != "kernel" or len(node.operands) != 1 or len(node.outputs) != 1:
        return None
    (body,) = node.regions
    is_cast = [inner.op for inner in body.nodes] == ["cast"]
    (source,) = node.operands
    return source if is_cast and source.type.dtype == half and node.outputs[0].type.dtype == F32 else None


def _is_owned(node: Node) -> bool:
    return node.op == "kernel" and any(OPS[inner.op].kind in OWNED_KINDS for inner in node.regions[0].nodes)


def _only_moves(node: Node) -> bool:
    """Whether a kernel replaces elements by others of the same type, and computes nothing."""
    if node.op != "kernel" or len(node.regions[0].nodes) != 1:
        return False
    (inner,) = node.regions[0].nodes
    return OPS[inner.op].kind is Kind.SCATTER and inner.attrs["reduction"] == "none"


def _size(const: Const) -> float:
    """The size of a number; 0 of constants that hold several."""
    return abs(float(const.array().reshape(()))) if const.dtype.is_float and const.array().size == 1 else 0.0


def _loss(wide: Array, narrow_array: Array) -> tuple[float, float]:
    """The norms of what rounding loses, infinite or NaN where an element is beyond the range, and of the whole."""
    lost = norm = 0.0
    for start in range(0, wide.size, _CHUNK):  # large weights are not held again in f64
        part = wide[start : start + _CHUNK].astype(np.float64)
        with np.errstate(all="ignore"):
            error = narrow_array[start : start + _CHUNK].astype(np.float64) - part
            lost, norm = lost + float(np.sum(error * error)), norm + float(np.sum(part * part))
    return math.sqrt(lost), math.sqrt(norm)


def _is_whole(const: Const) -> bool:
    """Whether all elements are whole numbers: a table or a mask, not a weight."""
    flat = const.array().reshape(-1)
    return bool(np.array_equal(flat[:_SAMPLE], np.rint(flat[:_SAMPLE])) and np.array_equal(flat, np.rint(flat)))


def _groups(graph: Graph) -> dict[Value, _Group]:
    """The group of every f32 value: views share bytes with what they view, parts lie in their concatenation, and what
    only moves elements has them in one type."""
    found: dict[Value, _Group] = {}

    def join(values: Iterable[Value], where: str) -> None:
        groups = list({id(found[v]): found[v] for v in values if v in found}.values())
        whole = groups[0] if groups else _Group(where=where)
        for other in groups[1:]:
            whole.members.extend(other.members)
            found.update((member, whole) for member in other.members)
        for value in values:
            if value not in found:
                whole.members.append(value)
                found[value] = whole

    for value, where in _values(graph):
        if value.type.dtype == F32:
            join((value,), where)
    for node in graph.nodes:
        if (node.op != "kernel" or _only_moves(node)) and node.outputs[0].type.dtype == F32:
            join([v for v in (*node.operands, *node.outputs) if v.type.dtype == F32], node.where)
    return found


def _values(graph: Graph) -> Iterator[tuple[Value, str]]:
    for value in (*graph.inputs, *graph.consts):
        yield value, value.name
    for node in graph.nodes:
        for value in node.outputs:
            yield value, node.where


__all__ = ["FACTORS", "HALVES", "SMALL_ELEMENTS", "Nature", "narrow"]
