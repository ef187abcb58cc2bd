"""What a step of a recurrence computes for one element: its nodes as an Expr over states, sums and operands.

Two forms are known. Elementwise: every value between the states has an element for each of the state's. Cells: the
state is [rows, H] and is multiplied by weights; values are [rows, n H], n numbers for each hidden unit, which slices
tell apart. Axes of extent 1 are looked through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aot import expr
from aot.dims import Dim
from aot.dtypes import BOOL, F32, F64, DType
from aot.expr import Expr
from aot.ir import Const, Node, Value
from aot.ops import OPS
from aot.ops.steps import Leaf, step_text
from aot.transforms.roll_find import Chain, Operand
from aot.transforms.shapes import MAPS, as_int, dims_of, perm_of, without_units

_PASSED_ON = frozenset(("reshape", "expand", "copy"))


class NotRolled(Exception):
    """Why a chain stays as it is."""


class OtherSteps(NotRolled):
    """The nodes are no chain of these steps; of steps that begin and end elsewhere they may be one."""


@dataclass(frozen=True)
class Given:
    """What a step reads from outside: given number `number`, or the same value in every step.

    `shape`: its extents along the axes of the states (of a cell: [rows…, 1 or n H]), 1 where it is broadcast.
    `part`: which H of a cell's last axis.
    """

    number: int | None
    value: Value
    shape: tuple[Dim, ...]
    part: int = 0


@dataclass
class Body:
    """The step as text, and what its leaves are. `outputs` are (node, result): what every step gives beside states.

    A cell's `weights` are (value, whether its columns are the sums): the parts of its weight matrix, in order.
    """

    step: str
    shape: tuple[Dim, ...]
    dtype: DType
    given: list[Given]
    outputs: list[tuple[int, int]]
    reset: str = ""
    weights: list[tuple[Value, bool]] = field(default_factory=list)
    sums: int = 0
    extra: list[Given] = field(default_factory=list)
    state_order: list[int] = field(default_factory=list)  # the chain's number of each state


def body_of(chain: Chain, consts: Mapping[Value, Const], wanted: Sequence[tuple[int, int]]) -> Body:
    """The step of a chain, and in it the results `wanted` of nodes that are no states. Raises NotRolled."""
    return _Reader(chain, consts, wanted).read()


class _Reader:
    def __init__(self, chain: Chain, consts: Mapping[Value, Const], wanted: Sequence[tuple[int, int]]) -> None:
        self.chain, self.consts, self.wanted = chain, consts, wanted
        types = [value.type for value in chain.template.states]
        self.dtype = types[0].dtype
        if self.dtype not in (F32, F64) or any(type_.dtype != self.dtype for type_ in types):
            raise NotRolled(f"its states are {', '.join(dict.fromkeys(t.dtype.name for t in types))}")
        shapes = dict.fromkeys(without_units(type_.shape) for type_ in types)
        if len(shapes) > 1:
            raise NotRolled("its states have different shapes")
        (self.shape,) = shapes
        self.is_cell = any(node.op == "matmul" for node in chain.template.nodes)
        if self.is_cell and (not self.shape or not isinstance(self.shape[-1], int) or self.shape[-1] < 2):
            raise NotRolled("the hidden units of its state are not known")
        self.unit = as_int(self.shape[-1]) if self.is_cell else 1
        self.values: dict[tuple[int, int], list[Expr]] = {}
        self.leaves: dict[Given | tuple[str, int], Expr] = {}
        self.states = [self._leaf(("state", n)) for n in range(len(types))]
        self.sums: list[Expr] = []
        self.weights: list[tuple[Value, bool]] = []
        self.hidden: int | None = None  # the state that the weights multiply
        self.reset: tuple[Expr, Value, bool] | None = None
        self.reset_sum: Expr | None = None

    def _leaf(self, key: Given | tuple[str, int]) -> Expr:
        return self.leaves.setdefault(key, expr.arg(len(self.leaves), self.dtype))

    def read(self) -> Body:
        for number, node in enumerate(self.chain.template.nodes):
            if len(node.outputs) != 1:
                raise NotRolled(f"{node.where} in it has several results")
            self.values[number, 0] = self._node(node, self.chain.operands[number])
        ends = [self._single(end) for end in self.chain.next_states]
        others = [self._single(end) for end in self.wanted]
        return self._cell(ends) if self.is_cell else self._elementwise([*ends, *others])

    def _single(self, end: tuple[int, int]) -> Expr:
        found = self.values[end]
        if len(found) != 1 or found[0].dtype != self.dtype:
            raise NotRolled("a result of its step is not one number per element")
        return found[0]

    # Nodes.

    def _node(self, node: Node, operands: Sequence[Operand | None]) -> list[Expr]:
        out = without_units(node.output.type.shape)
        if node.op == "matmul":
            return self._product(node, operands)
        if node.op == "slice":
            return self._slice(node, operands)
        if node.op == "concat" and self.is_cell:
            return self._concat(node, operands)
        parts = self._parts(node, out)
        if node.op in _PASSED_ON:
            return self._passed_on(node, operands)
        if node.op == "transpose":
            perm, shape = perm_of(node), node.operands[0].type.shape
            kept = [axis for axis in perm if shape[axis] != 1]
            if kept != sorted(kept):
                raise NotRolled(f"{node.where} in it changes the order of axes")
            return self._passed_on(node, operands)
        if node.op not in MAPS:
            raise NotRolled(f"{node.where} in it is not elementwise")
        columns = [None if o is None else self._operand(node, v, o, parts) for v, o in self._pairs(node, operands)]
        return [self._map(node, [None if c is None else c[part] for c in columns]) for part in range(parts)]

    @staticmethod
    def _pairs(node: Node, operands: Sequence[Operand | None]) -> list[tuple[Value, Operand | None]]:
        return [(v, o) for v, o in zip(node.inputs, operands, strict=True) if v is not None or o is None]  # type: ignore[misc]

    def _parts(self, node: Node, shape: tuple[Dim, ...]) -> int:
        """How many numbers a value of this shape has for each element of the state."""
        if not self.is_cell:
            if shape != self.shape:
                raise NotRolled(f"{node.where} in it gives {node.output.type}, not an element for each of the state")
            return 1
        width = shape[-1] if shape else 1
        if shape[:-1] != self.shape[:-1] or not isinstance(width, int) or width % self.unit:
            raise NotRolled(f"{node.where} in it gives {node.output.type}, not numbers for each hidden unit")
        return width // self.unit

    def _map(self, node: Node, operands: Sequence[Expr | None]) -> Expr:
        if node.op == "cast":
            (value,) = (o for o in operands if o is not None)
            if value.dtype == node.output.type.dtype:
                return value
            if value.dtype == BOOL and node.output.type.dtype == self.dtype:
                return expr.select(value, expr.const(1.0, self.dtype), expr.const(0.0, self.dtype))
            raise NotRolled(f"{node.where} in it converts {value.dtype.name} to {node.output.type.dtype.name}")
        body = OPS[node.op].body
        assert body is not None
        result: Expr = body(node.attrs, *operands)
        return result

    def _passed_on(self, node: Node, operands: Sequence[Operand | None]) -> list[Expr]:
        if without_units(node.operands[0].type.shape) != without_units(node.output.type.shape):
            raise NotRolled(f"{node.where} in it changes more than axes of extent 1")
        (operand,) = (o for o in operands if o is not None)
        return self._made(operand)

    def _made(self, operand: Operand) -> list[Expr]:
        """The parts of a value that the steps make."""
        if operand.kind == "state":
            return [self.states[operand.number]]
        if operand.kind != "core":
            raise NotRolled("an operand of it is not elementwise")
        return self.values[operand.number, operand.result]

    def _slice(self, node: Node, operands: Sequence[Operand | None]) -> list[Expr]:
        source = node.operands[0].type.shape
        starts, sizes, steps = (dims_of(node.attrs[name]) for name in ("starts", "sizes", "steps"))
        wide = [axis for axis, extent in enumerate(source) if extent != 1]
        whole = all(starts[a] == 0 and sizes[a] == source[a] for a in wide[:-1]) and all(s == 1 for s in steps)
        start, size = (starts[wide[-1]], sizes[wide[-1]]) if wide else (0, 1)
        if not self.is_cell or not wide or not whole or not isinstance(start, int) or not isinstance(size, int):
            raise NotRolled(f"{node.where} in it takes a part of a state")
        (operand,) = (o for o in operands if o is not None)
        self._parts(node, without_units(node.output.type.shape))
        if start % self.unit or size % self.unit:
            raise NotRolled(f"{node.where} in it takes a part of the hidden units")
        return self._made(operand)[start // self.unit : (start + size) // self.unit]

    def _concat(self, node: Node, operands: Sequence[Operand | None]) -> list[Expr]:
        rank = node.output.type.rank
        axis = as_int(node.attrs["axis"]) % rank
        wide = [a for a, extent in enumerate(node.output.type.shape) if extent != 1]
        if not wide or axis != wide[-1]:
            raise NotRolled(f"{node.where} in it joins rows")
        self._parts(node, without_units(node.output.type.shape))
        parts: list[Expr] = []
        for value, operand in self._pairs(node, operands):
            assert operand is not None
            width = value.type.shape[axis]
            if not isinstance(width, int) or width % self.unit:
                raise NotRolled(f"{node.where} in it joins parts of the hidden units")
            parts += self._operand(node, value, operand, width // self.unit, value.type.shape)
        return parts

    # Operands.

    def _operand(
        self, node: Node, value: Value, operand: Operand, parts: int, out: tuple[Dim, ...] | None = None
    ) -> list[Expr]:
        """An operand as so many numbers for each element; one of those that a step makes may be broadcast to them."""
        if operand.kind in ("core", "state"):
            made = self._made(operand)
            if len(made) != parts:
                raise NotRolled(f"{node.where} in it repeats a state")
            return made
        const = self.consts.get(value) if operand.kind == "same" else None
        number = _number_of(const)
        if number is not None and value.type.dtype.is_float:
            return [expr.const(number, value.type.dtype)] * parts
        if value.type.dtype not in (self.dtype, BOOL):
            raise NotRolled(f"{node.where} in it reads {value.type}")
        out = node.output.type.shape if out is None else out
        aligned: list[Dim] = [*[1] * (len(out) - value.type.rank), *value.type.shape]
        shape = tuple(extent for extent, wanted in zip(aligned, out, strict=True) if wanted != 1)
        known = operand.number if operand.kind == "given" else None
        found = []
        for part in range(parts):
            split = self.is_cell and bool(shape) and shape[-1] != 1
            leaf = self._leaf(Given(known, value, shape, part if split else 0))
            is_truth = value.type.dtype == BOOL
            found.append(expr.call("ne", leaf, 0.0) if is_truth else leaf)
        return found

    def _product(self, node: Node, operands: Sequence[Operand | None]) -> list[Expr]:
        """Weighted sums of a state, or once of something made of it."""
        (a, left), (b, right) = self._pairs(node, operands)
        assert left is not None and right is not None
        columns = right.kind == "same"
        weight, made, operand = (b, a, left) if columns else (a, b, right)
        if (left.kind if not columns else right.kind) != "same" or operand.kind not in ("core", "state"):
            raise NotRolled(f"{node.where} in it is no product of a state and weights that stay")
        shape = without_units(weight.type.shape[:-2])
        summed, outer = (-2, -1) if columns else (-1, -2)
        if shape or weight.type.shape[summed] != self.unit or made.type.shape[-1 if columns else -2] != self.unit:
            raise NotRolled(f"{node.where} in it is no product of the hidden units")
        if not columns and made.type.shape[-1] != 1:
            raise NotRolled(f"{node.where} in it multiplies weights by several columns")
        (value,) = self._made(operand) if len(self._made(operand)) == 1 else (None,)
        width = weight.type.shape[outer]
        if value is None or not isinstance(width, int) or width % self.unit:
            raise NotRolled(f"{node.where} in it does not give numbers for each hidden unit")
        self._parts(node, without_units(node.output.type.shape))
        if value not in self.states:
            if self.reset is not None or width != self.unit:
                raise NotRolled(f"{node.where} in it multiplies what other products have made")
            self.reset = value, weight, columns
            self.reset_sum = self._leaf(("reset", 0))
            return [self.reset_sum]
        state = self.states.index(value)
        if self.hidden not in (None, state):
            raise NotRolled(f"{node.where} in it multiplies another state than the products before it")
        self.hidden = state
        first = len(self.sums)
        self.sums += [self._leaf(("sum", first + n)) for n in range(width // self.unit)]
        self.weights.append((weight, columns))
        return self.sums[first:]

    # Text.

    def _elementwise(self, results: list[Expr]) -> Body:
        count = len(self.chain.next_states)
        names: dict[Expr, Leaf] = {self.states[n]: ("h", n) for n in range(count)}
        given = [key for key in self._used(results) if isinstance(key, Given)]
        if not any(key.number is not None for key in given):
            raise NotRolled("no operand of it depends on the step")
        names |= {self.leaves[key]: ("x", n) for n, key in enumerate(given)}
        text = step_text(results, names)
        if text is None:
            raise NotRolled("its step converts between types")
        return Body(text, self.shape, self.dtype, given, list(self.wanted), state_order=list(range(count)))

    def _cell(self, ends: list[Expr]) -> Body:
        if self.wanted:
            raise OtherSteps("others read what its step computes on the way")
        if self.hidden is None:
            raise NotRolled("its weights multiply none of its states as it is")
        if len(ends) > 2:
            raise NotRolled(f"it has {len(ends)} states and products")
        order = [self.hidden, *(n for n in range(len(ends)) if n != self.hidden)]
        names: dict[Expr, Leaf] = {self.states[n]: ("h", place) for place, n in enumerate(order)}
        names |= {value: ("r", n) for n, value in enumerate(self.sums)}
        weights = list(self.weights)
        if self.reset is not None and self.reset_sum is not None:
            names[self.reset_sum] = ("r", len(self.sums))
            weights.append(self.reset[1:])
        results = [ends[n] for n in order]
        asked = self._used([*results, *([self.reset[0]] if self.reset else [])])
        outside = [key for key in asked if isinstance(key, Given)]
        extra = [key for key in outside if key.number is None and all(e == 1 for e in key.shape[:-1])]
        given = [key for key in outside if key not in extra]
        if not any(key.number is not None for key in given):
            raise NotRolled("no operand of it depends on the step")
        names |= {self.leaves[key]: ("x", n) for n, key in enumerate(given)}
        names |= {self.leaves[key]: ("e", n) for n, key in enumerate(extra)}
        text = step_text(results, names)
        reset = step_text([self.reset[0]], names) if self.reset else ""
        if text is None or reset is None:
            raise NotRolled("its step converts between types")
        sums = len(self.sums) + (self.reset is not None)
        return Body(text, self.shape, self.dtype, given, [], reset, weights, sums, extra, order)

    def _used(self, results: Sequence[Expr]) -> list[Given | tuple[str, int]]:
        nodes = {node for result in results for node in expr.walk(result)}
        return [key for key, leaf in self.leaves.items() if leaf in nodes]


def _number_of(const: Const | None) -> float | None:
    """The number that every element of a constant is, if it is one."""
    if const is None or 0 in const.shape or const.bytes > 1 << 16:
        return None
    array = const.array().reshape(-1)
    first = array[0]
    return float(first) if bool(np.all(array == first)) or array.size == 1 else None


__all__ = ["Body", "Given", "NotRolled", "body_of"]
