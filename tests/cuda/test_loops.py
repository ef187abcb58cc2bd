"""Loop kernels for CUDA of every op of the table, under Triton's interpreter, against the op's reference."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.backend.cuda.compile import header_of
from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import BF16, F16, F32, I8, I64, DType
from aot.evaluate import evaluate, evaluate_op
from aot.ir import Graph, Layout, Value
from aot.kernel import Kernel
from aot.ops import OPS, Sample
from tests.backend.test_loops import NHWC, NOT_ONE_KERNEL, SIZES, compare, graph_of, kernel_of, normal, op, single
from tests.cuda import interpreter
from tests.ops.samples import samples_of

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")


def check(
    build: Callable[..., Any],
    *arrays: np.ndarray,
    shapes: Sequence[tuple[Dim, ...]] | None = None,
    symbols: Mapping[str, int] | None = None,
    layouts: Mapping[int, Layout] | None = None,
    out: Mapping[int, Layout] | None = None,
    relative: float = 1e-5,
    absolute: float = 2e-6,
) -> Kernel:
    graph = graph_of(build, *arrays, shapes=shapes)
    kernel = kernel_of(graph, layouts, out)
    got = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), arrays, symbols)
    for g, e in zip(got, evaluate(graph, list(arrays), symbols or {}), strict=True):
        compare(g, e, relative, absolute)
    return kernel


def small(name: str, sample: Sample) -> Sample:
    """Pools of few channels: a program computes one element, and the interpreter's time is that of programs."""
    x = sample.operands[0] if name in ("max_pool", "avg_pool") else None
    if x is None or x.shape[1] <= 5:
        return sample
    return replace(sample, operands=(x[:, :3], *sample.operands[1:]))


@pytest.mark.parametrize("name", sorted(set(OPS) - NOT_ONE_KERNEL))
def test_every_op(name: str) -> None:
    for sample in (small(name, each) for each in samples_of(name)):
        kernel = single(name, sample)
        if kernel is None or kernel.kind not in BACKEND.kinds:
            continue
        got = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), [a for a in sample.operands if a is not None])
        expected = evaluate_op(OPS[name], OPS[name].check_attrs(sample.attrs), sample.operands)
        for g, e in zip(got, expected, strict=True):
            compare(g, e, max(sample.relative, 2e-6), max(sample.absolute, 1e-7))


S, T = Symbol("S", lo=0), Symbol("T", lo=0)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "dynamic"])
def test_softmax_and_layer_norm_of_rows(size: tuple[int, int], symbolic: bool) -> None:
    x = normal(*size)
    shapes: list[tuple[Dim, ...]] | None = [(S.dim, T.dim)] if symbolic else None
    symbols = {"S": size[0], "T": size[1]}
    check(lambda b, x: b.softmax(x, axis=-1), x, shapes=shapes, symbols=symbols)
    g, c = normal(size[1], seed=1), normal(size[1], seed=2)
    shapes = [(S.dim, T.dim), (T.dim,), (T.dim,)] if symbolic else None

    def norm(b: Builder, x: Value, g: Value, c: Value) -> Value:
        total = b.mul(b.reduce_sum(x, axes=(1,)), b.scalar(1 / max(size[1], 1), F32))
        centred = b.sub(x, total)
        square = b.mul(b.reduce_sum(b.mul(centred, centred), axes=(1,)), b.scalar(1 / max(size[1], 1), F32))
        result: Value = b.add(b.mul(b.mul(centred, b.rsqrt(b.add(square, b.scalar(1e-5, F32)))), g), c)
        return result

    check(norm, x, g, c, shapes=shapes, symbols=symbols, relative=2e-4, absolute=1e-5)


def test_long_rows_go_in_pieces() -> None:
    x = normal(3, 20000)
    check(lambda b, x: b.softmax(x, axis=-1), x, relative=2e-5)
    check(lambda b, x: (b.reduce_sum(x, axes=(1,)), b.reduce_max(x, axes=(1,))), x, relative=2e-5, absolute=1e-3)
    for name in ("argmax", "argmin"):
        for last in (False, True):
            check(op(name, axis=1, last=last), x.round())


def test_places_in_long_rows_of_large_tensors_have_64_bits() -> None:
    """A place of a row, times the distance between places, is above 2^31 here."""
    for name, attrs in (("softmax", {"axis": 0}), ("cumsum", {"axis": 0})):
        builder = Builder()
        x = builder.input("x", F32, (3_000_000, 1000))
        text = BACKEND.emit(kernel_of(builder.finish(builder.op(name, x, **attrs))), TARGET).source
        places = [line for line in text.splitlines() if re.match(r"\s+(c_\d+|place|u_\d+|row) = ", line)]
        assert len(places) >= 2 and all("tl.full((), 0, tl.int64)" in line for line in places), places


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_over_any_axis(axis: int) -> None:
    check(lambda b, x: b.softmax(x, axis=axis), normal(5, 9, 37))
    check(lambda b, x: b.log_softmax(x, axis=axis), normal(2, 65, 3))


