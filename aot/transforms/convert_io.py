"""Inputs, outputs and state of another element type, as --io-dtype asks: f32 outside becomes f16 or bf16.

A cast stands right behind each input and before each output. State that is updated by replacing elements stays in the
narrow type all the way from the input to the output, so that it is still updated in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from aot.dtypes import F32, DType
from aot.ir import Graph, Level, Node, Value
from aot.options import IO_DTYPES
from aot.passes import Context, transform
from aot.transforms.fold import cast_const

_REPLACING = frozenset({"scatter_elements", "scatter_nd"})
_UPDATES = 2  # the operand of a scatter that holds what is written
_PASSING = frozenset({"reshape", "transpose", "copy"})


@transform(takes=Level.CORE, gives=Level.CORE)
def convert_io(graph: Graph, context: Context) -> Graph:
    """The graph whose f32 inputs, outputs and state are of the type that --io-dtype names."""
    dtype = IO_DTYPES[context.options.io_dtype]
    if dtype is None:
        return graph
    if not any(value.type.dtype == F32 for value in (*graph.inputs, *graph.outputs)):
        return graph
    return _Converter(graph, dtype).run()


class _Converter:
    def __init__(self, graph: Graph, dtype: DType) -> None:
        self.graph = graph
        self.dtype = dtype
        self.nodes: list[Node] = []
        self.narrow: dict[Value, Value] = {}  # the narrow form of f32 values that have one
        self.wide: dict[Value, Value] = {}  # what f32 readers of these read

    def run(self) -> Graph:
        graph = self.graph
        kept_narrow = {value for kept, new in graph.state for value in _chain(graph, kept, new)}
        inputs = []
        for value in graph.inputs:
            inputs.append(self._narrow_form(value) if value.type.dtype == F32 else value)
        for value in graph.inputs:
            if value.type.dtype == F32:
                self._widen(value, ())
        for node in graph.nodes:
            if node.outputs and node.outputs[0] in kept_narrow:
                self._narrowed_step(node)
            else:
                self.nodes.append(
                    replace(node, inputs=tuple(None if v is None else self._read(v) for v in node.inputs))
                )
        outputs: dict[Value, Value] = {}
        for value in graph.outputs:
            if value not in outputs:
                outputs[value] = self._output(value)
        new_state = tuple((self.narrow.get(kept, kept), outputs[new]) for kept, new in graph.state)
        initial = tuple(
            (number, cast_const(const, self.dtype) if graph.inputs[number].type.dtype == F32 else const)
            for number, const in graph.initial
        )
        return graph.with_(
            inputs=tuple(inputs),
            nodes=_read_only(self.nodes, (*outputs.values(), *(value for pair in new_state for value in pair))),
            outputs=tuple(outputs[value] for value in graph.outputs),
            state=new_state,
            initial=initial,
        )

    def _narrow_form(self, value: Value) -> Value:
        self.narrow[value] = Value(value.type.with_dtype(self.dtype), value.name)
        return self.narrow[value]

    def _widen(self, value: Value, locs: tuple[str, ...]) -> None:
        """Writes the f32 form of a value that has a narrow one."""
        self.wide[value] = Value(value.type, value.name)
        self.nodes.append(_cast(self.narrow[value], self.wide[value], locs))

    def _read(self, value: Value) -> Value:
        return self.wide.get(value, value)

    def _narrowed_step(self, node: Node) -> None:
        """A node between state and its replacement: the same in the narrow type."""
        inputs: list[Value | None] = []
        for number, value in enumerate(node.inputs):
            if value is None:
                inputs.append(None)
            elif number == 0:
                inputs.append(self.narrow[value])
            elif number == _UPDATES and node.op in _REPLACING:
                update = Value(value.type.with_dtype(self.dtype), value.name)
                self.nodes.append(_cast(self._read(value), update, node.locs))
                inputs.append(update)
            else:
                inputs.append(self._read(value))
        made = self._narrow_form(node.output)
        self.nodes.append(replace(node, inputs=tuple(inputs), outputs=(made,)))
        self._widen(node.output, node.locs)

    def _output(self, value: Value) -> Value:
        if value.type.dtype != F32:
            return self._read(value)
        if value in self.narrow and value not in self.graph.inputs:
            return self.narrow[value]
        made = Value(value.type.with_dtype(self.dtype), value.name)
        locs = self.graph.producer[value].locs if value in self.graph.producer else ()
        self.nodes.append(_cast(self._read(value), made, locs))
        return made


def _chain(graph: Graph, kept: Value, new: Value) -> Sequence[Value]:
    """The values from an input's first change to its replacement, where each only replaces elements of the last."""
    found: list[Value] = []
    value = new
    while value is not kept:
        node = graph.producer.get(value)
        if node is None or node.op not in _REPLACING | _PASSING or value.type.dtype != F32:
            return ()
        if node.op in _REPLACING and node.attrs.get("reduction", "none") != "none":
            return ()
        found.append(value)
        value = node.operands[0]
    return found


def _read_only(nodes: Sequence[Node], results: Sequence[Value]) -> tuple[Node, ...]:
    """The nodes without casts that nobody reads."""
    read = {value for node in nodes for value in node.operands} | set(results)
    return tuple(node for node in nodes if node.op != "cast" or node.output in read)


def _cast(source: Value, made: Value, locs: tuple[str, ...]) -> Node:
    attrs: Mapping[str, DType] = {"to": made.type.dtype}
    return Node("cast", (source,), (made,), MappingProxyType(attrs), locs)
