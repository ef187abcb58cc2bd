"""Python's arithmetic on numbers that are known when running: tensors of rank 0, floats in f64.

Data gives such numbers (`x.item() + 1.0`), and so do open sizes where a result is no size (`x.shape[0] ** -0.5`). Sizes
and conditions on sizes stay expressions until a tensor op reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from aot import dtypes
from aot.dims import DimExpr
from aot.dtypes import DType
from aot.errors import UnsupportedError
from aot.frontend import data_sizes
from aot.frontend.known import KnownBuilder
from aot.frontend.torch_registry import Context
from aot.frontend.torch_sizes import SizeReader
from aot.ir import Value

_FLOATS: Mapping[str, str] = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floordiv", "mod": "mod", "pow": "pow",
    "neg": "neg", "pos": "copy", "sym_float": "copy", "sym_max": "max", "sym_min": "min", "abs": "abs",
    "_sym_sqrt": "sqrt", "_sym_sin": "sin", "_sym_cos": "cos", "_sym_tan": "tan", "_sym_exp": "exp", "_sym_log": "log",
    "_sym_tanh": "tanh", "_sym_sinh": "sinh", "_sym_cosh": "cosh", "_sym_asin": "asin", "_sym_acos": "acos",
    "_sym_atan": "atan",
}  # fmt: skip
_TESTS: Mapping[str, str] = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
ROUNDINGS: Mapping[str, str] = {
    "trunc": "trunc", "int": "trunc", "sym_int": "trunc", "floor": "floor", "ceil": "ceil", "round": "round",
}  # fmt: skip
COMPARISONS: Mapping[str, str] = {
    "Equality": "eq", "Unequality": "ne", "StrictGreaterThan": "gt", "StrictLessThan": "lt", "GreaterThan": "ge",
    "LessThan": "le",
}  # fmt: skip
_LOGIC: Mapping[str, str] = {"and_": "and", "or_": "or", "sym_not": "not", "not_": "not"}


def is_number(item: Any) -> bool:
    """Whether an argument is a number: of data (a tensor of rank 0), of sizes, or plain."""
    return isinstance(item, bool | int | float | DimExpr) or (isinstance(item, Value) and item.type.rank == 0)


def computed(builder: KnownBuilder, name: str, operands: Sequence[Any], is_condition: bool) -> Value | None:
    """The result of Python's operator, or of torch's function of numbers; None for one that has no op."""
    if not all(map(is_number, operands)):
        return None
    if name in _LOGIC and is_condition:
        return builder.op(_LOGIC[name], *(_as(builder, item, dtypes.BOOL) for item in operands))[0]
    table = _TESTS if is_condition else _FLOATS
    if name not in table:
        return None
    return builder.op(table[name], *(_as(builder, item, dtypes.F64) for item in operands))[0]


def whole(builder: KnownBuilder, name: str, operands: Sequence[Any]) -> Value | None:
    """A float as an integer, by one of Python's ways of rounding; None for another operator."""
    if name not in ROUNDINGS or not is_number(operands[0]) or any(digits is not None for digits in operands[1:]):
        return None
    rounded = builder.op(ROUNDINGS[name], _as(builder, operands[0], dtypes.F64))[0]
    return builder.op("cast", rounded, to=dtypes.I64)[0]


def condition_of_sizes(builder: KnownBuilder, sizes: SizeReader, expression: Any) -> Value:
    """A condition on sizes that torch did not decide, as a truth value. Raises UnsupportedError for others."""
    kind = type(expression).__name__
    if kind in COMPARISONS:
        left, right = (data_sizes.number(builder, sizes.of(part)) for part in expression.args)
        return builder.op(COMPARISONS[kind], left, right)[0]
    if kind in ("And", "Or"):
        parts = [condition_of_sizes(builder, sizes, part) for part in expression.args]
        return reduce(lambda left, right: builder.op(kind.lower(), left, right)[0], parts)
    if kind == "Not":
        return builder.op("not", condition_of_sizes(builder, sizes, expression.args[0]))[0]
    raise UnsupportedError(f"the condition {expression} on sizes")


def _as(builder: KnownBuilder, item: Any, dtype: DType) -> Value:
    if isinstance(item, Value):
        return item if item.type.dtype is dtype else builder.op("cast", item, to=dtype)[0]
    return Context("", "", builder, {}, None).number_value(item, dtype)
