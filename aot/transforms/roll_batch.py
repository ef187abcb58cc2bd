"""Computes what every step computes apart from the others at once, with the steps along a new first axis.

Invariant: `stack` of values v0, v1, … has v0 at index 0, v1 at index 1, … of its first axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aot.builder import Builder
from aot.dims import Dim
from aot.ir import Const, Node, Value
from aot.transforms.roll_find import LEAST_STEPS, alike
from aot.transforms.shapes import MAPS, REDUCES, as_int, dims_of, emit, ints, perm_of, reshaped, transposed

_DEEPEST = 60
_MOST_CONSTANT_BYTES = 1 << 20
_ALONG_AXIS = frozenset(("softmax", "log_softmax"))


@dataclass
class Stacker:
    """Stacks values of a graph, given its producers and constants; new nodes go to `builder`.

    `rolled`: the stacked results of recurrences; `uses_rolled` says whether the last stack came from one.
    """

    builder: Builder
    producer: Mapping[Value, Node]
    consts: Mapping[Value, Const]
    rolled: set[Value] = field(default_factory=set)
    uses_rolled: bool = False
    _done: dict[tuple[Value, ...], tuple[Value | None, bool]] = field(default_factory=dict)

    def stack(self, values: Sequence[Value]) -> Value:
        """[T, …] of T values of one type; copied together where nothing better is known."""
        found = self.together(values)
        if found is not None:
            return found
        rows = [reshaped(self.builder, value, (1, *value.type.shape)) for value in values]
        return emit(self.builder, "concat", *rows, axis=0)

    def together(self, values: Sequence[Value], depth: int = 0) -> Value | None:
        """[T, …] of values that one op can compute at once; None where there is no such op."""
        key = tuple(values)
        if key not in self._done:
            before, self.uses_rolled = self.uses_rolled, False
            found = self._together(key, depth) or self._but_one(key, depth)
            self._done[key] = found, self.uses_rolled
            self.uses_rolled = before
        found, uses_rolled = self._done[key]
        self.uses_rolled |= uses_rolled
        return found

    def _but_one(self, values: Sequence[Value], depth: int) -> Value | None:
        """All but the first or the last one together: states as the steps find them."""
        if len(values) < LEAST_STEPS or depth > _DEEPEST or any(value.type != values[0].type for value in values):
            return None
        for edge, rest in ((0, values[1:]), (-1, values[:-1])):
            makers = [self.producer.get(value) for value in rest]
            if any(node is None or node.op not in ("slice", "reshape") for node in makers):
                continue
            found = self.together(rest, _DEEPEST)  # nothing but slices
            if found is not None and self.uses_rolled:
                row = reshaped(self.builder, values[edge], (1, *values[edge].type.shape))
                return emit(self.builder, "concat", *((row, found) if edge == 0 else (found, row)), axis=0)
        return None

    def _together(self, values: tuple[Value, ...], depth: int) -> Value | None:
        b, first, count = self.builder, values[0], len(values)
        if depth > _DEEPEST + 1 or any(value.type != first.type for value in values):
            return None
        if all(value is first for value in values):
            row = reshaped(b, first, (1, *first.type.shape))
            return emit(b, "expand", row, shape=(count, *first.type.shape))
        consts = [self.consts.get(value) for value in values]
        if all(const is not None for const in consts):
            held = [const for const in consts if const is not None]
            if held[0].bytes * count > _MOST_CONSTANT_BYTES:
                return None
            return b.const(np.stack([const.array() for const in held]))
        makers = [self.producer.get(value) for value in values]
        nodes = [node for node in makers if node is not None]
        if len(nodes) < count or any(len(node.outputs) != 1 for node in nodes):
            return None
        found = self._slices(nodes)
        if found is None and all(alike(nodes[0], node) for node in nodes[1:]):
            found = self._batched(nodes, depth)
        return found

    # Parts of one tensor.

    def _slices(self, nodes: Sequence[Node]) -> Value | None:
        """Slices of one tensor whose starts go up or down evenly along one axis."""
        first, count = nodes[0], len(nodes)
        if any(node.op != "slice" or node.inputs[0] is not first.inputs[0] for node in nodes):
            return None
        (source,) = first.operands
        sizes, steps = dims_of(first.attrs["sizes"]), ints(first.attrs["steps"])
        starts = [dims_of(node.attrs["starts"]) for node in nodes]
        if any(node.attrs["sizes"] != sizes or node.attrs["steps"] != steps for node in nodes):
            return None
        axes = [axis for axis in range(len(sizes)) if starts[0][axis] != starts[1][axis]]
        if len(axes) != 1:
            return None
        (axis,) = axes
        begin, following, size = starts[0][axis], starts[1][axis], sizes[axis]
        if not isinstance(begin, int) or not isinstance(following, int) or not isinstance(size, int):
            return None
        step = following - begin
        expected = [(*starts[0][:axis], begin + step * n, *starts[0][axis + 1 :]) for n in range(count)]
        if starts != expected or (size != 1 and (step != size or steps[axis] != 1)):
            return None
        b = self.builder
        long: list[Dim] = [*sizes]
        long[axis] = count * size
        strides = [*steps]
        strides[axis] = step if size == 1 else 1
        result = source
        if tuple(long) != source.type.shape or step < 0:
            result = emit(b, "slice", source, starts=starts[0], sizes=tuple(long), steps=tuple(strides))
        if source in self.rolled:
            self.uses_rolled = True
        result = reshaped(b, result, (*long[:axis], count, *sizes[axis:]))
        order = (axis, *(a for a in range(len(sizes) + 1) if a != axis))
        return transposed(b, result, order)

    # One op for all.

    def _batched(self, nodes: Sequence[Node], depth: int) -> Value | None:
        first, b = nodes[0], self.builder
        if first.op not in MAPS | {
            "matmul", "reshape", "expand", "transpose", "slice", "concat", "gather", *REDUCES, *_ALONG_AXIS,
        }:  # fmt: skip
            return None
        stacked: list[Value | None] = []
        count = len(nodes)
        for place, value in enumerate(first.inputs):
            column = [node.inputs[place] for node in nodes]
            if any((v is None) != (value is None) for v in column):
                return None
            if value is None or all(v is value for v in column):
                stacked.append(None)  # as it is
                continue
            found = self.together([v for v in column if v is not None], depth + 1)
            if found is None:
                return None
            stacked.append(found)
        if all(value is None for value in stacked):
            return self.together([first.output] * count, depth + 1)
        out = first.output.type
        attrs, rank = dict(first.attrs), out.rank

        def wide(place: int, least: int) -> Value | None:
            """The operand with the steps first and at least `least` other axes; or as it is, for broadcasting."""
            value = stacked[place]
            own = first.inputs[place]
            if value is None or own is None:
                return own
            units = (1,) * max(least - own.type.rank, 0)
            return reshaped(b, value, (count, *units, *own.type.shape))

        if first.op in MAPS or first.op == "matmul":
            return emit(b, first.op, *(wide(place, rank) for place in range(len(first.inputs))), **attrs)
        if first.op == "concat":
            axis = as_int(attrs["axis"]) % rank + 1
            parts = [
                value if value is not None else self.together([own] * count, depth + 1)
                for value, own in zip(stacked, first.operands, strict=True)
            ]
            return emit(b, "concat", *parts, axis=axis)
        if first.op == "gather":
            return self._gathered(first, stacked, count)
        x = wide(0, rank if first.op == "expand" else 0)
        assert x is not None
        if first.op in ("reshape", "expand"):
            return emit(b, first.op, x, shape=(count, *out.shape))
        if first.op == "transpose":
            return emit(b, "transpose", x, perm=(0, *(axis + 1 for axis in perm_of(first))))
        if first.op == "slice":
            starts, sizes, steps = (attrs[name] for name in ("starts", "sizes", "steps"))
            attrs = {"starts": (0, *dims_of(starts)), "sizes": (count, *dims_of(sizes)), "steps": (1, *ints(steps))}
            return emit(b, "slice", x, **attrs)
        inner = first.operands[0].type.rank
        if first.op in _ALONG_AXIS:
            return emit(b, first.op, x, **{**attrs, "axis": as_int(attrs["axis"]) % inner + 1})
        axes = tuple(axis % inner + 1 for axis in ints(attrs["axes"]))
        return emit(b, first.op, x, **{**attrs, "axes": axes})

    def _gathered(self, node: Node, stacked: Sequence[Value | None], count: int) -> Value | None:
        """Elements of one tensor at indices that differ: the indices' axes stand where the axis was."""
        data, indices = node.operands[0], stacked[1]
        if stacked[0] is not None or indices is None:
            return None
        axis = as_int(node.attrs["axis"]) % data.type.rank
        result = emit(self.builder, "gather", data, indices, **node.attrs)
        order = (axis, *(a for a in range(result.type.rank) if a != axis))
        return transposed(self.builder, result, order)


def unstacked(builder: Builder, stacked: Value, index: int, shape: Sequence[Dim]) -> Value:
    """The value at an index of the first axis, in its own shape."""
    inner = stacked.type.shape[1:]
    row = emit(
        builder, "slice", stacked, starts=(index, *[0] * len(inner)), sizes=(1, *inner), steps=(1,) * (len(inner) + 1)
    )
    return reshaped(builder, row, shape)


def joined_along(builder: Builder, stacked: Value, axis: int) -> Value:
    """The values of a stack one after the other along their axis `axis`: a concat of them."""
    count, *shape = stacked.type.shape
    order = (*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1))
    moved = transposed(builder, stacked, order)
    return reshaped(builder, moved, (*shape[:axis], count * shape[axis], *shape[axis + 1 :]))


__all__ = ["Stacker", "joined_along", "unstacked"]
