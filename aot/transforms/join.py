"""Products of one left operand as one product: the queries, keys and values of attention.

Their weights are joined along the columns, by a recipe that also runs at load, and so are constants that are added or
multiplied behind them, such as biases. The results are slices of the product's, which readers address by strides.

Invariant: no kernel is added and no bytes are moved for it. A product stays apart that is followed by arithmetic of its
own (which is its epilogue), or that somebody needs dense.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from aot.builder import Builder
from aot.dims import product
from aot.dtypes import DType
from aot.ir import Const, Graph, Level, Node, TensorType, Value, const_of, live
from aot.ops import OPS, Kind
from aot.ops.window import CONVS
from aot.passes import Context, transform
from aot.transforms.fold import concat_consts, vector_const
from aot.views import is_view, view_of

_NEUTRAL = {"sub": 0.0, "add": -0.0, "mul": 1.0}
"""Ops with a constant that products may be followed by, and the number that leaves every result as it is."""

_PRODUCTS = ("matmul", "matmul_8bit")


@dataclass
class _Part:
    """One of the products, with the ops behind it that have a constant of columns."""

    nodes: list[Node]
    steps: list[tuple[str, Value | None]] = field(default_factory=list)  # (op, constant); a cast has none

    @property
    def weight(self) -> Value:
        return self.nodes[0].operands[1]

    @property
    def result(self) -> Value:
        return self.nodes[-1].output

    @property
    def columns(self) -> int:
        extent = self.weight.type.shape[1]
        assert isinstance(extent, int)
        return extent


@transform(takes=Level.CORE, gives=Level.CORE)
def join(graph: Graph, context: Context) -> Graph:
    """Makes one product of those that read the same left operand, where the backend asks for it."""
    return _Joining(graph, context).run() if context.joins_products else graph


class _Joining:
    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph = graph
        self.context = context
        self.kept = {*graph.outputs, *(value for pair in graph.state for value in pair)}

    def run(self) -> Graph:
        groups: dict[tuple[Value, str, object], list[_Part]] = {}
        for node in self.graph.nodes:
            if node.op in _PRODUCTS and self._has_weight(node):
                part = self._part(node)
                groups.setdefault((node.operands[0], node.op, part.weight.type.dtype), []).append(part)
        made: dict[Node, list[Node]] = {}
        gone: set[Node] = set()
        consts = dict(self.graph.consts)
        for parts in groups.values():
            if len(parts) < 2:
                continue
            parts = [part for part in parts if self._why_not(part, sum(each.columns for each in parts)) is None]
            builder = self._joined(parts) if len(parts) > 1 else None
            if builder is not None and self.context.allow("join", parts[0].nodes[0].where):
                made[parts[0].nodes[0]] = builder.nodes
                consts.update(builder.consts)
                gone.update(node for part in parts for node in part.nodes)
        if not made:
            return self.graph
        nodes = [new for node in self.graph.nodes for new in (made.get(node, []) if node in gone else [node])]
        return live(self.graph.with_(nodes=tuple(nodes), consts=consts))

    def _has_weight(self, node: Node) -> bool:
        left, right = node.operands
        is_matrix = right in self.graph.consts and right.type.rank == 2
        return is_matrix and left not in self.graph.consts and left.type.rank > 1 and 0 not in right.type.shape

    def _part(self, node: Node) -> _Part:
        part = _Part([node])
        while (step := self._step(part)) is not None:
            part.nodes.append(step[0])
            part.steps.append(step[1:])
        return part

    def _step(self, part: _Part) -> tuple[Node, str, Value | None] | None:
        """The only reader of a part's result, where it converts it, or computes with constants of columns."""
        readers = self.graph.users.get(part.result, ())
        if len(readers) != 1 or part.result in self.kept:
            return None
        (reader,) = readers
        if reader.op == "cast":
            return reader, reader.op, None
        if reader.op == "sub" and reader.operands[0] is not part.result:
            return None
        if reader.op not in _NEUTRAL or reader.operands.count(part.result) != 1:
            return None
        (other,) = (value for value in reader.operands if value is not part.result)
        shape = other.type.shape
        is_row = product(shape) in (1, part.columns) and (not shape or shape[-1] == product(shape))
        fits = other in self.graph.consts and reader.output.type == part.result.type
        return (reader, reader.op, other) if is_row and fits else None

    # Which products.

    def _why_not(self, part: _Part, columns: int) -> str | None:
        """The reason a product stays apart, which is recorded; `columns` of all together."""
        whole = Value(TensorType(part.result.type.dtype, (*part.result.type.shape[:-1], columns)))
        view = view_of(_cut(whole, 0, part), whole.type)
        assert view is not None
        reason = "it is a result of the model" if part.result in self.kept else None
        reason = reason or _why_not_part(self.graph, part.result, view.type, self.kept)
        if reason is not None:
            self.context.refuse("join", part.nodes[0].where, reason)
        return reason

    # Joining.

    def _joined(self, parts: Sequence[_Part]) -> Builder | None:
        """The nodes of the joined product; None where a recipe cannot say what its weight is."""
        builder = Builder(locs=tuple(dict.fromkeys(loc for part in parts for n in part.nodes for loc in n.locs)))
        first = parts[0].nodes[0]
        weight = concat_consts([self.graph.consts[part.weight] for part in parts], 1)
        if weight is None:
            self.context.refuse("join", first.where, "one of the weights is not the model's")
            return None
        (result,) = builder.op(first.op, first.operands[0], builder.const(weight))
        left = [list(part.steps) for part in parts]
        while any(left):
            if all(steps and steps[0][0] == "cast" for steps in left):
                for steps in left:
                    steps.pop(0)
                result = builder.cast(result, to=parts[0].result.type.dtype)
                continue
            if not any(steps and steps[0][0] in _NEUTRAL for steps in left):
                self.context.refuse("join", first.where, "only some of the products are converted")
                return None
            op = next(op for op in _NEUTRAL if any(steps and steps[0][0] == op for steps in left))
            chosen = [steps.pop(0)[1] if steps and steps[0][0] == op else None for steps in left]
            constant = self._constant(op, chosen, parts, result.type.dtype)
            if constant is None:
                self.context.refuse("join", first.where, "a constant behind one of the products is not the model's")
                return None
            (result,) = builder.op(op, result, builder.const(constant))
        start = 0
        for part in parts:
            builder.nodes.append(_cut(result, start, part))
            start += part.columns
        return builder

    def _constant(self, op: str, chosen: Sequence[Value | None], parts: Sequence[_Part], dtype: DType) -> Const | None:
        """The constants of an op behind each part as one of all columns; what changes nothing where a part has none."""
        consts = [None if value is None else self.graph.consts[value] for value in chosen]
        if len({const and const.digest for const in consts}) == 1 and consts[0] and product(consts[0].shape) == 1:
            return consts[0]
        neutral = const_of(np.full((), _NEUTRAL[op], dtype.numpy))
        rows = [vector_const(const or neutral, part.columns) for const, part in zip(consts, parts, strict=True)]
        return concat_consts(rows, 0)


