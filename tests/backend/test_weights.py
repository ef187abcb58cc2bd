"""Products of floats with weights in 8 and 4 bits against the op's reference: blocks, zero points, rows, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.backend.cpu.contract import emit_contract
from aot.backend.cpu.isa import Isa
from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import F16, F32, I8, U8, DType
from aot.ir import Node
from aot.kernel import Kernel
from aot.lower import lower
from aot.ops import OPS
from tests.backend.harness import ISAS, run, run_threads


def weight_kernel(
    rows: tuple[Dim, ...],
    summed: int,
    columns: int,
    bits: int,
    block: int,
    *,
    zeros: bool = False,
    x: DType = F32,
    scale: DType = F32,
    constant: bool = True,
    bias: bool = False,
) -> Kernel:
    """The op as a kernel, whose weight, scales and zero points are constants or not."""
    b = Builder()
    stored = -(-summed // 2) if bits == 4 else summed
    dtype, blocks = (U8 if bits == 4 else I8), -(-summed // block)
    operands = [b.input("x", x, (*rows, summed)), b.input("w", dtype, (stored, columns))]
    operands.append(b.input("scale", scale, (blocks, columns)))
    if zeros:
        operands.append(b.input("zero", dtype, (blocks, columns)))
    y = b.op("matmul_packed", *operands, *([] if zeros else [None]), bits=bits, block=block)[0]
    if bias:
        y = b.add(y, b.input("bias", x, (columns,)))
    body = b.finish([y])
    node = Node("kernel", body.inputs, body.outputs, {"name": "test", "kind": "contract"}, ("test",), (body,))
    return lower(node, lambda value: constant and value in body.inputs[1 : 3 + zeros])


def check(kernel: Kernel, isa: Isa, symbols: dict[str, int] | None = None, threads: bool = True) -> None:
    random = np.random.default_rng(0)
    arrays: list[Any] = []
    for number, operand in enumerate(kernel.inputs):
        shape = [e if isinstance(e, int) else (symbols or {})[str(e)] for e in operand.type.shape]
        dtype = operand.type.dtype
        if dtype.is_float:
            arrays.append((random.standard_normal(shape) * (0.1 if number == 2 else 1)).astype(dtype.numpy))
        else:
            low, high = (0, 256 if number == 1 else 16) if dtype == U8 else (-128, 128)
            arrays.append(random.integers(low, high, shape).astype(dtype.numpy))
    emitted = emit_contract(kernel, isa)
    (result,) = (run_threads if threads else run)(kernel, emitted, isa, arrays, symbols)
    weight = kernel.root.weight  # type: ignore[union-attr]
    reference = OPS["matmul_packed"].reference
    assert weight is not None and reference is not None
    attrs = {"bits": weight.bits, "block": weight.block}
    wide = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays]
    operands = wide[: 3 + (weight.zero is not None)]
    expected = np.asarray(reference(attrs, *operands))
    size = np.asarray(reference(attrs, np.abs(operands[0]), *operands[1:]))
    # By the sizes of the terms, of which there are 255 - -128 and the like at most.
    size = np.abs(operands[0]).sum(-1, keepdims=True) * np.abs(operands[2]).max() * 384 + np.abs(size)
    if len(arrays) > len(operands):
        expected = expected + wide[-1]
        size = size + np.abs(wide[-1])
    unit = 2.0**-11 if result.dtype == np.float16 else 2.0**-23
    error = np.abs(result.astype(np.float64) - expected)
    assert (error <= np.abs(expected) * unit + size * 2.0**-23 * 2).all(), float(error.max())


CASES: list[tuple[int, int, int, int]] = [
    (64, 33, 4, 32), (96, 16, 4, 32), (70, 20, 8, 70), (48, 9, 8, 16), (45, 40, 4, 32), (1, 5, 4, 32), (7, 17, 4, 8),
    (2048, 40, 4, 128), (129, 70, 4, 16), (130, 64, 8, 32), (3, 3, 8, 3), (600, 24, 4, 600), (599, 24, 8, 600),
]  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_weights(isa: Isa, case: tuple[int, int, int, int], zeros: bool) -> None:
    for rows in (1, 3, 4, 7, 40):
        kernel = weight_kernel((rows,), *case, zeros=zeros, bias=rows == 3)
        emitted = emit_contract(kernel, isa)
        assert set(emitted.packed) == set(range(1, 3 + zeros)) and ("direct_" in emitted.source) == (rows <= 4)
        check(kernel, isa, threads=rows in (1, 7))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("zeros", [False, True])
def test_other_forms(isa: Isa, zeros: bool) -> None:
    """Blocks that are no whole words, weights that are no constants, other types: as the expression of `b` says."""
    check(weight_kernel((5,), 22, 20, 4, 2, zeros=zeros), isa)
    check(weight_kernel((5,), 22, 20, 8, 3, zeros=zeros), isa)
    check(weight_kernel((5,), 64, 20, 4, 32, zeros=zeros, constant=False), isa)
    check(weight_kernel((2, 3), 64, 20, 8, 32, zeros=zeros), isa)
    check(weight_kernel((0,), 64, 20, 8, 32, zeros=zeros), isa)
    for rows in (2, 9):
        check(weight_kernel((rows,), 64, 20, 4, 32, zeros=zeros, x=F16, scale=F16), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [4, 8])
def test_dynamic_rows(isa: Isa, bits: int) -> None:
    rows = Symbol("s", lo=0).dim
    kernel = weight_kernel((rows,), 75, 80, bits, 16, bias=True)
    for count in (0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 25):
        check(kernel, isa, {"s": count}, threads=count in (1, 4, 9))
    kernel = weight_kernel((Symbol("b").dim, rows), 75, 80, bits, 16)
    for count in (1, 4, 9):
        check(kernel, isa, {"s": count, "b": 3}, threads=False)
