"""Scalar expressions: the meaning of elementwise ops and of index arithmetic, once.

An `Expr` is a typed, immutable DAG. Leaves: `arg(i)` (an op's operand), `const`, `axis(i)` (a loop
index), `dim(d)` (a symbolic extent as an integer), `load` (an element of a kernel's operand at
computed indices), `root` (the accumulator of a kernel's contraction), `reduce` (over a loop axis).
Op bodies use arg and const alone; `aot/kernel.py` builds the rest. Backends render an Expr through a
table of FUNCTIONS; `evaluate` computes it with numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot import dtypes
from aot.dims import Dim
from aot.dtypes import BOOL, I64, DType
from aot.errors import CompilerError

# name: (number of operands, how the result's dtype follows). "same": the operands' dtype.
FUNCTIONS: Mapping[str, tuple[int, str]] = {
    "add": (2, "same"), "sub": (2, "same"), "mul": (2, "same"), "div": (2, "same"),
    "floordiv": (2, "same"), "mod": (2, "same"), "fmod": (2, "same"), "pow": (2, "same"),
    "min": (2, "same"), "max": (2, "same"),  # NaN if either operand is
    "neg": (1, "same"), "abs": (1, "same"), "sign": (1, "same"),
    "sqrt": (1, "same"), "rsqrt": (1, "same"), "exp": (1, "same"), "log": (1, "same"), "log1p": (1, "same"),
    "expm1": (1, "same"), "sin": (1, "same"), "cos": (1, "same"), "tan": (1, "same"), "asin": (1, "same"),
    "acos": (1, "same"), "atan": (1, "same"), "sinh": (1, "same"), "cosh": (1, "same"), "asinh": (1, "same"),
    "acosh": (1, "same"), "atanh": (1, "same"), "tanh": (1, "same"), "erf": (1, "same"), "sigmoid": (1, "same"),
    "floor": (1, "same"), "ceil": (1, "same"), "round": (1, "same"),  # round: half to even
    "trunc": (1, "same"),
    "eq": (2, "bool"), "ne": (2, "bool"), "lt": (2, "bool"), "le": (2, "bool"), "gt": (2, "bool"), "ge": (2, "bool"),
    "and": (2, "same"), "or": (2, "same"), "xor": (2, "same"), "not": (1, "same"),  # bool: logical; integers: bits
    "shl": (2, "same"), "shr": (2, "same"),
    "isnan": (1, "bool"), "isinf": (1, "bool"),
    "select": (3, "second"),  # select(condition, if true, if false)
    "cast": (1, "given"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression node. `op` is a FUNCTIONS name or a leaf's; `payload` is the leaf's content.

    arg: index · const: the Python number · axis: index · dim: a Dim · root: output index ·
    load: operand index (args are the logical indices, then optionally a guard and a fill value) ·
    reduce: (function, axis index) with function sum, max, min, prod, argmax or argmin (arg: first index).
    """

    op: str
    args: tuple[Expr, ...]
    dtype: DType
    payload: Any = None
    _hash: int = 0

    def __post_init__(self) -> None:
        # Hashing a deep DAG recursively would be exponential; each node keeps its hash.
        payload = repr(self.payload) if isinstance(self.payload, float) else self.payload
        object.__setattr__(self, "_hash", hash((self.op, self.args, self.dtype, payload)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expr) or self._hash != other._hash:
            return False
        same_payload = self.payload == other.payload and repr(self.payload) == repr(other.payload)
        return self.op == other.op and self.dtype == other.dtype and same_payload and self.args == other.args

    def __add__(self, other: Operand) -> Expr:
        return call("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return call("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return call("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return call("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return call("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return call("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return call("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return call("div", other, self)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __lt__(self, other: Operand) -> Expr:
        return call("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return call("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return call("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return call("ge", self, other)


Operand = Expr | int | float | bool


def arg(index: int, dtype: DType) -> Expr:
    """Operand `index` of the op whose body this is."""
    return Expr("arg", (), dtype, index)


def const(value: int | float | bool, dtype: DType) -> Expr:
    """A constant of a dtype, rounded to it when rendered."""
    typed: int | float | bool = bool(value) if dtype.is_bool else float(value) if dtype.is_float else int(value)
    return Expr("const", (), dtype, typed)


def axis(index: int) -> Expr:
    """The running index of loop axis `index`, i64."""
    return Expr("axis", (), I64, index)


def dim(value: Dim) -> Expr:
    """An extent as an i64."""
    return const(value, I64) if isinstance(value, int) else Expr("dim", (), I64, value)


def load(operand: int, dtype: DType, indices: Sequence[Expr]) -> Expr:
    """The element of a kernel's operand at logical indices, all in range."""
    return Expr("load", tuple(indices), dtype, operand)


def reduce(function: str, over: int, value: Expr, dtype: DType | None = None) -> Expr:
    """`function` of `value` over every index of loop axis `over`."""
    return Expr("reduce", (value,), dtype or value.dtype, (function, over))


def root(output: int, dtype: DType) -> Expr:
    """The result of the kernel's CONTRACT, WINDOW or ATTEND root at the current output index."""
    return Expr("root", (), dtype, output)


def cast(value: Expr, dtype: DType) -> Expr:
    """Conversion as numpy's astype: float to integer truncates, to bool is != 0."""
    if value.dtype == dtype:
        return value
    if value.op == "const":
        return const(value.payload, dtype)
    if value.op == "cast" and value.args[0].dtype == dtype and _holds(value.dtype, dtype):
        return value.args[0]
    return Expr("cast", (value,), dtype)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether one float type has every value of another."""
    return wide.is_float and narrow.is_float and wide.bits >= 2 * narrow.bits and wide.bits >= 32


def select(condition: Expr, if_true: Operand, if_false: Operand) -> Expr:
    """`if_true` where the condition holds, else `if_false`; neither side traps."""
    return call("select", condition, if_true, if_false)


def call(function: str, *operands: Operand) -> Expr:
    """Apply a FUNCTIONS entry. Python numbers take the dtype of the Expr beside them."""
    count, rule = FUNCTIONS[function]
    if len(operands) != count:
        raise CompilerError(f"{function} takes {count} operands, got {len(operands)}")
    typed = [o.dtype for o in (operands[1:] if function == "select" else operands) if isinstance(o, Expr)]
    if not typed:
        raise CompilerError(f"{function} needs at least one typed operand")
    args = tuple(o if isinstance(o, Expr) else const(o, typed[0]) for o in operands)
    checked = args[1:] if function == "select" else args
    if any(a.dtype != checked[0].dtype for a in checked):
        raise CompilerError(f"{function} of mixed dtypes {[a.dtype.name for a in checked]}")
    simple = _simplify(function, args)
    if simple is not None:
        return simple
    return Expr(function, args, BOOL if rule == "bool" else checked[0].dtype)


def _simplify(function: str, args: tuple[Expr, ...]) -> Expr | None:
    """Identities of index arithmetic. Floats are left alone: x + 0 is not x for x = -0."""
    if function == "select" and args[0].op == "const":
        return args[1] if args[0].payload else args[2]
    if not args[0].dtype.is_integer or len(args) != 2:
        return None
    left, right = args
    if left.op == "const" and right.op == "const" and function in ("add", "sub", "mul"):
        a, b = left.payload, right.payload
        return const(a + b if function == "add" else a - b if function == "sub" else a * b, left.dtype)
    zero = [a.op == "const" and a.payload == 0 for a in args]
    one = [a.op == "const" and a.payload == 1 for a in args]
    if function == "add" and (zero[0] or zero[1]):
        return right if zero[0] else left
    if function == "sub" and zero[1]:
        return left
    if function == "mul" and (zero[0] or zero[1]):
        return const(0, left.dtype)
    if function == "mul" and (one[0] or one[1]):
        return right if one[0] else left
    if function == "floordiv" and one[1]:
        return left
    if function == "mod" and one[1]:
        return const(0, left.dtype)
    return None


def rewrite(expr: Expr, leaf: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with every node for which `leaf` gives a replacement replaced; shared once."""
    done: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node in done:
            return done[node]
        found = leaf(node)
        if found is None:
            args = tuple(map(visit, node.args))
            if all(a is b for a, b in zip(args, node.args, strict=True)):
                found = node
            elif node.op in FUNCTIONS and node.op != "cast":
                found = call(node.op, *args)
            else:
                found = Expr(node.op, args, node.dtype, node.payload)
        done[node] = found
        return found

    return visit(expr)


def walk(expr: Expr) -> list[Expr]:
    """Every distinct node, operands before users."""
    order: dict[Expr, None] = {}

    def visit(node: Expr) -> None:
        if node not in order:
            for a in node.args:
                visit(a)
            order[node] = None

    visit(expr)
    return list(order)


def text(expr: Expr) -> str:
    """One-line text for people and tests."""
    if expr.op in ("arg", "axis", "root"):
        return f"{expr.op}{expr.payload}"
    if expr.op in ("const", "dim"):
        return str(expr.payload)
    inner = ", ".join(map(text, expr.args))
    if expr.op == "load":
        return f"load{expr.payload}[{inner}]"
    if expr.op == "reduce":
        return f"{expr.payload[0]}[axis{expr.payload[1]}]({inner})"
    return f"{expr.dtype}({inner})" if expr.op == "cast" else f"{expr.op}({inner})"


# numpy evaluation: the reference meaning of every function.


def _trap_free(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return run


def _erf(x: Any) -> Any:
    from math import erf

    wide = np.asarray(x, dtype=np.float64)
    return np.vectorize(erf, otypes=[np.float64])(wide).astype(np.asarray(x).dtype) if wide.size else np.asarray(x)


def _floordiv(a: Any, b: Any) -> Any:
    return (
        np.floor_divide(a, np.where(b == 0, np.ones_like(b), b))
        if np.asarray(b).dtype.kind in "iu"
        else np.floor_divide(a, b)
    )


def _divide(a: Any, b: Any) -> Any:
    """Float division; integers truncate towards zero, and x / 0 is 0 instead of a trap."""
    if np.asarray(a).dtype.kind in "iu":
        safe = np.where(b == 0, np.ones_like(b), b)
        quotient = np.floor_divide(a, safe)
        return np.where(
            b == 0, np.zeros_like(a), quotient + ((quotient < 0) & (quotient * safe != a)).astype(quotient.dtype)
        )
    return np.divide(a, b)


def _modulo(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Any, b: Any) -> Any:
        if np.asarray(b).dtype.kind in "iu":
            return np.where(b == 0, np.zeros_like(a), function(a, np.where(b == 0, np.ones_like(b), b)))
        return function(a, b)

    return run


def _power(a: Any, b: Any) -> Any:
    """Of integers, a negative power is the quotient 1 / a^-b rounded towards zero, and 0 of 0."""
    if np.asarray(a).dtype.kind != "i" or not np.any(np.asarray(b) < 0):
        return np.power(a, b)
    sign = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0)).astype(np.asarray(a).dtype)
    return np.where(b < 0, sign, np.power(a, np.maximum(b, 0)))


def _sigmoid(x: Any) -> Any:
    return (1.0 / (1.0 + np.exp(-np.asarray(x, dtype=np.float64)))).astype(np.asarray(x).dtype)


def _rsqrt(x: Any) -> Any:
    return np.divide(np.ones_like(x), np.sqrt(x))


_PLAIN: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "floordiv": _floordiv,
    "mod": _modulo(np.mod), "fmod": _modulo(np.fmod), "pow": _power, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "sqrt": np.sqrt, "rsqrt": _rsqrt, "exp": np.exp,
    "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "tanh": np.tanh, "erf": _erf,
    "sigmoid": _sigmoid, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.invert, "shl": np.left_shift, "shr": np.right_shift,
    "isnan": np.isnan, "isinf": np.isinf, "select": np.where,
}  # fmt: skip
NUMPY: Mapping[str, Callable[..., Any]] = {name: _trap_free(function) for name, function in _PLAIN.items()}


def evaluate(expr: Expr, args: Sequence[Any]) -> Any:
    """The numpy value of an op body, given its operands (arrays that broadcast together)."""
    values: dict[Expr, Any] = {}
    for node in walk(expr):
        operands = [values[a] for a in node.args]
        if node.op == "arg":
            values[node] = args[node.payload]
        elif node.op == "const":
            values[node] = np.asarray(node.payload, dtype=node.dtype.numpy)
        elif node.op == "cast":
            values[node] = convert(operands[0], node.dtype)
        elif node.op in NUMPY:
            values[node] = NUMPY[node.op](*operands)
        else:
            raise CompilerError(f"{node.op} has no value outside a kernel")
    return values[expr]


def convert(value: Any, dtype: DType) -> Any:
    """numpy conversion with the rules of `cast`."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype.numpy) if dtype != dtypes.BOOL else np.asarray(value) != 0
