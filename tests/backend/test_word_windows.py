"""Convolutions of 8-bit integers against the op's reference, bit for bit: geometry, halos, signs, groups, epilogues."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from aot.backend.cpu.isa import Isa
from aot.backend.cpu.window import emit_window
from aot.dims import Symbol
from aot.dtypes import I8, U8, DType
from aot.errors import CompilerError
from aot.kernel import Kernel, WindowRoot
from aot.ops import OPS
from tests.backend.harness import WORD_ISAS, run, run_threads
from tests.backend.kernels import conv_attrs
from tests.backend.test_words import SIGNS
from tests.backend.word_kernels import conv_8bit_kernel, operands


def check(kernel: Kernel, isa: Isa, symbols: dict[str, int] | None = None, threads: bool = True) -> None:
    compare(kernel, isa, operands(kernel, symbols), symbols, threads)


def compare(
    kernel: Kernel, isa: Isa, arrays: list[np.ndarray], symbols: dict[str, int] | None = None, threads: bool = True
) -> None:
    root = kernel.root
    assert isinstance(root, WindowRoot)
    reference = OPS["conv_8bit"].reference
    assert reference is not None
    attrs: Any = {**conv_attrs(root), "fill": root.fill}
    expected = np.asarray(reference(attrs, *arrays))
    if len(kernel.inputs) > 2:
        random = np.random.default_rng(1)
        outputs = (expected.shape[1],)
        shift = random.integers(-999, 999, outputs).astype(np.int32)
        scale = random.random(outputs).astype(np.float32) * np.float32(1e-2)
        arrays = [*arrays, shift, scale]
        shape = (-1, *(1,) * (expected.ndim - 2))
        number = (expected - shift.reshape(shape)).astype(np.float32) * scale.reshape(shape)
        expected = np.clip(np.rint(number) + 7, 0, 255).astype(np.uint8)
    (result,) = (run_threads if threads else run)(kernel, emit_window(kernel, isa), isa, arrays, symbols)
    assert result.shape == expected.shape and (result == expected).all()


P1 = ((1, 1), (1, 1))
DENSE: list[dict[str, Any]] = [
    dict(n=1, c=3, spatial=(13, 17), o=20, window=(7, 7), strides=(2, 2), pads=((3, 3), (3, 3)), fill=128),
    dict(n=2, c=16, spatial=(9, 11), o=33, window=(3, 3), pads=P1, fill=255),
    dict(n=2, c=24, spatial=(6, 7), o=16, window=(1, 1)),
    dict(n=1, c=26, spatial=(6, 7), o=40, window=(1, 1), strides=(2, 2)),
    dict(n=1, c=5, spatial=(12, 10), o=7, window=(3, 2), dilations=(2, 3), pads=((2, 0), (1, 3)), fill=3),
    dict(n=1, c=1, spatial=(8, 40), o=8, window=(3, 5), strides=(1, 3), pads=((1, 1), (0, 2)), fill=77),
    dict(n=3, c=6, spatial=(30,), o=18, window=(5,), pads=((2, 2),), fill=1),
    dict(n=1, c=4, spatial=(5, 6, 7), o=9, window=(2, 3, 3), strides=(2, 1, 2), pads=((0, 1), (1, 1), (1, 1)), fill=5),
    dict(n=1, c=8, spatial=(1, 1), o=48, window=(1, 1)),
    dict(n=2, c=8, spatial=(3, 3), o=1, window=(3, 3)),
    dict(n=0, c=8, spatial=(3, 3), o=5, window=(3, 3)),
]


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("case", DENSE)
def test_dense(isa: Isa, case: dict[str, Any]) -> None:
    check(conv_8bit_kernel(**case, epilogue=True, out_halo=1), isa)
    check(conv_8bit_kernel(**case, halo=2, x=I8) if case.get("fill", 0) < 128 else conv_8bit_kernel(**case), isa)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("case", DENSE[:6])
def test_channels_first_input(isa: Isa, case: dict[str, Any]) -> None:
    check(conv_8bit_kernel(**case, channels_last=False), isa, threads=False)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("constant", [False, True])
def test_signs(isa: Isa, signs: tuple[DType, DType], constant: bool) -> None:
    x, w = signs
    fill = 200 if x == U8 else -100
    kinds: Any = dict(x=x, w=w, constant=constant, fill=fill)
    check(conv_8bit_kernel(2, 5, (6, 7), 20, (3, 2), pads=P1, **kinds), isa)
    check(conv_8bit_kernel(1, 12, (7, 9), 8, (3, 3), pads=P1, groups=4, epilogue=True, **kinds), isa)
    check(conv_8bit_kernel(2, 18, (6, 7), 18, (3, 3), pads=P1, groups=18, **kinds), isa)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("groups", [1, 40])
def test_extremes(isa: Isa, signs: tuple[DType, DType], groups: int) -> None:
    ends = [(0, 255) if dtype == U8 else (-128, 127) for dtype in signs]
    x, w = signs
    kernel = conv_8bit_kernel(1, 40, (9, 9), 40, (7, 7), groups=groups, pads=P1, x=x, w=w, fill=ends[0][1])
    for left, right in product(*ends):
        arrays = [np.full((1, 40, 9, 9), left, x.numpy), np.full((40, 40 // groups, 7, 7), right, w.numpy)]
        compare(kernel, isa, arrays, threads=False)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("channels", [(8, 12, 4), (32, 64, 2), (6, 6, 2), (12, 8, 4)])
def test_groups(isa: Isa, channels: tuple[int, int, int]) -> None:
    c, o, groups = channels
    check(conv_8bit_kernel(2, c, (7, 9), o, (3, 3), pads=P1, groups=groups, fill=9, epilogue=True), isa)
    check(conv_8bit_kernel(1, c, (7, 9), o, (1, 1), groups=groups), isa)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("x", [U8, I8])
@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("c", [2, 19, 48])
def test_depthwise(isa: Isa, c: int, multiplier: int, x: DType) -> None:
    o = c * multiplier
    pads = ((2, 2), (2, 2))
    check(conv_8bit_kernel(2, c, (9, 11), o, (3, 3), pads=P1, groups=c, x=x, fill=100, epilogue=True), isa)
    check(conv_8bit_kernel(1, c, (14, 13), o, (5, 5), pads=pads, strides=(2, 2), groups=c, x=x, out_halo=1), isa)
    check(conv_8bit_kernel(1, c, (14, 13), o, (3, 4), dilations=(2, 3), groups=c, x=x), isa, threads=False)
    check(conv_8bit_kernel(1, c, (40,), o, (17,), dilations=(2,), groups=c, x=x), isa, threads=False)
    check(conv_8bit_kernel(1, c, (40,), o, (1,), groups=c, x=x), isa, threads=False)
    check(conv_8bit_kernel(1, c, (4, 5, 6), o, (2, 2, 3), groups=c, x=x, channels_last=False), isa, threads=False)


@pytest.mark.parametrize("isa", WORD_ISAS)
def test_dynamic_sizes(isa: Isa) -> None:
    n, h, w = (Symbol(name).dim for name in "nhw")
    dense = conv_8bit_kernel(n, 6, (h, w), 20, (3, 3), pads=P1, fill=50, epilogue=True, out_halo=1)
    wide = conv_8bit_kernel(n, 18, (h, w), 18, (3, 3), pads=P1, groups=18, fill=50, epilogue=True)
    for sizes in ((1, 1, 1), (2, 5, 4), (1, 3, 23), (1, 40, 17)):
        symbols = dict(zip("nhw", sizes, strict=True))
        check(dense, isa, symbols, threads=symbols["n"] == 2)
        check(wide, isa, symbols, threads=symbols["n"] == 2)


def test_a_halo_of_other_numbers_is_refused() -> None:
    kernel = conv_8bit_kernel(1, 6, (5, 5), 20, (3, 3), pads=P1, fill=50)
    root = kernel.root
    assert isinstance(root, WindowRoot)
    with pytest.raises(CompilerError, match="the input's halo holds 50, not 51"):
        emit_window(replace(kernel, root=replace(root, fill=51)), WORD_ISAS[0].values[0])


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("signs", SIGNS)
def test_few_outputs_are_dot_products(isa: Isa, signs: tuple[DType, DType]) -> None:
    x, w = signs
    kernel = conv_8bit_kernel(2, 37, (9, 11), 1, (7, 7), pads=P1, x=x, w=w, fill=100, epilogue=True)
    assert "dot products" in emit_window(kernel, isa).schedule
    check(kernel, isa)
    check(conv_8bit_kernel(1, 128, (5, 6), 4, (3, 3), pads=P1, groups=2, x=x, w=w, fill=100), isa)
