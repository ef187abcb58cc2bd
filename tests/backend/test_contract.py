"""Matrix multiplication kernels against numpy: odd shapes, layouts, prologues, epilogues, threads."""

from __future__ import annotations

import numpy as np
import pytest

from aot.backend.cpu.contract import emit_contract
from aot.backend.cpu.isa import Isa
from aot.dims import Symbol
from aot.dtypes import BF16, F16, F64, I32, I64, DType
from aot.ir import Layout
from aot.kernel import ContractRoot, Kernel
from tests.backend.harness import ISAS, run, run_threads
from tests.backend.kernels import matmul_kernel, transposed_b


def check(kernel: Kernel, isa: Isa, symbols: dict[str, int] | None = None, seed: int = 0, threads: bool = True) -> None:
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
    emitted = emit_contract(kernel, isa)
    runner = run_threads if threads else run
    (result,) = runner(kernel, emitted, isa, arrays, symbols)
    root = kernel.root
    assert isinstance(root, ContractRoot)
    wide = [a.astype(np.float64) if a.dtype.kind not in "iu" else a for a in arrays]
    a = np.exp(wide[0] * 0.5) if root.a.op == "exp" else wide[0]
    b = np.swapaxes(wide[1], -1, -2) if transposed_b(kernel) else wide[1]
    expected = a @ b
    scale = np.abs(a) @ np.abs(b) if a.dtype.kind == "f" else np.zeros_like(expected)
    if len(arrays) > 2:
        expected = expected + wide[2]
        scale = scale + np.abs(wide[2])
    if len(arrays) > 3:
        expected = np.maximum(expected + wide[3], 0)
    if kernel.stores[0].value.op == "tanh":
        expected, scale = np.tanh(expected), scale + 10
    epsilon = {"f32": 2**-23, "f64": 2**-52, "f16": 2**-11, "bf16": 2**-8}.get(kernel.inputs[0].type.dtype.name, 0)
    steps = wide[0].shape[-1]
    error = np.abs(result.astype(expected.dtype) - expected)
    assert (error <= scale * epsilon * (2 + steps**0.5)).all(), f"worst {error.max()} of {np.abs(expected).max()}"


SHAPES = [
    (1, 1, 1), (1, 7, 5), (1, 64, 200), (2, 33, 16), (3, 5, 100), (4, 384, 96), (5, 17, 31), (7, 64, 48), (8, 3, 49),
    (13, 100, 33), (31, 8, 64), (65, 129, 17), (100, 1, 3), (3, 0, 5), (0, 4, 5), (128, 64, 192), (17, 40, 1),
]  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_constant_weights(isa: Isa, shape: tuple[int, int, int]) -> None:
    check(matmul_kernel((), *shape), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("epilogue", ["bias", "residual", "tanh"])
@pytest.mark.parametrize("shape", [(1, 20, 33), (19, 70, 80), (9, 12, 200)])
def test_epilogues(isa: Isa, epilogue: str, shape: tuple[int, int, int]) -> None:
    check(matmul_kernel((), *shape, epilogue=epilogue), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("transposed", [False, True])
def test_batches(isa: Isa, transposed: bool) -> None:
    check(matmul_kernel((3,), 5, 20, 24, transposed=transposed), isa)  # rows of one matrix
    check(matmul_kernel((2, 3), 5, 20, 24, b_batch=(2, 3), transposed=transposed), isa)
    check(matmul_kernel((2, 3), 5, 20, 24, b_batch=(3,), transposed=transposed, constant=False), isa)
    check(
        matmul_kernel((2, 3), 5, 20, 24, b_batch=(2, 1), transposed=transposed, constant=False, epilogue="residual"),
        isa,
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (6, 9, 7), (33, 40, 50), (2, 64, 130), (40, 17, 32)])
def test_activation_times_activation(isa: Isa, transposed: bool, shape: tuple[int, int, int]) -> None:
    check(matmul_kernel((), *shape, constant=False, transposed=transposed), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [F64, F16, BF16, I32, I64])
@pytest.mark.parametrize("constant", [False, True])
def test_other_types(isa: Isa, dtype: DType, constant: bool) -> None:
    for shape in ((1, 30, 40), (11, 17, 35)):
        check(matmul_kernel((), *shape, dtype=dtype, constant=constant, epilogue="bias"), isa)
        check(matmul_kernel((), *shape, dtype=dtype, constant=constant, transposed=True), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_computed_rows(isa: Isa) -> None:
    check(matmul_kernel((), 37, 30, 70, prologue="scale"), isa)
    check(matmul_kernel((2,), 5, 33, 20, prologue="scale", b_batch=(2,), constant=False), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_layouts(isa: Isa) -> None:
    flipped = Layout(order=(1, 0))
    check(matmul_kernel((), 11, 20, 37, a_layout=flipped), isa)
    check(matmul_kernel((), 11, 20, 37, out_layout=flipped, epilogue="residual"), isa)
    check(matmul_kernel((), 11, 20, 37, b_layout=flipped, constant=False), isa)
    check(matmul_kernel((4,), 6, 20, 40, out_layout=Layout(order=(1, 0, 2))), isa)
    check(matmul_kernel((), 11, 20, 32, out_layout=Layout(strides=(80, 1)), epilogue="bias"), isa)
    check(matmul_kernel((), 11, 20, 32, out_layout=Layout(halo=((1, 2), (3, 0)))), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("epilogue", ["", "residual", "tanh"])
def test_dynamic_rows(isa: Isa, epilogue: str) -> None:
    rows = Symbol("s", lo=0).dim
    kernel = matmul_kernel((), rows, 24, 80, epilogue=epilogue)
    for count in (0, 1, 2, 4, 5, 6, 7, 9, 11, 12, 13, 25, 64):
        check(kernel, isa, {"s": count}, threads=count in (1, 7, 25))
    kernel = matmul_kernel((Symbol("b").dim,), rows, 24, 80, epilogue=epilogue)
    for count in (1, 2, 5, 9):
        check(kernel, isa, {"s": count, "b": 3}, threads=False)


@pytest.mark.parametrize("isa", ISAS)
def test_everything_dynamic(isa: Isa) -> None:
    b, s, t, d = (Symbol(name).dim for name in "bstd")
    kernel = matmul_kernel((b, 2), s, d, t, b_batch=(b, 2), constant=False, transposed=True)
    for count in (1, 3, 17):
        for other in (1, 16, 35):
            check(kernel, isa, {"b": 2, "s": count, "t": other, "d": 20}, threads=False)
            check(kernel, isa, {"b": 1, "s": other, "t": count, "d": 33}, threads=False)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_one_result_are_the_same_in_every_form(isa: Isa) -> None:
    """Equal rows give equal bits, whichever tile they fall in."""
    rows = Symbol("s").dim
    kernel = matmul_kernel((), rows, 100, 50, epilogue="tanh")
    random = np.random.default_rng(1)
    row = random.standard_normal((1, 100)).astype(np.float32)
    b = random.standard_normal((100, 50)).astype(np.float32)
    bias = random.standard_normal(50).astype(np.float32)
    emitted = emit_contract(kernel, isa)
    (one,) = run(kernel, emitted, isa, [row, b, bias], {"s": 1})
    for count in (2, 3, 5, 7, 8, 13):
        (many,) = run(kernel, emitted, isa, [np.repeat(row, count, 0), b, bias], {"s": count})
        assert all(r.tobytes() == one[0].tobytes() for r in many)
