"""The expression functions as Triton: operators, functions of triton.language, and a few of our own.

Formulas that the language lacks are written with those it has, so that kernels run alike on a GPU and under
Triton's interpreter. `HELPERS` are the texts of functions that a kernel brings along, by name; `NATIVE` those that take
their place where a device has an instruction.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from aot.backend.cuda.code import FLOAT8, memory_type, register_dtype, register_type
from aot.dtypes import BF16, F16, F32, I8, U8, DType
from aot.errors import CompilerError
from aot.expr import Expr
from aot.expr import call as call_of

_OPERATORS = {"add": "+", "sub": "-", "mul": "*"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITS = {"and": "&", "or": "|", "xor": "^"}
_OF_TRUTH = {**_BITS, "add": "|", "mul": "&", "min": "&", "max": "|"}
_TRUTH_ORDER = {
    "eq": "(not_({0} ^ {1}))",
    "ne": "({0} ^ {1})",
    "lt": "(not_({0}) & {1})",
    "le": "(not_({0}) | {1})",
    "gt": "({0} & not_({1}))",
    "ge": "({0} | not_({1}))",
}
_OF_LANGUAGE = {
    "sqrt": "tl.sqrt", "rsqrt": "tl.rsqrt", "exp": "tl.exp", "log": "tl.log", "sin": "tl.sin", "cos": "tl.cos",
    "erf": "tl.erf", "floor": "tl.floor", "ceil": "tl.ceil", "abs": "tl.abs",
}  # fmt: skip
_OF_NARROW = {16: frozenset({"erf", "tanh"}), 8: frozenset({"erf"})}
"""Functions with a form for results of so many bits and fewer (8: of integers), of half as many instructions."""

_EXACT = {"div": "quotient", "sqrt": "root"}
"""Functions that IEEE defines to the last bit, which the language's own do not give."""


def _bytes_text(name: str, is_shifted: bool) -> str:
    """Assembly of four numbers rounded to integers and bounded to bytes; shifted by a number beside each."""
    lines = [".reg .s16 h<4>; .reg .s32 a<4>; .reg .b32 c;"]
    for n in range(4):  # by way of 16 bits, which bound it: with the shift it stays within 32
        lines.append(f"cvt.rni.s16.f32 h{n}, ${n + 1}; cvt.s32.s16 a{n}, h{n};")
        lines += [f"add.s32 a{n}, a{n}, ${n + 5};"] if is_shifted else []
    lines += [f"cvt.pack.sat.{name}.s32.b32 c, a3, a2, 0;", f"cvt.pack.sat.{name}.s32.b32 $0, a1, a0, c;"]
    return f"{{ {' '.join(lines)} }}"


