"""The reference interpreter: the numpy meaning of any graph; and constant folding.

`evaluate` uses each op's reference, in float64 where that is cheap. `fold_value` is separate and
stricter: its bits must be the same on every machine, so it uses IEEE basic operations in a fixed
order, and gives None where it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from aot import dims as dimension
from aot import expr as expression
from aot.control import CONTROL, evaluate_control
from aot.dims import DimExpr
from aot.dtypes import DType, from_numpy
from aot.errors import CompilerError, ModelError
from aot.expr import Expr, arg
from aot.ir import Array, Attr, Graph, Node, TensorType, Value
from aot.ops import OPS, Kind, OpDef
from aot.ops.helpers import axes_attr
from aot.ops.opdef import Attrs

Symbols = Mapping[str, int]

# Larger results stay in the graph: folding them would take longer than computing them each run is worth.
FOLD_WORK_LIMIT = 1 << 26
FOLD_MATH_ELEMENTS = 1 << 16


def evaluate(
    graph: Graph, inputs: Mapping[str, Array] | Sequence[Array], symbols: Symbols | None = None
) -> list[Array]:
    """The graph's outputs for arrays given by input name, or in order.

    `symbols` gives symbols that no input shape determines. Works at every level; layouts do not
    matter to values. Raises ModelError for inputs that do not fit.
    """
    values = _bind(graph, inputs)
    known = bind_symbols(graph.inputs, [values[value] for value in graph.inputs], symbols)
    for value, const in graph.consts.items():
        values[value] = const.array()
    last: dict[Value, int] = {}
    for position, node in enumerate(graph.nodes):
        for value in node.operands:
            last[value] = position
    kept = set(graph.outputs)
    for position, node in enumerate(graph.nodes):
        operands = [None if value is None else values[value] for value in node.inputs]
        results = (
            evaluate_control(node, operands, known, evaluate)
            if node.op in CONTROL
            else evaluate_node(node, operands, known)
        )
        for value, result in zip(node.outputs, results, strict=True):
            values[value] = result
        for value in node.operands:
            if last[value] == position and value not in kept:
                values.pop(value, None)
    return [values[value] for value in graph.outputs]


def evaluate_node(node: Node, operands: Sequence[Array | None], symbols: Symbols | None = None) -> list[Array]:
    """The results of one node, checked against its types."""
    known = symbols or {}
    if node.op == "kernel":
        (body,) = node.regions
        present = [array for array in operands if array is not None]
        return evaluate(body, present, known)
    if node.op not in OPS:
        raise CompilerError(f"unknown op {node.op!r}", where=node.where)
    op = OPS[node.op]
    results = evaluate_op(op, concrete_attrs(op.check_attrs(node.attrs), known), operands)
    for value, array in zip(node.outputs, results, strict=True):
        _check(node, value.type, array, known)
    return results


def evaluate_op(op: OpDef, attrs: Attrs, operands: Sequence[Array | None]) -> list[Array]:
    """The reference meaning of an op with concrete attributes."""
    if op.reference is not None:
        found = op.reference(attrs, *operands)
        return [np.asarray(array) for array in (found if isinstance(found, tuple) else (found,))]
    shape = np.broadcast_shapes(*(array.shape for array in operands if array is not None))
    body = body_expr(op, attrs, [None if array is None else from_numpy(array.dtype) for array in operands])
    result = np.asarray(expression.evaluate(body, operands), dtype=body.dtype.numpy)
    return [result if result.shape == shape else np.array(np.broadcast_to(result, shape))]


def body_expr(op: OpDef, attrs: Attrs, operands: Sequence[DType | None]) -> Expr:
    """The body of a MAP op over arg(0) … arg(n-1) of these element types."""
    if op.body is None:
        raise CompilerError(f"{op.name} has neither a reference nor a body")
    return op.body(attrs, *(None if dtype is None else arg(index, dtype) for index, dtype in enumerate(operands)))


def _bind(graph: Graph, inputs: Mapping[str, Array] | Sequence[Array]) -> dict[Value, Array]:
    """Input values and their arrays."""
    if isinstance(inputs, Mapping):
        names = [value.name for value in graph.inputs]
        missing = [name for name in names if name not in inputs]
        unknown = [name for name in inputs if name not in names]
        if missing or unknown:
            raise ModelError(
                f"expected inputs {names}; missing {missing}, unknown {unknown}", where=graph.name,
                hint="Give one array per input, by name.",
            )  # fmt: skip
        arrays = [inputs[name] for name in names]
    else:
        arrays = list(inputs)
        if len(arrays) != len(graph.inputs):
            raise ModelError(f"expected {len(graph.inputs)} inputs, got {len(arrays)}", where=graph.name)
    result: dict[Value, Array] = {}
    for value, array in zip(graph.inputs, arrays, strict=True):
        array = np.asarray(array)
        if from_numpy(array.dtype) != value.type.dtype:
            raise ModelError(f"expected {value.type.dtype}, got {array.dtype}", where=f"input {value.name!r}")
        if array.ndim != value.type.rank:
            raise ModelError(f"expected rank {value.type.rank}, got {array.ndim}", where=f"input {value.name!r}")
        result[value] = array
    return result


def bind_symbols(inputs: Sequence[Value], arrays: Sequence[Array], given: Symbols | None = None) -> dict[str, int]:
    """Symbol values from input shapes. Raises ModelError where shapes contradict each other or the types."""
    known: dict[str, int] = dict(given or {})
    extents = [
        (value, axis, extent, size)
        for value, array in zip(inputs, arrays, strict=True)
        for axis, (extent, size) in enumerate(zip(value.type.shape, array.shape, strict=True))
    ]
    for _, _, extent, size in extents:
        symbol = dimension.plain_symbol(extent)
        if symbol is not None:
            known.setdefault(symbol.name, size)
    for _, _, extent, size in extents:
        found = dimension.linear_symbol(extent)
        if found is not None:
            known.setdefault(found[0].name, (size - found[2]) // found[1])
    for value, axis, extent, size in extents:
        missing = [symbol.name for symbol in dimension.symbols_of(extent) if symbol.name not in known]
        if not missing and dimension.evaluate(extent, known) != size:
            expected = f"{extent}" if isinstance(extent, int) else f"{extent} = {dimension.evaluate(extent, known)}"
            raise ModelError(f"axis {axis} must have extent {expected}; it has {size}", where=f"input {value.name!r}")
    return known


def concrete_attrs(attrs: Attrs, symbols: Symbols) -> Attrs:
    """The attributes with every symbolic extent replaced by its value."""
    return MappingProxyType({name: _concrete(attr, symbols) for name, attr in attrs.items()})


def _concrete(attr: Attr, symbols: Symbols) -> Attr:
    if isinstance(attr, DimExpr):
        missing = [symbol.name for symbol in dimension.symbols_of(attr) if symbol.name not in symbols]
        if missing:
            raise CompilerError(f"the value of {attr} needs the symbols {missing}, which no input determines")
        return dimension.evaluate(attr, symbols)
    if isinstance(attr, tuple):
        return tuple(_concrete(item, symbols) for item in attr)
    return attr


def _check(node: Node, type_: TensorType, array: Array, symbols: Symbols) -> None:
    """A reference and an infer function that disagree are a defect; it is found here."""
    shape = []
    for extent, size in zip(type_.shape, array.shape, strict=False):
        free = any(symbol.name not in symbols for symbol in dimension.symbols_of(extent))
        shape.append(size if free else dimension.evaluate(extent, symbols))
    if tuple(shape) != array.shape or len(type_.shape) != array.ndim or type_.dtype.numpy != array.dtype:
        raise CompilerError(
            f"{node.op} was inferred as {type_.dtype}{list(type_.shape)} and computed {array.dtype}{list(array.shape)}",
            where=node.where,
        )


# Constant folding with the same bits on every machine.


def fold_value(node: Node, operands: Sequence[Array | None]) -> list[Array] | None:
    """The node's results, or None where they would depend on the machine, on symbols, or cost too much.

    Attributes must be concrete. NaN results are the one quiet NaN numpy calls nan.
    """
    if node.op not in OPS or any(dimension.symbols_of(e) for value in node.outputs for e in value.type.shape):
        return None
    op = OPS[node.op]
    attrs = op.check_attrs(node.attrs)
    if any(True for attr in attrs.values() for _ in _symbols(attr)):
        return None
    sizes = [value.type.elements for value in node.outputs]
    if any(not isinstance(size, int) or size > FOLD_WORK_LIMIT for size in sizes):
        return None
    if op.kind is Kind.RANDOM:
        results: list[Array] | None = None  # a constant of random numbers would only be larger
    elif op.access is not None and node.op != "resize":
        results = evaluate_op(op, attrs, operands)
    elif op.body is not None:
        results = _fold_body(op, attrs, operands)
    elif node.op in _FOLDERS:
        found = _FOLDERS[node.op](attrs, *operands)
        results = None if found is None else [found]
    else:
        results = None
    return None if results is None else [_one_nan(np.ascontiguousarray(r).reshape(r.shape)) for r in results]


def _symbols(attr: Attr) -> Sequence[Any]:
    if isinstance(attr, DimExpr):
        return dimension.symbols_of(attr)
    return [symbol for item in attr for symbol in _symbols(item)] if isinstance(attr, tuple) else ()


def _one_nan(array: Array) -> Array:
    """NaNs of any sign and payload as one; which one an operation makes differs between processors."""
    if array.dtype.kind in "iub" or not np.isnan(array).any():
        return array
    return np.where(np.isnan(array), np.array(np.nan, array.dtype), array)


class _MachineDependent(Exception):
    """An operation in the body has no machine-independent result for these operands."""


def _exact(name: str) -> Callable[..., Array]:
    return lambda *operands: np.asarray(expression.NUMPY[name](*operands))


def _extreme(compare: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    """min or max in which equal operands give the second: numpy's choice between zeros varies."""

    def run(a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            if a.dtype.kind in "iub":
                return np.where(compare(a, b), a, b)
            return np.where(compare(a, b) | np.isnan(a), a, b)

    return run


def _by_math(function: Callable[[float], float]) -> Callable[..., Array]:
    """Each distinct element through Python's math in double precision, rounded once."""

    def run(x: Array) -> Array:
        if x.dtype.kind in "iub" or x.dtype == np.float64 or x.size > FOLD_MATH_ELEMENTS:
            raise _MachineDependent
        bits = np.ascontiguousarray(x).view({1: np.uint8, 2: np.uint16, 4: np.uint32}[x.dtype.itemsize])
        distinct, inverse = np.unique(bits, return_inverse=True)
        with np.errstate(all="ignore"):
            values = [function(float(v)) for v in distinct.view(x.dtype)]
            return np.array(values, np.float64).astype(x.dtype)[inverse].reshape(x.shape)

    return run


def _safe(function: Callable[[float], float], *, overflow: float | None = None) -> Callable[[float], float]:
    """math functions raise where IEEE functions give NaN or infinity."""

    def run(x: float) -> float:
        if math.isnan(x):
            return x
        try:
            return function(x)
        except OverflowError:
            return math.copysign(math.inf, x) if overflow is None else overflow
        except (ValueError, ZeroDivisionError):
            return math.nan

    return run


def _log(x: float) -> float:
    return -math.inf if x == 0 else math.log(x)


def _log1p(x: float) -> float:
    return -math.inf if x == -1 else math.log1p(x)


def _atanh(x: float) -> float:
    return math.copysign(math.inf, x) if abs(x) == 1 else math.atanh(x)


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x > -700 else math.exp(x)


_MATH: Mapping[str, Callable[[float], float]] = {
    "exp": _safe(math.exp, overflow=math.inf), "expm1": _safe(math.expm1, overflow=math.inf),
    "log": _safe(_log), "log1p": _safe(_log1p), "sin": _safe(math.sin), "cos": _safe(math.cos),
    "tan": _safe(math.tan), "asin": _safe(math.asin), "acos": _safe(math.acos), "atan": _safe(math.atan),
    "sinh": _safe(math.sinh), "cosh": _safe(math.cosh, overflow=math.inf), "asinh": _safe(math.asinh),
    "acosh": _safe(math.acosh), "atanh": _safe(_atanh), "tanh": _safe(math.tanh), "erf": _safe(math.erf),
    "sigmoid": _safe(_sigmoid),
}  # fmt: skip
_BASIC = (
    "add", "sub", "mul", "div", "floordiv", "mod", "fmod", "neg", "abs", "sign", "sqrt", "rsqrt", "floor", "ceil",
    "round", "trunc", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "shl", "shr", "isnan", "isinf",
    "select",
)  # fmt: skip


def _power(a: Array, b: Array) -> Array:
    """Integer powers of integers by numpy (exact); of floats by repeated multiplication, for a small exponent."""
    if a.dtype.kind in "iu":
        if (b < 0).any():
            raise _MachineDependent
        return np.asarray(np.power(a, b))
    if b.size != 1:
        raise _MachineDependent
    exponent = float(b.reshape(-1)[0])
    shape = np.broadcast_shapes(a.shape, b.shape)
    with np.errstate(all="ignore"):
        if exponent == 0.5:
            # pow(-0, 0.5) is +0 and pow(-inf, 0.5) is +inf; sqrt says otherwise.
            root = np.where(a == -np.inf, np.array(np.inf, a.dtype), np.sqrt(a) + np.array(0, a.dtype))
            return np.asarray(root).reshape(shape)
        if exponent not in (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0):
            raise _MachineDependent
        result = np.ones_like(a)
        for _ in range(int(abs(exponent))):
            result = result * a
        return np.asarray(result if exponent >= 0 else np.ones_like(a) / result).reshape(shape)


_EXACT: Mapping[str, Callable[..., Array]] = {
    **{name: _exact(name) for name in _BASIC},
    **{name: _by_math(function) for name, function in _MATH.items()},
    "min": _extreme(np.less),
    "max": _extreme(np.greater),
    "pow": _power,
}


def _exact_cast(x: Array, dtype: DType) -> Array:
    if dtype.is_integer and x.dtype.kind not in "iub":
        signed = dtype.family == "int"
        low, past = -math.ldexp(1.0, dtype.bits - 1) if signed else 0.0, math.ldexp(1.0, dtype.bits - signed)
        whole = np.trunc(x.astype(np.float64))
        if not ((whole >= low) & (whole < past)).all():  # processors convert what does not fit differently
            raise _MachineDependent
    return np.asarray(expression.convert(x, dtype))


def _fold_body(op: OpDef, attrs: Attrs, operands: Sequence[Array | None]) -> list[Array] | None:
    shape = np.broadcast_shapes(*(array.shape for array in operands if array is not None))
    body = body_expr(op, attrs, [None if array is None else from_numpy(array.dtype) for array in operands])
    values: dict[Expr, Array] = {}
    try:
        for node in expression.walk(body):
            inputs = [values[a] for a in node.args]
            if node.op == "arg":
                operand = operands[node.payload]
                assert operand is not None
                values[node] = operand
            elif node.op == "const":
                values[node] = np.asarray(node.payload, dtype=node.dtype.numpy)
            elif node.op == "cast":
                values[node] = _exact_cast(inputs[0], node.dtype)
            elif node.op in _EXACT:
                values[node] = _EXACT[node.op](*inputs)
            else:
                return None
    except _MachineDependent:
        return None
    result = np.asarray(values[body], dtype=body.dtype.numpy)
    return [np.array(np.broadcast_to(result, shape))]


def _rows(x: Array, axes: tuple[int, ...]) -> Array:
    """[reduced, kept] with the reduced axes in row-major order."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    moved = np.transpose(x, (*axes, *kept))
    return moved.reshape(math.prod(x.shape[a] for a in axes), math.prod(x.shape[a] for a in kept))


def _fold_reduce(function: str) -> Callable[..., Array | None]:
    """Sequential over the reduced elements, elementwise over the rest: the order is fixed."""

    def run(attrs: Attrs, x: Array) -> Array | None:
        axes = axes_attr(attrs, x.ndim)
        keep = bool(attrs["keepdims"])
        shape = [1 if a in axes else n for a, n in enumerate(x.shape)] if keep else [
            n for a, n in enumerate(x.shape) if a not in axes
        ]  # fmt: skip
        rows = _rows(x, axes)
        integer = x.dtype.kind in "iub"
        if function in ("max", "min"):
            if not len(rows):
                return None
            total = rows[0]
            for row in rows[1:]:
                total = _EXACT[function](total, row)
            return np.reshape(total, shape)
        # Floats accumulate in double and are rounded once.
        accumulate = x.dtype if integer else np.dtype(np.float64)
        total = np.full(rows.shape[1], 0 if function in ("sum", "mean") else 1, accumulate)
        with np.errstate(all="ignore"):
            for row in rows:
                total = total * row.astype(accumulate) if function == "prod" else total + row.astype(accumulate)
            if function == "mean":
                if integer or not len(rows):
                    return None
                total = total / np.float64(len(rows))
            return np.reshape(total.astype(x.dtype), shape)

    return run


def _fold_matmul(attrs: Attrs, a: Array, b: Array) -> Array | None:
    """Adds the products in order of k."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    inner = a.shape[-1]
    if int(np.prod((*batch, a.shape[-2], b.shape[-1], inner), dtype=np.float64)) > FOLD_WORK_LIMIT:
        return None
    accumulate = a.dtype if a.dtype.kind in "iu" else np.dtype(np.float64)
    total = np.zeros((*batch, a.shape[-2], b.shape[-1]), accumulate)
    left, right = a.astype(accumulate), b.astype(accumulate)
    with np.errstate(all="ignore"):
        for k in range(inner):
            total += left[..., :, k, None] * right[..., None, k, :]
        return np.asarray(total, dtype=a.dtype)


def _fold_scan(op: str) -> Callable[..., Array | None]:
    """numpy accumulates strictly in order."""
    return lambda attrs, x: evaluate_op(OPS[op], attrs, [x])[0]


def _fold_arg(op: str) -> Callable[..., Array | None]:
    """Which of several NaNs wins is not worth relying on."""
    return lambda attrs, x: (
        None if x.dtype.kind not in "iub" and np.isnan(x).any() else evaluate_op(OPS[op], attrs, [x])[0]
    )


_FOLDERS: Mapping[str, Callable[..., Array | None]] = {
    **{f"reduce_{name}": _fold_reduce(name) for name in ("sum", "max", "min", "prod", "mean")},
    "argmax": _fold_arg("argmax"),
    "argmin": _fold_arg("argmin"),
    "cumsum": _fold_scan("cumsum"),
    "cumprod": _fold_scan("cumprod"),
    "matmul": _fold_matmul,
}
