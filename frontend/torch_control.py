"""torch.cond, while_loop, scan and map: their graphs become regions of `cond` and `loop` (aot/control.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.control import add_cond, add_loop
from aot.dims import Dim, Symbol
from aot.errors import ModelError, UnsupportedError
from aot.frontend.known import KnownBuilder
from aot.frontend.torch_asserts import ASSERTIONS
from aot.frontend.torch_complex import HINT, Complex
from aot.frontend.torch_numbers import condition_of_sizes
from aot.frontend.torch_registry import DROPPED, HIGHER_ORDER
from aot.ir import Graph, TensorType, Value, live
from aot.ops.opdef import same_extent

if TYPE_CHECKING:
    from aot.frontend.torch_import import TorchImporter

MOST_ROUNDS = 16  # imports of one body until the types of what it carries hold


class Refused(UnsupportedError):
    """A graph with something in it that is not supported, and is told already."""


class Body:
    """A graph that is an operand: imported into a builder of its own. Its inputs are all given, none is captured."""

    def __init__(self, importer: TorchImporter, module: Any, name: str) -> None:
        self.importer = importer
        self.module = module
        self.builder = KnownBuilder(name, importer.builder.locs, size_of=importer.unbacked)
        self.operands: list[Value] = []  # what it takes from outside, in the order of its inputs

    def input(self, type_: TensorType, name: str) -> Value:
        """A new input that the construct itself gives."""
        return self.builder.input(name, type_.dtype, type_.shape)

    def take(self, entry: Any) -> Any:
        """The body's own form of something outside: constants and sizes as they are, tensors as inputs."""
        if isinstance(entry, Complex):
            return Complex(self.take(entry.real), self.take(entry.imaginary))
        if not isinstance(entry, Value):
            return entry
        outer = self.importer.builder
        if entry in outer.consts:
            return self.builder.const(outer.consts[entry], entry.name)
        contents = outer.known(entry)
        if contents is not None and outer.is_pending(entry):
            return self.builder.known_value(contents, entry.type.dtype)
        self.operands.append(entry)
        return self.builder.input(entry.name, entry.type.dtype, entry.type.shape)

    def run(self, entries: Sequence[Any]) -> list[Value]:
        """The body's results for these inputs, which are the builder's own."""
        from aot.frontend.torch_import import Poison

        importer, outer = self.importer, self.importer.builder
        importer.builder = self.builder
        try:
            formals = [node for node in self.module.graph.nodes if node.op == "placeholder"]
            if len(formals) != len(entries):
                raise ModelError(f"the graph takes {len(formals)} operands, it is given {len(entries)}")
            importer.entries.update(zip(formals, entries, strict=True))
            made = importer.walk(self.module.graph, self.module)
            results = []
            for entry in made if isinstance(made, list) else [made]:
                if isinstance(entry, bool | int | float | dimension.DimExpr):
                    kind = dtypes.BOOL if isinstance(entry, bool) else dtypes.I64
                    contents = np.empty((), object)
                    contents[()] = entry
                    entry = self.builder.known_value(contents, kind)
                if isinstance(entry, Complex):
                    raise UnsupportedError("a graph whose results are complex numbers", hint=HINT)
                if isinstance(entry, Poison):
                    reason = getattr(entry, "reason", "")
                    raise UnsupportedError(reason) if reason else Refused("")
                if not isinstance(entry, Value):
                    raise UnsupportedError("a graph whose results are no tensors")
                self.builder.materialize(entry)
                results.append(entry)
            return results
        finally:
            importer.builder = outer

    def graph(self, results: Sequence[Value]) -> Graph:
        for value in results:
            self.builder.materialize(value)
        return live(self.builder.finish(results))

    def captures(self) -> list[Value]:
        """The operands, as values of the graph outside."""
        for value in self.operands:
            self.importer.builder.materialize(value)
        return self.operands


def _joined(
    importer: TorchImporter, name: str, first: TensorType, second: TensorType, inner: set[Symbol]
) -> TensorType:
    """A type for both; extents that differ, or that only the inside knows, become sizes from data."""
    if first.dtype != second.dtype or first.rank != second.rank:
        raise UnsupportedError(f"results of the types {first} and {second}")
    shape: list[Dim] = []
    for axis, (left, right) in enumerate(zip(first.shape, second.shape, strict=True)):
        hidden = any(symbol in inner for dim in (left, right) for symbol in dimension.symbols_of(dim))
        same = left == right and not hidden
        shape.append(left if same else importer.unbacked(f"{name}_d{axis}", 0))
    return TensorType(first.dtype, tuple(shape))