@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("shape", [(1, 3, 13, 11), (2, 17, 7, 9)], ids=str)
def test_pooling(channels_last: bool, shape: tuple[int, ...]) -> None:
    layout = {0: NHWC} if channels_last else {}
    x = normal(*shape)[:, : None if channels_last else 5]  # channels first, each element is a program
    attrs = {"window": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "ceil": False}
    check(lambda b, x: b.max_pool(x, **attrs), x, layouts=layout, out=layout)
    attrs["include_pad"] = False
    check(lambda b, x: b.avg_pool(x, **attrs), x, layouts=layout, out=layout)
    check(lambda b, x: b.reduce_mean(x, axes=(2, 3)), x, layouts=layout, out=layout, absolute=1e-5)
    check(lambda b, x: b.reduce_max(b.relu(x), axes=(2, 3), keepdims=False), x, layouts=layout)
    check(lambda b, x: b.softmax(x, axis=1), x, layouts=layout, out=layout)
    check(lambda b, x: b.argmax(x, axis=1, keepdims=False), x, layouts=layout)


@pytest.mark.parametrize("shape", [(), (1,), (17,), (4097,), (3, 1, 5), (0, 4), (2, 3, 4, 5)], ids=str)
def test_elementwise_shapes(shape: tuple[int, ...]) -> None:
    check(lambda b, x, y: b.gelu(b.mul(x, y)), normal(*shape), normal(*shape[-1:], seed=1), relative=1e-5)
    check(lambda b, x: (b.exp(x), b.cast(b.gt(x, b.scalar(0.0, F32)), to=I64)), normal(*shape))


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "float16"])
def test_reductions(name: str, dtype: str) -> None:
    for shape, axes in (((7, 130), (1,)), ((130, 7), (0,)), ((3, 5, 6), (0, 2)), ((1000,), (0,)), ((2, 0), (1,))):
        x = normal(*shape).clip(-1.5, 1.5)
        x = (x * 3).round() if dtype.startswith("int") else x
        loose = 3e-3 if dtype == "float16" else 2e-5
        check(op(f"reduce_{name}", axes=axes), x.astype(dtype), relative=loose, absolute=loose)


def test_nan_wins() -> None:
    x = normal(6, 200)
    x[1, 150], x[2, 3], x[3] = np.nan, np.inf, -np.inf
    x[4, :], x[5, 20] = 1.0, np.nan
    for name in ("reduce_max", "reduce_min", "reduce_sum"):
        check(op(name, axes=(1,)), x, absolute=1e-4)
        check(op(name, axes=(0,)), x)
    for name in ("argmax", "argmin"):
        for axis in (0, 1):
            for last in (False, True):
                check(op(name, axis=axis, last=last), x)


def test_gathers() -> None:
    table, index = normal(11, 70), np.array([[3, 0, 10], [-1, 5, -11]])
    check(lambda b, t, i: b.gather(t, i, axis=0), table, index)
    check(lambda b, t, i: b.gather(t, i, axis=1), table, index)


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64", "uint8", "float16"])
def test_transposes_go_by_tiles(dtype: str) -> None:
    x = (normal(3, 37, 70) * 2).astype(dtype)
    kernel = check(lambda b, x: b.transpose(x, perm=(0, 2, 1)), x)
    assert "tiles of" in BACKEND.emit(kernel, TARGET).schedule
    check(lambda b, x: b.transpose(x, perm=(2, 1, 0)), x)
    shapes: list[tuple[Dim, ...]] = [(3, S.dim, T.dim)]
    for size in ((0, 5), (1, 1), (16, 16), (5, 100), (33, 17)):
        y = (normal(3, *size) * 2).astype(dtype)
        check(lambda b, x: b.transpose(x, perm=(2, 0, 1)), y, shapes=shapes, symbols={"S": size[0], "T": size[1]})


def test_a_text_says_how_it_is_compiled() -> None:
    x = normal(4, 64)
    kernel = check(lambda b, x: b.softmax(x, axis=-1), x)
    header = header_of(BACKEND.emit(kernel, TARGET).source)
    assert header["pointers"] == ["*fp32", "*fp32"] and header["aligned"] == [0, 1] and not header["integers"]


