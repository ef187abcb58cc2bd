"""Python's arithmetic on numbers that data gives (`x.item() + 1.0`): tensors of rank 0, floats in f64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aot import dtypes
from aot.dims import DimExpr
from aot.dtypes import DType
from aot.frontend.known import KnownBuilder
from aot.frontend.torch_registry import Context
from aot.ir import Value

_FLOATS: Mapping[str, str] = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floordiv", "mod": "mod", "pow": "pow",
    "neg": "neg", "pos": "copy", "sym_float": "copy", "sym_max": "max", "sym_min": "min", "abs": "abs",
    "_sym_sqrt": "sqrt", "_sym_sin": "sin", "_sym_cos": "cos", "_sym_tan": "tan", "_sym_exp": "exp", "_sym_log": "log",
    "_sym_tanh": "tanh", "_sym_sinh": "sinh", "_sym_cosh": "cosh", "_sym_asin": "asin", "_sym_acos": "acos",
    "_sym_atan": "atan",
}  # fmt: skip
_TESTS: Mapping[str, str] = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
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


def _as(builder: KnownBuilder, item: Any, dtype: DType) -> Value:
    if isinstance(item, Value):
        return item if item.type.dtype is dtype else builder.op("cast", item, to=dtype)[0]
    return Context("", "", builder, {}, None).number_value(item, dtype)
