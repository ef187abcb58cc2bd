"""Matrix products for CUDA, under Triton's interpreter, against numpy: odd shapes, layouts, prologues, epilogues."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.backend.cuda.contract import FEW_ROWS, Described, Tile, emit_contract
from aot.dims import Symbol
from aot.dtypes import BF16, F16, F32, F64, I32, I64, DType
from aot.ir import Layout
from aot.kernel import ContractRoot, Kernel
from tests.backend.kernels import matmul_kernel, transposed_b
from tests.backend.test_contract import SHAPES
from tests.cuda import interpreter

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")


def check(
    kernel: Kernel, symbols: dict[str, int] | None = None, seed: int = 0, schedule: Tile | Described | None = None
) -> str:
    """Runs and compares; the schedule."""
    random = np.random.default_rng(seed)
    arrays = []
    for operand in kernel.inputs:
        shape = [e if isinstance(e, int) else symbols[str(e)] for e in operand.type.shape]  # type: ignore[index]
        dtype = operand.type.dtype
        arrays.append(
            random.standard_normal(shape).astype(dtype.numpy)
            if dtype.is_float
            else random.integers(-50, 50, shape).astype(dtype.numpy)
        )
    emitted = emit_contract(kernel, TARGET, schedule)
    (result,) = interpreter.run(kernel, emitted, arrays, symbols)
    root = kernel.root
    assert isinstance(root, ContractRoot)
    wide = [a.astype(np.float64) if a.dtype.kind not in "iu" else a for a in arrays]
    a = np.exp(wide[0] * 0.5) if root.a.op == "exp" else wide[0]
    b = np.swapaxes(wide[1], -1, -2) if transposed_b(kernel) else wide[1]
    expected = a @ b
    scale = np.abs(a) @ np.abs(b) if a.dtype.kind == "f" else np.zeros_like(expected)
    for extra in wide[2:]:
        scale = scale + np.abs(extra)
    if len(arrays) > 2:
        expected = expected + wide[2]
    if len(arrays) > 3:
        expected = np.maximum(expected + wide[3], 0)
    if kernel.stores[0].value.op == "tanh":
        expected, scale = np.tanh(expected), scale + 10
    epsilon = {"f32": 2**-23, "f64": 2**-52, "f16": 2**-11, "bf16": 2**-8}.get(kernel.inputs[0].type.dtype.name, 0)
    error = np.abs(result.astype(expected.dtype) - expected)
    steps = wide[0].shape[-1]
    assert (error <= scale * epsilon * (2 + steps**0.5)).all(), f"worst {error.max()} of {np.abs(expected).max()}"
    return emitted.schedule


@pytest.mark.parametrize("shape", SHAPES)
def test_constant_weights(shape: tuple[int, int, int]) -> None:
    schedule = check(matmul_kernel((), *shape))
    assert ("stream" in schedule) == (shape[0] <= FEW_ROWS)


@pytest.mark.parametrize("epilogue", ["bias", "residual", "tanh"])
@pytest.mark.parametrize("shape", [(1, 20, 33), (19, 70, 80), (9, 12, 200)])
def test_epilogues(epilogue: str, shape: tuple[int, int, int]) -> None:
    check(matmul_kernel((), *shape, epilogue=epilogue))


@pytest.mark.parametrize("transposed", [False, True])
def test_batches(transposed: bool) -> None:
    check(matmul_kernel((3,), 5, 20, 24, transposed=transposed))
    check(matmul_kernel((2, 3), 5, 20, 24, b_batch=(2, 3), transposed=transposed))
    check(matmul_kernel((2, 3), 5, 20, 24, b_batch=(3,), transposed=transposed, constant=False))
    check(matmul_kernel((2, 3), 2, 20, 24, b_batch=(2, 1), transposed=transposed, constant=False, epilogue="residual"))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (6, 9, 7), (2, 64, 130), (40, 17, 32), (1, 5000, 70), (3, 100, 2500)])
def test_activation_times_activation(transposed: bool, shape: tuple[int, int, int]) -> None:
    check(matmul_kernel((), *shape, constant=False, transposed=transposed))


@pytest.mark.parametrize("dtype", [F64, F16, BF16, I32, I64])
@pytest.mark.parametrize("constant", [False, True])
def test_other_types(dtype: DType, constant: bool) -> None:
    for shape in ((1, 30, 40), (11, 17, 35)):
        check(matmul_kernel((), *shape, dtype=dtype, constant=constant, epilogue="bias"))
        check(matmul_kernel((), *shape, dtype=dtype, constant=constant, transposed=True))


def test_computed_rows() -> None:
    check(matmul_kernel((), 37, 30, 70, prologue="scale"))
    check(matmul_kernel((), 2, 30, 70, prologue="scale"))
    check(matmul_kernel((2,), 5, 33, 20, prologue="scale", b_batch=(2,), constant=False))


def test_layouts() -> None:
    flipped = Layout(order=(1, 0))
    check(matmul_kernel((), 11, 20, 37, a_layout=flipped))
    check(matmul_kernel((), 11, 20, 37, out_layout=flipped, epilogue="residual"))
    check(matmul_kernel((), 3, 20, 37, b_layout=flipped, constant=False))
    check(matmul_kernel((4,), 6, 20, 40, out_layout=Layout(order=(1, 0, 2))))
    check(matmul_kernel((), 11, 20, 32, out_layout=Layout(strides=(80, 1)), epilogue="bias"))


@pytest.mark.parametrize("epilogue", ["", "residual"])
def test_dynamic_rows(epilogue: str) -> None:
    rows = Symbol("s", lo=0).dim
    kernel = matmul_kernel((), rows, 24, 80, epilogue=epilogue)
    for count in (0, 1, 5, 64):
        check(kernel, {"s": count})
    kernel = matmul_kernel((Symbol("b").dim,), rows, 24, 80, epilogue=epilogue)
    check(kernel, {"s": 5, "b": 3})


def test_everything_dynamic() -> None:
    b, s, t, d = (Symbol(name).dim for name in "bstd")
    kernel = matmul_kernel((b, 2), s, d, t, b_batch=(b, 2), constant=False, transposed=True)
    for count, other in ((1, 35), (17, 16)):
        check(kernel, {"b": 2, "s": count, "t": other, "d": 20})


SEVERAL_SUMS = [Tile(16, 16, 64, 4, 3, sums=4), Tile(16, 32, 128, 4, 2, sums=2), Tile(32, 16, 128, 8, 4, sums=8)]


@pytest.mark.parametrize("tile", SEVERAL_SUMS, ids=str)
@pytest.mark.parametrize("shape", [(16, 256, 64), (16, 300, 70), (1, 500, 20), *SHAPES[-9:]])
def test_several_sums_of_an_element(tile: Tile, shape: tuple[int, int, int]) -> None:
    for dtype in (F32, F16, BF16):
        check(matmul_kernel((), *shape, dtype=dtype, epilogue="bias"), schedule=tile)


@pytest.mark.parametrize("tile", SEVERAL_SUMS, ids=str)
def test_several_sums_with_all_that_products_have(tile: Tile) -> None:
    for epilogue in ("residual", "tanh"):
        check(matmul_kernel((), 19, 70, 80, epilogue=epilogue), schedule=tile)
    check(matmul_kernel((), 37, 300, 70, prologue="scale"), schedule=tile)
    check(matmul_kernel((2, 3), 5, 130, 24, b_batch=(3,), transposed=True, constant=False), schedule=tile)
    check(matmul_kernel((), 11, 90, 37, a_layout=Layout(order=(1, 0))), schedule=tile)
    check(matmul_kernel((), 9, 90, 37, b_layout=Layout(order=(1, 0)), constant=False), schedule=tile)
    rows, summed = Symbol("s", lo=0).dim, Symbol("d", lo=0).dim
    for count, length in ((0, 5), (1, 0), (20, 131)):
        kernel = matmul_kernel((), rows, summed, 40, constant=False, epilogue="residual")
        check(kernel, {"s": count, "d": length}, schedule=tile)


@pytest.mark.parametrize("tile", SEVERAL_SUMS, ids=str)
def test_several_sums_with_numbers_that_are_none(tile: Tile) -> None:
    kernel = matmul_kernel((), 16, 200, 40, dtype=F16)
    a, b = np.ones((16, 200), np.float16), np.ones((200, 40), np.float16)
    a[3, 130], a[5, 7], b[199, 20] = np.nan, np.inf, -np.inf
    (got,) = interpreter.run(kernel, emit_contract(kernel, TARGET, tile), [a, b])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, (a.astype("f4") @ b.astype("f4")).astype("f2"))


def test_several_sums_are_added_in_the_order_of_the_parts() -> None:
    """A part of each step's elements for itself, in order; then the parts, two at a time."""
    tile, random = Tile(16, 16, 64, 4, 3, sums=4), np.random.default_rng(0)
    kernel = matmul_kernel((), 16, 128, 16)
    a, b = (random.integers(-9, 9, shape).astype("f4") for shape in ((16, 128), (128, 16)))
    emitted = emit_contract(kernel, TARGET, tile)
    assert "acc = tl.zeros((4, 16, 16), tl.float32)" in emitted.source
    assert all(f"tl.reshape(acc, (2, {parts}, 16, 16))" in emitted.source for parts in (2, 1))
    (got,) = interpreter.run(kernel, emitted, [a, b])
    np.testing.assert_array_equal(got, a @ b)  # of integers, in whatever order