@pytest.mark.parametrize("name", ["erf", "tanh"])
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_functions_for_results_of_16_bits(name: str, dtype: DType) -> None:
    """Every finite f16 and bf16 is right to the last bit but one; signs of zeros, infinities and NaN stay."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    kernel = kernel_of(one_op(name, dtype, x.shape))
    emitted = BACKEND.emit(kernel, TARGET)
    assert f"{name}_16(" in emitted.source
    (got,) = interpreter.run(kernel, emitted, [x])
    exact = x.astype(np.float64)
    wanted = np.tanh(exact) if name == "tanh" else np.array([math.erf(v) for v in exact])
    rounded = wanted.astype(dtype.numpy)
    assert (np.isnan(got.astype(np.float64)) == np.isnan(exact)).all()
    near = np.isfinite(exact) & (np.abs(exact) > 1e-37)  # below, even f32 has fewer bits
    places = [array[near].view(np.int16).astype(np.int64) for array in (got, rounded)]
    steps = np.abs(places[0] - places[1])
    assert steps.max() <= 1 and (steps > 0).mean() < 0.1
    assert (np.signbit(got.astype(np.float64)) == np.signbit(exact))[~np.isnan(exact)].all()
    single = BACKEND.emit(kernel_of(one_op(name, F32, x.shape)), TARGET)
    assert f"{name}_16(" not in single.source


def test_erf_for_integers_of_8_bits() -> None:
    """GELU in steps of a 255th of its range is the nearest step, but where it is half way; infinities and NaN too."""
    step, zero = 0.025, -120
    x = np.concatenate([np.linspace(-8, 8, 200_001), [0.0, -0.0, 1e30, -1e30, math.inf, -math.inf, math.nan]])
    x = x.astype(np.float32)
    b = Builder()
    value = b.gelu(b.input("x", F32, x.shape), approximate="none")
    kernel = kernel_of(b.finish((b.quantize(value, b.scalar(step, F32), b.scalar(zero, I8), to=I8),)))
    emitted = BACKEND.emit(kernel, TARGET)
    assert "erf_8(" in emitted.source
    (got,) = interpreter.run(kernel, emitted, [x])
    exact = x.astype(np.float64)
    gelu = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) if v != -math.inf else math.nan for v in exact]) / step
    wanted = np.clip(np.where(np.isnan(gelu), 0, np.rint(gelu)) + zero, -128, 127)
    is_far = np.abs(gelu - np.floor(gelu, where=np.isfinite(gelu), out=np.zeros_like(gelu)) - 0.5) > 1e-3
    assert (got == wanted)[is_far | np.isnan(gelu)].all() and np.abs(got - wanted).max() <= 1


@pytest.mark.parametrize("name", ["erf", "tanh"])
def test_small_values_in_front_of_integers_of_8_bits(name: str) -> None:
    """What is not added to 1 is right by its own size: steps may be as small as the values."""
    x = np.linspace(-1e-4, 1e-4, 4001).astype(np.float32)
    b = Builder()
    value = getattr(b, name)(b.input("x", F32, x.shape))
    kernel = kernel_of(b.finish((b.quantize(value, b.scalar(1e-6, F32), None, to=I8),)))
    emitted = BACKEND.emit(kernel, TARGET)
    assert f"{name}_16(" in emitted.source and "erf_8(" not in emitted.source
    (got,) = interpreter.run(kernel, emitted, [x])
    exact = [(math.erf if name == "erf" else math.tanh)(float(v)) / 1e-6 for v in x]
    assert np.abs(got - np.clip(exact, -128, 127)).max() <= 0.52


def one_op(name: str, dtype: DType, shape: tuple[int, ...]) -> Graph:
    builder = Builder()
    return builder.finish(builder.op(name, builder.input("x", dtype, shape)))


@pytest.mark.parametrize("name", ["div", "floordiv", "mod", "fmod"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_divided_by_zero(name: str, dtype: str) -> None:
    x = np.array([-7, -1, 0, 1, 5, 100, 7, 8]).astype(dtype)
    y = np.array([0, 0, 0, 0, 0, 0, 2, 3]).astype(dtype)
    check(lambda b, *given: tuple(b.op(name, *given)), x, y)


def test_quotients_and_roots_are_exact_but_for_results_of_16_bits() -> None:
    """The bundle for GPUs has these too: there the language's own quotient differs."""
    x, y = np.abs(normal(64, 33)), np.abs(normal(64, 33)) + 0.1
    check(lambda b, *given: tuple(b.op("div", *given)), x, y)
    check(lambda b, given: tuple(b.op("sqrt", given)), x)
    for dtype, exact in ((F32, True), (F16, False)):
        builder = Builder()
        given = [builder.input(number, dtype, (64,)) for number in "ab"]
        source = BACKEND.emit(kernel_of(builder.finish(builder.op("div", *given))), TARGET).source
        assert ("quotient(" in source) == exact