HELPERS: Mapping[str, str] = {
    "not_": "def not_(x):\n    return x == 0\n",
    "maximum": "def maximum(a, b):\n    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)\n",
    "minimum": "def minimum(a, b):\n    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)\n",
    "multiply": "def multiply(a, b):\n    return a * b\n",
    # Of (what came before, the running total); these join in any grouping, as tl.associative_scan asks.
    "exclusive_sum": "def exclusive_sum(a, b, c, d):\n    return b + c, b + d\n",
    "exclusive_prod": "def exclusive_prod(a, b, c, d):\n    return b * c, b * d\n",
    # Of (value, place): the later of equal ones, and NaN before all others.
    **{
        f"later_{name}": (
            f"def later_{name}(a, i, b, j):\n"
            f"    is_b = (b != b) | ((a == a) & (b {sign} a))\n"
            "    return tl.where(is_b, b, a), tl.where(is_b, j, i)\n"
        )
        for name, sign in (("max", ">="), ("min", "<="))
    },
    # What a division of integers by 0 gives is not the hardware's: see the table of ops.
    "divide_integer": (
        "def divide_integer(a, b):\n"
        "    return tl.where(b == 0, 0, a // tl.where(b == 0, 1, b)).to(a.dtype)\n"
    ),
    "rest_integer": (
        "def rest_integer(a, b):\n"
        "    return tl.where(b == 0, 0, a % tl.where(b == 0, 1, b)).to(a.dtype)\n"
    ),
    "floordiv": (
        "def floordiv(a, b):\n"
        "    d = tl.where(b == 0, 1, b).to(a.dtype)\n"
        "    q = a // d\n"
        "    r = a - q * d\n"
        "    return tl.where((r != 0) & ((r < 0) != (d < 0)), q - 1, q)\n"
    ),
    "mod": "def mod(a, b):\n    return tl.where(b == 0, 0, a - floordiv(a, b) * b).to(a.dtype)\n",
    # As IEEE says, where the language's own quotient may be off by two units in the last place.
    "quotient": (
        "def quotient(a, b):\n"
        "    if (a + b).dtype == tl.float32:\n"
        "        q = tl.div_rn(a, b)\n"
        "    else:\n"
        "        q = a / b\n"
        "    return q\n"
    ),
    # By a constant c whose reciprocal is r.
    "quotient_by": "def quotient_by(a, c, r):\n    return a * r\n",
    "root": (
        "def root(x):\n"
        "    if x.dtype == tl.float32:\n"
        "        y = tl.sqrt_rn(x)\n"
        "    else:\n"
        "        y = tl.sqrt(x)\n"
        "    return y\n"
    ),
    "floordiv_float": "def floordiv_float(a, b):\n    return tl.floor(quotient(a, b))\n",
    "mod_float": (
        "def mod_float(a, b):\n"
        "    r = fmod_float(a, b)\n"
        "    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)\n"
    ),
    "fmod_float": "def fmod_float(a, b):\n    return a - trunc(quotient(a, b)) * b\n",
    "trunc": "def trunc(x):\n    return tl.where(x < 0, tl.ceil(x), tl.floor(x))\n",
    # Between 2^23 and 2^24 an f32 has no fraction: what is added there is rounded to the nearest whole number.
    "round_even": (
        "def round_even(x):\n"
        "    if x.dtype == tl.float32:\n"
        "        most = tl.where(x < 0, -8388608.0, 8388608.0)\n"
        "        y = tl.where(tl.abs(x) < 8388608.0, (x + most) - most, x)\n"
        "    else:\n"
        "        low = tl.floor(x)\n"
        "        part = x - low\n"
        "        odd = low - 2 * tl.floor(low * 0.5)\n"
        "        y = tl.where((part > 0.5) | ((part == 0.5) & (odd != 0)), low + 1, low)\n"
        "    return y\n"
    ),
    # Floats of 8 bits as bytes. A number below the least normal one is rounded by adding what its last bit is the last
    # bit of; others by adding half of their last bit to their bits. Beyond the largest: NaN, or of f8e5m2 infinity.
    "decode_f8e4m3": (
        "def decode_f8e4m3(x):\n"
        "    bits = x.to(tl.uint16)\n"
        "    half = (((bits & 128) << 8) | ((bits & 127) << 7)).to(tl.float16, bitcast=True)\n"
        "    return tl.where((bits & 127) == 127, float(\"nan\"), half.to(tl.float32) * 256.0)\n"
    ),
    "decode_f8e5m2": (
        "def decode_f8e5m2(x):\n"
        "    return (x.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)\n"
    ),
    **{
        f"encode_{name}": (
            f"def encode_{name}(x):\n"
            "    x = x.to(tl.float32)\n"
            "    a = tl.abs(x)\n"
            "    bits = a.to(tl.int32, bitcast=True)\n"
            f"    code = ((bits + {half} + ((bits >> {shift}) & 1)) >> {shift}) - {bias}\n"
            f"    small = (a + {step}).to(tl.int32, bitcast=True) - {step_bits}\n"
            f"    code = tl.minimum(tl.where(a < {least}, small, code), {largest})\n"
            f"    code = tl.where(x != x, {nothing}, code)\n"
            "    return (code | ((x.to(tl.int32, bitcast=True) >> 24) & 128)).to(tl.uint8)\n"
        )
        for name, shift, half, bias, step, step_bits, least, largest, nothing in (
            ("f8e4m3", 20, (1 << 19) - 1, 120 << 3, 2.0**14, 0x46800000, 2.0**-6, 0x7F, 0x7F),
            ("f8e5m2", 21, (1 << 20) - 1, 112 << 2, 2.0**7, 0x43000000, 2.0**-14, 0x7C, 0x7E),
        )
    },
    # Rounded to the nearest, halves to even, with `zero` added, and bounded, by instructions that also make 0 of NaN.
    # Four at a time, which make a word; Triton refuses that for a block of fewer.
    **{
        f"quantized_{name}": (
            f"def quantized_{name}(x, zero: tl.constexpr):\n"
            "    if INTERPRETED or x.numel < 4:\n"
            "        whole = tl.where(x != x, 0.0, round_even(x)) + zero\n"
            f"        code = tl.minimum(tl.maximum(whole, {low}.0), {low + 255}.0).to(tl.int32).to(tl.{kind})\n"
            "    elif zero == 0:\n"
            f"        code = tl.inline_asm_elementwise(\n            '{_bytes_text(name, False)}',\n"
            f"            '=r,f,f,f,f', [x], dtype=tl.{kind}, is_pure=True, pack=4)\n"
            "    else:\n"
            f"        code = tl.inline_asm_elementwise(\n            '{_bytes_text(name, True)}',\n"
            f"            '=r,f,f,f,f,r,r,r,r', [x, zero], dtype=tl.{kind}, is_pure=True, pack=4)\n"
            "    return code\n"
        )
        for name, kind, low in (("s8", "int8", -128), ("u8", "uint8", 0))
    },
    "saturated_f8e4m3": (
        "def saturated_f8e4m3(x):\n"
        "    return encode_f8e4m3(maximum(minimum(x, 448.0), -448.0))\n"
    ),
    "sign": "def sign(x):\n    return tl.where(x > 0, 1, tl.where(x < 0, -1, x)).to(x.dtype)\n",
    "expm1": (
        "def expm1(x):\n"
        "    u = tl.exp(x)\n"
        "    near = x * (1 + x * (0.5 + x * (0.16666666666666666 + x * (0.041666666666666664 + x * (\n"
        "        0.008333333333333333 + x * 0.001388888888888889)))))\n"
        "    return tl.where(tl.abs(x) < 0.25, near, u - 1)\n"
    ),
    "log1p": (
        "def log1p(x):\n"
        "    u = 1 + x\n"
        "    d = u - 1\n"
        "    exact = tl.where(d == 0, x, tl.log(u) * (x / tl.where(d == 0, 1, d)))\n"
        "    return tl.where((u == float(\"inf\")) | (u == 0), tl.log(u), exact)\n"
    ),
    "tanh": (
        "def tanh(x):\n"
        "    a = tl.abs(x)\n"
        "    e = expm1(-2 * a)\n"
        "    r = -e / (e + 2)\n"
        "    return tl.where(x < 0, -r, r)\n"
    ),
    # For results of 16 bits: within 2e-7, and of a size below 0.01 within 1e-4 of it. The first is 1 - 2^(-x R(x)), R
    # fitted to erf on [0, 4] by weighted least squares.
    "erf_16": (
        "def erf_16(x):\n"
        "    a = minimum(tl.abs(x), 4.0)\n"
        "    r = ((((-0.00010021958 * a + 0.00046156361) * a + 0.0023022599) * a - 0.029452538) * a + 0.14896367) * a\n"
        "    r = 1 - flushed_exp2(-a * ((r + 0.91832864) * a + 1.6279137))\n"
        "    return tl.where(a < 0.005, 1.1283792 * x, tl.where(x < 0, -r, r))\n"
    ),
    # For integers of 8 bits, where 1 is added: within 7e-7, by the same form with fewer terms, for every size.
    "erf_8": (
        "def erf_8(x):\n"
        "    a = tl.abs(x)\n"
        "    r = (((0.0029441568 * a - 0.029590039) * a + 0.14866562) * a + 0.91850936) * a + 1.627889\n"
        "    r = 1 - flushed_exp2(-a * r)\n"
        "    sign = x.to(tl.int32, bitcast=True) & -2147483648\n"
        "    return (r.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)\n"
    ),
    # 2^x, or 0 where that is below the normal numbers: one instruction.
    "flushed_exp2": (
        "def flushed_exp2(x):\n"
        "    if INTERPRETED:\n"
        "        r = tl.exp2(x)\n"
        "    else:\n"
        "        r = tl.inline_asm_elementwise(\n"
        "            'ex2.approx.ftz.f32 $0, $1;', '=f,f', [x], dtype=tl.float32, is_pure=True, pack=1)\n"
        "    return r\n"
    ),
    "tanh_16": (
        "def tanh_16(x):\n"
        "    r = 1 - 2 / (flushed_exp2(x * 2.8853900817779268) + 1)\n"
        "    return tl.where(tl.abs(x) < 0.01, x, r)\n"
    ),
    "sigmoid": "def sigmoid(x):\n    return 1 / (1 + tl.exp(-x))\n",
    "sinh": (
        "def sinh(x):\n"
        "    a = tl.abs(x)\n"
        "    e = expm1(minimum(a, 40))\n"
        "    h = tl.exp(a * 0.5)\n"
        "    r = tl.where(a < 40, 0.5 * (e + e / (e + 1)), 0.5 * h * h)\n"
        "    return tl.where(x < 0, -r, r)\n"
    ),
    "cosh": "def cosh(x):\n    h = tl.exp(tl.abs(x) * 0.5)\n    return 0.5 * h * h + 0.5 / h / h\n",
    "tan": "def tan(x):\n    return tl.sin(x) / tl.cos(x)\n",
    "asinh": (
        "def asinh(x):\n"
        "    a = tl.abs(x)\n"
        "    big = tl.log(a) + 0.6931471805599453\n"
        "    b = minimum(a, 1e9)\n"
        "    r = tl.where(a > 1e9, big, log1p(b + b * b / (1 + tl.sqrt(b * b + 1))))\n"
        "    return tl.where(x < 0, -r, r)\n"
    ),
    "acosh": (
        "def acosh(x):\n"
        "    t = minimum(x, 1e9) - 1\n"
        "    return tl.where(x > 1e9, tl.log(x) + 0.6931471805599453, log1p(t + tl.sqrt(2 * t + t * t)))\n"
    ),
    "atanh": "def atanh(x):\n    return 0.5 * log1p(2 * x / (1 - x))\n",
    "atan": (
        # Reduction to [0, tan(pi/8)] and the odd polynomial of Cephes' atanf (Moshier).
        "def atan(x):\n"
        "    a = tl.abs(x)\n"
        "    big = a > 2.414213562373095\n"
        "    middle = (a > 0.4142135623730951) & (a <= 2.414213562373095)\n"
        "    t = tl.where(big, -1 / tl.where(a == 0, 1, a), tl.where(middle, (a - 1) / (a + 1), a))\n"
        "    y = tl.where(big, 1.5707963267948966, tl.where(middle, 0.7853981633974483, 0.0))\n"
        "    z = t * t\n"
        "    p = ((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1\n"
        "    p = p * z * t + t\n"
        "    r = y + p\n"
        "    r = tl.where(a == float(\"inf\"), 1.5707963267948966, r)\n"
        "    return tl.where(x < 0, -r, r)\n"
    ),
    "asin": "def asin(x):\n    return 2 * atan(x / (1 + tl.sqrt((1 - x) * (1 + x))))\n",
    "acos": "def acos(x):\n    return 1.5707963267948966 - asin(x)\n",
    "power": (
        "def power(a, b):\n"
        "    whole = tl.floor(b) == b\n"
        "    odd = whole & ((b - 2 * tl.floor(b * 0.5)) != 0)\n"
        "    m = tl.exp2(b * tl.log2(tl.abs(a)))\n"
        "    r = tl.where(((a < 0) | ((a == 0) & (1 / a < 0))) & odd, -m, m)\n"
        "    r = tl.where((a < 0) & (whole == 0), float(\"nan\"), r)\n"
        "    r = tl.where(tl.abs(b) == float(\"inf\"), m, r)\n"
        "    return tl.where((b == 0) | (a == 1), 1.0, r)\n"
    ),
    "power_integer": (
        "def power_integer(a, b):\n"
        "    r = a * 0 + 1\n"
        "    left = b\n"
        "    base = a\n"
        "    for _ in range(0, 64):\n"
        "        r = tl.where((left & 1) != 0, r * base, r)\n"
        "        base = base * base\n"
        "        left = tl.where(left > 0, left >> 1, 0).to(left.dtype)\n"
        "    return tl.where(b < 0, tl.where(a == 1, 1, tl.where(a == -1, 1 - 2 * (b & 1), 0)), r).to(a.dtype)\n"
    ),
}  # fmt: skip
NATIVE: Mapping[str, Mapping[str, str]] = {
    "exact": {
        # One step of correction gives the last bit (Markstein, 1990), unless what is left over has no such bits: then
        # the quotient is below 2^-40.
        "quotient_by": (
            "def quotient_by(a, c, r):\n"
            "    q = a * r\n"
            "    return tl.where(tl.abs(q) < 1e30, tl.fma(tl.fma(-q, c, a), r, q), q)\n"
        ),
    },
    "float8": {
        "decode_f8e4m3": "def decode_f8e4m3(x):\n    return x.to(tl.float8e4nv, bitcast=True).to(tl.float32)\n",
        # The instruction gives the largest number for what is beyond it.
        "encode_f8e4m3": (
            "def encode_f8e4m3(x):\n"
            "    x = x.to(tl.float32)\n"
            "    code = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)\n"
            "    return tl.where(tl.abs(x) > 464.0, 127, code).to(tl.uint8)\n"
        ),
        "saturated_f8e4m3": (
            "def saturated_f8e4m3(x):\n    return x.to(tl.float32).to(tl.float8e4nv).to(tl.uint8, bitcast=True)\n"
        ),
    },
}
"""The texts of helpers by the feature of a target, or of a build, that they need."""