def _unbacked_of(graph: Graph) -> set[Symbol]:
    """Sizes that the graph's own decisions give."""
    found: set[Symbol] = set()
    for node in graph.nodes:
        for attr in node.attrs.values():
            if isinstance(attr, dimension.DimExpr) and node.op == "read":
                found.update(s for s in dimension.symbols_of(attr) if s.origin != "input")
        if node.op in ("cond", "loop"):
            shapes = (dim for value in node.outputs for dim in value.type.shape)
            found.update(s for dim in shapes for s in dimension.symbols_of(dim) if s.origin != "input")
    return found


def _several(node: Any, values: Sequence[Value]) -> Any:
    return list(values) if isinstance(node.meta.get("val"), list | tuple) else values[0]


def _cond(importer: TorchImporter, node: Any, arguments: Mapping[str, Any]) -> Any:
    condition, on_true, on_false, operands = (arguments[str(position)] for position in range(4))
    if isinstance(condition, bool):
        chosen = Body(importer, on_true if condition else on_false, node.name)
        chosen.builder = importer.builder  # in place
        return _several(node, chosen.run(operands))
    if not isinstance(condition, Value):
        condition = condition_of_sizes(importer.builder, importer.sizes, condition.node.expr)
    bodies = [
        Body(importer, module, f"{node.name}_{label}") for module, label in ((on_true, "true"), (on_false, "false"))
    ]
    results = [body.run([body.take(entry) for entry in operands]) for body in bodies]
    graphs = tuple(body.graph(made) for body, made in zip(bodies, results, strict=True))
    inner = _unbacked_of(graphs[0]) | _unbacked_of(graphs[1])
    types = [
        _joined(importer, f"{node.name}_{number}", a.type, b.type, inner)
        for number, (a, b) in enumerate(zip(*results, strict=True))
    ]
    captures = (bodies[0].captures(), bodies[1].captures())
    importer.builder.materialize(condition)
    made = add_cond(importer.builder, condition, (graphs[0], graphs[1]), captures, types)
    return _several(node, made)


def _tensor(importer: TorchImporter, entry: Any) -> Value:
    """A carried value: a number or a size becomes a tensor of rank 0."""
    if isinstance(entry, Value):
        return entry
    if isinstance(entry, Complex):
        raise UnsupportedError("loops that carry complex numbers", hint=HINT)
    contents = np.empty((), object)
    contents[()] = entry
    kind = dtypes.BOOL if isinstance(entry, bool) else dtypes.F32 if isinstance(entry, float) else dtypes.I64
    return importer.builder.known_value(contents, kind)


def _varied(
    importer: TorchImporter, name: str, types: Sequence[TensorType], after: Sequence[Value]
) -> list[TensorType] | None:
    """The types with a size from data for each extent that an iteration changes; None where none changes."""
    changed, result = False, []
    for number, (before, value) in enumerate(zip(types, after, strict=True)):
        if before.dtype != value.type.dtype or before.rank != value.type.rank:
            raise UnsupportedError(f"carried value {number} is {before} at first and {value.type} later")
        shape = list(before.shape)
        for axis, (old, new) in enumerate(zip(before.shape, value.type.shape, strict=True)):
            own = [s for s in dimension.symbols_of(old) if s.origin != "input" and s.dim == old]
            if old != new and not own:
                shape[axis] = importer.unbacked(f"{name}_{number}_d{axis}", 0)
                changed = True
        result.append(TensorType(before.dtype, tuple(shape)))
    return result if changed else None


