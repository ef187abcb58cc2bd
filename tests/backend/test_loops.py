"""Loop kernels of every op of the table, from graphs, against the op's reference; hostile shapes and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from aot.backend.base import Emitted
from aot.backend.cpu import CpuBackend
from aot.backend.cpu.isa import V3, V4, Isa
from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import F32, I64, from_numpy
from aot.evaluate import evaluate, evaluate_op
from aot.ir import Graph, Layout, Node, Value
from aot.kernel import Kernel, ScanRoot
from aot.lower import lower
from aot.ops import OPS, Sample
from tests.backend.harness import ISAS, build_all, run, run_threads
from tests.ops.samples import samples_of

BACKEND = CpuBackend()
LEVELS = [isa for isa in (V3, V4) if any(isa is p.values[0] and not p.marks for p in ISAS)]


def kernel_of(
    graph: Graph, layouts: Mapping[int, Layout] | None = None, out: Mapping[int, Layout] | None = None
) -> Kernel:
    """The graph as one fused kernel; `layouts` and `out` by input and output number."""
    layouts, out = layouts or {}, out or {}
    body = graph
    inputs = tuple(Value(v.type.with_layout(layouts.get(n, Layout())), v.name) for n, v in enumerate(body.inputs))
    outputs = tuple(Value(v.type.with_layout(out.get(n, Layout())), v.name) for n, v in enumerate(body.outputs))
    node = Node("kernel", inputs, outputs, {"name": "test", "kind": "map"}, ("test",), (body,))
    return lower(node, lambda value: False)


def graph_of(build: Callable[..., Any], *arrays: np.ndarray, shapes: Sequence[tuple[Dim, ...]] | None = None) -> Graph:
    """build(builder, *values) as a graph; `shapes` instead of the arrays' own."""
    builder = Builder()
    values = [
        builder.input(f"x{n}", from_numpy(a.dtype), shapes[n] if shapes else a.shape) for n, a in enumerate(arrays)
    ]
    result = build(builder, *values)
    return builder.finish(result if isinstance(result, tuple) else (result,))


def check(
    isa: Isa,
    build: Callable[..., Any],
    *arrays: np.ndarray,
    shapes: Sequence[tuple[Dim, ...]] | None = None,
    symbols: Mapping[str, int] | None = None,
    layouts: Mapping[int, Layout] | None = None,
    out: Mapping[int, Layout] | None = None,
    relative: float = 2e-6,
    absolute: float = 1e-6,
) -> Kernel:
    graph = graph_of(build, *arrays, shapes=shapes)
    kernel = kernel_of(graph, layouts, out)
    emitted = BACKEND.emit(kernel, isa.target)
    got = run_threads(kernel, emitted, isa, arrays, symbols)
    expected = evaluate(graph, list(arrays), symbols or {})
    for g, e in zip(got, expected, strict=True):
        compare(g, e, relative, absolute)
    return kernel


def compare(got: np.ndarray, expected: np.ndarray, relative: float, absolute: float) -> None:
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), relative, absolute)


def single(name: str, sample: Sample) -> Kernel | None:
    """A kernel of one op; None where the op is not one kernel of loops."""
    builder = Builder()
    given = [
        None if a is None else builder.input(f"x{n}", from_numpy(a.dtype), a.shape)
        for n, a in enumerate(sample.operands)
    ]
    results = builder.op(name, *given, **sample.attrs)
    kernel = kernel_of(builder.finish(results))
    return kernel if kernel.root is None or isinstance(kernel.root, ScanRoot) else None


def op(name: str, **attrs: Any) -> Callable[..., Any]:
    """A builder function of one op."""
    return lambda builder, *values: builder.op(name, *values, **attrs)[0]


NOT_ONE_KERNEL = {"conv_transpose"}
SLOW_TO_COMPILE = {"zeta": (0, 1, 4)}  # of equal shapes, broadcast, and of float64; the other ops have all forms


@pytest.mark.parametrize("name", sorted(set(OPS) - NOT_ONE_KERNEL))
def test_every_op(name: str) -> None:
    """All samples of an op, at 1, 2 and 3 threads; compiled together, since there are many."""
    units: dict[Isa, list[tuple[Sample, Kernel, Emitted]]] = {isa: [] for isa in LEVELS}
    samples = samples_of(name)
    for number in SLOW_TO_COMPILE.get(name, range(len(samples))):
        sample = samples[number]
        kernel = single(name, sample)
        if kernel is not None:
            isa = LEVELS[number % len(LEVELS)]
            units[isa].append((sample, kernel, BACKEND.emit(kernel, isa.target)))
    for isa, cases in units.items():
        build_all([emitted for _, _, emitted in cases], isa)
        for sample, kernel, emitted in cases:
            got = run_threads(kernel, emitted, isa, [a for a in sample.operands if a is not None])
            expected = evaluate_op(OPS[name], OPS[name].check_attrs(sample.attrs), sample.operands)
            for g, e in zip(got, expected, strict=True):
                compare(g, e, sample.relative, sample.absolute)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).normal(size=shape)).astype(dtype)


