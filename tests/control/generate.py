"""Random models with control flow. All numbers are small and whole, so that every comparison has one answer.

A vector has a length class: two vectors of one class have one length, whatever the data. Only those meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
LONGEST = 12
MOST_DEPTH = 3


@dataclass(frozen=True)
class Thing:
    """A tensor: a scalar (rank 0), or a vector with its length class (rank 1)."""

    name: str
    length: int | None = None

    @property
    def rank(self) -> int:
        return 0 if self.length is None else 1


@dataclass
class Body:
    """Nodes of a graph, and what they may read: `outer` things have their values before this graph runs."""

    outer: list[Thing]
    things: list[Thing] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)
    depth: int = 0

    @property
    def all(self) -> list[Thing]:
        return [*self.outer, *self.things]


class Generator:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.counter = 0
        self.classes = 0
        self.constants: dict[str, np.ndarray[Any, Any]] = {}

    # Small things

    def name(self) -> str:
        self.counter += 1
        return f"t{self.counter}"

    def fresh(self) -> int:
        self.classes += 1
        return self.classes

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.random.integers(len(items)))]

    def chance(self, part: float) -> bool:
        return bool(self.random.random() < part)

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        array: np.ndarray[Any, Any] = np.asarray(value, dtype)
        name = f"c_{array.dtype}_{'_'.join(map(str, array.shape))}_{array.reshape(-1).tolist()}"
        self.constants[name] = array
        return name

    def add(self, body: Body, op: str, inputs: Sequence[str], results: int = 1, /, **attributes: Any) -> Any:
        names = [self.name() for _ in range(results)]
        body.nodes.append(helper.make_node(op, list(inputs), names, name=f"{op}_{names[0]}", **attributes))
        return names[0] if results == 1 else names

    def scalar(self, body: Body) -> Thing:
        found = [thing for thing in body.all if thing.rank == 0]
        return self.pick(found)  # type: ignore[no-any-return]

    def vector(self, body: Body) -> Thing:
        found = [thing for thing in body.all if thing.rank == 1]
        return self.pick(found)  # type: ignore[no-any-return]

    def keep(self, body: Body, name: str, length: int | None = None) -> Thing:
        """A result, kept small."""
        if self.chance(0.7):
            name = self.add(body, "Clip", [name, self.constant(-9), self.constant(9)])
        else:
            name = self.add(body, "Mod", [name, self.constant(7)], fmod=1)
        thing = Thing(name, length)
        body.things.append(thing)
        return thing

    def short(self, body: Body, name: str) -> str:
        return self.add(body, "Slice", [name, self.constant([0], np.int64), self.constant([LONGEST], np.int64)])  # type: ignore[no-any-return]

    def whole(self, body: Body, thing: Thing, most: int) -> str:
        """A scalar as an i64 in 0..most."""
        size = self.add(body, "Abs", [thing.name])
        size = self.add(body, "Clip", [size, self.constant(0), self.constant(most)])
        return self.add(body, "Cast", [size], to=INT64)  # type: ignore[no-any-return]

    def condition(self, body: Body) -> str:
        limit = self.constant(int(self.random.integers(-4, 5)))
        return self.add(body, self.pick(["Greater", "Less", "Equal"]), [self.scalar(body).name, limit])  # type: ignore[no-any-return]

    # Steps

    def step(self, body: Body) -> None:
        plain = [self.unary, self.binary, self.with_scalar, self.reduce, self.concat, self.compress, self.slice,
                 self.range, self.non_zero, self.unique, self.tile, self.pad]  # fmt: skip
        control = [self.branch, self.loop, self.loop, self.scan]
        part = 0.35 if body.depth < MOST_DEPTH else 0.0
        self.pick(control if self.chance(part) else plain)(body)

    def unary(self, body: Body) -> None:
        thing = self.pick(body.all)
        self.keep(body, self.add(body, self.pick(["Neg", "Relu", "Abs", "Sign"]), [thing.name]), thing.length)

    def binary(self, body: Body) -> None:
        first = self.pick(body.all)
        second = self.pick([thing for thing in body.all if thing.length == first.length])
        op = self.pick(["Add", "Sub", "Mul", "Max"])
        self.keep(body, self.add(body, op, [first.name, second.name]), first.length)

    def with_scalar(self, body: Body) -> None:
        vector = self.vector(body)
        op = self.pick(["Add", "Mul", "Min"])
        self.keep(body, self.add(body, op, [vector.name, self.scalar(body).name]), vector.length)

    def reduce(self, body: Body) -> None:
        self.keep(body, self.add(body, "ReduceSum", [self.vector(body).name], keepdims=0))

    def concat(self, body: Body) -> None:
        parts = [self.vector(body).name for _ in range(int(self.random.integers(2, 4)))]
        self.keep(body, self.short(body, self.add(body, "Concat", parts, axis=0)), self.fresh())

    def compress(self, body: Body) -> None:
        vector = self.vector(body)
        test = self.pick([thing for thing in body.all if thing.length == vector.length])
        flags = self.add(body, "Greater", [test.name, self.constant(int(self.random.integers(-3, 3)))])
        self.keep(body, self.add(body, "Compress", [vector.name, flags], axis=0), self.fresh())

    def slice(self, body: Body) -> None:
        one = self.constant([1], np.int64)
        ends = [self.add(body, "Reshape", [self.whole(body, self.scalar(body), 9), one]) for _ in range(2)]
        extra = [self.constant([0], np.int64), self.constant([self.pick([1, 2, -1])], np.int64)]
        self.keep(body, self.add(body, "Slice", [self.vector(body).name, *ends, *extra]), self.fresh())

    def range(self, body: Body) -> None:
        end = self.whole(body, self.scalar(body), 7)
        made = self.add(body, "Range", [self.constant(0, np.int64), end, self.constant(1, np.int64)])
        self.keep(body, self.add(body, "Cast", [made], to=FLOAT), self.fresh())

    def non_zero(self, body: Body) -> None:
        places = self.add(body, "NonZero", [self.vector(body).name])
        flat = self.add(body, "Reshape", [places, self.constant([-1], np.int64)])
        self.keep(body, self.add(body, "Cast", [flat], to=FLOAT), self.fresh())

    def unique(self, body: Body) -> None:
        values, _ = self.add(body, "Unique", [self.vector(body).name], 2, sorted=self.pick([0, 1]))
        self.keep(body, values, self.fresh())

    def tile(self, body: Body) -> None:
        count = self.add(body, "Reshape", [self.whole(body, self.scalar(body), 2), self.constant([1], np.int64)])
        self.keep(body, self.short(body, self.add(body, "Tile", [self.vector(body).name, count])), self.fresh())

    def pad(self, body: Body) -> None:
        size = self.add(body, "Reshape", [self.whole(body, self.scalar(body), 3), self.constant([1], np.int64)])
        pads = self.add(body, "Concat", [size, self.constant([1], np.int64)], axis=0)
        self.keep(body, self.short(body, self.add(body, "Pad", [self.vector(body).name, pads])), self.fresh())

    # Control

    def inside(self, body: Body, given: Sequence[Thing]) -> Body:
        inner = Body([*body.all], list(given), depth=body.depth + 1)
        for _ in range(int(self.random.integers(0, 6 - body.depth))):
            self.step(inner)
        return inner

    def result(self, body: Body, rank: int, lengths: set[int] | None = None) -> Thing:
        """A result of this body: something it made, or an outer thing itself by way of Identity."""
        found = [t for t in body.all if t.rank == rank and (lengths is None or t.length in lengths)]
        latest = [t for t in found if t in body.things]
        thing: Thing = self.pick(latest if latest and self.chance(0.8) else found)
        return replace(thing, name=self.add(body, "Identity", [thing.name]))

    def info(self, thing: Thing, dtype: int = FLOAT) -> ValueInfoProto:
        return helper.make_tensor_value_info(thing.name, dtype, [None] * thing.rank)

    def graph(self, body: Body, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> GraphProto:
        return helper.make_graph(body.nodes, f"g{self.counter}", list(inputs), list(outputs))

    def branch(self, body: Body) -> None:
        condition = self.condition(body)
        ranks = [self.pick([0, 1, 1]) for _ in range(int(self.random.integers(1, 4)))]
        sides = []
        for _ in range(2):
            inner = self.inside(body, [])
            results = [self.result(inner, rank) for rank in ranks]
            sides.append(self.graph(inner, [], [self.info(thing) for thing in results]))
        names = self.add(body, "If", [condition], len(ranks), then_branch=sides[0], else_branch=sides[1])
        for name, rank in zip([names] if isinstance(names, str) else names, ranks, strict=True):
            body.things.append(Thing(name, self.fresh() if rank else None))

    def loop(self, body: Body) -> None:
        carried = [self.pick(body.all) for _ in range(int(self.random.integers(1, 4)))]
        trips = self.pick([self.whole(body, self.scalar(body), 4), self.constant(3, np.int64), ""])
        first = self.pick(["", self.condition(body), self.constant(True, np.bool_)])
        number, going_on = Thing(self.name()), Thing(self.name())
        formal = [Thing(self.name(), self.fresh() if thing.rank else None) for thing in carried]
        inner = Body([*body.all], [*formal], depth=body.depth + 1)
        inner.things.append(Thing(self.add(inner, "Cast", [number.name], to=FLOAT)))
        for _ in range(int(self.random.integers(1, 6 - body.depth))):
            self.step(inner)
        results = [self.result(inner, thing.rank) for thing in formal]
        fixed = {thing.length for thing in body.all if thing.length is not None}
        stacked = [self.result(inner, 0) for _ in range(int(self.random.integers(0, 2)))]
        stacked += [self.result(inner, 1, fixed) for _ in range(int(self.random.integers(0, 2)))]
        if trips and self.chance(0.5):
            condition = self.add(inner, "Identity", [going_on.name])
        else:  # it always ends
            early = self.add(inner, "Less", [number.name, self.constant(int(self.random.integers(0, 4)), np.int64)])
            condition = self.add(inner, "And", [early, self.condition(inner)])
        graph = self.graph(
            inner,
            [self.info(number, INT64), self.info(going_on, BOOL), *map(self.info, formal)],
            [helper.make_tensor_value_info(condition, BOOL, []), *map(self.info, [*results, *stacked])],
        )
        names = self.add(
            body, "Loop", [trips, first, *(t.name for t in carried)], len(results) + len(stacked), body=graph
        )
        names = [names] if isinstance(names, str) else names
        for name, thing in zip(names, carried, strict=False):
            body.things.append(Thing(name, self.fresh() if thing.rank else None))
        for name, thing in zip(names[len(carried) :], stacked, strict=True):
            if thing.rank:  # a matrix: its sum
                self.keep(body, self.add(body, "ReduceSum", [name], keepdims=0))
            else:
                body.things.append(Thing(name, self.fresh()))

    def scan(self, body: Body) -> None:
        start = self.scalar(body)  # ONNX Runtime takes no empty operand here
        vector = Thing(self.add(body, "Concat", [self.vector(body).name, self.constant([2])], axis=0), self.fresh())
        state, element = Thing(self.name()), Thing(self.name())
        inner = Body([*body.all], [state, element], depth=MOST_DEPTH)
        for _ in range(int(self.random.integers(1, 4))):
            self.step(inner)
        results = [self.result(inner, 0), self.result(inner, 0)]
        graph = self.graph(inner, [self.info(state), self.info(element)], [self.info(thing) for thing in results])
        last, made = self.add(
            body, "Scan", [start.name, vector.name], 2, num_scan_inputs=1, body=graph,
            scan_input_directions=[self.pick([0, 1])], scan_output_directions=[self.pick([0, 1])],
        )  # fmt: skip
        body.things += [Thing(last), Thing(made, vector.length)]


def generate(seed: int) -> tuple[onnx.ModelProto, list[dict[str, Any]]]:
    """A model and some feeds, the same for the same seed."""
    g = Generator(seed)
    x, y, s, k = Thing("x", g.fresh()), Thing("y", 1), Thing("s"), Thing("k")
    body = Body([x, y, s, k])
    for _ in range(int(g.random.integers(3, 9))):
        g.step(body)
    read = {name for node in body.nodes for name in _reads(node)}
    outputs = [thing for thing in body.things if thing.name not in read] or body.things[-1:]
    inputs = [helper.make_tensor_value_info(t.name, FLOAT, ["n"] * t.rank) for t in (x, y, s, k)]
    constants = [numpy_helper.from_array(array, name) for name, array in g.constants.items()]
    graph = helper.make_graph(body.nodes, "random", inputs, [g.info(thing) for thing in outputs], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = []
    for length in (3, 1, 8):
        vectors = {name: g.random.integers(-5, 6, length) for name in "xy"}
        feeds.append(vectors | {name: int(g.random.integers(-5, 6)) for name in "sk"})
    return model, feeds


def _reads(node: NodeProto) -> set[str]:
    found = set(node.input)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            for inner in attribute.g.node:
                found |= _reads(inner)
    return found
