"""Functions of kernels that make halves of the numbers of a word, eight of 4 bits or four of 8, two by an instruction.

Bits that are put into the last places of the half 1024 make 1024 and a number, exactly; taking that away, with the
zero point, is one addition of two halves, and the block's scale one product of two (the form of the trick is from
Kim, Henry, Fahim and Awadalla, "Who Says Elephants Can't Run", 2022). In place, the second number of a byte counts
sixteenfold, and a multiplication with 1/16 is part of the same instruction. The language has no such pairs, so these
are assembly; under its interpreter, which cannot run that, the same numbers are made one by one.
"""

from __future__ import annotations

import numpy as np

from aot.ops.quantized import NIBBLE_ZERO

HALF = 1024
"""The half whose last place counts 1."""


def halves_name(bits: int, zero: bool, scaled: bool) -> str:
    """The name of a function of words, and of as many numbers as follow: what is taken away, the scale (both f16).

    `bits`: 4 or 8 of a number. Numbers of 8 bits are signed, their words' highest bits turned over. What is taken away
    is the zero point; without, of 4 bits 8. The function gives a number of a word each, f16.
    """
    return f"halves_{bits}{'_zero' if zero else ''}{'_scaled' if scaled else ''}"


def halves_text(bits: int, zero: bool, scaled: bool) -> str:
    """The text of that function."""
    count = 32 // bits
    lines = [f".reg .b32 a<{count // 2}>, v, s, c, d, e;"]
    first = count + 1
    plain = HALF + (128 if bits == 8 else 0)
    if zero:
        lines.append(f"mov.b32 c, {{${first}, ${first}}};")
        if bits == 4:  # -(1024 + z) to -(64 + z)
            lines += ["mov.b32 e, 0x63806380;", "add.f16x2 e, c, e;"]
    else:
        taken = plain + (NIBBLE_ZERO if bits == 4 else 0)
        lines += [f"mov.b32 c, {_pair(-taken)};"]
        if bits == 4:
            lines.append(f"mov.b32 e, {_pair(-(HALF // 16 + NIBBLE_ZERO))};")
    word = f"${count}"
    if bits == 4:
        lines += [f"mov.b32 d, {_pair(1 / 16)};", f"shr.u32 v, {word}, 8;"]
        for number in range(4):
            mask = "0x00f000f0" if number % 2 else "0x000f000f"
            lines.append(f"lop3.b32 a{number}, {word if number < 2 else 'v'}, {mask}, {_pair(HALF)}, 0xea;")
            away = "fma.rn.f16x2 a{0}, a{0}, d, e;" if number % 2 else "add.f16x2 a{0}, a{0}, c;"
            lines.append(away.format(number))
        pairs = [(number, number + 4) for number in range(4)]
    else:
        lines.append("mov.b32 d, 0x64646464;")
        for half in range(2):
            lines.append(f"prmt.b32 a{half}, {word}, d, {('0x4140', '0x4342')[half]};")
            lines.append(f"add.f16x2 a{half}, a{half}, c;")
        pairs = [(0, 1), (2, 3)]
    if scaled:
        last = first + zero
        lines.append(f"mov.b32 s, {{${last}, ${last}}};")
        lines += [f"mul.f16x2 a{number}, a{number}, s;" for number in range(len(pairs))]
    lines += [f"mov.b32 {{${low}, ${high}}}, a{number};" for number, (low, high) in enumerate(pairs)]
    given = ["words", *(["zero"] if zero else []), *(["scale"] if scaled else [])]
    constraints = ",".join(["=h"] * count + ["r"] + ["h"] * (len(given) - 1))
    taken_text = "zero" if zero else f"{float(plain - HALF + (NIBBLE_ZERO if bits == 4 else 0))!r}"
    one_by_one = [
        f"(((words >> {bits * number}) & {(1 << bits) - 1}).to(tl.float16) - "
        f"{taken_text}){' * scale' if scaled else ''}"
        for number in range(count)
    ]
    assembly = "{ " + " ".join(lines) + " }"
    passed = ", ".join(given)
    if zero:
        passed = passed.replace("zero", f"-(zero + {float(HALF)!r})")
    return (
        f"@triton.jit\ndef {halves_name(bits, zero, scaled)}({', '.join(given)}):\n"
        "    if INTERPRETED:\n"
        f"        made = ({', '.join(one_by_one)})\n"
        "    else:\n"
        f"        made = tl.inline_asm_elementwise(\n            {assembly!r},\n            {constraints!r},\n"
        f"            [{passed}], dtype=({'tl.float16, ' * count}), is_pure=True, pack=1)\n"
        "    return made\n\n\n"
    )


def _pair(value: float) -> str:
    """The bits of two equal halves."""
    bits = int(np.float16(value).view(np.uint16))
    return f"0x{bits << 16 | bits:08x}"
