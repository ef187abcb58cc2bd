"""What every kernel has around its loops: the signature, the programs of its launch, programmatic edges.

A kernel's text begins with a line of JSON that says how it is compiled (`HEADER`): the types of its arguments, which
of them are multiples of 16, warps, stages. The text and the compiler's version decide the bytes of the cubin.

A kernel tells its successors to start at once, and waits for its predecessors before it reads or writes anything but
weights: see "the pre-wait rule" in docs/cuda.md.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cuda.code import Code, DimTable, pointer_type
from aot.backend.cuda.functions import helper_text, used_helpers
from aot.dims import Dim
from aot.kernel import Kernel

HEADER = "# launch "
ALIGNED = 16
"""Bytes that pointers are multiples of, and what integer arguments may be multiples of."""

_TRIGGER = "    if PROGRAMMATIC:\n        tl.extra.cuda.gdc_launch_dependents()\n"
LARGEST_INTEGER = (1 << 31) - 1


class Tiling:
    """The programs of a kernel: one range for each of its groups of stores, in the order in which they are written."""

    def __init__(self, code: Code, dims: DimTable, groups: int = 1) -> None:
        self.code, self.dims, self.groups = code, dims, groups
        self.total: Dim = 0
        code.line("program = tl.program_id(0)")

    @contextmanager
    def programs(self, count: Dim) -> Iterator[str]:
        """The code of `count` programs; gives the text of the number of one among them."""
        begin = self.total
        self.total = begin + count
        if self.groups == 1:
            yield "program"
            return
        first, end = self.dims.text(begin), self.dims.text(self.total)
        with self.code.block(f"if (program >= {first}) & (program < {end})"):
            yield f"(program - {first})"


def finish(
    kernel: Kernel, tiling: Tiling, *, warps: int, stages: int, schedule: str, flops: Dim, early: Code | None = None,
    is_heavy: bool = False, functions: str = "", features: Collection[str] = (), blocks: int = 0,
) -> Emitted:  # fmt: skip
    """The kernel as text with its header; `early` is written before the wait: it may load weights, and nothing else.
    `functions`: what it calls beside the helpers; `features`: the target's, which helpers may use.
    `blocks`: how many of the kernel's blocks are to fit a multiprocessor, which says how many registers a thread may
    take; 0: as many as the assembler finds right, which rather makes loads wait for each other.

    A heavy kernel does not begin before its predecessor's end, and does not let its successor begin before its own:
    blocks that wait beside those that work share multiprocessors unevenly (docs/cuda.md has figures).
    """
    dims = tiling.dims
    body = tiling.code.text()
    before = early.text() if early is not None else ""
    operands = (*kernel.inputs, *kernel.outputs)
    header = {
        "pointers": [pointer_type(operand.type.dtype) for operand in operands],
        "integers": ["i64" if dimension.bounds(d)[1] > LARGEST_INTEGER else "i32" for d in dims.dims],
        "aligned": [number for number, operand in enumerate(operands) if operand.is_aligned],
        "multiples": [number for number, d in enumerate(dims.dims) if dimension.divisor_of(d) % ALIGNED == 0],
        "warps": power_of_two(warps),
        "stages": stages,
        "blocks": blocks,
        "heavy": is_heavy,
    }
    arguments = [*(f"p{number}" for number in range(len(operands))), *dims.names, "PROGRAMMATIC: tl.constexpr"]
    text = (
        f"{HEADER}{json.dumps(header, sort_keys=True)}\n"
        f"{helper_text(used_helpers(before + body), features)}{functions}"
        f"@triton.jit\ndef KERNEL({', '.join(arguments)}):\n"
        f"{'' if is_heavy else _TRIGGER}{before}"
        "    if PROGRAMMATIC:\n        tl.extra.cuda.gdc_wait()\n"
        f"{body}"
    )
    return Emitted(text, dims.dims, schedule, flops=flops, bytes_moved=bytes_moved(kernel), grid=(tiling.total, 1, 1))


def power_of_two(value: int) -> int:
    """The smallest power of two that is not below a number of at least 1."""
    return 1 << max(value - 1, 0).bit_length()


def bytes_moved(kernel: Kernel) -> Dim:
    """Every operand once."""
    total: Dim = 0
    for operand in (*kernel.inputs, *kernel.outputs):
        total = total + operand.type.bytes
    return total
