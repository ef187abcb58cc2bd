"""Convolutions of groups for CUDA, cut in every way: lines of a program, blocks of channels, masks, loops."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda.direct import Direct
from aot.dims import Symbol
from aot.dtypes import BF16, F16, F32, F64, DType
from tests.backend.kernels import conv_kernel
from tests.cuda.test_window import check

CASES: list[dict[str, Any]] = [
    dict(n=2, c=5, spatial=(7, 6), o=5, window=(3, 3), pads=((1, 1), (1, 1)), groups=5),
    dict(n=1, c=3, spatial=(9, 5), o=9, window=(4, 2), pads=((2, 1), (0, 1)), strides=(2, 1), groups=3),
    dict(n=1, c=17, spatial=(8, 3), o=17, window=(3, 1), dilations=(2, 1), strides=(3, 2), groups=17),
    dict(n=1, c=6, spatial=(2, 3), o=4, window=(5, 3), pads=((3, 2), (6, 0)), groups=2),  # larger than the image
    dict(n=2, c=4, spatial=(11,), o=8, window=(3,), dilations=(3,), pads=((2, 5),), groups=4),
    dict(n=1, c=7, spatial=(40,), o=7, window=(19,), pads=((9, 9),), groups=7),  # more taps than are written out
    dict(
        n=1, c=6, spatial=(3, 5, 4), o=6, window=(2, 3, 1), pads=((1, 0), (1, 1), (0, 0)), strides=(1, 2, 1), groups=3
    ),
    dict(n=1, c=33, spatial=(3, 4), o=33, window=(1, 1), groups=33),
]


SCHEDULES = (
    Direct(16, 8, 1, 4, False),
    Direct(8, 16, 2, 4, True),
    Direct(8, 4, 3, 4, False),
    Direct(4, 32, 5, 4, True),
)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_schedules(number: int) -> None:
    for schedule in (SCHEDULES[number % 4], SCHEDULES[(number + 1) % 4]):
        check(conv_kernel(**CASES[number], epilogue="residual"), schedule=schedule)


@pytest.mark.parametrize("case", CASES[1:5])
@pytest.mark.parametrize("dtype", [F16, BF16, F64])
def test_types(case: dict[str, Any], dtype: DType) -> None:
    check(conv_kernel(**case, dtype=dtype, epilogue="bias"), schedule=Direct(8, 8, 2, 4, True))


@pytest.mark.parametrize("case", CASES[:4])
def test_layouts(case: dict[str, Any]) -> None:
    check(conv_kernel(**case, channels_last=False, constant=False, out_channels=case["o"] + 3))
    check(conv_kernel(**case, dtype=F16, channels_last=False, out_halo=1), schedule=Direct(8, 8, 4, 4, False))


@pytest.mark.parametrize("lines", [1, 4])
def test_sizes_that_are_not_known(lines: int) -> None:
    n, h, w = (Symbol(name, lo=low).dim for name, low in zip("nhw", (0, 1, 1), strict=True))
    kernel = conv_kernel(
        n, 5, (h, w), 10, (3, 2), pads=((1, 1), (1, 0)), strides=(2, 1), groups=5, dtype=F32, epilogue="residual"
    )
    for sizes in ((0, 3, 3), (1, 1, 1), (2, 9, 4)):
        check(kernel, dict(zip("nhw", sizes, strict=True)), Direct(8, 8, lines, 4, False))