NHWC = Layout((0, 2, 3, 1))
S, T = Symbol("S", lo=0), Symbol("T", lo=0)
SIZES = [(1, 1), (1, 7), (3, 16), (5, 33), (2, 128), (4, 1000), (0, 5), (7, 2)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "dynamic"])
def test_softmax_and_layer_norm_of_rows(isa: Isa, size: tuple[int, int], symbolic: bool) -> None:
    x = normal(*size)
    shapes: list[tuple[Dim, ...]] | None = [(S.dim, T.dim)] if symbolic else None
    symbols = {"S": size[0], "T": size[1]}
    check(isa, lambda b, x: b.softmax(x, axis=-1), x, shapes=shapes, symbols=symbols)
    g, c = normal(size[1], seed=1), normal(size[1], seed=2)
    shapes = [(S.dim, T.dim), (T.dim,), (T.dim,)] if symbolic else None

    def norm(b: Builder, x: Value, g: Value, c: Value) -> Value:
        total = b.mul(b.reduce_sum(x, axes=(1,)), b.scalar(1 / max(size[1], 1), F32))
        centred = b.sub(x, total)
        square = b.mul(b.reduce_sum(b.mul(centred, centred), axes=(1,)), b.scalar(1 / max(size[1], 1), F32))
        result: Value = b.add(b.mul(b.mul(centred, b.rsqrt(b.add(square, b.scalar(1e-5, F32)))), g), c)
        return result

    check(isa, norm, x, g, c, shapes=shapes, symbols=symbols, relative=2e-4, absolute=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_over_any_axis(isa: Isa, axis: int) -> None:
    check(isa, lambda b, x: b.softmax(x, axis=axis), normal(5, 9, 37))
    check(isa, lambda b, x: b.log_softmax(x, axis=axis), normal(2, 65, 3))


@pytest.mark.parametrize("isa", ISAS)
def test_values_kept_between_stages(isa: Isa) -> None:
    """exp(x - max) is computed once and read again; so is a sum of two loads."""
    kernel = check(isa, lambda b, x, y: b.softmax(b.add(x, y), axis=-1), normal(5, 77), normal(5, 77, seed=1))
    emitted = BACKEND.emit(kernel, isa.target)
    assert emitted.scratch_bytes and emitted.source.count("exp_f32") <= 3


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("shape", [(1, 3, 13, 11), (2, 17, 7, 9), (1, 64, 8, 8)], ids=str)
def test_pooling(isa: Isa, channels_last: bool, shape: tuple[int, ...]) -> None:
    layout = {0: NHWC} if channels_last else {}
    x = normal(*shape)
    attrs = {"window": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "ceil": False}
    check(isa, lambda b, x: b.max_pool(x, **attrs), x, layouts=layout, out=layout)
    attrs["include_pad"] = False
    check(isa, lambda b, x: b.avg_pool(x, **attrs), x, layouts=layout, out=layout)
    check(isa, lambda b, x: b.reduce_mean(x, axes=(2, 3)), x, layouts=layout, out=layout, absolute=1e-5)
    check(isa, lambda b, x: b.reduce_max(b.relu(x), axes=(2, 3), keepdims=False), x, layouts=layout)
    check(isa, lambda b, x: b.softmax(x, axis=1), x, layouts=layout, out=layout)
    check(isa, lambda b, x: b.argmax(x, axis=1, keepdims=False), x, layouts=layout)


@pytest.mark.parametrize("isa", ISAS)
def test_layouts_and_halo(isa: Isa) -> None:
    halo = Layout((0, 2, 3, 1), ((0, 0), (0, 0), (1, 2), (2, 1)))
    x, bias = normal(2, 19, 5, 6), normal(19, 1, 1, seed=1)
    for source in (Layout(), NHWC, halo, Layout((3, 1, 0, 2))):
        for target in (Layout(), NHWC, halo, Layout((2, 0, 3, 1))):
            check(isa, lambda b, x, c: b.relu(b.add(x, c)), x, bias, layouts={0: source}, out={0: target})
    part = Layout((0, 2, 3, 1), (), (5 * 6 * 64, 1, 6 * 64, 64))  # 19 of 64 channels of a larger buffer
    kernel = kernel_of(graph_of(lambda b, x: b.relu(x), x), {}, {0: part})
    (got,) = run(kernel, BACKEND.emit(kernel, isa.target), isa, [x])
    np.testing.assert_array_equal(got, np.maximum(x, 0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (16,), (17,), (4097,), (3, 1, 5), (0, 4), (2, 3, 4, 5)], ids=str)
def test_elementwise_shapes(isa: Isa, shape: tuple[int, ...]) -> None:
    check(isa, lambda b, x, y: b.gelu(b.mul(x, y)), normal(*shape), normal(*shape[-1:], seed=1), relative=1e-5)
    check(isa, lambda b, x: (b.exp(x), b.cast(b.gt(x, b.scalar(0.0, F32)), to=I64)), normal(*shape))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "float16"])
