"""Guards of PyTorch that are no relation of sizes, as truth values.

`n & (n - 1) == 0` and `round(n / 3) == h` are such: nothing says for which sizes they hold. Every run computes them of
its own sizes; of a condition on one size, many sizes at once may show that it holds in a range.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import reduce

from aot import dtypes
from aot.builder import Builder
from aot.errors import UnsupportedError
from aot.frontend.torch_numbers import ROUNDINGS
from aot.ir import Value

_OF_TWO: Mapping[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.BitAnd: "and",
    ast.BitOr: "or", ast.BitXor: "xor", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt",
    ast.GtE: "ge",
}  # fmt: skip
_OF_FLOATS: Mapping[type, str] = {ast.Div: "div", ast.Pow: "pow"}
_FUNCTIONS: Mapping[str, str] = {
    "math.sqrt": "sqrt", "math.log": "log", "math.exp": "exp", "torch._sym_sqrt": "sqrt", "torch.sym_float": "copy",
    "float": "copy",
}  # fmt: skip
_CHOICES: Mapping[str, str] = {"max": "max", "min": "min", "torch.sym_max": "max", "torch.sym_min": "min"}


class GuardValues:
    """`extent` gives the size that an expression is, i64 of any one shape, or None for other expressions."""

    def __init__(self, builder: Builder, extent: Callable[[ast.expr], Value | None]) -> None:
        self.builder = builder
        self.extent = extent

    def of(self, tree: ast.expr) -> Value:
        """A condition, or a number in it, of the sizes' shape: bool, i64 or f64. Raises UnsupportedError."""
        size = self.extent(tree)
        if size is not None:
            return size
        if isinstance(tree, ast.Constant) and type(tree.value) in (bool, int, float):
            kind = {bool: dtypes.BOOL, int: dtypes.I64, float: dtypes.F64}[type(tree.value)]
            return self.builder.scalar(ast.literal_eval(tree), kind)
        if isinstance(tree, ast.BoolOp):
            name = "and" if isinstance(tree.op, ast.And) else "or"
            return reduce(lambda a, b: self.builder.op(name, a, b)[0], map(self.truth, tree.values))
        if isinstance(tree, ast.Compare) and all(type(sign) in _OF_TWO for sign in tree.ops):
            values = [self.of(part) for part in (tree.left, *tree.comparators)]
            pairs = zip(values, tree.ops, values[1:], strict=False)
            found = [self._two(_OF_TWO[type(sign)], left, right) for left, sign, right in pairs]
            return reduce(lambda a, b: self.builder.op("and", a, b)[0], found)
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
            return self.builder.op("not", self.truth(tree.operand))[0]
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return self.builder.op("neg", self.of(tree.operand))[0]
        if isinstance(tree, ast.BinOp) and isinstance(tree.right, ast.Constant) and tree.right.value == 0:
            if isinstance(tree.op, ast.FloorDiv | ast.Mod | ast.Div):
                raise UnsupportedError("a division by 0")
        if isinstance(tree, ast.BinOp) and type(tree.op) in _OF_TWO:
            return self._two(_OF_TWO[type(tree.op)], self.of(tree.left), self.of(tree.right))
        if isinstance(tree, ast.BinOp) and type(tree.op) in _OF_FLOATS:
            left, right = (self._as_float(self.of(part)) for part in (tree.left, tree.right))
            return self.builder.op(_OF_FLOATS[type(tree.op)], left, right)[0]
        if isinstance(tree, ast.Call) and not tree.keywords and tree.args:
            return self._call(ast.unparse(tree.func), [self.of(part) for part in tree.args])
        raise UnsupportedError(f"the number {ast.unparse(tree)[:80]}")

    def truth(self, tree: ast.expr) -> Value:
        """What Python takes an expression to be where it asks for a condition."""
        value = self.of(tree)
        if value.type.dtype.is_bool:
            return value
        return self.builder.op("ne", value, self.builder.scalar(0, value.type.dtype))[0]

    def _call(self, function: str, values: list[Value]) -> Value:
        if function == "abs" and len(values) == 1:
            return self.builder.op("abs", values[0])[0]
        rounding = ROUNDINGS.get(function.removeprefix("math.").replace("torch.sym_int", "int"))
        if function in _CHOICES:
            return reduce(lambda a, b: self._two(_CHOICES[function], a, b), values)
        if function in _FUNCTIONS and len(values) == 1:
            return self.builder.op(_FUNCTIONS[function], self._as_float(values[0]))[0]
        if rounding is None or len(values) != 1:
            raise UnsupportedError(f"the function {function[:80]}")
        return self.builder.op("cast", self.builder.op(rounding, self._as_float(values[0]))[0], to=dtypes.I64)[0]

    def _two(self, name: str, left: Value, right: Value) -> Value:
        if left.type.dtype is not right.type.dtype:
            left, right = self._as_float(left), self._as_float(right)
        return self.builder.op(name, left, right)[0]

    def _as_float(self, value: Value) -> Value:
        return value if value.type.dtype is dtypes.F64 else self.builder.op("cast", value, to=dtypes.F64)[0]
