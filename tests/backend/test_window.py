"""Convolution kernels against numpy: ranks, strides, dilations, groups, depthwise, layouts, threads."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from aot import dims
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.window import _loop_order, emit_window
from aot.dims import Symbol
from aot.dtypes import BF16, F16, F32, F64, DType
from aot.ir import Layout, TensorType
from aot.kernel import Kernel, WindowRoot
from tests.backend.harness import ISAS, run, run_threads
from tests.backend.kernels import conv_kernel


def reference(kernel: Kernel, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    root = kernel.root
    assert isinstance(root, WindowRoot)
    padded = np.pad(x, [(0, 0), (0, 0), *root.pads])
    window = w.shape[2:]
    out = [
        (padded.shape[2 + i] - (window[i] - 1) * root.dilations[i] - 1) // root.strides[i] + 1
        for i in range(len(window))
    ]
    groups = root.groups
    cg, og = x.shape[1] // groups, w.shape[0] // groups
    result = np.zeros((x.shape[0], w.shape[0], *out))
    for taps in product(*map(range, window)):
        where: list[Any] = [
            slice(t * d, t * d + (q - 1) * s + 1, s)
            for t, d, q, s in zip(taps, root.dilations, out, root.strides, strict=True)
        ]
        index: Any = (slice(None), slice(None), *where)
        part = padded[index]
        for g in range(groups):
            tap: Any = (slice(g * og, (g + 1) * og), slice(None), *taps)
            weight = w[tap]
            result[:, g * og : (g + 1) * og] += np.einsum("nc...,oc->no...", part[:, g * cg : (g + 1) * cg], weight)
    return result


def check(
    kernel: Kernel, isa: Isa, symbols: dict[str, int] | None = None, threads: bool = True, exact: bool = True
) -> None:
    random = np.random.default_rng(0)
    arrays = []
    for operand in kernel.inputs:
        shape = [dims.evaluate(e, symbols or {}) for e in operand.type.shape]
        arrays.append(random.standard_normal(shape).astype(operand.type.dtype.numpy))
    emitted = emit_window(kernel, isa, exact)
    (result,) = (run_threads if threads else run)(kernel, emitted, isa, arrays, symbols)
    wide = [a.astype(np.float64) for a in arrays]
    expected = reference(kernel, wide[0], wide[1])
    scale = reference(kernel, np.abs(wide[0]), np.abs(wide[1]))
    if len(wide) > 2:
        expected += wide[2].reshape(1, -1, *(1,) * (expected.ndim - 2))
    if len(wide) > 3:
        expected = np.maximum(expected + wide[3], 0)
    root = kernel.root
    assert isinstance(root, WindowRoot)
    name = kernel.inputs[0].type.dtype.name
    epsilon = 2.0 ** {"f16": -11, "bf16": -8, "f32": -23, "f64": -52}[name]
    steps = float(np.prod(wide[1].shape[1:]))
    assert result.shape == expected.shape
    worst = np.abs(result - expected) / ((scale + 4) * epsilon * (2 + steps**0.5))
    assert worst.size == 0 or worst.max() <= 1, f"{worst.max()} times the bound"


P1 = ((1, 1), (1, 1))
DENSE: list[dict[str, Any]] = [
    dict(n=1, c=3, spatial=(13, 17), o=20, window=(7, 7), strides=(2, 2), pads=((3, 3), (3, 3))),
    dict(n=2, c=16, spatial=(9, 11), o=33, window=(3, 3), pads=P1),
    dict(n=2, c=24, spatial=(6, 7), o=16, window=(1, 1)),
    dict(n=1, c=24, spatial=(6, 7), o=40, window=(1, 1), strides=(2, 2)),
    dict(n=1, c=5, spatial=(12, 10), o=7, window=(3, 2), dilations=(2, 3), pads=((2, 0), (1, 3))),
    dict(n=1, c=1, spatial=(8, 40), o=8, window=(3, 5), strides=(1, 3), pads=((1, 1), (0, 2))),
    dict(n=3, c=6, spatial=(30,), o=18, window=(5,), pads=((2, 2),)),
    dict(n=1, c=4, spatial=(5, 6, 7), o=9, window=(2, 3, 3), strides=(2, 1, 2), pads=((0, 1), (1, 1), (1, 1))),
    dict(n=1, c=64, spatial=(7, 7), o=64, window=(3, 3), pads=P1),
    dict(n=1, c=8, spatial=(1, 1), o=48, window=(1, 1)),
    dict(n=2, c=8, spatial=(3, 3), o=48, window=(3, 3)),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", DENSE)
@pytest.mark.parametrize("epilogue", ["", "residual"])
def test_dense(isa: Isa, case: dict[str, Any], epilogue: str) -> None:
    check(conv_kernel(**case, epilogue=epilogue), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", DENSE[:6])
def test_channels_first_input(isa: Isa, case: dict[str, Any]) -> None:
    check(conv_kernel(**case, channels_last=False), isa, threads=False)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("channels", [(8, 12, 4), (32, 64, 2), (6, 6, 2), (12, 8, 4)])
def test_groups(isa: Isa, channels: tuple[int, int, int]) -> None:
    c, o, groups = channels
    check(conv_kernel(2, c, (7, 9), o, (3, 3), pads=P1, groups=groups, epilogue="residual"), isa)
    check(conv_kernel(1, c, (7, 9), o, (1, 1), groups=groups), isa)
    check(conv_kernel(1, c, (9,), o, (3,), groups=groups, constant=False), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("c", [2, 19, 48])
def test_depthwise(isa: Isa, c: int, multiplier: int) -> None:
    o = c * multiplier
    check(conv_kernel(2, c, (9, 11), o, (3, 3), pads=P1, groups=c, epilogue="residual"), isa)
    check(conv_kernel(1, c, (14, 13), o, (5, 5), pads=((2, 2), (2, 2)), strides=(2, 2), groups=c, out_halo=1), isa)
    check(conv_kernel(1, c, (40,), o, (17,), dilations=(2,), groups=c), isa, threads=False)
    check(conv_kernel(1, c, (4, 5, 6), o, (2, 2, 3), groups=c, channels_last=False), isa, threads=False)


@pytest.mark.parametrize("isa", ISAS)
def test_layouts(isa: Isa) -> None:
    check(conv_kernel(2, 8, (5, 9), 24, (3, 3), pads=P1, out_halo=2, epilogue="residual"), isa)
    check(conv_kernel(2, 8, (5, 9), 24, (1, 1), out_halo=1), isa)
    check(conv_kernel(2, 8, (5, 9), 24, (1, 1), out_channels=40, epilogue="residual"), isa)
    check(conv_kernel(1, 8, (5, 9), 16, (3, 3), pads=P1, out_channels=48), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_computed_weights(isa: Isa) -> None:
    check(conv_kernel(2, 5, (6, 7), 20, (3, 2), pads=P1, constant=False, epilogue="residual"), isa)
    check(conv_kernel(2, 5, (6, 7), 5, (3, 2), pads=P1, constant=False, groups=5), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_sixteen_bits(isa: Isa, dtype: DType) -> None:
    check(conv_kernel(1, 5, (6, 7), 20, (3, 3), pads=P1, dtype=dtype, epilogue="residual"), isa)
    check(conv_kernel(1, 40, (6, 7), 40, (3, 3), pads=P1, dtype=dtype, channels_last=False, constant=False), isa)
    check(conv_kernel(1, 20, (6, 7), 40, (3, 3), pads=P1, dtype=dtype, groups=20), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_doubles(isa: Isa) -> None:
    check(conv_kernel(1, 5, (6, 7), 20, (3, 3), pads=P1, dtype=F64, epilogue="residual"), isa)
    check(conv_kernel(1, 20, (6, 7), 20, (3, 3), pads=P1, dtype=F64, groups=20), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", [dict(o=40), dict(o=3), dict(o=24, groups=24)])
def test_pixels_are_the_same_in_every_form(isa: Isa, case: dict[str, Any]) -> None:
    """Equal patches give equal bits, whichever tile they fall in."""
    width = Symbol("w").dim
    kernel = conv_kernel(1, 24, (3, width), window=(3, 3), pads=((0, 0), (0, 0)), **case)
    random = np.random.default_rng(1)
    column = random.standard_normal((1, 24, 3, 1)).astype(np.float32)
    w = random.standard_normal((case["o"], 24 // case.get("groups", 1), 3, 3)).astype(np.float32)
    emitted = emit_window(kernel, isa, exact=True)
    (one,) = run(kernel, emitted, isa, [np.repeat(column, 3, 3), w], {"w": 3})
    for count in (4, 5, 7, 10, 11, 17, 30):
        (many,) = run(kernel, emitted, isa, [np.repeat(column, count, 3), w], {"w": count})
        assert all(many[..., q].tobytes() == one[..., 0].tobytes() for q in range(count - 2))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("groups", [1, 12])
def test_dynamic_sizes(isa: Isa, groups: int) -> None:
    n, h, w = (Symbol(name).dim for name in "nhw")
    three = conv_kernel(
        n, 12, (h, w), 12, (3, 3), pads=P1, strides=(2, 1), groups=groups, epilogue="residual", out_halo=1
    )
    one = conv_kernel(n, 12, (h, w), 36, (1, 1), epilogue="residual")
    for sizes in ((1, 1, 1), (2, 5, 4), (1, 3, 23), (3, 2, 9)):
        symbols = dict(zip("nhw", sizes, strict=True))
        check(three, isa, symbols, threads=symbols["n"] == 2)
        if groups == 1:
            check(one, isa, symbols, threads=symbols["n"] == 2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "case",
    [
        dict(n=1, c=32, spatial=(9, 12), o=32, window=(3, 3), pads=P1),
        dict(n=2, c=40, spatial=(7, 7), o=100, window=(3, 3), pads=P1, epilogue="residual", out_halo=1),
        dict(n=1, c=64, spatial=(30, 31), o=35, window=(3, 3), pads=((0, 0), (1, 0)), epilogue="residual"),
        dict(n=3, c=128, spatial=(14, 14), o=64, window=(3, 3), pads=((1, 0), (0, 1)), out_channels=128),
        dict(n=2, c=32, spatial=(23, 12), o=40, window=(3, 3), pads=P1, dilations=(2, 1), epilogue="residual"),
        dict(n=1, c=33, spatial=(14, 19), o=32, window=(3, 3), pads=((3, 3), (2, 2)), dilations=(3, 2), out_halo=1),
    ],
)
def test_winograd(isa: Isa, case: dict[str, Any]) -> None:
    kernel = conv_kernel(**case)
    assert "F(2x2" in emit_window(kernel, isa).schedule and "F(2x2" not in emit_window(kernel, isa, exact=True).schedule
    check(kernel, isa, exact=False)


@pytest.mark.parametrize("isa", ISAS)
def test_winograd_of_dynamic_sizes(isa: Isa) -> None:
    n, h, w = (Symbol(name).dim for name in "nhw")
    kernel = conv_kernel(n, 36, (h, w), 48, (3, 3), pads=P1, epilogue="residual", out_halo=1)
    apart = conv_kernel(n, 36, (h, w), 48, (3, 3), pads=((4, 4), (2, 2)), dilations=(4, 2), epilogue="residual")
    for sizes in ((1, 1, 1), (2, 5, 4), (1, 3, 23), (1, 40, 17)):
        symbols = dict(zip("nhw", sizes, strict=True))
        check(kernel, isa, symbols, threads=symbols["n"] == 2, exact=False)
        check(apart, isa, symbols, threads=symbols["n"] == 2, exact=False)


def test_channels_are_summed_innermost_where_they_lie_innermost() -> None:
    """An axis of extent 1 may stand behind the channels in the order of the layout."""
    shape = (2, 24, 9, 1)
    for order in ((0, 2, 3, 1), (0, 2, 1, 3), (3, 0, 2, 1)):
        assert _loop_order(TensorType(F32, shape, Layout(order=order))) == [2, 3, 1]
    assert _loop_order(TensorType(F32, shape)) == [1, 2, 3]