_NEEDS: Mapping[str, tuple[str, ...]] = {
    name: tuple(other for other in HELPERS if other != name and re.search(rf"\b{other}\(", text))
    for name, text in HELPERS.items()
}


def helper_text(used: Sequence[str], features: Collection[str] = ()) -> str:
    """The helpers that a text uses, with those that they use, each behind what it needs; `features`: of the target."""
    native = {name: text for feature in features for name, text in NATIVE.get(feature, {}).items()}
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in order:
            for other in _NEEDS[name]:
                visit(other)
            order[name] = None

    for name in sorted(used):
        visit(name)
    return "".join(f"@triton.jit\n{native.get(name, HELPERS[name])}\n\n" for name in order)


def used_helpers(text: str) -> list[str]:
    """The names of helpers that a kernel's text calls or passes on."""
    return [name for name in HELPERS if re.search(rf"(?<![.\w]){name}\b", text)]


def call(expr: Expr, operands: Sequence[str], is_narrow: bool = False, bits: int = 32) -> str:
    """A FUNCTIONS entry applied to values in registers.

    `is_narrow`: all is rounded to 16 bits; `bits`: 16 if it is rounded to so many or to floats of 8 bits, 8 if to
    integers of 8 bits, where each last bit of a quotient decides.
    """
    name = expr.op
    narrow = min((n for n, names in _OF_NARROW.items() if n >= bits and name in names), default=None)
    if narrow is not None and register_dtype(expr.dtype) == F32:
        return f"{name}_{narrow}({operands[0]})"
    of = register_dtype(expr.args[-1].dtype)
    if name == "cast":
        return convert(expr.args[0].dtype, expr.dtype, operands[0])
    if name == "select":
        return f"tl.where({', '.join(operands)})"
    if of.is_bool:
        if name in _TRUTH_ORDER:
            return _TRUTH_ORDER[name].format(*operands)
        if name == "not":
            return f"not_({operands[0]})"
        if name in _OF_TRUTH:
            return f"({operands[0]} {_OF_TRUTH[name]} {operands[1]})"
        raise CompilerError(f"{name} has no meaning for bool")
    for table in (_COMPARISONS, _OPERATORS, _BITS):
        if name in table:
            return f"({operands[0]} {table[name]} {operands[1]})"
    if name == "neg":
        return f"(-{operands[0]})"
    if name == "not":
        return f"(~{operands[0]})"
    if name == "shl":
        return f"({operands[0]} << {operands[1]})"
    if name == "shr":
        return f"({operands[0]} >> {operands[1]})"
    if name == "sign":
        return f"sign({operands[0]})"
    if of.is_integer:
        return _integer_call(name, operands)
    if not is_narrow and name in _EXACT and any(arg.op != "const" for arg in expr.args):  # numbers are Python's
        return f"{_EXACT[name]}({', '.join(operands)})"
    return _float_call(name, of, operands)


