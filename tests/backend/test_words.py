"""Products of 8-bit integers against numpy, bit for bit: odd shapes, extremes, signs, layouts, epilogues, threads."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from aot.backend.cpu.contract import emit_contract
from aot.backend.cpu.isa import Isa
from aot.dims import Symbol
from aot.dtypes import I8, U8, DType
from aot.ir import Layout
from aot.kernel import ContractRoot, Kernel
from tests.backend.harness import WORD_ISAS, run, run_threads
from tests.backend.kernels import OTHER_LAYOUTS, transposed_b
from tests.backend.word_kernels import matmul_8bit_kernel, operands

SIGNS = list(product((U8, I8), (U8, I8)))


def check(kernel: Kernel, isa: Isa, symbols: dict[str, int] | None = None, threads: bool = True) -> None:
    compare(kernel, isa, operands(kernel, symbols), symbols, threads)


def compare(
    kernel: Kernel, isa: Isa, arrays: list[np.ndarray], symbols: dict[str, int] | None = None, threads: bool = True
) -> None:
    root = kernel.root
    assert isinstance(root, ContractRoot)
    a, b = (array.astype(np.int64) for array in arrays[:2])
    a = np.maximum(a, 3) if root.a.op == "max" else a
    expected = a @ (np.swapaxes(b, -1, -2) if transposed_b(kernel) else b)
    if len(kernel.inputs) > 2:
        random = np.random.default_rng(1)
        columns = expected.shape[-1]
        shift = random.integers(-999, 999, (columns,)).astype(np.int32)
        scale = random.random((columns,)).astype(np.float32) * np.float32(1e-2)
        arrays = [*arrays, shift, scale]
        number = (expected - shift).astype(np.float32) * arrays[3]
        expected = np.clip(np.rint(number) + 7, 0, 255).astype(np.uint8)
    emitted = emit_contract(kernel, isa)
    (result,) = (run_threads if threads else run)(kernel, emitted, isa, arrays, symbols)
    assert result.shape == expected.shape and (result == expected).all()


SHAPES = [
    (1, 1, 1), (1, 7, 5), (1, 64, 200), (2, 33, 16), (3, 5, 100), (4, 384, 96), (5, 18, 31), (7, 64, 48), (8, 3, 49),
    (13, 100, 33), (31, 8, 64), (65, 131, 17), (100, 1, 3), (3, 0, 5), (0, 4, 5), (128, 64, 192), (17, 40, 1),
    (3, 2048, 20),
]  # fmt: skip


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(isa: Isa, shape: tuple[int, int, int]) -> None:
    check(matmul_8bit_kernel((), *shape), isa)
    check(matmul_8bit_kernel((), *shape, constant=False, a=I8), isa)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("constant", [False, True])
def test_signs(isa: Isa, signs: tuple[DType, DType], constant: bool) -> None:
    for shape in ((1, 30, 40), (11, 17, 35), (37, 64, 130)):
        for transposed in (False, True):
            check(matmul_8bit_kernel((), *shape, a=signs[0], b=signs[1], constant=constant, transposed=transposed), isa)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("signs", SIGNS)
def test_extremes(isa: Isa, signs: tuple[DType, DType]) -> None:
    """No sum saturates, also not in between."""
    kernel = matmul_8bit_kernel((), 7, 30003, 17, a=signs[0], b=signs[1])
    ends = [(0, 255) if dtype == U8 else (-128, 127) for dtype in signs]
    for left, right in product(*ends):
        arrays = [np.full((7, 30003), left, signs[0].numpy), np.full((30003, 17), right, signs[1].numpy)]
        compare(kernel, isa, arrays, threads=False)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("signs", SIGNS)
def test_epilogues(isa: Isa, signs: tuple[DType, DType]) -> None:
    for shape in ((1, 20, 33), (19, 70, 80), (9, 12, 200), (64, 128, 64)):
        check(matmul_8bit_kernel((), *shape, a=signs[0], b=signs[1], epilogue=True), isa)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("a", [U8, I8])
def test_batches(isa: Isa, transposed: bool, a: DType) -> None:
    check(matmul_8bit_kernel((3,), 5, 20, 24, transposed=transposed, a=a), isa)  # rows of one matrix
    check(matmul_8bit_kernel((2, 3), 5, 21, 24, b_batch=(2, 3), transposed=transposed, a=a), isa)
    check(matmul_8bit_kernel((2, 3), 5, 20, 24, b_batch=(3,), transposed=transposed, constant=False, a=a), isa)
    check(matmul_8bit_kernel((2, 3), 5, 22, 24, b_batch=(2, 1), transposed=transposed, constant=False, a=a), isa)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("a", [U8, I8])
def test_rows_in_scratch(isa: Isa, a: DType) -> None:
    """Rows that are computed, and rows whose elements are no neighbours."""
    check(matmul_8bit_kernel((), 37, 30, 70, prologue=True, a=a), isa)
    check(matmul_8bit_kernel((2,), 5, 33, 20, prologue=True, b_batch=(2,), constant=False, a=a), isa)
    check(matmul_8bit_kernel((), 11, 21, 37, a_layout=Layout(order=(1, 0)), a=a), isa)
    check(matmul_8bit_kernel((), 11, 21, 37, a_layout=Layout(order=(1, 0)), a=a, epilogue=True), isa)
    check(matmul_8bit_kernel((), 11, 1, 37, a_layout=Layout(order=(1, 0)), a=a), isa)
    check(matmul_8bit_kernel((), 11, 21, 37, a_layout=Layout(strides=(50, 2)), a=a), isa)


@pytest.mark.parametrize("isa", WORD_ISAS)
def test_layouts(isa: Isa) -> None:
    for layout in OTHER_LAYOUTS:
        check(matmul_8bit_kernel((), 11, 21, 37, **layout), isa)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("a", [U8, I8])
def test_dynamic_rows(isa: Isa, a: DType) -> None:
    rows = Symbol("s", lo=0).dim
    for epilogue in (False, True):
        kernel = matmul_8bit_kernel((), rows, 23, 80, a=a, epilogue=epilogue)
        for count in (0, 1, 2, 4, 5, 6, 7, 9, 11, 12, 13, 25, 64):
            check(kernel, isa, {"s": count}, threads=count in (1, 7, 25))


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("transposed", [False, True])
def test_everything_dynamic(isa: Isa, transposed: bool) -> None:
    b, s, t, d = (Symbol(name).dim for name in "bstd")
    kernel = matmul_8bit_kernel((b, 2), s, d, t, b_batch=(b, 2), a=I8, constant=False, transposed=transposed)
    for count in (1, 3, 17):
        for other in (1, 16, 35):
            check(kernel, isa, {"b": 2, "s": count, "t": other, "d": 20}, threads=False)
            check(kernel, isa, {"b": 1, "s": other, "t": count, "d": 33}, threads=False)
            check(kernel, isa, {"b": 1, "s": other, "t": count, "d": 2}, threads=False)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("signs", SIGNS)
def test_few_columns_are_dot_products(isa: Isa, signs: tuple[DType, DType]) -> None:
    for m, k, n in ((1, 600, 1), (9, 515, 2), (33, 1024, 3)):
        kernel = matmul_8bit_kernel((), m, k, n, a=signs[0], b=signs[1], epilogue=True)
        assert "dot products" in emit_contract(kernel, isa).schedule
        check(kernel, isa)
    ends = [(0, 255) if dtype == U8 else (-128, 127) for dtype in signs]
    kernel = matmul_8bit_kernel((), 2, 30003, 1, a=signs[0], b=signs[1])
    for left, right in product(*ends):
        arrays = [np.full((2, 30003), left, signs[0].numpy), np.full((30003, 1), right, signs[1].numpy)]
        compare(kernel, isa, arrays, threads=False)
