"""The assembly that kernels bring along, run instruction by instruction as PTX's manual says, against plain numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda.functions import HELPERS
from aot.backend.cuda.halves import halves_name, halves_text

ASSEMBLY = re.compile(r"'(\{ .*? \})'")


def run(assembly: str, given: dict[str, float | int]) -> dict[str, int]:
    """Executes a text whose arguments are `$0`, ... : 32-bit words, halves' bits, or numbers of f32; all registers."""
    registers: dict[str, float | int] = dict(given)

    def value(name: str) -> float | int:
        return int(name, 0) if re.fullmatch(r"-?(0x)?[0-9a-f]+", name) and name not in registers else registers[name]

    def word(name: str) -> int:
        return int(value(name)) & 0xFFFFFFFF

    def halves(name: str) -> np.ndarray:
        return np.array([word(name)], np.uint32).view(np.float16).astype(np.float64)

    def of_halves(pair: np.ndarray) -> int:
        return int(pair.astype(np.float16).view(np.uint32)[0])

    for line in filter(None, (part.strip() for part in assembly.strip("{} ").split(";"))):
        if line.startswith(".reg"):
            continue
        operation, rest = line.split(None, 1)
        if operation == "mov.b32" and "{" in rest:
            low, high = re.findall(r"\$\d+", rest[rest.index("{") : rest.index("}")])
            if rest.startswith("{"):
                source = word(rest.split("}, ")[1])
                registers[low], registers[high] = source & 0xFFFF, source >> 16
            else:
                registers[rest.split(",")[0]] = word(low) | word(high) << 16
            continue
        to, *names = (name.strip() for name in rest.split(","))
        if operation == "mov.b32":
            registers[to] = word(names[0])
        elif operation == "lop3.b32":
            assert names[3] == "0xea"  # (a & b) | c
            registers[to] = word(names[0]) & word(names[1]) | word(names[2])
        elif operation == "shr.u32":
            registers[to] = word(names[0]) >> int(names[1])
        elif operation == "prmt.b32":
            places = word(names[0]) | word(names[1]) << 32
            picked = [places >> 8 * (int(names[2], 16) >> 4 * n & 7) & 0xFF for n in range(4)]
            registers[to] = sum(byte << 8 * n for n, byte in enumerate(picked))
        elif operation == "add.f16x2":
            registers[to] = of_halves(halves(names[0]) + halves(names[1]))
        elif operation == "mul.f16x2":
            registers[to] = of_halves(halves(names[0]) * halves(names[1]))
        elif operation == "fma.rn.f16x2":
            registers[to] = of_halves(halves(names[0]) * halves(names[1]) + halves(names[2]))
        elif operation == "cvt.rni.s16.f32":
            number = float(value(names[0]))
            registers[to] = 0 if np.isnan(number) else int(np.clip(np.rint(number), -(2.0**15), 2.0**15 - 1))
        elif operation == "cvt.s32.s16":
            registers[to] = int(value(names[0]))
        elif operation == "add.s32":
            registers[to] = int(value(names[0])) + int(value(names[1]))
            assert abs(registers[to]) < 2**31
        elif operation.startswith("cvt.pack.sat."):
            low = -128 if operation.split(".")[3] == "s8" else 0
            upper, lower = (min(max(int(value(name)), low), low + 255) & 0xFF for name in names[:2])
            registers[to] = (word(names[2]) << 16 | upper << 8 | lower) & 0xFFFFFFFF
        else:
            raise AssertionError(f"not known: {line}")
    return {name: int(bits) & 0xFFFFFFFF for name, bits in registers.items() if isinstance(bits, int)}


def half(bits: int) -> float:
    return float(np.array([bits], np.uint16).view(np.float16)[0])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_halves(bits: int, zero: bool, scaled: bool) -> None:
    """Every number of a word in every place, less every zero point, times a scale, is right to the last bit."""
    (found,) = ASSEMBLY.findall(halves_text(bits, zero, scaled))
    assert halves_name(bits, zero, scaled) in halves_text(bits, zero, scaled)
    count, most = 32 // bits, 1 << bits
    scale = np.float16(0.0123)
    for point in range(0, most, 1 if bits == 4 else 15) if zero else (8 if bits == 4 else 128,):
        for first in range(most):
            numbers = [(first + 5 * place) % most for place in range(count)]
            given: dict[str, float | int] = {f"${count}": sum(q << bits * place for place, q in enumerate(numbers))}
            if zero:  # as the function passes it
                given[f"${count + 1}"] = int(np.float16(-(point + 1024)).view(np.uint16))
            if scaled:
                given[f"${count + 1 + zero}"] = int(scale.view(np.uint16))
            made = run(found, given)
            for place, number in enumerate(numbers):
                wanted = np.float16(np.float64(number - point) * (np.float64(scale) if scaled else 1.0))
                assert half(made[f"${place}"]) == float(wanted), (number, point, place)


@pytest.mark.parametrize("name", ["s8", "u8"])
@pytest.mark.parametrize("zero", [0, 3, -128, 255])
def test_quantized(name: str, zero: int) -> None:
    """Four numbers become four bytes: halves to even, bounded, the zero point for NaN."""
    plain, shifted = ASSEMBLY.findall(HELPERS[f"quantized_{name}"])
    low = -128 if name == "s8" else 0
    numbers = [0.5, 1.5, -0.5, 2.5, -2.5, 1e30, -1e30, np.inf, -np.inf, np.nan, 126.5, 127.5, -128.5, 254.5, 255.5, 0.0]
    for first in range(0, len(numbers), 4):
        four = numbers[first : first + 4]
        given: dict[str, float | int] = {f"${n + 1}": x for n, x in enumerate(four)}
        given |= {f"${n + 5}": zero for n in range(4)}
        word = run(shifted if zero else plain, given)["$0"]
        for n, x in enumerate(four):
            whole = 0.0 if np.isnan(x) else float(np.rint(x))
            wanted = int(min(max(whole + zero, low), low + 255))
            assert word >> 8 * n & 0xFF == wanted & 0xFF, (x, zero)
