"""Convolutions for CUDA, under Triton's interpreter, against numpy: ranks, strides, dilations, groups, layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot import dims, expr
from aot.backend.cuda import CudaBackend
from aot.backend.cuda.contract import Tile
from aot.backend.cuda.direct import Direct
from aot.backend.cuda.window import emit_window
from aot.dims import Symbol
from aot.dtypes import BF16, F16, F32, F64, DType
from aot.kernel import Kernel, WindowRoot
from tests.backend.kernels import conv_kernel
from tests.backend.test_window import DENSE, P1, reference
from tests.cuda import interpreter

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")


def check(kernel: Kernel, symbols: dict[str, int] | None = None, schedule: Tile | Direct | None = None) -> None:
    random = np.random.default_rng(0)
    arrays = []
    for operand in kernel.inputs:
        shape = [dims.evaluate(e, symbols or {}) for e in operand.type.shape]
        arrays.append(random.standard_normal(shape).astype(operand.type.dtype.numpy))
    (result,) = interpreter.run(kernel, emit_window(kernel, TARGET, schedule), arrays, symbols)
    wide = [a.astype(np.float64) for a in arrays]
    root = kernel.root
    assert isinstance(root, WindowRoot)
    if root.operand is not None:
        wide[:2] = [a.astype(root.operand.numpy).astype(np.float64) for a in arrays[:2]]
    expected = reference(kernel, wide[0], wide[1])
    scale = reference(kernel, np.abs(wide[0]), np.abs(wide[1]))
    if len(wide) > 2:
        expected += wide[2].reshape(1, -1, *(1,) * (expected.ndim - 2))
    if len(wide) > 3:
        expected = np.maximum(expected + wide[3], 0)
    types = [kernel.outputs[0].type.dtype, *(node.dtype for node in expr.walk(kernel.stores[0].value))]
    epsilon = max(2.0 ** {"f16": -11, "bf16": -8, "f32": -23, "f64": -52}.get(type_.name, -52) for type_ in types)
    assert result.shape == expected.shape
    error = np.abs(result.astype(np.float64) - expected)
    steps = float(np.prod(wide[1].shape[1:]))
    assert (error <= (scale + 1) * epsilon * (2 + steps**0.5)).all(), f"worst {error.max()}"


@pytest.mark.parametrize("case", [*DENSE[:8], DENSE[9]])
def test_dense(case: dict[str, Any]) -> None:
    check(conv_kernel(**case, epilogue="residual"))


def test_channels_first_and_weights_that_are_computed() -> None:
    check(conv_kernel(**DENSE[1], channels_last=False))
    check(conv_kernel(2, 5, (6, 7), 20, (3, 2), pads=P1, constant=False, epilogue="residual"))


@pytest.mark.parametrize("channels", [(8, 12, 4), (6, 6, 2), (19, 19, 19), (4, 8, 4)])
def test_groups(channels: tuple[int, int, int]) -> None:
    c, o, groups = channels
    image = (7, 9) if c == 19 else (2, 4)  # a program of 4 elements; of one, where images are as small as they can be
    check(conv_kernel(2, c, image, o, (3, 3), pads=P1, groups=groups, epilogue="residual"))
    check(conv_kernel(1, c, (5, 8), o, (5, 5), pads=((2, 2), (2, 2)), strides=(2, 2), groups=groups))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_half_precision(dtype: DType) -> None:
    check(conv_kernel(1, 5, (6, 7), 20, (3, 3), pads=P1, dtype=dtype, epilogue="residual"))
    check(conv_kernel(1, 6, (3, 4), 12, (3, 3), pads=P1, dtype=dtype, groups=6))


@pytest.mark.parametrize("groups", [1, 12])
def test_dynamic_sizes(groups: int) -> None:
    n, h, w = (Symbol(name).dim for name in "nhw")
    kernel = conv_kernel(n, 12, (h, w), 12, (3, 3), pads=P1, strides=(2, 1), groups=groups, epilogue="residual")
    for sizes in ((1, 1, 1), (2, 5, 4)):
        check(kernel, dict(zip("nhw", sizes, strict=True)))


ODD: list[dict[str, Any]] = [
    dict(n=2, c=1, spatial=(5,), o=5, window=(1,)),
    dict(n=1, c=1, spatial=(4, 5), o=1, window=(1, 1), strides=(2, 3)),
    dict(n=1, c=1, spatial=(9, 7), o=17, window=(4, 3), pads=((3, 0), (0, 2)), strides=(3, 1)),
    dict(n=1, c=2, spatial=(3, 2), o=5, window=(7, 5), pads=((3, 3), (4, 1))),  # larger than the image
    dict(n=1, c=15, spatial=(6,), o=8, window=(4,), dilations=(2,), pads=((5, 1),)),
    dict(n=2, c=16, spatial=(2, 3, 4), o=3, window=(2, 1, 3), pads=((1, 0), (0, 0), (2, 0)), strides=(1, 2, 1)),
    dict(n=1, c=17, spatial=(4, 4), o=33, window=(2, 2), strides=(3, 3)),  # a stream: four places
    dict(n=3, c=7, spatial=(5, 3), o=9, window=(3, 3), dilations=(3, 2), pads=((4, 4), (2, 2))),
]


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("dtype", [F16, F32])
def test_odd_sizes(case: dict[str, Any], dtype: DType) -> None:
    check(conv_kernel(**case, dtype=dtype, epilogue="residual"))
    check(conv_kernel(**case, dtype=dtype, channels_last=False, constant=False, out_channels=case["o"] + 3))


@pytest.mark.parametrize("case", [ODD[2], ODD[4], ODD[6]])
def test_other_types(case: dict[str, Any]) -> None:
    check(conv_kernel(**case, dtype=F64, epilogue="bias"))
    check(conv_kernel(**case, dtype=BF16, epilogue="residual"))
    single = conv_kernel(**case, epilogue="bias")
    for types, operand in (((F16, F32), None), ((F32, BF16), None), ((F32, F32), F16), ((F16, F32), BF16)):
        inputs = [replace(o, type=replace(o.type, dtype=t)) for o, t in zip(single.inputs, types, strict=False)]
        root = single.root
        assert isinstance(root, WindowRoot)
        mixed = replace(single, inputs=(*inputs, *single.inputs[2:]), root=replace(root, operand=operand))
        check(mixed)


@pytest.mark.parametrize(
    "tile", [Tile(16, 16, 32, 4, 3), Tile(32, 16, 64, 4, 3, sums=2), Tile(16, 32, 128, 4, 3, sums=4)]
)
def test_tiles(tile: Tile) -> None:
    for case in (ODD[2], ODD[7], DENSE[1]):
        check(conv_kernel(**case, dtype=F16, epilogue="residual"), schedule=tile)


def test_no_images() -> None:
    check(conv_kernel(0, 5, (4, 4), 3, (3, 3), pads=P1))
    check(conv_kernel(0, 4, (4, 4), 4, (3, 3), pads=P1, groups=4))
    n = Symbol("n", lo=0).dim
    for groups in (1, 6):
        kernel = conv_kernel(n, 6, (3, 4), 6, (3, 3), pads=P1, groups=groups, epilogue="residual")
        for count in (0, 2):
            check(kernel, {"n": count})


def test_a_window_of_one_place_is_a_product_however_few_its_outputs() -> None:
    plain, wide = (BACKEND.emit(conv_kernel(1, 64, (6, 6), 2, (k, k)), TARGET).schedule for k in (1, 3))
    assert plain.startswith("tiles") and wide.startswith("direct")
