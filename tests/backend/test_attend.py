"""Attention kernels against numpy: odd sizes, grouped heads, masks, causal, long keys, threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot import dims
from aot.backend.cpu.attend import emit_attend
from aot.backend.cpu.isa import Isa
from aot.dims import Symbol
from aot.dtypes import BF16, F64, DType
from aot.ir import Layout
from aot.kernel import AttendRoot, Kernel
from tests.backend.harness import ISAS, PAIR_ISAS, run, run_threads
from tests.backend.kernels import attend_kernel, f32_result


def check(kernel: Kernel, isa: Isa, symbols: dict[str, int] | None = None, threads: bool = True) -> None:
    random = np.random.default_rng(0)
    arrays: list[Any] = []
    root = kernel.root
    assert isinstance(root, AttendRoot)
    for number, operand in enumerate(kernel.inputs):
        shape = [dims.evaluate(e, symbols or {}) for e in operand.type.shape]
        values = random.standard_normal(shape)
        if number == 3 and root.mask is not None and root.mask.op != "load":
            values = (values > -0.5).astype(np.float64)
        arrays.append(values.astype(operand.type.dtype.numpy))
    emitted = emit_attend(kernel, isa)
    (result,) = (run_threads if threads else run)(kernel, emitted, isa, arrays, symbols)
    q, k, v, *rest = (a.astype(np.float64) for a in arrays)
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], axis=1) for a in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * root.scale
    if rest:
        scores = scores + (rest[0] if root.mask is not None and root.mask.op == "load" else (1 - rest[0]) * -10000.0)
    if root.causal:
        s, t = scores.shape[-2:]
        scores = np.where(np.arange(t) <= np.arange(s)[:, None] + t - s, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = weights @ v / weights.sum(-1, keepdims=True)
    if root.zero_empty:
        expected = np.where(scores.max(-1, keepdims=True) == -np.inf, 0.0, expected)
    tolerance = {"f32": 1e-5, "f64": 1e-13, "bf16": 2e-2}[kernel.outputs[0].type.dtype.name]
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1, 1), (2, 3, 5, 7, 9), (1, 2, 13, 13, 64), (2, 4, 37, 37, 32), (1, 1, 25, 70, 20)]
)
def test_sizes(isa: Isa, sizes: tuple[int, int, int, int, int]) -> None:
    check(attend_kernel(*sizes), isa)
    check(attend_kernel(*sizes, layout=Layout(), mask="full"), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_masks_and_heads(isa: Isa) -> None:
    check(attend_kernel(2, 4, 19, 19, 32, mask="keys"), isa)
    check(attend_kernel(2, 4, 19, 33, 16, key_heads=2, mask="full", causal=True), isa)
    check(attend_kernel(1, 6, 30, 30, 48, key_heads=1, causal=True, width=80), isa)
    check(attend_kernel(1, 2, 40, 40, 24, causal=True, width=10), isa)
    check(attend_kernel(1, 2, 9, 4, 16, causal=True), isa)  # the first rows see nothing: NaN
    check(attend_kernel(1, 2, 9, 4, 16, causal=True, zero_empty=True), isa)  # or 0


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_to_see(isa: Isa) -> None:
    kernel = attend_kernel(2, 2, 3, 0, 16)
    (result,) = run(kernel, emit_attend(kernel, isa), isa, [np.ones((2, 2, s, 16), np.float32) for s in (3, 0, 0)])
    assert (result == 0).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [F64, BF16])
def test_other_types(isa: Isa, dtype: DType) -> None:
    check(attend_kernel(2, 2, 15, 21, 32, dtype=dtype), isa)
    check(attend_kernel(1, 2, 15, 21, 9, dtype=dtype, causal=True, mask="keys"), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_many_keys(isa: Isa) -> None:
    check(attend_kernel(1, 1, 3, 2500, 16, mask="full"), isa)
    check(attend_kernel(1, 2, 14, 2049, 16, causal=True), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("causal", [False, True])
def test_dynamic_sizes(isa: Isa, causal: bool) -> None:
    b, s, t = (Symbol(name).dim for name in "bst")
    kernel = attend_kernel(b, 2, s, t, 32, mask="keys", causal=causal)
    for sizes in ((1, 1, 1), (2, 5, 9), (1, 12, 64), (3, 31, 100), (1, 2, 2100)):
        symbols = dict(zip("bst", sizes, strict=True))
        check(kernel, isa, symbols, threads=symbols["b"] == 3)


def check_pairs(kernel: Kernel, isa: Isa, symbols: dict[str, int] | None = None, *, pairs: bool = True) -> None:
    """Of bf16, whose products are exact in f32: as near as f32 is."""
    kernel = f32_result(kernel)
    assert ("pair_dot" in emit_attend(kernel, isa).source) == pairs
    check(kernel, isa, symbols)


@pytest.mark.parametrize("isa", PAIR_ISAS)
@pytest.mark.parametrize("layout", [Layout(), Layout(order=(0, 2, 1, 3))])
def test_pairs_of_bf16(isa: Isa, layout: Layout) -> None:
    for sizes in ((1, 1, 1, 1, 2), (2, 3, 5, 7, 6), (1, 2, 13, 13, 64), (2, 4, 37, 37, 32), (1, 1, 25, 70, 20)):
        check_pairs(attend_kernel(*sizes, layout=layout, dtype=BF16), isa)
    check_pairs(attend_kernel(2, 4, 19, 33, 16, key_heads=2, mask="full", causal=True, layout=layout, dtype=BF16), isa)
    check_pairs(attend_kernel(1, 2, 9, 17, 8, width=7, mask="keys", layout=layout, dtype=BF16), isa)
    check_pairs(attend_kernel(1, 2, 14, 2049, 16, causal=True, layout=layout, dtype=BF16), isa)
    check_pairs(attend_kernel(1, 2, 15, 21, 9, layout=layout, dtype=BF16), isa, pairs=False)  # rows of no whole pairs


@pytest.mark.parametrize("isa", PAIR_ISAS)
def test_pairs_of_dynamic_sizes(isa: Isa) -> None:
    b, s, t = (Symbol(name).dim for name in "bst")
    kernel = attend_kernel(b, 2, s, t, 32, mask="keys", causal=True, dtype=BF16)
    for sizes in ((1, 1, 1), (2, 5, 9), (1, 12, 64), (3, 31, 100), (1, 2, 2100)):
        check_pairs(kernel, isa, dict(zip("bst", sizes, strict=True)))


@pytest.mark.parametrize("isa", ISAS)
def test_values_in_bf16_are_read_in_place(isa: Isa) -> None:
    kernel = f32_result(attend_kernel(2, 3, 15, 21, 32, dtype=BF16))
    assert "values in place" in emit_attend(kernel, isa).schedule
    check(kernel, isa)