def test_reductions(isa: Isa, name: str, dtype: str) -> None:
    for shape, axes in (((7, 130), (1,)), ((130, 7), (0,)), ((3, 5, 6), (0, 2)), ((1000,), (0,)), ((2, 0), (1,))):
        x = normal(*shape).clip(-1.5, 1.5)
        x = (x * 3).round() if dtype.startswith("int") else x
        x = x.astype(dtype)
        loose = 3e-3 if dtype == "float16" else 2e-5
        check(isa, op(f"reduce_{name}", axes=axes), x, relative=loose, absolute=loose)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_wins(isa: Isa) -> None:
    x = normal(6, 200)
    x[1, 150], x[2, 3], x[3] = np.nan, np.inf, -np.inf
    x[4, :], x[5, 20] = 1.0, np.nan
    for name in ("reduce_max", "reduce_min", "reduce_sum"):
        check(isa, op(name, axes=(1,)), x, absolute=1e-4)
        check(isa, op(name, axes=(0,)), x)
    for name in ("argmax", "argmin"):
        for axis in (0, 1):
            for last in (False, True):
                check(isa, op(name, axis=axis, last=last), x)


def scanned(**attrs: Any) -> Callable[..., Any]:
    return lambda b, x: b.relu(b.cumsum(x, **attrs))


@pytest.mark.parametrize("isa", ISAS)
def test_scan(isa: Isa) -> None:
    for shape in ((5, 37), (1, 1), (3, 0), (4, 3, 20)):
        for axis in range(len(shape)):
            for exclusive in (False, True):
                for reverse in (False, True):
                    attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
                    check(isa, scanned(**attrs), normal(*shape), relative=1e-4, absolute=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_gathers(isa: Isa) -> None:
    table, index = normal(11, 70), np.array([[3, 0, 10], [-1, 5, -11]])
    check(isa, lambda b, t, i: b.gather(t, i, axis=0), table, index)
    check(isa, lambda b, t, i: b.gather(t, i, axis=1), table, index)
    x = normal(2, 3, 8, 9)
    check(isa, lambda b, x: b.transpose(x, perm=(0, 2, 3, 1)), x)
    check(isa, lambda b, x: b.transpose(x, perm=(3, 0, 2, 1)), x)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "bool", "int64", "uint8", "float16"])
def test_transposes_go_by_tiles(isa: Isa, dtype: str) -> None:
    x = (normal(3, 37, 70) * 2).astype(dtype)
    kernel = check(isa, lambda b, x: b.transpose(x, perm=(0, 2, 1)), x)
    assert "tiles of" in BACKEND.emit(kernel, isa.target).schedule
    check(isa, lambda b, x: b.transpose(x, perm=(2, 1, 0)), x)
    shapes: list[tuple[Dim, ...]] = [(3, S.dim, T.dim)]
    for size in ((0, 5), (1, 1), (16, 16), (5, 100), (33, 17)):
        y = (normal(3, *size) * 2).astype(dtype)
        symbols = {"S": size[0], "T": size[1]}
        check(isa, lambda b, x: b.transpose(x, perm=(2, 0, 1)), y, shapes=shapes, symbols=symbols)


@pytest.mark.parametrize("isa", ISAS)
def test_dynamic_broadcast(isa: Isa) -> None:
    x, y = normal(6, 1, 21), normal(4, 1, seed=1)
    shapes: list[tuple[Dim, ...]] = [(S.dim, 1, T.dim), (4, 1)]
    check(isa, lambda b, x, y: b.tanh(b.add(x, y)), x, y, shapes=shapes, symbols={"S": 6, "T": 21})


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(isa: Isa, dtype: str) -> None:
    import ml_dtypes

    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    x = np.concatenate([normal(90), [np.inf, -np.inf, np.nan, 0, -0.0, 1e-7, 65504, 1e5]]).astype(kind)
    check(isa, lambda b, x: b.add(x, x), x, relative=1e-2)
    check(isa, lambda b, x: b.cast(x, to=F32), x)
    check(isa, lambda b, x: b.softmax(x, axis=0), normal(50).astype(kind), relative=2e-2, absolute=1e-3)


def test_level_is_named_in_the_schedule() -> None:
    kernel = kernel_of(graph_of(lambda b, x: b.relu(x), normal(4, 100)))
    emitted = BACKEND.emit(kernel, V4.target)
    assert "lanes along" in emitted.schedule and emitted.bytes_moved == 2 * 400 * 4


def test_flops_count_each_operation_once() -> None:
    rows, columns = 7, 50
    x = np.zeros((rows, columns), np.float32)

    def flops(build: Callable[..., Any], *arrays: np.ndarray) -> Dim:
        return BACKEND.emit(kernel_of(graph_of(build, *arrays)), V3.target).flops

    assert flops(lambda b, x: b.relu(x), x) == rows * columns
    # Centred rows: a sum of each row, one number per row made of it, and a difference for every element.
    centred = flops(lambda b, x: b.sub(x, b.reduce_sum(x, axes=(1,), keepdims=True)), x)
    assert centred == 2 * rows * columns
    normed = flops(lambda b, x: b.softmax(x, axis=1), x)
    assert isinstance(normed, int) and 10 * rows * columns < normed < 60 * rows * columns