def _while_loop(importer: TorchImporter, node: Any, arguments: Mapping[str, Any]) -> Any:
    test, step, carried, extra = (arguments[str(position)] for position in range(4))
    initial = [_tensor(importer, entry) for entry in carried]
    first = Body(importer, test, f"{node.name}_test")
    first.builder = importer.builder  # before the loop, in place
    (condition,) = first.run([*initial, *extra])
    types = [value.type for value in initial]
    for _ in range(MOST_ROUNDS):
        body = Body(importer, step, f"{node.name}_body")
        body.input(TensorType(dtypes.I64, ()), "iteration")
        inputs = [body.input(type_, f"carried_{number}") for number, type_ in enumerate(types)]
        outside = [body.take(entry) for entry in extra]
        results = body.run([*inputs, *outside])
        again = _varied(importer, node.name, types, results)
        if again is None:
            break
        types = again
    else:
        raise UnsupportedError("the sizes of what the loop carries do not settle")
    body.module = test
    (going_on,) = body.run([*results, *outside])
    graph = body.graph([going_on, *results])
    inner = _unbacked_of(graph) | {s for t, v in zip(types, initial, strict=True) for s in _new_symbols(t, v.type)}
    made = [_joined(importer, f"{node.name}_{n}", type_, type_, inner) for n, type_ in enumerate(types)]
    captures = body.captures()
    for value in (condition, *initial):
        importer.builder.materialize(value)
    return _several(node, add_loop(importer.builder, None, condition, initial, captures, graph, made))


def _new_symbols(type_: TensorType, before: TensorType) -> set[Symbol]:
    old = {s for dim in before.shape for s in dimension.symbols_of(dim)}
    return {s for dim in type_.shape for s in dimension.symbols_of(dim)} - old


def _over_rows(
    importer: TorchImporter,
    node: Any,
    module: Any,
    initial: Sequence[Value],
    rows: Sequence[Value],
    extra: Sequence[Any],
) -> tuple[list[Value], list[Value]]:
    """A loop over the first axis of `rows`: (carried, *row) -> (carried, *stacked)."""
    count = rows[0].type.shape[0]
    for value in rows:
        same_extent(value.type.shape[0], count, "the lengths that a scan runs over")
    types = [value.type for value in initial]
    body = Body(importer, module, f"{node.name}_body")
    iteration = body.input(TensorType(dtypes.I64, ()), "iteration")
    inputs = [body.input(type_, f"carried_{number}") for number, type_ in enumerate(types)]
    slices = [body.builder.op("gather", body.take(value), iteration, axis=0)[0] for value in rows]
    results = body.run([*inputs, *slices, *(body.take(entry) for entry in extra)])
    if _varied(importer, node.name, types, results[: len(initial)]) is not None:
        raise UnsupportedError("what the scan carries changes its shape")
    graph = body.graph(results)
    inner = _unbacked_of(graph)
    made = [_joined(importer, f"{node.name}_{n}", type_, type_, inner) for n, type_ in enumerate(types)]
    for number, value in enumerate(results[len(initial) :], len(initial)):
        type_ = TensorType(value.type.dtype, (count, *value.type.shape))
        made.append(_joined(importer, f"{node.name}_{number}", type_, type_, inner))
    contents = np.empty((), object)
    contents[()] = count
    trips = importer.builder.known_value(contents, dtypes.I64)
    captures = body.captures()
    for value in (trips, *initial):
        importer.builder.materialize(value)
    found = add_loop(importer.builder, trips, None, initial, captures, graph, made)
    return list(found[: len(initial)]), list(found[len(initial) :])


def _scan(importer: TorchImporter, node: Any, arguments: Mapping[str, Any]) -> Any:
    module, initial, rows, extra = (arguments[str(position)] for position in range(4))
    carried, stacked = _over_rows(
        importer, node, module, [_tensor(importer, entry) for entry in initial], list(rows), list(extra)
    )
    return [*carried, *stacked]


def _map(importer: TorchImporter, node: Any, arguments: Mapping[str, Any]) -> Any:
    module, rows, extra = (arguments[str(position)] for position in range(3))
    return _over_rows(importer, node, module, [], list(rows), list(extra))[1]


def _with_effects(importer: TorchImporter, node: Any, arguments: Mapping[str, Any]) -> Any:
    """A check that runs in order with others; its first result is the order."""
    name = str(arguments["1"]).removeprefix("aten.")
    if name in ASSERTIONS:
        importer.add_assertion(node, node.args[2:])
    elif name not in DROPPED:
        raise UnsupportedError(f"the effects of {name}")
    return [None for _ in node.meta["val"]]


HIGHER_ORDER.update(
    {"with_effects": _with_effects, "cond": _cond, "while_loop": _while_loop, "scan": _scan, "map_impl": _map}
)
