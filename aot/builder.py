"""Builds graphs by calling ops as functions; infers every type on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np

from aot.dims import Dim
from aot.dtypes import DType
from aot.ir import Array, Attr, Const, Graph, Level, Node, TensorType, Value, const_of
from aot.ops import OPS, infer


class Builder:
    """Collects nodes. `builder.add(x, y)` appends an `add` node and returns its value.

    Ops with several results return a tuple. `builder.at(...)` sets the user's node names that new
    nodes carry.
    """

    def __init__(self, name: str = "graph", locs: tuple[str, ...] = ()) -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.consts: dict[Value, Const] = {}
        self.nodes: list[Node] = []
        self.locs = locs
        self._scalars: dict[tuple[str, str], Value] = {}

    @contextmanager
    def at(self, *locs: str) -> Iterator[None]:
        """Within the block, new nodes come from these nodes of the user's model."""
        before, self.locs = self.locs, locs
        try:
            yield
        finally:
            self.locs = before

    def input(self, name: str, dtype: DType, shape: Sequence[Dim]) -> Value:
        """A new graph input."""
        value = Value(TensorType(dtype, tuple(shape)), name)
        self.inputs.append(value)
        return value

    def const(self, array: Array | Const, source: str = "") -> Value:
        """A constant, from an array or by reference."""
        const = array if isinstance(array, Const) else const_of(array, source)
        value = Value(TensorType(const.dtype, const.shape), source or const.source)
        self.consts[value] = const
        return value

    def scalar(self, number: float | int | bool, dtype: DType) -> Value:
        """A rank-0 constant; equal ones are shared."""
        key = (repr(number), dtype.name)
        if key not in self._scalars:
            self._scalars[key] = self.const(np.asarray(number, dtype=dtype.numpy))
        return self._scalars[key]

    def op(self, name: str, *inputs: Value | None, **attrs: Attr) -> tuple[Value, ...]:
        """Appends a node of any op and returns all its results."""
        filled = OPS[name].check_attrs(attrs) if name in OPS else MappingProxyType(dict(attrs))
        types = infer(name, filled, [None if v is None else v.type for v in inputs])
        outputs = tuple(Value(type_) for type_ in types)
        self.nodes.append(Node(name, tuple(inputs), outputs, filled, self.locs))
        return outputs

    def __getattr__(self, name: str) -> Callable[..., Any]:
        name = name.removesuffix("_")  # and_, not_, slice_ … are Python words
        if name not in OPS:
            raise AttributeError(f"no op {name!r}")

        def apply(*inputs: Value | None, **attrs: Attr) -> Any:
            outputs = self.op(name, *inputs, **attrs)
            return outputs[0] if len(outputs) == 1 else outputs

        return apply

    def finish(self, outputs: Sequence[Value], state: Sequence[tuple[Value, Value]] = ()) -> Graph:
        """The graph."""
        return Graph(
            self.name,
            tuple(self.inputs),
            dict(self.consts),
            tuple(self.nodes),
            tuple(outputs),
            tuple(state),
            Level.CORE,
        )