def scaled(expr: Expr, operand: str) -> str | None:
    """What a number is quantized from, its quotient by a constant of middling size; None for what is none.

    `expr`: the quotient. It is right to the last bit in exact builds; in others a product with the reciprocal.
    """
    if expr.op != "div" or expr.dtype != F32 or expr.args[1].op != "const":
        return None
    scale = np.float32(expr.args[1].payload)
    if not 2.0**-60 <= abs(scale) <= 2.0**60:
        return None
    return f"quotient_by({operand}, {float(scale)!r}, {float(np.float32(1) / scale)!r})"


def _integer_call(name: str, operands: Sequence[str]) -> str:
    if name in ("floor", "ceil", "round", "trunc"):
        return operands[0]
    if name in ("isnan", "isinf"):
        return f"({operands[0]} != {operands[0]})"
    if name in ("min", "max"):
        return f"tl.{name}imum({', '.join(operands)})"
    if name == "abs":
        return f"tl.abs({operands[0]})"
    if name == "div":
        return f"divide_integer({', '.join(operands)})"
    if name == "fmod":
        return f"rest_integer({', '.join(operands)})"
    if name in ("floordiv", "mod"):
        return f"{name}({', '.join(operands)})"
    if name == "pow":
        return f"power_integer({', '.join(operands)})"
    raise CompilerError(f"the CUDA backend has no {name} of integers")


