"""Running sums and products for CUDA, under Triton's interpreter: every axis, pieces, odd sizes, NaN, integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import F16, F32, F64, I8, I64
from aot.ir import Value
from aot.kernel import Kernel, Kind
from tests.backend.test_loops import NHWC, kernel_of, normal, op
from tests.cuda import interpreter
from tests.cuda.test_loops import check

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
WAYS = [(False, False), (False, True), (True, False), (True, True)]
S, T = Symbol("S", lo=0), Symbol("T", lo=0)


def scanned(**attrs: Any) -> Callable[..., Any]:
    """A scan with something before and behind it."""

    def build(b: Builder, x: Value) -> Any:
        return b.relu(b.cumsum(b.mul(x, b.scalar(0.5, F32)), **attrs))

    return build


def schedule(kernel: Kernel) -> str:
    return BACKEND.emit(kernel, TARGET).schedule


@pytest.mark.parametrize(("exclusive", "reverse"), WAYS)
def test_any_axis_and_size(exclusive: bool, reverse: bool) -> None:
    attrs = {"exclusive": exclusive, "reverse": reverse}
    for shape in ((5, 37), (1, 1), (3, 0), (0, 3), (4, 3, 10), (7,)):
        for axis in range(len(shape)):
            kernel = check(scanned(axis=axis, **attrs), normal(*shape), relative=1e-4, absolute=1e-5)
            assert kernel.kind is Kind.SCAN_AXIS
    shapes: list[tuple[Dim, ...]] = [(S.dim, T.dim)]
    for size in ((0, 5), (5, 0), (1, 1), (3, 17)):
        for axis in (0, 1):
            symbols = {"S": size[0], "T": size[1]}
            check(
                scanned(axis=axis, **attrs), normal(*size), shapes=shapes, symbols=symbols, relative=1e-4, absolute=1e-5
            )


@pytest.mark.parametrize("reverse", [False, True])
def test_long_axes_go_in_pieces(reverse: bool) -> None:
    for shape, axis in (((2, 5000), 1), ((4096,), 0), ((130, 40), 0)):
        x = np.asarray(normal(*shape))
        kernel = check(op("cumsum", axis=axis, reverse=reverse), x, relative=1e-4, absolute=1e-3)
        assert schedule(kernel).endswith("in pieces")
        factors = (1 + x / 100).astype(np.float32)
        check(op("cumprod", axis=axis, reverse=reverse), factors, relative=1e-3, absolute=1e-5)
    # Exclusive ones are slow under the interpreter: the fewest steps that carry something on.
    check(op("cumsum", axis=0, reverse=reverse, exclusive=True), normal(70, 3), relative=1e-4, absolute=1e-4)
    shapes: list[tuple[Dim, ...]] = [(T.dim,)]
    for size in (1024, 1025):
        build, symbols = op("cumsum", axis=0, reverse=reverse, exclusive=True), {"T": size}
        check(build, np.arange(size), shapes=shapes, symbols=symbols)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8", "float64", "float16"])
def test_types(dtype: str) -> None:
    x = (normal(3, 200) * 3).round().clip(-9, 9).astype(np.int64)
    for exclusive in (False, True):
        # Bytes wrap around, as in numpy.
        given = (x if dtype != "float16" else x % 3 - 1).astype(dtype)
        check(op("cumsum", axis=1, exclusive=exclusive), given[:, : 40 if exclusive else 200])
    check(op("cumprod", axis=1), (x % 3 - 1).astype(dtype)[:, :8])
    check(op("cumprod", axis=0, exclusive=True, reverse=True), x.astype(dtype)[:, :5])


def test_nan_and_infinities() -> None:
    x = normal(7, 40)
    x[0, 3], x[1, 0], x[2, 39], x[3, 5] = np.nan, np.inf, -np.inf, np.inf
    x[3, 9], x[4, :], x[5, 7] = -np.inf, 0.0, -0.0
    for name in ("cumsum", "cumprod"):
        for exclusive, reverse in WAYS:
            for axis in (0, 1):
                check(op(name, axis=axis, exclusive=exclusive, reverse=reverse), x, relative=1e-4, absolute=1e-4)
    long = np.ones((1, 2100), np.float32)
    long[0, 1500] = np.inf  # not before, and not as NaN behind the piece
    check(op("cumsum", axis=1), long)
    check(op("cumprod", axis=1, reverse=True), -long)


def test_signs_of_zero_are_carried() -> None:
    x = np.ones((1, 3000), np.float32)
    x[0, 10] = -0.0
    kernel = check(op("cumprod", axis=1), x)
    (got,) = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), [x])
    assert np.signbit(got[0, 10:]).all() and not np.signbit(got[0, :10]).any()


def test_a_scan_of_one_number() -> None:
    for size in (8, 9, 3000):
        check(
            lambda b, x, n=size: b.add(b.cumsum(b.expand(b.scalar(0.25, F32), shape=(2, n)), axis=1), x), normal(2, 1)
        )


def test_prologues_and_epilogues() -> None:
    x, bias, factor = normal(6, 50), normal(50, seed=1), normal(6, 1, seed=2)

    def build(b: Builder, x: Value, bias: Value, factor: Value) -> Any:
        return b.add(b.mul(b.cumsum(b.exp(b.mul(x, factor)), axis=1), factor), bias)

    check(build, x, bias, factor, relative=1e-4, absolute=1e-4)
    check(lambda b, x: b.cast(b.cumsum(b.cast(b.gt(x, b.scalar(0.0, F32)), to=I64), axis=0), to=F32), x)
    check(lambda b, x: b.cumsum(b.transpose(x, perm=(1, 0)), axis=0), x, relative=1e-4, absolute=1e-4)
    check(lambda b, x: (b.cumsum(x, axis=0), b.exp(x)), x[:, :5], relative=1e-4, absolute=1e-4)
    check(lambda b, x: b.cumsum(b.expand(x, shape=(4, 50)), axis=0), normal(1, 50), relative=1e-5)


@pytest.mark.parametrize("axis", [1, 2])
def test_layouts(axis: int) -> None:
    x = normal(2, 5, 4, 6)
    for exclusive in (False, True):
        attrs = {"axis": axis, "exclusive": exclusive}
        check(op("cumsum", **attrs), x, layouts={0: NHWC}, absolute=1e-5)
        check(op("cumsum", **attrs), x, out={0: NHWC}, absolute=1e-5)


def test_rows_whose_neighbours_are_other_rows() -> None:
    kernel = check(op("cumsum", axis=0), normal(100, 70), relative=1e-4, absolute=1e-4)
    assert "32 x 64 of a row, in pieces" in schedule(kernel)
    kernel = check(op("cumsum", axis=1), normal(100, 70), relative=1e-4, absolute=1e-4)
    assert "1 x 128 of a row" in schedule(kernel)


def test_cubins() -> None:
    """Every form compiles, and keeps its values in registers."""
    emitted: dict[str, str] = {}
    for dtype in (F16, F32, F64, I8, I64):
        for name, shape, axis in (("cumsum", (64, 50), 1), ("cumprod", (64, 5000), 1), ("cumsum", (700, 96), 0)):
            for exclusive, reverse in WAYS:
                builder = Builder()
                x = builder.input("x", dtype, shape)
                graph = builder.finish(builder.op(name, x, axis=axis, exclusive=exclusive, reverse=reverse))
                if (dtype in (F32, I8)) or (exclusive and reverse):
                    emitted[f"k{len(emitted)}"] = BACKEND.emit(kernel_of(graph), TARGET).source
    built = BACKEND.build(list(emitted.items()), TARGET, None)
    for symbol, image in built.images.items():
        assert image.spilled_bytes == 0 and image.registers <= 128, (symbol, image, emitted[symbol])
