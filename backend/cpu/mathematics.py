"""Elementary functions as C text: own polynomials, no library.

Single precision: minimax fits, 1 to 4 ulp. Double precision: series with enough terms for 1e-14 or
so. Coefficients are literals, so that every build host makes the same code. Special values follow
C99 Annex F (checked by tests/backend/test_math.py against numpy).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from aot.backend.cpu.isa import Isa

_EXP = (0.5, 0.166665181517601, 0.04166620597243309, 0.008368889801204205, 0.001395049155689776)
_EXPM1 = (
    0.5, 0.1666666716337204, 0.04166635498404503, 0.008333273231983185, 0.0013941008364781737, 0.00019914170843549073,
)  # fmt: skip
_LOG = (
    0.33333316445350647, -0.25000810623168945, 0.2000228613615036, -0.16624553501605988,
    0.14181192219257355, -0.13128754496574402, 0.12881647050380707, -0.07859611511230469,
)  # fmt: skip
_ATAN = (
    -0.33333301544189453, 0.19998638331890106, -0.1426524519920349, 0.10957576334476471, -0.08419458568096161,
    0.05823454260826111, -0.031455691903829575, 0.011064435355365276, -0.0018272115848958492,
)  # fmt: skip
_ASIN = (0.16666753590106964, 0.07495241612195969, 0.04547709971666336, 0.024147601798176765, 0.042218565940856934)
# erf(x) = x P(x²) / Q(x²) for |x| <= 3.92, 1.9e-8 relative; beyond, it rounds to 1.
_ERF_P = (
    1.1283791065216064, 0.19040729105472565, 0.05274883657693863, 0.003765653818845749, 0.00028488386305980384,
    2.050084958682419e-06,
)  # fmt: skip
_ERF_Q = (
    1.0, 0.5020768046379089, 0.11410945653915405, 0.014969290234148502, 0.0011625450570136309, 3.809174813795835e-05,
)  # fmt: skip
# tanh(x) = x P(x²) / Q(x²) for |x| <= 9.02, 2.1e-8 relative; beyond, it rounds to 1.
_TANH_P = (1.0, 0.13379718363285065, 0.0034940342884510756, 2.058347854472231e-05, 1.3319069402939476e-08)
# At these the rational forms come out two units above 1, so that the clamp makes all beyond exactly 1.
_ERF_LIMIT = 3.9210710525512695
_TANH_LIMIT = 9.019681930541992
_TANH_Q = (1.0, 0.4671303331851959, 0.025871071964502335, 0.00032830925192683935, 7.762018299217743e-07)
# exp(x²) erfc(x) for 1 <= x <= 6, in t = (x - 3) / (x + 3); 4e-15 relative.
_ERFC = (
    0.17900115118139007, -0.3262335600430392, 0.24560380171232243, -0.15011593650023203, 0.07166583720048715,
    -0.024392499369378613, 0.004269136126734019, 0.0007077483723962265, -0.0005970538935774982, 4.522028153560364e-05,
    6.388714725369439e-05, -1.2584554622553201e-05, -6.036200698955404e-06, 2.0705908747997146e-06,
    -9.862979787625247e-06, -1.19459858653911e-05, 2.1254501430989287e-05, 4.774557862579254e-05,
    2.5166009567606835e-05,
)  # fmt: skip

_PI_BITS = 1400
_SINGLE = re.compile(r"-?(\d[\w.+-]*|__builtin_\w+\([^()]*\))")


def _pi_scaled(bits: int) -> int:
    """floor(pi * 2**bits), by Machin's formula in integers."""

    def arctan_inverse(n: int, one: int) -> int:
        total = term = one // n
        k = 1
        while term:
            term //= -n * n
            total += term // (2 * k + 1)
            k += 1
        return total

    one = 1 << (bits + 64)
    return (4 * (4 * arctan_inverse(5, one) - arctan_inverse(239, one))) >> 64


def _half_pi_parts(bits: int) -> tuple[float, float, float]:
    """pi / 2 as a sum whose first two parts have `bits` bits, so that multiples of them are exact."""
    scale = 160
    rest = _pi_scaled(scale) >> 1
    parts: list[float] = []
    for _ in range(2):
        shift = rest.bit_length() - bits
        top = (rest >> shift) << shift
        parts.append(math.ldexp(float(top >> shift), shift - scale))
        rest -= top
    return parts[0], parts[1], math.ldexp(float(rest), -scale)


