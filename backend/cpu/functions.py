"""The expression functions as C: for single values and for blocks of lanes.

What is not an operator of C is a function of `prelude.py`, named `function_dtype`.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.backend.cpu.code import NARROW_FLOATS, PLAIN, literal, register_dtype, register_type, vector_type
from aot.dtypes import BOOL, I32, DType
from aot.errors import CompilerError
from aot.expr import Expr

_OPERATORS = {"add": "+", "sub": "-", "mul": "*"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITS = {"and": "&", "or": "|", "xor": "^"}
_OF_TRUTH = {**_BITS, "add": "|", "mul": "&", "min": "&", "max": "|"}
_TRUTH_ORDER = {
    "eq": "~({0} ^ {1})",
    "ne": "({0} ^ {1})",
    "lt": "(~{0} & {1})",
    "le": "(~{0} | {1})",
    "gt": "({0} & ~{1})",
    "ge": "({0} | ~{1})",
}
# Integer functions that the prelude has for single values; blocks go lane by lane.
LANE_WISE = ("div", "floordiv", "mod", "fmod", "pow")


def splat(dtype: DType, text: str) -> str:
    """A block whose lanes are all one value."""
    return f"splat_{'bool' if dtype.is_bool else register_type(dtype)}({text})"


def get(dtype: DType, pointer: str, offset: str) -> str:
    """One element from memory, in its register type."""
    return f"{pointer}[{offset}]" if dtype.name in PLAIN else f"get_{dtype.name}({pointer} + {offset})"


def put(dtype: DType, pointer: str, offset: str, value: str) -> str:
    """The statement that writes one element."""
    return (
        f"{pointer}[{offset}] = {value};"
        if dtype.name in PLAIN
        else f"put_{dtype.name}({pointer} + {offset}, {value});"
    )


def lane(dtype: DType, block: str, index: str) -> str:
    """One lane of a block as a single value."""
    return f"({block}[{index}] & 1)" if dtype.is_bool else f"{block}[{index}]"


def scalar_call(expr: Expr, operands: Sequence[str]) -> str:
    """A FUNCTIONS entry applied to single values."""
    name = expr.op
    of = register_dtype(expr.args[-1].dtype)
    if name == "cast":
        return _scalar_cast(expr.args[0].dtype, expr.dtype, operands[0])
    if name == "select":
        return f"({operands[0]} ? {operands[1]} : {operands[2]})"
    if name in _COMPARISONS:
        return f"({operands[0]} {_COMPARISONS[name]} {operands[1]})"
    if of.is_bool:
        if name == "not":
            return f"(!{operands[0]})"
        if name in _OF_TRUTH:
            return f"({operands[0]} {_OF_TRUTH[name]} {operands[1]})"
        raise CompilerError(f"{name} has no meaning for bool")
    narrow = f"({of.name})" if of.is_integer and of.bits < 32 else ""
    if name in _OPERATORS:
        return f"{narrow}({operands[0]} {_OPERATORS[name]} {operands[1]})"
    if name == "div" and of.is_float:
        return f"({operands[0]} / {operands[1]})"
    if name in _BITS:
        return f"{narrow}({operands[0]} {_BITS[name]} {operands[1]})"
    if name == "neg":
        return f"{narrow}(-{operands[0]})"
    if name == "not":
        return f"{narrow}(~{operands[0]})"
    if of.is_integer:
        if name in ("floor", "ceil", "round", "trunc"):
            return operands[0]
        if name in ("isnan", "isinf"):
            return "0"
        if name in ("min", "max"):
            return f"({operands[0]} {'<' if name == 'min' else '>'} {operands[1]} ? {operands[0]} : {operands[1]})"
        if name in LANE_WISE:
            return f"{narrow}{name}_{'u64' if of.family == 'uint' else 'i64'}({operands[0]}, {operands[1]})"
    if name == "isnan":
        return f"({operands[0]} != {operands[0]})"
    blocks = ", ".join(splat(a.dtype, o) for a, o in zip(expr.args, operands, strict=True))
    return lane(expr.dtype, f"{name}_{of.name}({blocks})", "0")


def _scalar_cast(source: DType, target: DType, text: str) -> str:
    if target.is_bool:
        return text if source.is_bool else f"({text} != 0)"
    if target in NARROW_FLOATS:
        return f"round_{target.name}(splat_f32((f32){text}))[0]"
    if register_dtype(source).is_float and target.is_integer:
        return f"({target.name}){'' if target.bits == 64 else '(i64)'}{text}"
    return f"({register_type(target)}){text}"


def vector_call(expr: Expr, operands: Sequence[str]) -> str:
    """A FUNCTIONS entry applied to blocks."""
    name = expr.op
    of = register_dtype(expr.args[-1].dtype)
    if name == "cast":
        return _vector_cast(expr.args[0].dtype, expr.dtype, operands[0])
    if name == "select":
        return f"select_{'bool' if of.is_bool else of.name}({', '.join(operands)})"
    if of.is_bool:
        if name in _TRUTH_ORDER:
            return _TRUTH_ORDER[name].format(*operands)
        if name == "not":
            return f"(~{operands[0]})"
        if name in _OF_TRUTH:
            return f"({operands[0]} {_OF_TRUTH[name]} {operands[1]})"
        raise CompilerError(f"{name} has no meaning for bool")
    if name in _COMPARISONS:
        return _mask(of, f"{operands[0]} {_COMPARISONS[name]} {operands[1]}")
    if name in _OPERATORS:
        return f"({operands[0]} {_OPERATORS[name]} {operands[1]})"
    if name == "div" and of.is_float:
        return f"({operands[0]} / {operands[1]})"
    if name in _BITS:
        return f"({operands[0]} {_BITS[name]} {operands[1]})"
    if name == "neg":
        return f"(-{operands[0]})"
    if name == "not":
        return f"(~{operands[0]})"
    if name == "isnan":
        return splat(BOOL, "0") if of.is_integer else _mask(of, f"{operands[0]} != {operands[0]}")
    if of.is_integer:
        if name in ("floor", "ceil", "round", "trunc"):
            return operands[0]
        if name == "isinf":
            return splat(BOOL, "0")
        if name in LANE_WISE:
            return f"{name}v_{of.name}({', '.join(operands)})"
    if name in ("min", "max") and of.is_float:
        # maxps and minps return their second operand when one is NaN: a constant may stand first.
        for first, second in ((0, 1), (1, 0)):
            if expr.args[first].op == "const" and expr.args[first].payload == expr.args[first].payload:
                return f"{name}_ordered_{of.name}({operands[first]}, {operands[second]})"
    return f"{name}_{of.name}({', '.join(operands)})"


def _mask(of: DType, comparison: str) -> str:
    if of.bits == 8:
        return f"widen_i8_i32((v_i8)({comparison}))"
    return f"(v_i32)({comparison})" if of.bits == 32 else f"__builtin_convertvector({comparison}, v_i32)"


def convert(text: str, source: DType, dtype: DType) -> str:
    """A conversion of numbers as numpy makes it; 8-bit ones go through i32, for which there are instructions."""
    if source.is_integer and source.bits == 8 and dtype.bits > 16:
        text = f"widen_{source.name}_i32({text})"
        if dtype.is_integer and dtype.bits == 32:
            return text if dtype == I32 else f"(v_u32){text}"
    if dtype.is_integer and dtype.bits == 8 and source.is_integer and source.bits > 16:
        if source.bits > 32:
            text = f"__builtin_convertvector({text}, v_i32)"
        return f"narrow_i32_{dtype.name}({'' if source == I32 else '(v_i32)'}{text})"
    return f"__builtin_convertvector({text}, {vector_type(dtype)})"


def _vector_cast(source: DType, target: DType, text: str) -> str:
    held, wanted = register_dtype(source), register_dtype(target)
    if target.is_bool:
        return text if source.is_bool else _mask(held, f"{text} != {splat(source, literal(0, held))}")
    if source.is_bool:
        if wanted.is_float:
            one, zero = (splat(wanted, literal(number, wanted)) for number in (1, 0))
            return f"select_{wanted.name}({text}, {one}, {zero})"
        return f"(-{convert(text, I32, wanted)})"
    if held.is_float and wanted.is_integer:
        if wanted.bits < 32:
            return convert(f"cast_{held.name}_i32({text})", I32, wanted)
        return f"cast_{held.name}_{wanted.name}({text})"
    result = text if held == wanted else convert(text, held, wanted)
    return f"round_{target.name}({result})" if target in NARROW_FLOATS else result