def _float_call(name: str, of: DType, operands: Sequence[str]) -> str:
    if name == "div":
        return f"({operands[0]} / {operands[1]})"
    if name == "isnan":
        return f"({operands[0]} != {operands[0]})"
    if name == "isinf":
        return f'(tl.abs({operands[0]}) == float("inf"))'
    if name in ("min", "max"):
        return f"{name}imum({', '.join(operands)})"
    if name == "pow":
        return f"power({', '.join(operands)})"
    if name == "round":
        return f"round_even({operands[0]})"
    if name in ("floordiv", "mod", "fmod"):
        return f"{name}_float({', '.join(operands)})"
    if name in _OF_LANGUAGE:
        return f"{_OF_LANGUAGE[name]}({operands[0]})"
    if name in HELPERS:
        return f"{name}({operands[0]})"
    raise CompilerError(f"the CUDA backend has no {name} of {of}")


def convert(source: DType, target: DType, text: str) -> str:
    """A value as another dtype, rounded as the dtype says, in its register type."""
    if target.is_bool:
        return text if source.is_bool else f"({text} != 0)"
    if target in FLOAT8:
        return f"decode_{target.name}({encoded(target, text)})"
    if target in (F16, BF16):
        return f"({text}).to({memory_type(target)}).to(tl.float32)"
    if register_dtype(source) == register_dtype(target):
        return text
    return f"({text}).to({register_type(target)})"