def _two_over_pi_words() -> list[int]:
    """Bits of 2 / pi after the binary point, 64 zero bits before them, in 64-bit words."""
    words = 20
    bits = 64 * (words - 1)
    value = (1 << (_PI_BITS + 1 + bits)) // _pi_scaled(_PI_BITS)
    return [0] + [(value >> (bits - 64 * (i + 1))) & ((1 << 64) - 1) for i in range(words - 1)]


class _Precision:
    """Names and constants of one floating type."""

    def __init__(self, name: str) -> None:
        single = name == "f32"
        self.name = name
        self.vector = f"v_{name}"
        self.integer = "i32" if single else "i64"
        self.suffix = "f" if single else ""
        self.infinity = f"__builtin_inf{self.suffix}()"
        self.nan = f'__builtin_nan{self.suffix}("")'

    def number(self, value: float) -> str:
        return f"{value!r}{self.suffix}"

    def poly(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's scheme, lowest coefficient first."""
        text = f"splat_{self.name}({self.number(coefficients[-1])})"
        for coefficient in reversed(coefficients[:-1]):
            text = f"({text} * {x} + {self.number(coefficient)})"
        return text

    def mask(self, comparison: str) -> str:
        """A lane mask (i32) from a comparison of blocks."""
        return f"(v_i32)({comparison})" if self.name == "f32" else f"__builtin_convertvector({comparison}, v_i32)"

    def select(self, condition: str, if_true: str, if_false: str) -> str:
        def block(text: str) -> str:
            return f"splat_{self.name}({text})" if _SINGLE.fullmatch(text) else text

        return f"select_{self.name}({self.mask(condition)}, {block(if_true)}, {block(if_false)})"

    def clamp(self, x: str, lower: float, upper: float) -> str:
        low, high = (f"splat_{self.name}({self.number(v)})" for v in (lower, upper))
        return f"min_ordered_{self.name}({high}, max_ordered_{self.name}({low}, {x}))"

    def define(self, name: str, lines: Sequence[str], args: Sequence[str] = ("x",)) -> str:
        """A function of blocks: statements, the last one the result."""
        head = f"static {self.vector} {name}_{self.name}({', '.join(f'{self.vector} {a}' for a in args)}) {{\n"
        body = "".join(f"  {line};\n" for line in lines[:-1])
        return f"{head}{body}  return {lines[-1]};\n}}\n"


def math_functions(isa: Isa) -> str:
    """The text of every function, each starting a line with `static`."""
    out: list[str] = []
    for precision in (_Precision("f32"), _Precision("f64")):
        out += _exponentials(precision, isa)
        out += _logarithms(precision)
        out += _error_function(precision)
        out += _inverse_circular(precision)
        out += _derived(precision)
    out += _circular(isa)
    out += _powers()
    out += _remainders()
    return "".join(out)


def _inverse_factorials(first: int, count: int) -> list[float]:
    return [1.0 / math.factorial(first + i) for i in range(count)]


def _exponentials(p: _Precision, isa: Isa) -> list[str]:
    v, t = p.vector, p.name
    single = t == "f32"
    magic = p.number(12582912.0 if single else 6755399441055744.0)
    lowest, highest, lowest_m1 = (-104.0, 89.0, -20.0) if single else (-746.0, 710.0, -40.0)
    high, low = (0.693359375, -2.12194440054690583e-4) if single else (0.6931471803691238, 1.9082149292705877e-10)
    bias, shift = (127, 23) if single else (1023, 52)
    log2e = p.number(1.4426950408889634)
    scale = (
        f"static {v} scale_{t}({v} x, {v} n) {{\n"
        f"  const v_{p.integer} k = __builtin_convertvector(n, v_{p.integer}), half = k >> 1;\n"
        f"  return x * ({v})((half + {bias}) << {shift}) * ({v})((k - half + {bias}) << {shift});\n}}\n"
    )
    if single and isa.is_wide:
        scale = (
            f'static {v} scale_{t}({v} x, {v} n) {{ {v} r; __asm__("vscalefps %2, %1, %0" : "=v"(r) : "v"(x), "v"(n));'
            " return r; }\n"
        )
    reduce = [
        f"const {v} n = (a * {log2e} + {magic}) - {magic}",
        f"const {v} r0 = a - n * {p.number(high)}, r = r0 - n * {p.number(low)}",
    ]
    exp_poly = _EXP if single else _inverse_factorials(2, 12)
    expm1_poly = _EXPM1 if single else _inverse_factorials(2, 13)
    return [
        scale,
        p.define(
            "exp",
            [
                f"const {v} a = {p.clamp('x', lowest, highest)}",
                *reduce,
                f"const {v} q = {p.poly('r', exp_poly)}",
                f"scale_{t}((q * (r * r) + r) + {p.number(1.0)}, n)",
            ],
        ),
        p.define(
            "expm1",
            [
                f"const {v} a = {p.clamp('x', lowest_m1, highest)}",
                *reduce,
                f"const {v} q = {p.poly('r', expm1_poly)}",
                f"const {v} rest = {p.number(1.0)} - scale_{t}(splat_{t}({p.number(1.0)}), -n)",
                f"scale_{t}((q * (r * r) + r) + rest, n)",
            ],
        ),
        p.define(
            "sigmoid",
            [
                f"const {v} z = exp_{t}(-abs_{t}(x))",
                f"{p.select('x < 0', 'z', p.number(1.0))} / ({p.number(1.0)} + z)",
            ],
        ),
    ]


def _logarithms(p: _Precision) -> list[str]:
    v, t, i = p.vector, p.name, p.integer
    single = t == "f32"
    tiny, lift, lifted = (
        ("1.17549435e-38f", "8388608.0f", 23) if single else ("2.2250738585072014e-308", "4503599627370496.0", 52)
    )
    root, shift = ("0x3f3504f3", 23) if single else ("0x3fe6a09e667f3bcdLL", 52)
    high, low = (0.693359375, -2.12194440054690583e-4) if single else (0.6931471803691238, 1.9082149292705877e-10)
    if single:
        body = [
            f"const {v} z = f * f",
            f"const {v} y0 = f * z * {p.poly('f', _LOG)} + e * {p.number(low)}",
            f"const {v} y = (y0 - {p.number(0.5)} * z) + f + e * {p.number(high)}",
        ]
    else:
        series = [1.0 / (2 * k + 3) for k in range(12)]
        body = [
            f"const {v} s = f / (2.0 + f), z = s * s",
            f"const {v} h = 0.5 * f * f",
            f"const {v} y0 = s * (h + 2.0 * z * {p.poly('z', series)}) + e * {p.number(low)}",
            f"const {v} y = (y0 - h) + f + e * {p.number(high)}",
        ]
    return [
        p.define(
            "log",
            [
                f"const v_{i} small = (v_{i})(x < {tiny})",
                f"const v_{i} up = (v_{i})splat_{t}({lift}), as_is = (v_{i})splat_{t}({p.number(1.0)})",
                f"const v_{i} b = (v_{i})(x * ({v})((small & up) | (~small & as_is)))",
                f"const v_{i} k = (b - {root}) >> {shift}",
                f"const {v} f = ({v})(b - (k << {shift})) - {p.number(1.0)}",
                f"const {v} e = __builtin_convertvector(k - (small & {lifted}), {v})",
                *body,
                f"const {v} special = {p.select('x == 0', f'-{p.infinity}', p.select('x < 0', p.nan, 'x'))}",
                f"select_{t}({p.mask('x > 0')} & {p.mask(f'x < {p.infinity}')}, y, special)",
            ],
        ),
        p.define(
            "log1p",
            [
                f"const {v} u = {p.number(1.0)} + x, y = log_{t}(u)",
                f"const {v} ratio = {p.select(f'x > {p.number(1e18)}', p.number(1.0), f'(x / (u - {p.number(1.0)}))')}",
                p.select(f"u == {p.number(1.0)}", "x", "(y * ratio)"),
            ],
        ),
    ]


def _error_function(p: _Precision) -> list[str]:
    v, t = p.vector, p.name
    if t == "f32":
        result = []
        for name, limit, top, bottom in (("erf", _ERF_LIMIT, _ERF_P, _ERF_Q), ("tanh", _TANH_LIMIT, _TANH_P, _TANH_Q)):
            lines = [
                f"const {v} a = {p.clamp('x', -limit, limit)}, z = a * a",
                f"const {v} y = a * {p.poly('z', top)} / {p.poly('z', bottom)}",
                p.clamp("y", -1.0, 1.0),
            ]
            result.append(p.define(name, lines))
        return result
    series = [2.0 / math.sqrt(math.pi) * (-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(19)]
    return [
        p.define(
            "erf",
            [
                f"const {v} a = min_f64(abs_f64(x), splat_f64(6.0)), z = a * a",
                f"const {v} s = (a - 3.0) / (a + 3.0)",
                f"const {v} large = 1.0 - exp_f64(-z) * {p.poly('s', _ERFC)}",
                f"const {v} small = a * {p.poly('z', series)}",
                f"copysign_f64({p.select('a < 1.0', 'small', 'large')}, x)",
            ],
        ),
        p.define(
            "tanh",
            [
                f"const {v} e = expm1_f64(2.0 * min_f64(abs_f64(x), splat_f64(20.0)))",
                "copysign_f64(e / (e + 2.0), x)",
            ],
        ),
    ]


def _inverse_circular(p: _Precision) -> list[str]:
    v, t, one = p.vector, p.name, p.number(1.0)
    half, pi = p.number(math.pi / 2), p.number(math.pi)
    if t == "f32":
        arctangent = [
            f"const {v} a = abs_{t}(x)",
            f"const {v} u = {p.select(f'a > {one}', f'({one} / a)', 'a')}, z = u * u",
            f"const {v} y = u * z * {p.poly('z', _ATAN)} + u",
            f"copysign_{t}({p.select(f'a > {one}', f'({half} - y)', 'y')}, x)",
        ]
        arcsine = list(_ASIN)
    else:
        series = [(-1.0) ** (k + 1) / (2 * k + 3) for k in range(21)]
        arctangent = [
            f"const {v} a = abs_{t}(x)",
            f"const {v} w = {p.select(f'a > {one}', f'({one} / a)', 'a')}",
            f"const {v} far = {p.select('w > 0.41421356237309503', one, '0.0')}",
            f"const {v} u = (w - far) / ({one} + w * far), z = u * u",
            f"const {v} y = (u * z * {p.poly('z', series)} + u) + far * {p.number(math.pi / 4)}",
            f"copysign_{t}({p.select(f'a > {one}', f'({half} - y)', 'y')}, x)",
        ]
        arcsine = [math.comb(2 * k, k) / 4.0**k / (2 * k + 1) for k in range(1, 28)]
    core = [
        f"const {v} a = abs_{t}(x), w = ({one} - a) * {p.number(0.5)}",
        f"const {v} z = {p.select(f'a > {p.number(0.5)}', 'w', '(a * a)')}",
        f"const {v} u = {p.select(f'a > {p.number(0.5)}', f'sqrt_{t}(w)', 'a')}",
        f"const {v} y = u * z * {p.poly('z', arcsine)} + u",
    ]
    positive = p.select("x < 0", f"({pi} - {p.number(2.0)} * y)", f"({p.number(2.0)} * y)")
    return [
        p.define("atan", arctangent),
        p.define(
            "asin",
            [*core, f"copysign_{t}({p.select(f'a > {p.number(0.5)}', f'({half} - {p.number(2.0)} * y)', 'y')}, x)"],
        ),
        p.define("acos", [*core, p.select(f"a > {p.number(0.5)}", positive, f"({half} - copysign_{t}(y, x))")]),
    ]


def _derived(p: _Precision) -> list[str]:
    v, t, one, two, half = p.vector, p.name, p.number(1.0), p.number(2.0), p.number(0.5)
    huge = p.number(1e9 if t == "f32" else 1e18)
    log2 = p.number(math.log(2.0))
    return [
        p.define(
            "sinh",
            [
                f"const {v} a = abs_{t}(x), e = expm1_{t}(a), h = exp_{t}({half} * a)",
                f"const {v} near = {half} * (e + e / (e + {one}))",
                f"const {v} y = {p.select(f'a > {p.number(20.0)}', f'({half} * h * h)', 'near')}",
                f"copysign_{t}(y, x)",
            ],
        ),
        p.define("cosh", [f"const {v} h = exp_{t}({half} * abs_{t}(x))", f"({half} * h) * h + {half} / (h * h)"]),
        p.define(
            "asinh",
            [
                f"const {v} a = abs_{t}(x), s = a * a",
                f"const {v} y = log1p_{t}(a + s / ({one} + sqrt_{t}(s + {one})))",
                f"copysign_{t}({p.select(f'a > {huge}', f'(log_{t}(a) + {log2})', 'y')}, x)",
            ],
        ),
        p.define(
            "acosh",
            [
                f"const {v} a = x - {one}, y = log1p_{t}(a + sqrt_{t}({two} * a + a * a))",
                f"const {v} far = {p.select(f'x > {huge}', f'(log_{t}(x) + {log2})', 'y')}",
                p.select(f"x < {one}", p.nan, "far"),
            ],
        ),
        p.define(
            "atanh",
            [f"const {v} a = abs_{t}(x)", f"copysign_{t}({half} * log1p_{t}({two} * a / ({one} - a)), x)"],
        ),
    ]


def _circular(isa: Isa) -> list[str]:
    words = ", ".join(f"{word:#x}ULL" for word in _two_over_pi_words())
    out = [
        # Payne and Hanek: |x| times 2/pi modulo 4 in integers, exact to 2**-128.
        "static f64 quarter_f64(f64 x, i64 *quadrant) {\n"
        f"  static const u64 words[] = {{{words}}};\n"
        "  union { f64 f; u64 u; } b; b.f = x;\n"
        "  const i32 e = (i32)((b.u >> 52) & 2047);\n"
        '  if (e == 2047) { *quadrant = 0; return __builtin_nan(""); }\n'
        "  const u64 m = (b.u & 0xfffffffffffffULL) | 0x10000000000000ULL;\n"
        "  const i32 first = e - 1075 + 62, at = first >> 6, by = first & 63;\n"
        "  const u64 w2 = by ? words[at] << by | words[at + 1] >> (64 - by) : words[at];\n"
        "  const u64 w1 = by ? words[at + 1] << by | words[at + 2] >> (64 - by) : words[at + 1];\n"
        "  const u64 w0 = by ? words[at + 2] << by | words[at + 3] >> (64 - by) : words[at + 2];\n"
        "  const unsigned __int128 p0 = (unsigned __int128)m * w0, p1 = (unsigned __int128)m * w1 + (u64)(p0 >> 64);\n"
        "  const u64 r1 = (u64)p1, r2 = m * w2 + (u64)(p1 >> 64);\n"
        "  const i64 high = (i64)(r2 << 2 | r1 >> 62); const u64 low = r1 << 2 | (u64)p0 >> 62;\n"
        "  i64 q = (i64)(r2 >> 62) + (high < 0);\n"
        "  f64 r = ((f64)high + (f64)low * 5.421010862427522e-20) * 5.421010862427522e-20 * 1.5707963267948966;\n"
        "  if (x < 0) { q = -q; r = -r; }\n"
        "  *quadrant = q; return r;\n}\n",
        "static i32 any_bool(v_i32 m) {\n  i32 r = 0; for (u32 i = 0; i < sizeof(m) / 4; i++) r |= m[i]; return r; }\n",
    ]
    for p in (_Precision("f32"), _Precision("f64")):
        v, t, i, one = p.vector, p.name, p.integer, p.number(1.0)
        single = t == "f32"
        magic = p.number(12582912.0 if single else 6755399441055744.0)
        parts = (1.5703125, 4.837512969970703125e-4, 7.54978994687395e-8) if single else _half_pi_parts(33)
        limit = p.number(30000.0 if single else 500000.0)
        terms = 4 if single else 8
        sine = [(-1.0) ** (k + 1) / math.factorial(2 * k + 3) for k in range(terms)]
        cosine = [(-1.0) ** k / math.factorial(2 * k + 4) for k in range(terms)]
        out.append(
            f"static {v} turn_{t}({v} x, v_{i} *quadrant) {{\n"
            f"  const {v} n = (x * {p.number(2 / math.pi)} + {magic}) - {magic};\n"
            f"  {v} r = ((x - n * {p.number(parts[0])}) - n * {p.number(parts[1])}) - n * {p.number(parts[2])};\n"
            f"  v_{i} q = __builtin_convertvector(n, v_{i});\n"
            f"  const v_i32 far = {p.mask(f'abs_{t}(x) > {limit}')};\n"
            f"  if (__builtin_expect(any_bool(far), 0))\n"
            f"    for (i32 l = 0; l < {isa.lanes}; l++)\n"
            f"      if (far[l]) {{ i64 k; r[l] = ({t})quarter_f64(x[l], &k); q[l] = ({i})k; }}\n"
            f"  *quadrant = q; return r;\n}}\n"
            f"static {v} sine_{t}({v} r, v_{i} q) {{\n"
            f"  const {v} z = r * r, s = r * z * {p.poly('z', sine)} + r;\n"
            f"  const {v} c = z * z * {p.poly('z', cosine)} + ({one} - {p.number(0.5)} * z);\n"
            f"  const v_{i} odd = -(q & 1);\n"
            f"  const {v} r1 = ({v})(((v_{i})c & odd) | ((v_{i})s & ~odd));\n"
            f"  return r1 * ({one} - __builtin_convertvector(q & 2, {v}));\n}}\n"
        )
        out.append(p.define("sin", [f"v_{i} q", f"const {v} r = turn_{t}(x, &q)", f"sine_{t}(r, q)"]))
        out.append(p.define("cos", [f"v_{i} q", f"const {v} r = turn_{t}(x, &q)", f"sine_{t}(r, q + 1)"]))
        out.append(
            p.define("tan", [f"v_{i} q", f"const {v} r = turn_{t}(x, &q)", f"sine_{t}(r, q) / sine_{t}(r, q + 1)"])
        )
    return out


def _powers() -> list[str]:
    p = _Precision("f64")
    lines = [
        "const v_f64 a = abs_f64(x), raw = y * log_f64(a)",
        "const v_i64 whole = (v_i64)(y == trunc_f64(y)), odd = whole & ~(v_i64)(0.5 * y == trunc_f64(0.5 * y))",
        "const v_i64 one = (v_i64)(y == 0) | (v_i64)(x == 1.0), unit = one | (v_i64)(a == 1.0)",
        "const v_f64 r = exp_f64((v_f64)((v_i64)raw & ~unit))",
        "const v_i64 sign = (v_i64)x & odd & (-0x7fffffffffffffffLL - 1)",
        "const v_i64 bad = (v_i64)(x < 0) & (v_i64)(a < __builtin_inf()) & ~whole & ~one & (v_i64)(y == y)"
        " & (v_i64)(abs_f64(y) < __builtin_inf())",
        "const v_i64 lost = ((v_i64)(x != x) | (v_i64)(y != y)) & ~one",
        '(v_f64)((((v_i64)r | (sign & ~one)) & ~(bad | lost)) | ((v_i64)splat_f64(__builtin_nan("")) & (bad | lost)))',
    ]
    single = _Precision("f32")
    widen = "pow_f64(__builtin_convertvector(x, v_f64), __builtin_convertvector(y, v_f64))"
    return [
        p.define("pow", lines, ("x", "y")),
        single.define("pow", [f"__builtin_convertvector({widen}, v_f32)"], ("x", "y")),
    ]


def _remainders() -> list[str]:
    out = [
        # Exact: subtracts the largest y 2**k that fits, each difference being a double.
        "static f64 remainder_f64(f64 x, f64 y) {\n"
        "  f64 a = __builtin_fabs(x); const f64 b = __builtin_fabs(y);\n"
        '  if (!(b > 0) || !(a < __builtin_inf())) return __builtin_nan("");\n'
        "  union { f64 f; u64 u; } step, top;\n"
        "  while (a >= b) {\n"
        "    step.f = b; top.f = a;\n"
        "    if (step.u >> 52) {\n"
        "      step.u += ((top.u >> 52) - (step.u >> 52)) << 52;\n"
        "      if (step.f > a) step.u -= 1ULL << 52;\n"
        "      if (!(step.u >> 52)) step.f = b;\n"
        "    }\n"
        "    a -= step.f;\n"
        "  }\n"
        "  return x < 0 || (x == 0 && 1 / x < 0) ? -a : a;\n}\n",
        "static f64 modulo_f64(f64 x, f64 y) {\n"
        "  const f64 r = remainder_f64(x, y);\n"
        "  return r == 0 ? (y < 0 ? -0.0 : 0.0) : (r < 0) != (y < 0) ? r + y : r;\n}\n",
        "static f64 quotient_f64(f64 x, f64 y) {\n"
        "  if (y == 0) return x / y;\n"
        "  const f64 d = (x - modulo_f64(x, y)) / y;\n"
        "  const f64 q = floor_f64(splat_f64(d))[0];\n"
        "  return d - q > 0.5 ? q + 1 : q;\n}\n",
    ]
    for p in (_Precision("f32"), _Precision("f64")):
        for name, one in (("fmod", "remainder"), ("mod", "modulo"), ("floordiv", "quotient")):
            loop = f"for (u32 i = 0; i < sizeof(r) / sizeof(r[0]); i++) r[i] = ({p.name}){one}_f64(x[i], y[i])"
            out.append(p.define(name, [f"{p.vector} r", loop, "r"], ("x", "y")))
    return out
