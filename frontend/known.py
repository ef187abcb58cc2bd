"""A Builder that knows the contents of small tensors, symbolic sizes included.

Exporters compute shapes with tensors: Shape, Gather, Mul, Concat, Reshape. Here an op whose operands
are all known is not added to the graph; its result is known in turn, and only becomes a constant or a
`dim_tensor` when a real op reads it. So shape arithmetic never reaches the graph as nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.builder import Builder
from aot.control import add_read
from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend.known_scalars import MayBeNegative, Ratio, UnknownContents, is_symbolic
from aot.frontend.known_tensors import contents_of, object_array, objects_of, static_shape
from aot.ir import Array, Attr, Graph, Relation, TensorType, Value, const_of
from aot.ops import OPS, infer
from aot.ops.opdef import Attrs

LARGEST_KNOWN = 4096  # elements; larger tensors are data, not shapes


MOST_SIZES = 64  # elements of a tensor of sizes that is read when the program runs
SizeOf = Callable[[str, int, int | None], Dim]
"""Makes an unbacked size: (the name to follow, its least and largest value)."""


def _ratio(element: Any, apart: bool) -> Ratio:
    """An element of a tensor of sizes; 0 for a plain number that is kept `apart`."""
    if isinstance(element, Ratio):
        return element
    if is_symbolic(element):
        return Ratio(element, 1)
    return Ratio(0 if apart else int(element), 1)


class KnownBuilder(Builder):
    """See the module."""

    def __init__(self, name: str = "graph", locs: tuple[str, ...] = (), size_of: SizeOf | None = None) -> None:
        super().__init__(name, locs)
        self._size_of = size_of
        self._known: dict[Value, Array] = {}
        self._derived: set[Value] = set()  # made here, of sizes and whole numbers
        self._pending: set[Value] = set()  # of these, what is not in the graph yet
        self.equal: dict[Value, Value] = {}  # an equal value, made later, that lies in what the caller holds
        self.relations: tuple[Relation, ...] = ()  # that the sizes of the inputs meet
        self.unsigned: dict[Dim, None] = {}  # sizes whose quotients would be known if they were not negative
        self.room: dict[Dim, str] = {}  # what an input has beyond a window, which is not to be negative; the node

    def is_never_negative(self, size: Dim) -> bool:
        """Whether a size is known to be at least 0, by the bounds of symbols, with one of the relations or without."""
        spare = [each.left - each.right for each in self.relations if each.sign in (">=", ">")]
        return any(dimension.bounds(size - least)[0] >= 0 for least in (0, *spare))

    def known(self, value: Value) -> Array | None:
        """The contents, as an object array, where they are known before running."""
        if value not in self._known and value in self.consts:
            const = self.consts[value]
            if math.prod(const.shape) <= LARGEST_KNOWN:
                self._known[value] = objects_of(const.array())
        return self._known.get(value)

    def assume(self, value: Value, contents: Array) -> None:
        """Takes a value of the graph to hold these contents."""
        self._known[value] = contents

    def is_pending(self, value: Value) -> bool:
        """Whether the value is known and no node makes it yet."""
        return value in self._pending

    def known_value(self, contents: Array, dtype: DType) -> Value:
        """A value of known contents that is not in the graph until an op reads it."""
        value = Value(TensorType(dtype, tuple(contents.shape)))
        self._known[value] = contents
        self._derived.add(value)
        self._pending.add(value)
        return value

    def dims_value(self, dims: Sequence[Dim], dtype: DType = dtypes.I64) -> Value:
        """A rank-1 tensor of sizes."""
        return self.known_value(object_array(list(dims), (len(dims),)), dtype)

    def read_sizes(self, value: Value, lo: int = 0, hi: int | None = None, wish: str = "") -> Array | None:
        """The contents of a tensor of integers as sizes that are read when the program runs.

        What is known before stays what it is. None where the tensor is too long, or no tensor of integers. With
        `hi`, values outside of lo..hi are taken to be the nearest inside; without, they are refused. `wish`: the name
        to follow; else the value's.
        """
        contents = self.known(value)
        if contents is not None:
            return contents
        count = value.type.elements
        if value.type.dtype.is_float or value.type.dtype.bits < 8 or self._size_of is None:
            return None
        if not isinstance(count, int) or count > MOST_SIZES:
            return None
        parts = self.parts(value)
        if parts != (value,):
            found = [self.read_sizes(part, lo, hi, wish) for part in parts]
            if all(part is not None for part in found):
                return np.concatenate([part.reshape(-1) for part in found if part is not None])
            return None
        self.materialize(value)
        elements: list[Any] = []
        for element in range(count):
            name = wish or self._label(value)
            dim = self._size_of(f"{name}_{element}" if count > 1 else name, lo, hi)
            add_read(self, value, element, dim, clamp=hi is not None)
            elements.append(dim)
        contents = object_array(elements, static_shape(value.type))
        if hi is None:  # a number that was clamped is not what the tensor holds
            self._known[value] = contents
        return contents

    def parts(self, value: Value) -> tuple[Value, ...]:
        """What a rank-1 tensor was concatenated from; itself where it was not."""
        for node in reversed(self.nodes):
            if value in node.outputs:
                return node.operands if node.op == "concat" and value.type.rank == 1 else (value,)
        return (value,)

    def _label(self, value: Value) -> str:
        return value.name or (self.locs[-1] if self.locs else "size")

    def op(self, name: str, *inputs: Value | None, **attrs: Attr) -> tuple[Value, ...]:
        folded = self._fold(name, inputs, attrs)
        if folded is not None:
            return (folded,)
        for value in inputs:
            if value is not None:
                self.materialize(value)
        return super().op(name, *inputs, **attrs)

    def materialize(self, value: Value) -> None:
        """Puts a known value into the graph, as a constant or as a `dim_tensor`."""
        if value not in self._pending:
            return
        self._pending.remove(value)
        contents, dtype = self._known[value], value.type.dtype
        if not any(is_symbolic(element) for element in contents.flat):
            array = np.array(contents.tolist(), dtype=dtype.numpy).reshape(contents.shape)
            self.consts[value] = const_of(array, value.name)
            return
        # Plain numbers among sizes are added at the end: they need not be whole, nor even finite.
        plain = [element for element in contents.flat if not is_symbolic(element)]
        apart = any(isinstance(element, float) and not element.is_integer() for element in plain)
        flat = [_ratio(element, apart) for element in contents.flat]
        add = super().op
        made = add("dim_tensor", dims=tuple(ratio.numerator for ratio in flat))[0]
        if dtype is not dtypes.I64:
            made = add("cast", made, to=dtype)[0]
        if any(ratio.denominator != 1 for ratio in flat):
            below = add("dim_tensor", dims=tuple(ratio.denominator for ratio in flat))[0]
            made = add("div", made, add("cast", below, to=dtype)[0])[0]
        if apart:
            numbers = [0 if is_symbolic(element) else element for element in contents.flat]
            made = add("add", made, self.const(np.array(numbers, dtype=dtype.numpy)))[0]
        if made.type.shape != value.type.shape:
            made = add("reshape", made, shape=value.type.shape)[0]
        last = self.nodes.pop()
        assert last.output is made
        self.nodes.append(replace(last, outputs=(value,)))

    def computed_copy(self, value: Value) -> Value:
        """The value made by a node of the graph, even where its contents are known: an output of the model."""
        self.materialize(value)
        return super().op("copy", value)[0]

    def finish(self, outputs: Sequence[Value], state: Sequence[tuple[Value, Value]] = ()) -> Graph:
        for value in outputs:
            self.materialize(value)
        return super().finish(outputs, state)

    def _fold(self, name: str, inputs: Sequence[Value | None], attrs: Attrs) -> Value | None:
        if not inputs and name != "dim_tensor":
            return None
        operands: list[Array] = []
        for value in inputs:
            if value is None:
                continue
            contents = self.known(value)
            if contents is None or value.type.dtype.bits < 8:
                return None
            operands.append(contents)
        if name not in OPS or None in inputs:
            return None
        filled = OPS[name].check_attrs(attrs)
        types = infer(name, filled, [value.type for value in inputs if value is not None])
        if len(types) != 1 or len(static_shape(types[0])) != types[0].rank:
            return None
        # A constant float tensor is a weight; only floats that were made from sizes are followed, and single numbers.
        floats = [value for value in inputs if value is not None and value.type.dtype.is_float]
        if any(value.type.rank for value in floats) and not any(value in self._derived for value in floats):
            return None
        if math.prod(static_shape(types[0])) > LARGEST_KNOWN:
            return None
        try:
            contents = contents_of(name, filled, operands, [v.type for v in inputs if v is not None], types[0])
        except MayBeNegative as error:
            self.unsigned[error.dim] = None
            return None
        except (UnknownContents, OverflowError, ZeroDivisionError):
            return None
        return self.known_value(contents, types[0].dtype) if contents is not None else None
