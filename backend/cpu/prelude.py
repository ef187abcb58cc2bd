"""The C text that kernels stand on: types, loads and stores of blocks, conversions, and the parts used.

`assemble` puts before a kernel exactly the functions that it names, and what these name in turn, so
that a kernel compiles in a fraction of a second. No header is included and no library is called.
Functions are named `function_dtype`; `n` variants touch only the first `n` lanes of memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import numpy as np

from aot.backend.cpu.code import NARROW_FLOATS
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.mathematics import math_functions
from aot.backend.cpu.sorting import sort_functions
from aot.backend.cpu.words import word_functions, word_types
from aot.dtypes import BF16, DType

WIDTHS = {"f32": 4, "f64": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8}
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
_DECLARED = re.compile(r"(\w+)\s*\([^;{]*\)\s*\{")
_WORD = re.compile(r"\b[a-z][a-z0-9]*_[a-z0-9_]+\b")

_BASE = """\
typedef float f32; typedef double f64;
typedef __INT8_TYPE__ i8; typedef __INT16_TYPE__ i16; typedef __INT32_TYPE__ i32; typedef __INT64_TYPE__ i64;
typedef __UINT8_TYPE__ u8; typedef __UINT16_TYPE__ u16; typedef __UINT32_TYPE__ u32; typedef __UINT64_TYPE__ u64;
typedef unsigned __int128 u128;
typedef struct {
  void *const *buffers; const i64 *dims; void *scratch; i32 thread; i32 thread_count;
} aot_kernel_args;
__attribute__((visibility("default"))) void KERNEL(const aot_kernel_args *args);
"""


def assemble(body: str, isa: Isa) -> str:
    """A complete source: `body` with the types and functions that it names, directly or not."""
    library = functions(isa)
    needed: set[str] = set()
    stack = [word for word in set(_WORD.findall(body)) if word in library]
    while stack:
        word = stack.pop()
        if word not in needed:
            needed.add(word)
            stack.extend(w for w in set(_WORD.findall(library[word])) if w in library and w != word)
    texts = [text for name, text in library.items() if name in needed]
    return _types(isa) + "".join(texts) + body


def _types(isa: Isa) -> str:
    """v_T: a block in registers. m_T: the same in memory, at any address. h_T: one register of it."""
    lines = [_BASE]
    for name, width in WIDTHS.items():
        size = width * isa.lanes
        lines.append(f"typedef {name} v_{name} __attribute__((vector_size({size})));")
        lines.append(f"typedef {name} m_{name} __attribute__((vector_size({size}), aligned({width}), may_alias));")
    for name in ("f64", "i64", "u64"):
        lines.append(f"typedef {name} h_{name} __attribute__((vector_size({isa.vector_bytes})));")
        lines.append(
            f"typedef {name} hm_{name} __attribute__((vector_size({isa.vector_bytes}), aligned(8), may_alias));"
        )
        lines.append(f"typedef union {{ v_{name} v; h_{name} h[2]; }} hh_{name};")
    if not isa.is_wide:
        lines.append("typedef i64 v_half __attribute__((vector_size(16)));")
        lines.append("typedef i64 v_quads __attribute__((vector_size(32)));")
        lines.append("typedef u8 v_bytes __attribute__((vector_size(32)));")
    return "\n".join([*lines, *word_types(isa)]) + "\n"


@cache
def functions(isa: Isa) -> Mapping[str, str]:
    """Every function of the library by name, each after those it names."""
    text = _memory(isa) + _selection(isa) + _integers() + _rounding(isa) + _conversion(isa) + math_functions(isa)
    text += _folds(isa) + sort_functions() + word_functions(isa)
    result: dict[str, str] = {}
    for part in re.split(r"(?m)^(?=static )", text):
        if part.strip():
            match = _DECLARED.search(part)
            assert match is not None, part
            result[match.group(1)] = "static inline __attribute__((always_inline, unused)) " + part.removeprefix(
                "static "
            )
    return result


def _memory(isa: Isa) -> str:
    lanes = isa.lanes
    out: list[str] = []
    iota = ", ".join(map(str, range(lanes)))
    out.append(f"static v_i64 iota_i64(i64 first) {{ return first + (v_i64){{{iota}}}; }}\n")
    out.append(f"static v_i32 iota_i32(i32 first) {{ return first + (v_i32){{{iota}}}; }}\n")
    for name, width in WIDTHS.items():
        out.append(f"static v_{name} splat_{name}({name} x) {{ return x - (v_{name}){{}}; }}\n")
        out.append(f"static v_{name} load_{name}(const {name} *p) {{ return *(const m_{name} *)p; }}\n")
        out.append(f"static void store_{name}({name} *p, v_{name} v) {{ *(m_{name} *)p = v; }}\n")
        out.append(_partial(isa, name, width))
    out.append("static v_i32 first_bool(i64 n) { return iota_i32(0) < splat_i32((i32)n); }\n")
    out.append(
        "static v_i32 range_bool(i64 lo, i64 hi) {\n"
        "  return (iota_i32(0) >= splat_i32((i32)lo)) & (iota_i32(0) < splat_i32((i32)hi)); }\n"
    )
    out.append("static v_i32 splat_bool(i32 x) { return -x - (v_i32){}; }\n")
    out.append(_bytes(isa))
    # Truth values: bytes 0 and 1 in memory; any other byte counts as true.
    out.append("static i32 get_bool(const u8 *p) { return *p != 0; }\n")
    out.append("static void put_bool(u8 *p, i32 x) { *p = (u8)(x != 0); }\n")
    out.append("static v_i32 mask_bool(v_u8 v) { return widen_i8_i32((v_i8)(v != 0)); }\n")
    out.append("static v_u8 bytes_bool(v_i32 m) { return narrow_i32_u8(m & 1); }\n")
    out.append("static v_i32 load_bool(const u8 *p) { return mask_bool(load_u8(p)); }\n")
    out.append("static v_i32 loadn_bool(const u8 *p, i64 n) { return mask_bool(loadn_u8(p, n)); }\n")
    out.append("static v_i32 loadr_bool(const u8 *p, i64 lo, i64 hi) { return mask_bool(loadr_u8(p, lo, hi)); }\n")
    out.append("static void store_bool(u8 *p, v_i32 m) { store_u8(p, bytes_bool(m)); }\n")
    out.append("static void storen_bool(u8 *p, v_i32 m, i64 n) { storen_u8(p, bytes_bool(m), n); }\n")
    constraint = "v" if isa.is_wide else "x"
    out.append(
        "static v_f32 widen_f16(v_u16 h) { v_f32 r;"
        f' __asm__("vcvtph2ps %1, %0" : "={constraint}"(r) : "{constraint}"(h)); return r; }}\n'
        f'static v_u16 narrow_f16(v_f32 v) {{ v_u16 r; __asm__("vcvtps2ph $0, %1, %0" : "={constraint}"(r) :'
        f' "{constraint}"(v)); return r; }}\n'
    )
    out.append(_widen_bf16(isa))
    if isa.has_bf16:  # takes subnormals for zeros, as do the products of what it makes
        out.append(
            'static v_u16 narrow_bf16(v_f32 v) { v_u16 r; __asm__("vcvtneps2bf16 %1, %0" : "=v"(r) : "v"(v));'
            " return r; }\n"
        )
    else:
        out.append(
            "static v_u16 narrow_bf16(v_f32 v) { const v_u32 b = (v_u32)v; const v_i32 nan = (v_i32)(v != v);\n"
            "  const v_u32 r = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16; const v_u32 q = (b >> 16) | 64u;\n"
            "  return __builtin_convertvector((v_u32)(((v_i32)r & ~nan) | ((v_i32)q & nan)), v_u16); }\n"
        )
    out += [_float8("f8e4m3", 3, 7, 0x7F, 0x7F), _float8("f8e5m2", 2, 15, 0x7E, 0x7C)]
    for dtype, memory in NARROW_FLOATS.items():
        name = dtype.name
        if dtype != BF16:
            out.append(f"static v_f32 load_{name}(const {memory} *p) {{ return widen_{name}(load_{memory}(p)); }}\n")
        out.append(
            f"static v_f32 loadn_{name}(const {memory} *p, i64 n) {{ return widen_{name}(loadn_{memory}(p, n)); }}\n"
            f"static v_f32 loadr_{name}(const {memory} *p, i64 lo, i64 hi) {{\n"
            f"  return widen_{name}(loadr_{memory}(p, lo, hi)); }}\n"
            f"static void store_{name}({memory} *p, v_f32 v) {{ store_{memory}(p, narrow_{name}(v)); }}\n"
            f"static void storen_{name}({memory} *p, v_f32 v, i64 n) {{ storen_{memory}(p, narrow_{name}(v), n); }}\n"
            f"static v_f32 round_{name}(v_f32 v) {{ return widen_{name}(narrow_{name}(v)); }}\n"
            f"static f32 get_{name}(const {memory} *p) {{ {_get(dtype)} }}\n"
            f"static void put_{name}({memory} *p, f32 x) {{ *p = narrow_{name}(splat_f32(x))[0]; }}\n"
        )
    for name in (*WIDTHS, "bool"):
        memory, held = ("u8", "i32") if name == "bool" else (name, name)
        get = "p[i * stride]" if name in WIDTHS else "-get_bool(p + i * stride)"
        put = "p[i * stride] = v[i];" if name in WIDTHS else "put_bool(p + i * stride, v[i]);"
        out.append(
            f"static v_{held} gather_{name}(const {memory} *p, i64 stride, i64 n) {{ v_{held} r = {{}};\n"
            f"  for (i64 i = 0; i < n; i++) r[i] = {get};\n  return r; }}\n"
            f"static void scatter_{name}({memory} *p, i64 stride, v_{held} v, i64 n) {{\n"
            f"  for (i64 i = 0; i < n; i++) {{ {put} }} }}\n"
        )
    for dtype, memory in NARROW_FLOATS.items():  # a block of them is converted at once
        name = dtype.name
        out.append(
            f"static v_f32 gather_{name}(const {memory} *p, i64 stride, i64 n) {{\n"
            f"  return widen_{name}(gather_{memory}(p, stride, n)); }}\n"
            f"static void scatter_{name}({memory} *p, i64 stride, v_f32 v, i64 n) {{\n"
            f"  scatter_{memory}(p, stride, narrow_{name}(v), n); }}\n"
        )
    return "".join(out)


def _widen_bf16(isa: Isa) -> str:
    """widen_bf16 and load_bf16: bf16 are upper halves; gcc 12 converts a register of them by halves."""
    if not isa.is_wide:
        return (
            "static v_f32 widen_bf16(v_u16 h) { return (v_f32)(__builtin_convertvector(h, v_u32) << 16); }\n"
            "static v_f32 load_bf16(const u16 *p) { return widen_bf16(load_u16(p)); }\n"
        )
    return (
        'static v_f32 widen_bf16(v_u16 h) { v_u32 r; __asm__("vpmovzxwd %1, %0" : "=v"(r) : "v"(h));'
        " return (v_f32)(r << 16); }\n"
        "static v_f32 load_bf16(const u16 *p) { v_u32 r;\n"
        '  __asm__("vpmovzxwd %1, %0" : "=v"(r) : "m"(*(const m_u16 *)p)); return (v_f32)(r << 16); }\n'
    )


def _get(dtype: DType) -> str:
    """C statements that return one narrow float at `p` as an f32: a bf16 is its upper half."""
    if dtype == BF16:
        return "const union { u32 bits; f32 number; } r = {(u32)*p << 16}; return r.number;"
    return f"return widen_{dtype.name}(splat_{NARROW_FLOATS[dtype]}(*p))[0];"


def _float8(name: str, mantissa: int, bias: int, nan: int, most: int) -> str:
    """widen_F and narrow_F of a float of 8 bits; rounding to nearest, halves to even.

    `nan`: the code of NaN; `most`: the least code that stands for no finite number, which what is too large becomes.
    Multiplying by a power of two moves the exponent from one bias to the other, exactly, for small numbers too; those
    below the least normal one are whole multiples of the least of all: adding 1.5 * 2**23 rounds to a whole number.
    """
    shift, up, least = 23 - mantissa, 127 - bias, bias - 1 + mantissa
    half = (1 << (shift - 1)) - 1
    first_odd = nan if most == nan else most + 1
    return (
        f"static v_f32 widen_{name}(v_u8 h) {{ const v_u32 b = (v_u32)widen_u8_i32(h), a = b & 127;\n"
        f"  const v_f32 x = (v_f32)(a << {shift}) * 0x1p{up}f; const v_i32 odd = (v_i32)(a >= {first_odd});\n"
        + (f"  const v_i32 huge = (v_i32)(a == {most}) & ~odd;\n" if most != nan else "  const v_i32 huge = {0};\n")
        + "  const v_u32 r = (((v_u32)x & ~(v_u32)(odd | huge)) | ((v_u32)huge & 0x7f800000u) |"
        " ((v_u32)odd & 0x7fc00000u));\n"
        "  return (v_f32)(r | ((b & 128) << 24)); }\n"
        f"static v_u8 narrow_{name}(v_f32 v) {{ const v_u32 b = (v_u32)v, a = b & 0x7fffffffu;\n"
        f"  const v_u32 normal = (a - {up << 23}u + {half}u + ((a >> {shift}) & 1u)) >> {shift};\n"
        f"  const v_u32 small = (v_u32)((v_f32)a * 0x1p{least}f + 0x1.8p23f) - 0x4b400000u;\n"
        f"  const v_u32 is_small = (v_u32)(a < {(up + 1) << 23}u);\n"
        f"  const v_u32 is_large = (v_u32)(a >= {_overflow(mantissa, bias, most)}u);\n"
        "  const v_u32 is_nan = (v_u32)(a > 0x7f800000u);\n"
        f"  v_u32 r = (small & is_small) | (normal & ~is_small); r = (r & ~is_large) | ({most}u & is_large);\n"
        f"  r = (r & ~is_nan) | ({nan}u & is_nan);\n"
        "  return narrow_i32_u8((v_i32)(r | ((b >> 24) & 128u))); }\n"
    )


def _overflow(mantissa: int, bias: int, most: int) -> int:
    """The bits of the least f32 that rounds to code `most`: halfway from the code before it."""
    exponent, fraction = (most - 1) >> mantissa, (most - 1) & ((1 << mantissa) - 1)
    tie = (1 + (fraction + 0.5) / (1 << mantissa)) * 2.0 ** (exponent - bias)
    bits = int(np.float32(tie).view(np.uint32))
    return bits if most % 2 == 0 else bits + 1  # halves go to the even code


def _bytes(isa: Isa) -> str:
    """widen_i8_i32, narrow_i32_i8 and the same of u8; compilers convert such vectors byte by byte."""
    out: list[str] = []
    for name, sign in (("i8", "s"), ("u8", "z")):
        if isa.is_wide:
            source, narrow = "v", f'v_{name} r; __asm__("vpmovdb %1, %0" : "=v"(r) : "v"(v)); return r;'
        else:
            # Blocks of 8 bytes are no operands of instructions.
            source = "((v_half){(i64)v, 0})"
            order = ", ".join(map(str, [*range(0, 32, 4)] * 4))
            narrow = (
                "const v_bytes b = (v_bytes)v;\n#ifdef __clang__\n"
                f"  const v_quads r = (v_quads)__builtin_shufflevector(b, b, {order});\n#else\n"
                f"  const v_quads r = (v_quads)__builtin_shuffle(b, (v_bytes){{{order}}});\n#endif\n"
                f"  return (v_{name})r[0];"
            )
        constraint = "v" if isa.is_wide else "x"
        out.append(
            f'static v_i32 widen_{name}_i32(v_{name} v) {{ v_i32 r; __asm__("vpmov{sign}xbd %1, %0" :'
            f' "={constraint}"(r) : "{constraint}"({source})); return r; }}\n'
            f"static v_{name} narrow_i32_{name}(v_i32 v) {{ {narrow} }}\n"
        )
    return "".join(out)


def _partial(isa: Isa, name: str, width: int) -> str:
    """loadr: only lanes lo to hi (exclusive) are read, the others are zero; loadn: from 0 to n. storen alike."""
    load = f"static v_{name} loadr_{name}(const {name} *p, i64 lo, i64 hi) {{ "
    whole = f"static v_{name} loadn_{name}(const {name} *p, i64 n) {{ return loadr_{name}(p, 0, n); }}\n"
    range_ = "((1u << hi) - 1) & ~((1u << lo) - 1)"
    store = f"static void storen_{name}({name} *p, v_{name} v, i64 n) {{ "
    if isa.is_wide:
        move = {1: "vmovdqu8", 2: "vmovdqu16", 4: "vmovups", 8: "vmovupd"}[width]
        if width < 8:
            return (
                f'{load}v_{name} r;\n  __asm__("{move} %1, %0%{{%2%}}%{{z%}}" : "=v"(r) : "m"(*(const m_{name} *)p),'
                f' "Yk"((u16)({range_})));\n  return r; }}\n{whole}'
                f'{store}\n  __asm__("{move} %1, %0%{{%2%}}" : "+m"(*(m_{name} *)p) : "v"(v),'
                f' "Yk"((u16)((1u << n) - 1))); }}\n'
            )
        return (
            f"{load}hh_{name} r; const u32 k = {range_};\n"
            + "".join(
                f'  __asm__("{move} %1, %0%{{%2%}}%{{z%}}" : "=v"(r.h[{i}]) : "m"(*(const hm_{name} *)(p + {8 * i})),'
                f' "Yk"((u8)(k >> {8 * i})));\n'
                for i in range(2)
            )
            + f"  return r.v; }}\n{whole}"
            + f"{store}hh_{name} r; r.v = v; const u32 k = (1u << n) - 1;\n"
            + "".join(
                f'  __asm__("{move} %1, %0%{{%2%}}" : "+m"(*(hm_{name} *)(p + {8 * i})) : "v"(r.h[{i}]),'
                f' "Yk"((u8)(k >> {8 * i})));\n'
                for i in range(2)
            )
            + "}\n"
        )
    if width == 4:
        return (
            f"{load}v_{name} r; const v_i32 k = (iota_i32(0) < (i32)hi) & (iota_i32(0) >= (i32)lo);\n"
            f'  __asm__("vmaskmovps %1, %2, %0" : "=x"(r) : "m"(*(const m_{name} *)p), "x"(k));\n  return r; }}\n'
            f"{whole}"
            f"{store}const v_i32 k = iota_i32(0) < (i32)n;\n"
            f'  __asm__("vmaskmovps %1, %2, %0" : "+m"(*(m_{name} *)p) : "x"(v), "x"(k)); }}\n'
        )
    return (
        f"{load}union {{ v_{name} v; {name} a[{isa.lanes}]; }} r; r.v = (v_{name}){{}};\n"
        f"  for (i64 i = lo; i < hi; i++) r.a[i] = p[i];\n  return r.v; }}\n{whole}"
        f"{store}union {{ v_{name} v; {name} a[{isa.lanes}]; }} r; r.v = v;\n"
        f"  for (i64 i = 0; i < n; i++) p[i] = r.a[i]; }}\n"
    )


def _selection(isa: Isa) -> str:
    """select, min, max, abs, sign, isinf for every type."""
    out: list[str] = ["static v_i32 select_bool(v_i32 m, v_i32 a, v_i32 b) { return (m & a) | (~m & b); }\n"]
    for name, width in WIDTHS.items():
        mask = f"i{8 * width}"
        wide = "m" if width == 4 else "narrow_i32_i8(m)" if width == 1 else f"__builtin_convertvector(m, v_{mask})"
        out.append(
            f"static v_{name} select_{name}(v_i32 m, v_{name} a, v_{name} b) {{ const v_{mask} k = {wide};\n"
            f"  return (v_{name})((k & (v_{mask})a) | (~k & (v_{mask})b)); }}\n"
        )
    for name in INTEGERS:
        mask = f"i{8 * WIDTHS[name]}"
        for function, sign in (("min", "<"), ("max", ">")):
            out.append(
                f"static v_{name} {function}_{name}(v_{name} a, v_{name} b) {{\n"
                f"  const v_{mask} k = (v_{mask})(a {sign} b);\n"
                f"  return (v_{name})((k & (v_{mask})a) | (~k & (v_{mask})b)); }}\n"
            )
        signed = name[0] == "i"
        out.append(
            f"static v_{name} abs_{name}(v_{name} a) {{ return {f'max_{name}(a, -a)' if signed else 'a'}; }}\n"
            f"static v_{name} sign_{name}(v_{name} a) {{ return (v_{name})(a < 0) - (v_{name})(a > 0); }}\n"
        )
    for name, lower, upper in (("f32", "ps", "i32"), ("f64", "pd", "i64")):
        for function in ("min", "max"):
            out.append(
                _each_register(isa, name, f"{function}_ordered_{name}", 2, f"v{function}{lower} %2, %1, %0")
                + f"static v_{name} {function}_{name}(v_{name} a, v_{name} b) {{\n"
                f"  const v_{upper} k = (v_{upper})(a != a); const v_{name} r = {function}_ordered_{name}(a, b);\n"
                f"  return (v_{name})((k & (v_{upper})a) | (~k & (v_{upper})r)); }}\n"
            )
        top = "0x7fffffff" if name == "f32" else "0x7fffffffffffffffLL"
        infinity = "__builtin_inff()" if name == "f32" else "__builtin_inf()"
        one = "1.0f" if name == "f32" else "1.0"
        result = "(v_i32)({})" if name == "f32" else "__builtin_convertvector({}, v_i32)"
        out.append(
            f"static v_{name} abs_{name}(v_{name} a) {{ return (v_{name})((v_{upper})a & {top}); }}\n"
            f"static v_i32 isinf_{name}(v_{name} a) {{ return {result.format(f'abs_{name}(a) == {infinity}')}; }}\n"
            f"static v_{name} copysign_{name}(v_{name} a, v_{name} b) {{\n"
            f"  return (v_{name})(((v_{upper})a & {top}) | ((v_{upper})b & ~{top})); }}\n"
            f"static v_{name} sign_{name}(v_{name} a) {{\n"
            f"  const v_{upper} one = (v_{upper})splat_{name}({one});\n"
            f"  const v_{name} r = (v_{name})(((v_{upper})(a > 0) & one) | ((v_{upper})(a < 0) & (one | ~{top})));\n"
            f"  return (v_{name})((v_{upper})r | ((v_{upper})(a != a) & (v_{upper})a)); }}\n"
        )
    return "".join(out)


def _each_register(isa: Isa, name: str, function: str, operands: int, instruction: str) -> str:
    """A function of one instruction, for a block of one register (f32) or of two (f64)."""
    constraint = "v" if isa.is_wide else "x"
    args = ("a", "b")[:operands]
    header = f"static v_{name} {function}({', '.join(f'v_{name} {a}' for a in args)}) {{ "
    if name == "f32":
        inputs = ", ".join(f'"{constraint}"({a})' for a in args)
        return f'{header}v_f32 r;\n  __asm__("{instruction}" : "={constraint}"(r) : {inputs}); return r; }}\n'
    unions = "".join(f"hh_f64 u{a}; u{a}.v = {a}; " for a in args)
    body = "".join(
        f'  __asm__("{instruction}" : "={constraint}"(r.h[{i}]) : '
        + ", ".join(f'"{constraint}"(u{a}.h[{i}])' for a in args)
        + ");\n"
        for i in range(2)
    )
    return f"{header}hh_f64 r; {unions}\n{body}  return r.v; }}\n"


def _rounding(isa: Isa) -> str:
    out: list[str] = []
    register = "v" if isa.is_wide else "x"
    for name, suffix in (("f32", "ps"), ("f64", "pd")):
        instruction = f"vrndscale{suffix}" if isa.is_wide else f"vround{suffix}"
        for function, mode in (("round", 8), ("floor", 9), ("ceil", 10), ("trunc", 11)):
            out.append(_each_register(isa, name, f"{function}_{name}", 1, f"{instruction} ${mode}, %1, %0"))
        out.append(_each_register(isa, name, f"sqrt_{name}", 1, f"vsqrt{suffix} %1, %0"))
        one = "1.0f" if name == "f32" else "1.0"
        if name == "f32":
            out.append(
                "static v_i32 whole_f32(v_f32 a) { v_i32 r;\n"
                f'  __asm__("vcvtps2dq %1, %0" : "={register}"(r) : "{register}"(a)); return r & (v_i32)(a == a); }}\n'
            )
        out.append(f"static v_{name} rsqrt_{name}(v_{name} a) {{ return {one} / sqrt_{name}(a); }}\n")
    return "".join(out)


def _integers() -> str:
    """Division that never traps: x / 0 is 0, floor(x / 0) is x, remainders of 0 are 0."""
    out: list[str] = [
        "static i64 div_i64(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? (i64)(0 - (u64)a) : a / b; }\n"
        "static i64 fmod_i64(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }\n"
        "static i64 mod_i64(i64 a, i64 b) { const i64 r = fmod_i64(a, b); return r != 0 && (r ^ b) < 0 ? r + b : r; }\n"
        "static i64 floordiv_i64(i64 a, i64 b) { return b == 0 ? a : div_i64(a, b) -"
        " (fmod_i64(a, b) != 0 && (a ^ b) < 0); }\n"
        "static i64 pow_i64(i64 a, i64 b) { u64 r = 1, f = (u64)a;\n"
        "  if (b < 0) return a == 1 ? 1 : a == -1 ? 1 - 2 * (b & 1) : 0;\n"
        "  for (; b; b >>= 1, f *= f) if (b & 1) r *= f;\n"
        "  return (i64)r; }\n"
        "static u64 div_u64(u64 a, u64 b) { return b == 0 ? 0 : a / b; }\n"
        "static u64 fmod_u64(u64 a, u64 b) { return b == 0 ? 0 : a % b; }\n"
        "static u64 mod_u64(u64 a, u64 b) { return b == 0 ? 0 : a % b; }\n"
        "static u64 floordiv_u64(u64 a, u64 b) { return b == 0 ? a : a / b; }\n"
        "static u64 pow_u64(u64 a, u64 b) { u64 r = 1; for (; b; b >>= 1, a *= a) if (b & 1) r *= a; return r; }\n"
    ]
    for name in INTEGERS:
        wide = f"{name[0]}64"
        for function in ("div", "floordiv", "mod", "fmod", "pow"):
            out.append(
                f"static v_{name} {function}v_{name}(v_{name} a, v_{name} b) {{ v_{name} r;\n"
                f"  for (u32 i = 0; i < sizeof(r) / sizeof(r[0]); i++) r[i] = ({name}){function}_{wide}(a[i], b[i]);\n"
                f"  return r; }}\n"
            )
        bits = 8 * WIDTHS[name]
        # Shifts by the width or more give 0, or the sign; C leaves them undefined.
        mask = f"(v_{name})(b < {bits})" if name[0] == "u" else f"(v_{name})((b < {bits}) & (b >= 0))"
        full = f"(a << (b & {bits - 1})) & {mask}"
        sign = f"~{mask} & (v_{name})(a < 0)" if name[0] == "i" else f"(v_{name}){{}}"
        out.append(
            f"static v_{name} shl_{name}(v_{name} a, v_{name} b) {{ return {full}; }}\n"
            f"static v_{name} shr_{name}(v_{name} a, v_{name} b) {{\n"
            f"  return ((a >> (b & {bits - 1})) & {mask}) | ({sign}); }}\n"
        )
    return "".join(out)


def _conversion(isa: Isa) -> str:
    out: list[str] = []
    for source in ("f32", "f64"):
        for target in ("i32", "i64"):
            out.append(
                f"static v_{target} cast_{source}_{target}(v_{source} a) {{\n"
                f"  return __builtin_convertvector(a, v_{target}); }}\n"
            )
        out.append(
            f"static v_u32 cast_{source}_u32(v_{source} a) {{\n"
            f"  return __builtin_convertvector(cast_{source}_i64(a), v_u32); }}\n"
            f"static v_u64 cast_{source}_u64(v_{source} a) {{ return __builtin_convertvector(a, v_u64); }}\n"
        )
    return "".join(out)


def _folds(isa: Isa) -> str:
    """fold_F_T: all lanes of a block to one value, by halves: always the same tree."""
    combine = {
        "sum": "a + b",
        "prod": "a * b",
        "max": "a > b || a != a ? a : b",
        "min": "a < b || a != a ? a : b",
    }
    out: list[str] = []
    for name in WIDTHS:
        for function, text in combine.items():
            out.append(
                f"static {name} join_{function}_{name}({name} a, {name} b) {{ return ({name})({text}); }}\n"
                f"static {name} fold_{function}_{name}(v_{name} v) {{ {name} x[{isa.lanes}]; store_{name}(x, v);\n"
                f"  for (int s = {isa.lanes // 2}; s > 0; s /= 2) for (int i = 0; i < s; i++)"
                f" x[i] = join_{function}_{name}(x[i], x[i + s]);\n  return x[0]; }}\n"
            )
    return "".join(out)
