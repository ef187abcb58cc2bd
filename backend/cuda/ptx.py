"""What is changed in the PTX that Triton writes before it is assembled."""

from __future__ import annotations

import re

PACKED = re.compile(r"^\s*(add|min|max)\.([su])16x2\s+(%r\d+), (%?\w+), (%?\w+);$", re.MULTILINE)


def unpacked(text: str) -> str:
    """PTX whose pairs of 16-bit integers are computed one by one.

    Places that are known to be small are computed in 16 bits, two at a time. CUDA 12.9's assembler gets that wrong
    (on an H200, 2026-11-30, with -O1 as well): tests whether a convolution's window is inside its image failed, and
    memory before the image was read. CUDA 13's assembler is right.
    """

    def one_by_one(found: re.Match[str]) -> str:
        operation, sign, result, left, right = found.groups()
        return (
            "\t{\n\t.reg .b16 %a<2>, %b<2>;\n\t.reg .b32 %c<2>;\n"
            f"\tmov.b32 %c0, {left};\n\tmov.b32 %c1, {right};\n"
            "\tmov.b32 {%a0, %a1}, %c0;\n\tmov.b32 {%b0, %b1}, %c1;\n"
            f"\t{operation}.{sign}16 %a0, %a0, %b0;\n\t{operation}.{sign}16 %a1, %a1, %b1;\n"
            f"\tmov.b32 {result}, {{%a0, %a1}};\n\t}}"
        )

    return PACKED.sub(one_by_one, text)


_LOOP = re.compile(r"^(\$L__BB\w+):(?:(?!^\$L__BB).)*?^\s*@!?%p\d+\s+bra\s+\1;$", re.MULTILINE | re.DOTALL)
_PRODUCT = re.compile(r"wgmma\.mma_async\.\S*\.s32\.\w+\.\w+ \{([^}]*)\}, %rd\d+, %rd\d+,")
"""One of integers, both of which lie in shared memory."""

_STORE = re.compile(r"\bst\.(?:\w+\.)*shared|stmatrix")
_WAIT = "wgmma.wait_group.sync.aligned 0;"


def overlapped(text: str) -> str:
    """PTX whose loops of integer products on Hopper's tensor cores begin a step while the one before it is at work.

    Triton lets products run on until the next step only where sums are of f32; those of i32 it awaits at once, and the
    tensor cores then idle from the last product of a step to the first of the next. A loop is changed if nothing in it
    but its products uses their sums, and both operands come into shared memory by copies in flight, into a place for
    each of their steps: registers, or a place that the loop itself fills, would be written while a product reads them
    (Triton's own rule for f32). With n groups of products in a step, n of them may be under way after each wait,
    so those of the step before have ended when the last wait of a step returns, behind which memory that they read is
    filled again. Behind the loop all are awaited.
    """

    def changed(found: re.Match[str]) -> str:
        loop = found.group()
        sums = {name.strip() for names in _PRODUCT.findall(loop) for name in names.split(",")}
        lines = [line.partition("//")[0] for line in loop.splitlines() if "wgmma.mma_async" not in line]
        is_used = any(name in sums for line in lines for name in re.findall(r"%\w+", line))
        others = len(re.findall(r"wgmma\.mma_async", loop)) - len(_PRODUCT.findall(loop))
        groups = loop.count("wgmma.commit_group")
        if not sums or is_used or others or _STORE.search(loop) or loop.count(_WAIT) != groups:
            return loop
        return f"{loop.replace(_WAIT, _WAIT.replace('0', str(groups)))}\n\t{_WAIT}"

    return _LOOP.sub(changed, text)
