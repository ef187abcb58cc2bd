"""Products of pairs of bf16 against sums in f64: odd shapes, layouts, epilogues, threads, what is no number.

A sum in f32 is off by at most a rounding for each product, of the size of what was added; results are rounded to bf16.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot import expr
from aot.backend.base import Emitted
from aot.backend.cpu.contract import emit_contract
from aot.backend.cpu.isa import V3, V4_VNNI, V4_VNNI_BF16, Isa
from aot.backend.cpu.window import emit_window
from aot.dims import Symbol, evaluate
from aot.dtypes import BF16, F32
from aot.ir import Layout
from aot.kernel import ContractRoot, Kernel, KernelOperand, WindowRoot
from aot.ops import OPS
from tests.backend.harness import PAIR_ISAS, run, run_threads
from tests.backend.kernels import OTHER_LAYOUTS, conv_attrs, conv_kernel, f32_result, matmul_kernel, transposed_b
from tests.backend.test_word_windows import DENSE, P1
from tests.backend.test_words import SHAPES

SUM = 2.0**-22
"""Of what was added up: what sums may lose, generously."""


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def random_operands(kernel: Kernel, symbols: dict[str, int] | None = None) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [tuple(evaluate(extent, symbols or {}) for extent in operand.type.shape) for operand in kernel.inputs]
    return [
        random.standard_normal(shape).astype(operand.type.dtype.numpy)
        for shape, operand in zip(shapes, kernel.inputs, strict=True)
    ]


def uses_pairs(emitted: Emitted) -> bool:
    return "pair_dot" in emitted.source


def check(
    kernel: Kernel,
    isa: Isa,
    symbols: dict[str, int] | None = None,
    *,
    arrays: list[np.ndarray] | None = None,
    rounded_left: bool = False,
    threads: bool = True,
) -> np.ndarray:
    """Sums to SUM of what was added; with an epilogue, to a rounding of its result more."""
    root = kernel.root
    assert isinstance(root, ContractRoot)
    arrays = arrays or random_operands(kernel, symbols)
    a, b = wide(arrays[0]), wide(arrays[1])
    if rounded_left:
        a = wide(np.exp(a * 0.5).astype(ml_dtypes.bfloat16))
    b = np.swapaxes(b, -1, -2) if transposed_b(kernel) else b
    expected, size = a @ b, np.abs(a) @ np.abs(b)
    bound = SUM * size
    if rounded_left:
        bound = bound + 2.0**-8 * size  # exponentials near halfway between two bf16
    if len(arrays) > 2:
        expected = expected + wide(arrays[2])
        if len(arrays) > 3:
            expected = np.maximum(expected + wide(arrays[3]), 0)
        bound = bound + 2.0**-8 * np.abs(expected)
    emitted = emit_contract(kernel, isa)
    assert uses_pairs(emitted) or emitted.flops == 0
    (result,) = (run_threads if threads else run)(kernel, emitted, isa, arrays, symbols)
    assert result.shape == expected.shape
    assert (np.abs(wide(result) - expected) <= bound + 1e-30).all()
    return result


def product(*args: Any, **options: Any) -> Kernel:
    return f32_result(matmul_kernel(*args, dtype=BF16, **options))


@pytest.mark.parametrize("isa", PAIR_ISAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(isa: Isa, shape: tuple[int, int, int]) -> None:
    check(product((), *shape), isa)
    check(product((), *shape, constant=False), isa)
    check(product((), *shape, transposed=True), isa, threads=False)
    check(product((), *shape, transposed=True, constant=False), isa, threads=False)


@pytest.mark.parametrize("isa", PAIR_ISAS)
@pytest.mark.parametrize("epilogue", ["bias", "residual"])
def test_epilogues_store_bf16(isa: Isa, epilogue: str) -> None:
    for shape in ((1, 20, 33), (19, 71, 80), (9, 12, 200), (64, 128, 64)):
        check(matmul_kernel((), *shape, dtype=BF16, epilogue=epilogue), isa)


@pytest.mark.parametrize("isa", PAIR_ISAS)
@pytest.mark.parametrize("transposed", [False, True])
def test_batches(isa: Isa, transposed: bool) -> None:
    check(product((3,), 5, 20, 24, transposed=transposed), isa)  # rows of one matrix
    check(product((2, 3), 5, 21, 24, b_batch=(2, 3), transposed=transposed), isa)
    check(product((2, 3), 5, 20, 24, b_batch=(3,), transposed=transposed, constant=False), isa)
    check(product((2, 3), 5, 23, 24, b_batch=(2, 1), transposed=transposed, constant=False), isa)


@pytest.mark.parametrize("isa", PAIR_ISAS)
def test_rows_in_scratch(isa: Isa) -> None:
    """Rows that are computed, and rows whose elements are no neighbours."""
    check(product((), 37, 30, 70, prologue="scale"), isa, rounded_left=True)
    check(product((2,), 5, 33, 20, prologue="scale", b_batch=(2,), constant=False), isa, rounded_left=True)
    check(product((), 11, 21, 37, a_layout=Layout(order=(1, 0))), isa)
    check(product((), 11, 1, 37, a_layout=Layout(order=(1, 0))), isa)
    check(product((), 11, 21, 37, a_layout=Layout(strides=(50, 2))), isa)
    check(product((), 9, 1024, 37, a_layout=Layout(strides=(2048, 2))), isa)


@pytest.mark.parametrize("isa", PAIR_ISAS)
@pytest.mark.parametrize("constant", [False, True])
def test_factors_that_lie_in_f32_are_rounded(isa: Isa, constant: bool) -> None:
    """To nearest, halves to even: as the casts that the graph says."""
    kernel = product((), 13, 21, 40, constant=constant)
    root = kernel.root
    assert isinstance(root, ContractRoot)
    inputs = tuple(KernelOperand(o.type.with_dtype(F32), o.constant) for o in kernel.inputs)
    left, right = (expr.cast(expr.load(v.payload, F32, v.args), BF16) for v in (root.a, root.b))
    kernel = replace(kernel, inputs=inputs, root=replace(root, a=left, b=right))
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((13, 21), (21, 40)))
    a[0], b[:, 0] = 1 + 2.0**-8, 1 + 3 * 2.0**-8  # halfway: to 1, and to 1 + 2**-6
    a_, b_ = (wide(array.astype(ml_dtypes.bfloat16)) for array in (a, b))
    expected, size = a_ @ b_, np.abs(a_) @ np.abs(b_)
    emitted = emit_contract(kernel, isa)
    assert uses_pairs(emitted)
    (result,) = run_threads(kernel, emitted, isa, [a, b])
    assert (np.abs(result - expected) <= SUM * size).all()
    assert result[0, 0] == 21 * (1 + 2.0**-6)


@pytest.mark.parametrize("isa", PAIR_ISAS)
def test_for_few_columns_a_factor_in_f32_is_taken_as_it_is(isa: Isa) -> None:
    """Putting it into scratch would take longer than products in f32."""
    for m, k, n, pairs in ((70, 21, 8, False), (9, 515, 2, False), (70, 21, 9, True)):
        kernel = product((), m, k, n)
        root = kernel.root
        assert isinstance(root, ContractRoot)
        inputs = (KernelOperand(kernel.inputs[0].type.with_dtype(F32)), kernel.inputs[1])
        kernel = replace(kernel, inputs=inputs, root=replace(root, a=expr.cast(expr.load(0, F32, root.a.args), BF16)))
        emitted = emit_contract(kernel, isa)
        assert uses_pairs(emitted) == pairs
        random = np.random.default_rng(4)
        a = random.standard_normal((m, k)).astype(np.float32)
        b = random.standard_normal((k, n)).astype(ml_dtypes.bfloat16)
        taken = wide(a.astype(ml_dtypes.bfloat16)) if pairs else wide(a)
        (result,) = run_threads(kernel, emitted, isa, [a, b])
        assert (np.abs(result - taken @ wide(b)) <= SUM * (np.abs(taken) @ np.abs(wide(b)))).all()


@pytest.mark.parametrize("isa", PAIR_ISAS)
def test_layouts(isa: Isa) -> None:
    for layout in OTHER_LAYOUTS:
        check(product((), 11, 21, 37, **layout), isa)


@pytest.mark.parametrize("isa", PAIR_ISAS)
def test_dynamic_rows(isa: Isa) -> None:
    rows = Symbol("s", lo=0).dim
    for kernel in (product((), rows, 23, 80), matmul_kernel((), rows, 23, 80, dtype=BF16, epilogue="bias")):
        for count in (0, 1, 2, 4, 5, 6, 7, 9, 11, 12, 13, 25, 64):
            check(kernel, isa, {"s": count}, threads=count in (1, 7, 25))


@pytest.mark.parametrize("isa", PAIR_ISAS)
@pytest.mark.parametrize("transposed", [False, True])
def test_everything_dynamic(isa: Isa, transposed: bool) -> None:
    b, s, t, d = (Symbol(name).dim for name in "bstd")
    kernel = product((b, 2), s, d, t, b_batch=(b, 2), constant=False, transposed=transposed)
    for count in (1, 3, 17):
        for other in (1, 16, 35):
            check(kernel, isa, {"b": 2, "s": count, "t": other, "d": 20}, threads=False)
            check(kernel, isa, {"b": 1, "s": other, "t": count, "d": 33}, threads=False)
            check(kernel, isa, {"b": 1, "s": other, "t": count, "d": 1}, threads=False)


@pytest.mark.parametrize("isa", PAIR_ISAS)
def test_few_columns_are_dot_products(isa: Isa) -> None:
    for m, k, n in ((1, 600, 1), (9, 515, 2), (33, 1024, 3)):
        kernel = matmul_kernel((), m, k, n, dtype=BF16, epilogue="bias")
        assert "dot products" in emit_contract(kernel, isa).schedule
        check(kernel, isa)
        check(f32_result(kernel), isa, arrays=[*random_operands(kernel)[:2], np.zeros(n, ml_dtypes.bfloat16)])


@pytest.mark.parametrize("isa", PAIR_ISAS)
def test_what_is_no_number(isa: Isa) -> None:
    """Infinities and NaN are where they belong, also in odd runs; nothing leaks from what pads a word or a panel."""
    for k in (1, 2, 7, 40):
        for columns in (1, 5, 40):
            kernel = product((), 6, k, columns)
            a, b = random_operands(kernel)
            a[0, k - 1], a[1, 0], a[2, k // 2] = np.inf, np.nan, -np.inf
            b[k - 1, columns - 1] = 0
            with np.errstate(invalid="ignore"):
                expected = np.matmul(wide(a), wide(b))
            (result,) = run_threads(kernel, emit_contract(kernel, isa), isa, [a, b])
            special = ~np.isfinite(expected)
            assert (np.isfinite(result) == ~special).all()
            assert np.array_equal(result[special], expected[special].astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("isa", PAIR_ISAS)
def test_subnormals_are_zeros(isa: Isa) -> None:
    """As the instruction takes them: factors, and products too small for a normal f32; what is normal stays."""
    least = 2.0**-126
    kernel = product((), 2, 4, 20)
    for left, right, wanted in (
        (least / 4, 1.0, 0.0), (1.0, least / 4, 0.0), (2.0**-70, 2.0**-60, 0.0), (least, 1.0, 4 * least),
        (2.0**-63, 2.0**-63, 4 * least),
    ):  # fmt: skip
        arrays = [np.full((2, 4), left, ml_dtypes.bfloat16), np.full((4, 20), right, ml_dtypes.bfloat16)]
        assert wide(arrays[0])[0, 0] == left and wide(arrays[1])[0, 0] == right
        (result,) = run(kernel, emit_contract(kernel, isa), isa, arrays)
        assert (result == np.float32(wanted)).all()


def test_other_levels_multiply_f32() -> None:
    """The same products where there is no such instruction, and for exact arithmetic."""
    kernel = product((), 5, 21, 40)
    for isa in (V3, V4_VNNI, V4_VNNI_BF16.exact):
        assert not uses_pairs(emit_contract(kernel, isa))
    assert not uses_pairs(emit_contract(matmul_kernel((), 5, 21, 40), V4_VNNI_BF16))


def test_weights_take_half_the_bytes() -> None:
    (packed,) = emit_contract(product((), 5, 64, 48), V4_VNNI_BF16).packed.values()
    assert packed.dtype == BF16.number and packed.shape == (3, 32, 16, 2)


def check_window(kernel: Kernel, isa: Isa, symbols: dict[str, int] | None = None, threads: bool = True) -> None:
    root = kernel.root
    assert isinstance(root, WindowRoot)
    reference = OPS["conv"].reference
    assert reference is not None
    attrs: Any = conv_attrs(root)
    arrays = random_operands(kernel, symbols)
    x, w = wide(arrays[0]), wide(arrays[1])
    expected, size = np.asarray(reference(attrs, x, w)), np.asarray(reference(attrs, np.abs(x), np.abs(w)))
    bound = SUM * size
    if len(arrays) > 2:
        expected = expected + wide(arrays[2]).reshape(-1, *(1,) * (expected.ndim - 2))
        if len(arrays) > 3:
            expected = np.maximum(expected + wide(arrays[3]), 0)
    if kernel.outputs[0].type.dtype == BF16:
        bound = bound + 2.0**-8 * np.abs(expected)
    emitted = emit_window(kernel, isa)
    assert uses_pairs(emitted) or emitted.flops == 0
    (result,) = (run_threads if threads else run)(kernel, emitted, isa, arrays, symbols)
    assert result.shape == expected.shape and (np.abs(wide(result) - expected) <= bound + 1e-30).all()


def window(case: dict[str, Any], **options: Any) -> Kernel:
    return conv_kernel(**{name: value for name, value in case.items() if name != "fill"}, dtype=BF16, **options)


@pytest.mark.parametrize("isa", PAIR_ISAS)
@pytest.mark.parametrize("case", DENSE)
def test_dense_convolutions(isa: Isa, case: dict[str, Any]) -> None:
    check_window(window(case, epilogue="residual"), isa)
    check_window(window(case, epilogue="bias", out_halo=1), isa)
    check_window(f32_result(window(case)), isa, threads=False)


@pytest.mark.parametrize("isa", PAIR_ISAS)
@pytest.mark.parametrize("case", DENSE[:6])
def test_channels_first_convolutions(isa: Isa, case: dict[str, Any]) -> None:
    check_window(f32_result(window(case, channels_last=False)), isa, threads=False)


@pytest.mark.parametrize("isa", PAIR_ISAS)
@pytest.mark.parametrize("constant", [False, True])
def test_groups_of_channels(isa: Isa, constant: bool) -> None:
    for c, o, groups in ((8, 12, 4), (32, 64, 2), (6, 6, 2), (12, 8, 4)):
        kernel = conv_kernel(2, c, (7, 9), o, (3, 3), pads=P1, groups=groups, dtype=BF16, constant=constant)
        check_window(f32_result(kernel), isa)


@pytest.mark.parametrize("isa", PAIR_ISAS)
def test_weights_of_a_convolution_that_are_computed(isa: Isa) -> None:
    for channels_last in (False, True):
        kernel = conv_kernel(2, 5, (6, 7), 20, (3, 2), pads=P1, dtype=BF16, constant=False, channels_last=channels_last)
        check_window(f32_result(kernel), isa)


@pytest.mark.parametrize("isa", PAIR_ISAS)
def test_convolutions_of_dynamic_sizes(isa: Isa) -> None:
    n, h, w = (Symbol(name).dim for name in "nhw")
    kernel = conv_kernel(n, 7, (h, w), 20, (3, 3), pads=P1, dtype=BF16, epilogue="bias")
    for size in ((1, 1, 1), (2, 3, 5), (1, 9, 17)):
        check_window(kernel, isa, dict(zip("nhw", size, strict=True)), threads=False)


@pytest.mark.parametrize("isa", PAIR_ISAS)
def test_few_outputs_of_a_convolution_are_dot_products(isa: Isa) -> None:
    kernel = conv_kernel(1, 64, (5, 5), 1, (3, 3), pads=P1, dtype=BF16)
    assert "dot products" in emit_window(kernel, isa).schedule
    check_window(f32_result(kernel), isa)


@pytest.mark.parametrize("isa", PAIR_ISAS)
@pytest.mark.parametrize("channels", [3, 24])
def test_images_in_f32_are_taken_as_they_are(isa: Isa, channels: int) -> None:
    """By the kernels of f32, that of Winograd's among them, with weights that lie in bf16."""
    kernel = conv_kernel(2, channels, (12, 14), 24, (3, 3), pads=P1, dtype=BF16)
    root = kernel.root
    assert isinstance(root, WindowRoot)
    inputs = (KernelOperand(kernel.inputs[0].type.with_dtype(F32)), kernel.inputs[1])
    kernel = f32_result(replace(kernel, inputs=inputs, root=replace(root, operand=BF16)))
    emitted = emit_window(kernel, isa)
    assert not uses_pairs(emitted) and ("F(2x2" in emitted.schedule) == (channels == 24)
    x, w = random_operands(kernel)
    reference = OPS["conv"].reference
    assert reference is not None
    attrs: Any = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    expected, size = (np.asarray(reference(attrs, f(wide(x)), f(wide(w)))) for f in (np.array, np.abs))
    (result,) = run_threads(kernel, emitted, isa, [x, w])
    assert (np.abs(result - expected) <= 4 * SUM * size).all()
