"""A Builder that knows the contents of small tensors, symbolic sizes included.

Exporters compute shapes with tensors: Shape, Gather, Mul, Concat, Reshape. Here an op whose operands
are all known is not added to the graph; its result is known in turn, and only becomes a constant or a
`dim_tensor` when a real op reads it. So shape arithmetic never reaches the graph as nodes.

The elements of a known tensor are Python ints, bools, floats, `Dim`s, and `Ratio`s of dims (a float
that was divided), in a numpy object array. A float element that depends on a symbol stands for the
exact number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.builder import Builder
from aot.dims import Dim, DimExpr
from aot.dtypes import DType
from aot.errors import AotError
from aot.ir import Array, Attr, Graph, TensorType, Value, const_of
from aot.ops import OPS, infer
from aot.ops.opdef import Attrs

LARGEST_KNOWN = 4096  # elements; larger tensors are data, not shapes


class UnknownContents(Exception):
    """The contents of a result cannot be told before running."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """numerator / denominator, not a whole number for every size; the denominator is positive."""

    numerator: Dim
    denominator: Dim


Element = int | float | bool | DimExpr | Ratio


def is_symbolic(element: Element) -> bool:
    """Whether an element depends on a symbol."""
    return isinstance(element, DimExpr | Ratio)


class KnownBuilder(Builder):
    """See the module."""

    def __init__(self, name: str = "graph", locs: tuple[str, ...] = ()) -> None:
        super().__init__(name, locs)
        self._known: dict[Value, Array] = {}
        self._pending: set[Value] = set()

    def known(self, value: Value) -> Array | None:
        """The contents, as an object array, where they are known before running."""
        if value not in self._known and value in self.consts:
            const = self.consts[value]
            if math.prod(const.shape) <= LARGEST_KNOWN:
                self._known[value] = _objects(const.array())
        return self._known.get(value)

    def known_value(self, contents: Array, dtype: DType) -> Value:
        """A value of known contents that is not in the graph until an op reads it."""
        value = Value(TensorType(dtype, tuple(contents.shape)))
        self._known[value] = contents
        self._pending.add(value)
        return value

    def dims_value(self, dims: Sequence[Dim], dtype: DType = dtypes.I64) -> Value:
        """A rank-1 tensor of sizes."""
        return self.known_value(object_array(list(dims), (len(dims),)), dtype)

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
        flat = [element if isinstance(element, Ratio) else Ratio(element, 1) for element in contents.flat]
        add = super().op
        made = add("dim_tensor", dims=tuple(ratio.numerator for ratio in flat))[0]
        if dtype is not dtypes.I64:
            made = add("cast", made, to=dtype)[0]
        if any(ratio.denominator != 1 for ratio in flat):
            below = add("dim_tensor", dims=tuple(ratio.denominator for ratio in flat))[0]
            made = add("div", made, add("cast", below, to=dtype)[0])[0]
        if made.type.shape != value.type.shape:
            made = add("reshape", made, shape=value.type.shape)[0]
        last = self.nodes.pop()
        assert last.output is made
        self.nodes.append(replace(last, outputs=(value,)))

    def finish(self, outputs: Sequence[Value], state: Sequence[tuple[Value, Value]] = ()) -> Graph:
        for value in outputs:
            self.materialize(value)
        return super().finish(outputs, state)

    def _fold(self, name: str, inputs: Sequence[Value | None], attrs: Attrs) -> Value | None:
        if not inputs and name != "dim_tensor":
            return None
        operands: list[Array] = []
        computed = False
        for value in inputs:
            if value is None:
                continue
            contents = self.known(value)
            if contents is None or value.type.dtype.bits < 8:
                return None
            operands.append(contents)
            computed = computed or value not in self.consts or not value.type.dtype.is_float
        if name not in OPS or None in inputs:
            return None
        filled = OPS[name].check_attrs(attrs)
        types = infer(name, filled, [value.type for value in inputs if value is not None])
        if len(types) != 1 or len(static_shape(types[0])) != types[0].rank:
            return None
        # A constant float tensor is a weight; only floats that were made from sizes are followed.
        floats = [value for value in inputs if value is not None and value.type.dtype.is_float]
        if floats and not any(value in self._known and value not in self.consts for value in floats):
            return None
        if math.prod(static_shape(types[0])) > LARGEST_KNOWN:
            return None
        try:
            contents = _contents(name, filled, operands, [v.type for v in inputs if v is not None], types[0])
        except (UnknownContents, OverflowError, ZeroDivisionError):
            return None
        return self.known_value(contents, types[0].dtype) if contents is not None else None


def static_shape(type_: TensorType) -> tuple[int, ...]:
    """The extents that are plain numbers."""
    return tuple(extent for extent in type_.shape if isinstance(extent, int))


def object_array(items: Sequence[Element], shape: Sequence[int]) -> Array:
    """An object array of a shape, from its elements in row-major order."""
    array = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    return array.reshape(tuple(shape))


def _objects(array: Array) -> Array:
    if array.dtype.kind not in "biuf":
        array = array.astype(np.float64)
    return object_array(array.reshape(-1).tolist(), array.shape)


def _contents(
    name: str, attrs: Attrs, operands: Sequence[Array], types: Sequence[TensorType], result: TensorType
) -> Array | None:
    if name == "dim_tensor":
        return object_array(_plain_tuple(attrs["dims"]), (len(_plain_tuple(attrs["dims"])),))
    shape = static_shape(result)
    dtype = result.dtype
    if name in _ELEMENTWISE:
        function = _ELEMENTWISE[name]
        source = types[-1].dtype if name in _COMPARISONS or name == "cast" else dtype
        broadcast = np.broadcast_arrays(*operands) if operands else []
        items = [function(source, dtype, *row) for row in zip(*(part.flat for part in broadcast), strict=True)]
        return object_array(items, shape)
    if name in ("reshape", "copy"):
        return operands[0].reshape(shape)
    if name == "transpose":
        return operands[0].transpose(_plain_tuple(attrs["perm"]))
    if name == "expand":
        return np.broadcast_to(operands[0], shape)
    if name == "concat":
        return np.concatenate(list(operands), axis=_plain_int(attrs["axis"]))
    if name == "tile":
        return np.tile(operands[0], _plain_tuple(attrs["repeats"]))
    if name == "slice":
        return _slice(operands[0], attrs)
    if name == "gather":
        return _gather(operands[0], operands[1], _plain_int(attrs["axis"]), shape)
    if name in _REDUCTIONS:
        return _reduced(name, attrs, operands[0], dtype, shape)
    return _by_reference(name, attrs, operands, types, shape)


def _by_reference(
    name: str, attrs: Attrs, operands: Sequence[Array], types: Sequence[TensorType], shape: tuple[int, ...]
) -> Array | None:
    """Any other op over numbers: its numpy meaning."""
    reference = OPS[name].reference
    if reference is None or any(is_symbolic(element) for operand in operands for element in operand.flat):
        return None
    arrays = [np.array(o.tolist(), dtype=t.dtype.numpy).reshape(o.shape) for o, t in zip(operands, types, strict=True)]
    try:
        made = np.asarray(reference(attrs, *arrays))
    except (AotError, ValueError, IndexError, TypeError):
        return None
    return _objects(made.reshape(shape))


def _plain_int(attr: Attr) -> int:
    if not isinstance(attr, int):
        raise UnknownContents
    return attr


def _plain_tuple(attr: Attr) -> tuple[Any, ...]:
    if not isinstance(attr, tuple):
        raise UnknownContents
    return attr


def _slice(operand: Array, attrs: Attrs) -> Array:
    index: list[Any] = []
    columns = (_plain_tuple(attrs[key]) for key in ("starts", "sizes", "steps"))
    for axis, (start, size, step) in enumerate(zip(*columns, strict=True)):
        if not isinstance(start, int) or not isinstance(size, int):
            raise UnknownContents
        positions = [start + i * step for i in range(size)]
        if positions and not 0 <= min(positions) <= max(positions) < operand.shape[axis]:
            raise UnknownContents
        index.append(positions)
    return operand[np.ix_(*index)] if index else operand


def _gather(operand: Array, indices: Array, axis: int, shape: tuple[int, ...]) -> Array:
    if any(not isinstance(i, int) for i in indices.flat):
        raise UnknownContents
    extent = operand.shape[axis]
    numbers = np.array(indices.tolist(), dtype=np.int64).reshape(indices.shape)
    if extent == 0 or ((numbers < -extent) | (numbers >= extent)).any():
        raise UnknownContents
    taken = np.empty(shape, dtype=object)
    taken[...] = np.take(operand, numbers, axis=axis)
    return taken


def _reduced(name: str, attrs: Attrs, operand: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    function, empty = _REDUCTIONS[name]
    axes = sorted(axis % max(operand.ndim, 1) for axis in _plain_tuple(attrs["axes"]))
    kept = [axis for axis in range(operand.ndim) if axis not in axes]
    count = math.prod(operand.shape[axis] for axis in axes)
    rows = (
        operand.transpose(kept + axes).reshape(-1, count) if operand.size else np.empty((math.prod(shape), 0), object)
    )
    items: list[Element] = []
    for row in rows:
        if len(row):
            items.append(reduce(lambda a, b: function(dtype, dtype, a, b), row))
        elif empty is None:
            raise UnknownContents
        else:
            items.append(empty)
    return object_array(items, shape)


# The meaning of scalar operations: (operand dtype, result dtype, *elements) -> element.


def _ratio(element: Element) -> tuple[Dim, Dim]:
    """An element as numerator and denominator, exactly."""
    if isinstance(element, Ratio):
        return element.numerator, element.denominator
    if isinstance(element, float):
        if not math.isfinite(element):
            raise UnknownContents
        fraction = Fraction(element)
        if fraction.denominator > 1 << 20:
            raise UnknownContents
        return fraction.numerator, fraction.denominator
    return element, 1


def _number(element: Element) -> float:
    """An element that does not depend on a symbol, as a float."""
    if isinstance(element, DimExpr | Ratio):
        raise UnknownContents
    return float(element)


def _quotient(numerator: Dim, denominator: Dim) -> Element:
    exact = dimension.exact_div(numerator, denominator)
    if exact is not None:
        return exact
    lo, hi = dimension.bounds(denominator)
    if hi < 0:
        numerator, denominator = -numerator, -denominator
    elif lo <= 0:
        raise UnknownContents
    if isinstance(denominator, int):
        common = math.gcd(
            denominator, *(c for _, c in dimension.terms_of(numerator)[0]), dimension.terms_of(numerator)[1]
        )
        reduced = dimension.exact_div(numerator, common)
        if reduced is not None:
            return Ratio(reduced, denominator // common)
    return Ratio(numerator, denominator)


def _rounded(dtype: DType, number: float) -> float:
    """A float as the dtype holds it."""
    with np.errstate(over="ignore"):
        return float(np.asarray(number, dtype=np.float64).astype(dtype.numpy))


def _whole(dtype: DType, number: Dim) -> Dim:
    """An integer that the dtype can hold; arithmetic that would wrap is not followed."""
    if isinstance(number, int):
        lo = -(1 << (dtype.bits - 1)) if dtype.family == "int" else 0
        if not lo <= number < 1 << (dtype.bits - (dtype.family == "int")):
            raise UnknownContents
    elif dtype.bits < 32:
        raise UnknownContents
    return number


def _arithmetic(
    on_dims: Callable[[Dim, Dim], Dim],
    on_floats: Callable[[Any, Any], Any],
    on_ratios: Callable[[tuple[Dim, Dim], tuple[Dim, Dim]], tuple[Dim, Dim]] | None,
) -> Callable[..., Element]:
    def apply(_: DType, dtype: DType, left: Element, right: Element) -> Element:
        if not dtype.is_float:
            if isinstance(left, float | Ratio) or isinstance(right, float | Ratio):
                raise UnknownContents
            return _whole(dtype, on_dims(left, right))
        if not is_symbolic(left) and not is_symbolic(right):
            with np.errstate(all="ignore"):
                return float(on_floats(dtype.numpy.type(left), dtype.numpy.type(right)))
        if on_ratios is None:
            raise UnknownContents
        return _quotient(*on_ratios(_ratio(left), _ratio(right)))

    return apply


def _truncated_div(left: Dim, right: Dim) -> Dim:
    if isinstance(left, int) and isinstance(right, int):
        if right == 0:
            raise UnknownContents
        size = abs(left) // abs(right)
        return size if (left < 0) == (right < 0) else -size
    exact = dimension.exact_div(left, right)
    if exact is not None:
        return exact
    if dimension.bounds(left)[0] < 0 or dimension.bounds(right)[0] <= 0:
        raise UnknownContents
    return dimension.floordiv(left, right)


def _floor_mod(left: Dim, right: Dim) -> Dim:
    if (isinstance(right, int) and right != 0 and isinstance(left, int)) or dimension.bounds(right)[0] > 0:
        return dimension.mod(left, right)
    raise UnknownContents


def _truncated_mod(left: Dim, right: Dim) -> Dim:
    return left - _truncated_div(left, right) * right


def _power(left: Dim, right: Dim) -> Dim:
    if not isinstance(right, int) or not 0 <= right <= 64:
        raise UnknownContents
    if isinstance(left, int):
        return int(left**right)
    return dimension.product([left] * right)


def _extreme(name: str) -> Callable[..., Element]:
    def apply(_: DType, dtype: DType, left: Element, right: Element) -> Element:
        if isinstance(left, bool) or isinstance(right, bool):
            raise UnknownContents
        if isinstance(left, float) or isinstance(right, float):
            pair = _number(left), _number(right)
            return float(np.minimum(*pair) if name == "min" else np.maximum(*pair))
        if isinstance(left, Ratio) or isinstance(right, Ratio):
            raise UnknownContents
        return dimension.minimum(left, right) if name == "min" else dimension.maximum(left, right)

    return apply


def _compare(holds: Callable[[float, float], bool | None]) -> Callable[..., Element]:
    """`holds` judges the interval of left - right."""

    def apply(_: DType, __: DType, left: Element, right: Element) -> Element:
        if isinstance(left, float) or isinstance(right, float):
            if not is_symbolic(left) and not is_symbolic(right):
                difference = _number(left) - _number(right)
                verdict = holds(difference, difference) if math.isfinite(difference) else None
                if verdict is None:
                    raise UnknownContents
                return verdict
        (a, b), (c, d) = _ratio(left), _ratio(right)
        verdict = holds(*dimension.bounds(a * d - c * b))
        if verdict is None:
            raise UnknownContents
        return verdict

    return apply


def _decide(when_true: bool, when_false: bool) -> bool | None:
    return True if when_true else False if when_false else None


def _logic(function: Callable[[Any, Any], Any]) -> Callable[..., Element]:
    def apply(_: DType, dtype: DType, left: Element, right: Element) -> Element:
        if not isinstance(left, int) or not isinstance(right, int):
            raise UnknownContents
        made = function(left, right)
        return bool(made) if dtype.is_bool else int(made)

    return apply


def _not(_: DType, dtype: DType, element: Element) -> Element:
    if not dtype.is_bool:
        raise UnknownContents
    return not element


def _negative(_: DType, dtype: DType, element: Element) -> Element:
    if isinstance(element, Ratio):
        return Ratio(-element.numerator, element.denominator)
    return -element


def _absolute(_: DType, dtype: DType, element: Element) -> Element:
    if isinstance(element, Ratio):
        raise UnknownContents
    if isinstance(element, DimExpr):
        if dimension.bounds(element)[0] < 0:
            raise UnknownContents
        return element
    return abs(element)


def _to_whole(on_ratio: Callable[[Dim, Dim], Dim], on_float: Callable[[float], float]) -> Callable[..., Element]:
    def apply(_: DType, dtype: DType, element: Element) -> Element:
        if isinstance(element, Ratio):
            return on_ratio(element.numerator, element.denominator)
        return float(on_float(element)) if isinstance(element, float) else element

    return apply


def _truncated_ratio(numerator: Dim, denominator: Dim) -> Dim:
    if dimension.bounds(numerator)[0] < 0:
        raise UnknownContents
    return dimension.floordiv(numerator, denominator)


def _undecided(numerator: Dim, denominator: Dim) -> Dim:
    raise UnknownContents


def _root(_: DType, dtype: DType, element: Element) -> Element:
    if is_symbolic(element):
        raise UnknownContents
    with np.errstate(all="ignore"):
        return float(np.sqrt(dtype.numpy.type(element)))


def _cast(source: DType, dtype: DType, element: Element) -> Element:
    if dtype.is_bool:
        if is_symbolic(element):
            if isinstance(element, DimExpr) and dimension.bounds(element)[0] > 0:
                return True
            raise UnknownContents
        return bool(element)
    if dtype.is_float:
        return element if isinstance(element, DimExpr | Ratio) else _rounded(dtype, float(element))
    if isinstance(element, Ratio):
        return _whole(dtype, _truncated_ratio(element.numerator, element.denominator))
    if isinstance(element, float):
        if not math.isfinite(element):
            raise UnknownContents
        return _whole(dtype, int(element))
    return _whole(dtype, int(element) if isinstance(element, bool) else element)


def _where(_: DType, __: DType, condition: Element, left: Element, right: Element) -> Element:
    return left if condition else right


def _clip(_: DType, dtype: DType, element: Element, lo: Element, hi: Element) -> Element:
    low = _extreme("max")(dtype, dtype, element, lo)
    return _extreme("min")(dtype, dtype, low, hi)


_add = _arithmetic(lambda a, b: a + b, lambda a, b: a + b, lambda a, b: (a[0] * b[1] + b[0] * a[1], a[1] * b[1]))
_mul = _arithmetic(lambda a, b: a * b, lambda a, b: a * b, lambda a, b: (a[0] * b[0], a[1] * b[1]))

_ELEMENTWISE: dict[str, Callable[..., Element]] = {
    "add": _add,
    "sub": _arithmetic(lambda a, b: a - b, lambda a, b: a - b, lambda a, b: (a[0] * b[1] - b[0] * a[1], a[1] * b[1])),
    "mul": _mul,
    "div": _arithmetic(_truncated_div, lambda a, b: a / b, lambda a, b: (a[0] * b[1], a[1] * b[0])),
    "mod": _arithmetic(_floor_mod, np.mod, None),
    "fmod": _arithmetic(_truncated_mod, np.fmod, None),
    "pow": _arithmetic(_power, lambda a, b: a**b, None),
    "min": _extreme("min"),
    "max": _extreme("max"),
    "eq": _compare(lambda lo, hi: _decide(lo == hi == 0, lo > 0 or hi < 0)),
    "ne": _compare(lambda lo, hi: _decide(lo > 0 or hi < 0, lo == hi == 0)),
    "lt": _compare(lambda lo, hi: _decide(hi < 0, lo >= 0)),
    "le": _compare(lambda lo, hi: _decide(hi <= 0, lo > 0)),
    "gt": _compare(lambda lo, hi: _decide(lo > 0, hi <= 0)),
    "ge": _compare(lambda lo, hi: _decide(lo >= 0, hi < 0)),
    "and": _logic(lambda a, b: a & b),
    "or": _logic(lambda a, b: a | b),
    "xor": _logic(lambda a, b: a ^ b),
    "not": _not,
    "neg": _negative,
    "abs": _absolute,
    "floor": _to_whole(dimension.floordiv, math.floor),
    "ceil": _to_whole(dimension.ceildiv, math.ceil),
    "trunc": _to_whole(_truncated_ratio, math.trunc),
    "round": _to_whole(_undecided, lambda number: float(np.rint(number))),
    "sqrt": _root,
    "cast": _cast,
    "where": _where,
    "clip": _clip,
}
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_REDUCTIONS: dict[str, tuple[Callable[..., Element], int | None]] = {
    "reduce_sum": (_add, 0),
    "reduce_prod": (_mul, 1),
    "reduce_max": (_extreme("max"), None),
    "reduce_min": (_extreme("min"), None),
}