def bounded_byte(expr: Expr) -> tuple[Expr, int] | None:
    """What is rounded, and the zero point, of an expression that is a quantized integer of 8 bits; None of others.

    That is: round(x), with a constant zero point added, bounded by the type's range, and the zero point for NaN.
    """
    if expr.op != "cast" or expr.dtype not in (I8, U8) or expr.args[0].op != "select":
        return None
    is_nothing, nothing, bounded = expr.args[0].args
    low = -128 if expr.dtype == I8 else 0
    if is_nothing != call_of("isnan", bounded) or nothing.op != "const":
        return None
    whole = _between(bounded, low, low + 255)
    if whole is None or whole.dtype != F32:
        return None
    zero = int(nothing.payload)
    if whole.op == "add" and whole.args[1] == nothing:
        whole = whole.args[0]
    elif zero:
        return None
    return (whole.args[0], zero) if whole.op == "round" else None


def bounded_float8(expr: Expr) -> Expr | None:
    """What an expression is before it is bounded by the range of f8e4m3; None of others."""
    return _between(expr, -448, 448) if expr.dtype == F32 else None


def _between(expr: Expr, low: int, high: int) -> Expr | None:
    """What is bounded by two constants; None of what is not."""
    if expr.op != "max" or expr.args[0].op != "min":
        return None
    bounds = (expr.args[1], expr.args[0].args[1])
    are_these = all(b.op == "const" and b.payload == wanted for b, wanted in zip(bounds, (low, high), strict=True))
    return expr.args[0].args[0] if are_these else None


def encoded(target: DType, text: str) -> str:
    """A value in registers as the byte of a float of 8 bits."""
    return f"encode_{target.name}({text})"