def _why_not_part(graph: Graph, value: Value, type_: TensorType, kept: Container[Value]) -> str | None:
    """Why a value that a kernel makes should not become a part of a larger tensor, where it has the layout of `type_`.

    `kept` are results of the model.
    """
    for reader in graph.users.get(value, ()):
        if OPS[reader.op].kind is Kind.MAP and reader.output.type.shape == value.type.shape:
            return f"{reader.where} is computed with it"
        if reader.op == "concat":
            return f"it is written into {reader.where}"
    return why_not_read(graph, value, type_, value.type, kept)


def why_not_read(
    graph: Graph, value: Value, type_: TensorType, dense: TensorType, kept: Container[Value]
) -> str | None:
    """Why a value could not have the layout of `type_`; `dense`: the one that it has where it is no part."""
    for reader in graph.users.get(value, ()):
        if OPS[reader.op].row_major or reader.op in CONVS:
            return f"{reader.where} wants it dense"
        if is_view(reader):
            view, alone = view_of(reader, type_), view_of(reader, dense)
            if alone is None:  # its bytes are moved in any case
                continue
            if view is None or reader.output in kept:
                return f"{reader.where} would have to move its bytes"
            reason = why_not_read(graph, reader.output, view.type, alone.type, kept)
            if reason is not None:
                return reason
    return None


def _cut(whole: Value, start: int, part: _Part) -> Node:
    """The node that makes a part's result of the whole."""
    builder, rank = Builder(locs=part.nodes[-1].locs), whole.type.rank
    builder.op(
        "slice", whole, starts=(*(0,) * (rank - 1), start), sizes=part.result.type.shape, steps=(1,) * rank
    )  # fmt: skip
    return replace(builder.nodes[0], outputs=(part.result,))