def described(kernel: Kernel) -> bool:
    """Checks a kernel with its operands asked for by descriptors; whether they are brought so."""
    return "by descriptors" in check(kernel, schedule=Described())


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("shape", [(1, 8, 1), (130, 72, 200), (300, 64, 128), (5, 640, 257)])
def test_tiles_by_descriptors(dtype: DType, shape: tuple[int, int, int]) -> None:
    assert described(matmul_kernel((), *shape, dtype=dtype, epilogue="bias"))
    assert described(matmul_kernel((), *shape, dtype=dtype, transposed=True, epilogue="residual"))
    assert described(matmul_kernel((), *shape, dtype=dtype, constant=False, transposed=True))


def test_operands_that_no_descriptor_has() -> None:
    assert not described(matmul_kernel((), 37, 30, 70, dtype=F16))  # lines of 60 bytes
    assert not described(matmul_kernel((), 37, 32, 70))  # f32
    assert not described(matmul_kernel((), 37, 32, 70, dtype=F16, prologue="scale"))
    assert not described(matmul_kernel((), 37, 32, 70, dtype=F16, constant=False))  # columns innermost
    assert not described(matmul_kernel((3,), 5, 32, 24, dtype=F16, b_batch=(3,)))


def test_descriptors_where_there_are_many_tiles() -> None:
    many = matmul_kernel((), 4096, 768, 2304, dtype=F16, epilogue="bias")
    emitted = BACKEND.emit(many, TARGET)
    assert "by descriptors" in emitted.schedule and emitted.grid == (132, 1, 1)
    (image,) = BACKEND.build([("k", emitted.source)], TARGET, None, jobs=1).images.values()
    assert image.spilled_bytes == 0 and image.scratch_bytes > 0
    for other in (BACKEND.target("sm_80"), BACKEND.target("compute_90")):
        assert "by descriptors" not in BACKEND.emit(many, other).schedule
    few = matmul_kernel((), 1024, 768, 768, dtype=F16, epilogue="bias")
    assert "by descriptors" not in BACKEND.emit(few, TARGET).schedule


def test_cubins_of_several_sums() -> None:
    tiles = [Tile(16, 32, 256, 4, 4, sums=4), Tile(16, 64, 128, 4, 4, sums=2), Tile(16, 64, 256, 8, 3, sums=8)]
    kernel = matmul_kernel((), 16, 2048, 3072, dtype=F16, epilogue="residual")
    sources = [(f"k{number}", emit_contract(kernel, TARGET, tile).source) for number, tile in enumerate(tiles)]
    for symbol, image in BACKEND.build(sources, TARGET, None, jobs=1).images.items():
        assert image.spilled_bytes == 0 and image.registers <= 128, (symbol, image)
