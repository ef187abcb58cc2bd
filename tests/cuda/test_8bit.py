"""Products of 8-bit numbers for CUDA, under Triton's interpreter: integers to the last bit, floats within roundings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot import dims
from aot.backend.cuda import CudaBackend
from aot.backend.cuda.contract import Described, Stream, Tile, emit_contract
from aot.backend.cuda.direct import Direct
from aot.backend.cuda.window import emit_window
from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import F8E4M3, F8E5M2, F16, F32, I8, U8, DType
from aot.evaluate import evaluate
from aot.ir import Array, Graph, Layout, Node, Value
from aot.kernel import Kernel, WindowRoot
from aot.lower import lower
from aot.ops.window import window_attrs
from tests.cuda import interpreter

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
OLDER = BACKEND.target("sm_80")
FLOAT8 = (F8E4M3, F8E5M2)


def kernel_of(graph: Graph, last: bool = False) -> Kernel:
    """The graph as one kernel; inputs whose names begin with "w" are constants. `last`: images are channels last."""

    def laid_out(value: Value, is_image: bool) -> Value:
        order = (0, *range(2, value.type.rank), 1)
        return Value(value.type.with_layout(Layout(order=order) if is_image else Layout()), value.name)

    inputs = tuple(laid_out(v, last and n == 0) for n, v in enumerate(graph.inputs))
    outputs = tuple(laid_out(v, last) for v in graph.outputs)
    node = Node("kernel", inputs, outputs, {"name": "test", "kind": "map"}, ("test",), (graph,))
    return lower(node, lambda value: value.name.startswith("w"))


def numbers(random: Any, dtype: DType, shape: Sequence[int], extreme: bool = False) -> Array:
    """Any bytes of integers, or their extremes; floats of 8 bits of middling sizes."""
    if dtype.is_integer:
        low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        made = random.choice([low, high], shape) if extreme else random.integers(low, high + 1, shape)
        return np.asarray(made, dtype.numpy)
    return np.asarray(random.standard_normal(shape).astype(np.float32).astype(dtype.numpy))


def arrays_of(graph: Graph, symbols: dict[str, int] | None = None, extreme: bool = False) -> list[Array]:
    random = np.random.default_rng(3)
    found = []
    for value in graph.inputs:
        shape = [dims.evaluate(e, symbols or {}) for e in value.type.shape]
        made = numbers(random, value.type.dtype, shape, extreme)
        found.append(np.abs(made) * 0.01 + np.float32(0.001) if "scale" in value.name else made)
    return found


def check(
    graph: Graph, symbols: dict[str, int] | None = None, *, schedule: Any = None, target: Any = TARGET,
    last: bool = False, extreme: bool = False, most: float = 0.0,
) -> str:  # fmt: skip
    """Runs and compares with the reference; `most`: what floats may differ by, of the largest. The schedule."""
    kernel, arrays = kernel_of(graph, last), arrays_of(graph, symbols, extreme)
    emit: Callable[..., Any] = emit_window if isinstance(kernel.root, WindowRoot) else emit_contract
    emitted = emit(kernel, target, schedule)
    found = interpreter.run(kernel, emitted, arrays, symbols)
    for got, wanted in zip(found, evaluate(graph, arrays, symbols), strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        if not most:
            np.testing.assert_array_equal(got, wanted)
        elif wanted.size:
            error = np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max()
            assert error <= most * np.abs(wanted.astype(np.float64)).max(), error
    return str(emitted.schedule)


def product(a: DType, b: DType, rows: Dim, summed: Dim, columns: int, weight: bool = True, batch: int = 0) -> Graph:
    build = Builder()
    lead = (batch,) if batch else ()
    x = build.input("x", a, (*lead, rows, summed))
    return build.finish((build.matmul_8bit(x, build.input("w" if weight else "b", b, (summed, columns))),))


def layer(rows: Dim, summed: int, columns: int, to: DType, activation: str = "relu") -> Graph:
    """What a quantized linear layer is: zero point, scales, bias, activation, residual, and quantized again."""
    b = Builder()
    is_float = to in FLOAT8
    kind = to if is_float else I8
    x = b.input("x", kind, (rows, summed))
    w = b.input("w", kind, (summed, columns))
    total = b.matmul_8bit(x, w)
    if not is_float:
        zero = b.input("w_zero", I8, (columns,))
        total = b.cast(b.sub(total, b.mul(b.cast(zero, to=total.type.dtype), b.scalar(7, total.type.dtype))), to=F32)
    value = b.mul(total, b.input("w_scale", F32, (columns,)))
    value = b.add(value, b.input("w_bias", F32, (columns,)))
    value = getattr(b, activation)(value)
    value = b.add(value, b.input("residual", F32, (rows, columns)))
    zero_point = None if is_float else b.scalar(3, to)
    return b.finish((b.quantize(value, b.scalar(0.031, F32), zero_point, to=to),))


SHAPES = [(1, 7, 5), (2, 64, 33), (4, 200, 16), (5, 3, 9), (17, 31, 40), (33, 130, 65), (3, 0, 5), (64, 128, 96)]


@pytest.mark.parametrize("types", [(I8, I8), (U8, I8), (I8, U8), (U8, U8)], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_integers(types: tuple[DType, DType], shape: tuple[int, int, int]) -> None:
    check(product(*types, *shape))
    check(product(*types, *shape, weight=False), extreme=True)


@pytest.mark.parametrize("types", [(a, b) for a in FLOAT8 for b in FLOAT8], ids=str)
@pytest.mark.parametrize("shape", SHAPES[1:6])
def test_floats(types: tuple[DType, DType], shape: tuple[int, int, int]) -> None:
    for target in (TARGET, OLDER):
        check(product(*types, *shape), most=2e-6, target=target)


def test_several_sums_and_wide_tiles() -> None:
    for types in ((I8, I8), (U8, U8)):
        for tile in (Tile(16, 16, 256, 4, 3, sums=4), Tile(16, 32, 128, 4, 3, sums=2), Tile(64, 64, 64, 4, 3)):
            check(product(*types, 19, 300, 40), schedule=tile)
    check(product(F8E4M3, F8E4M3, 19, 300, 40), schedule=Tile(16, 16, 256, 4, 3, sums=4), most=2e-6)


def test_batches_and_streams() -> None:
    check(product(U8, I8, 9, 40, 24, batch=3))
    check(product(I8, I8, 2, 300, 24, batch=2), schedule=Stream(8, 128, 4))
    check(product(F8E4M3, F8E5M2, 3, 300, 24), schedule=Stream(8, 128, 4), most=2e-6)


def test_sizes_that_are_not_known() -> None:
    rows, summed = Symbol("s", lo=0).dim, Symbol("k", lo=0).dim
    for a, b in ((I8, I8), (U8, U8)):
        for sizes in ({"s": 0, "k": 5}, {"s": 3, "k": 0}, {"s": 37, "k": 70}):
            check(product(a, b, rows, summed, 20), sizes)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_layer_that_stays_in_8_bits(activation: str) -> None:
    for rows in (3, 33):
        check(layer(rows, 70, 48, I8, "relu"))
        check(layer(rows, 70, 48, U8, "relu"))
    gelu = kernel_of(layer(33, 70, 48, I8, activation))
    assert gelu.outputs[0].type.dtype == I8
    for target in (TARGET, OLDER):
        check(layer(33, 70, 48, F8E4M3, activation), most=2.0**-4, target=target)  # one rounding that fell otherwise


def described(graph: Graph, most: float = 0.0) -> bool:
    return "by descriptors" in check(graph, schedule=Described(), most=most)


def test_descriptors() -> None:
    assert described(product(I8, I8, 130, 144, 140))
    assert described(product(F8E4M3, F8E4M3, 130, 144, 140), 2e-6)
    assert not described(product(U8, I8, 5, 144, 20))
    assert not described(product(I8, I8, 5, 24, 20))  # lines of 24 bytes


# Conversions.


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("target", [TARGET, OLDER], ids=str)
def test_conversions(dtype: DType, target: Any) -> None:
    every = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    b = Builder()
    graph = b.finish((b.cast(b.input("x", dtype, (256,)), to=F32),))
    (got,) = run(graph, [every], target)
    np.testing.assert_array_equal(got, every.astype(np.float32))
    # Halfway between neighbours, and the next floats beside it; what is beyond; what is no number.
    with np.errstate(all="ignore"):
        values = np.sort(every.astype(np.float32)[np.isfinite(every.astype(np.float32))])
        middle = (values[1:] + values[:-1]) / 2
        last = np.float32(2) * values[-1] - middle[-1]
        ends = np.array([last, np.nextafter(last, np.float32(0)), np.nextafter(last, np.float32(1e9))], np.float32)
        odd = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-30, 3e38, -3e38, 464, 480, 61440], np.float32)
        given = np.concatenate(
            [values, middle, np.nextafter(middle, np.float32(9e9)), np.nextafter(middle, np.float32(-9e9)), ends, -ends,
             odd]
        ).astype(np.float32)  # fmt: skip
        wanted = given.astype(dtype.numpy).astype(np.float32)
    b = Builder()
    graph = b.finish((b.cast(b.input("x", F32, given.shape), to=dtype),))
    (got,) = run(graph, [given], target)
    np.testing.assert_array_equal(got.astype(np.float32), wanted)
    b = Builder()
    x = b.cast(b.cast(b.input("x", F32, given.shape), to=dtype), to=F32)
    (got,) = run(b.finish((b.add(x, x),)), [given], target)
    np.testing.assert_array_equal(got, wanted + wanted)
    assert np.array_equal(np.signbit(got[wanted == 0]), np.signbit(wanted[wanted == 0]))


def run(graph: Graph, arrays: Sequence[Array], target: Any = TARGET) -> list[Array]:
    kernel = kernel_of(graph)
    return interpreter.run(kernel, BACKEND.emit(kernel, target), arrays)


@pytest.mark.parametrize("to", [I8, U8, *FLOAT8])
def test_quantize(to: DType) -> None:
    random = np.random.default_rng(0)
    halves = np.arange(-300, 300, dtype=np.float32) / 2
    odd = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 0.0, -0.0, 8388607.5, -8388609.0], np.float32)
    x = np.concatenate([halves, odd, random.standard_normal(391).astype(np.float32) * 20])
    for scale in (1.0, 0.5, 0.0123):
        b = Builder()
        zero = None if to in FLOAT8 else b.scalar(11, to)
        q = b.quantize(b.input("x", F32, (1000,)), b.scalar(scale, F32), zero, to=to)
        graph = b.finish((q, b.dequantize(q, b.scalar(scale, F32), zero)))
        for got, wanted in zip(run(graph, [x]), evaluate(graph, [x]), strict=True):
            np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))


def test_quotients_that_are_quantized() -> None:
    """Products with the reciprocal, corrected to the last bit in exact builds; one conversion rounds and bounds."""
    exact = replace(TARGET, features=TARGET.features | {"exact"})
    kernel = kernel_of(layer(64, 128, 96, I8))
    texts = [BACKEND.emit(kernel, target).source for target in (TARGET, exact)]
    assert ["tl.fma(-q, c, a)" in text for text in texts] == [False, True]
    assert all("quantized_s8(" in text and "= minimum(" not in text for text in texts)
    floats = BACKEND.emit(kernel_of(layer(64, 128, 96, F8E4M3)), TARGET).source
    assert "saturated_f8e4m3(" in floats and "= minimum(" not in floats


# Windows.


def conv(case: Any, types: tuple[DType, DType] = (I8, I8), weight: bool = True) -> Graph:
    b, (x, w, attrs) = Builder(), case
    result = b.conv_8bit(b.input("x", types[0], x), b.input("w" if weight else "v", types[1], w), **attrs)
    return b.finish((result,))


CONVS: list[Any] = [  # x, w, attributes
    ((2, 3, 7, 9), (4, 3, 3, 3), window_attrs((1, 1), (1, 1, 1, 1), (1, 1), fill=93)),
    ((1, 5, 11, 8), (7, 5, 3, 2), window_attrs((2, 1), (0, 1, 2, 0), (1, 2), fill=3)),
    ((2, 16, 6, 6), (33, 16, 1, 1), window_attrs((1, 1), (0, 0, 0, 0), (1, 1))),
    ((1, 40, 5, 5), (16, 40, 3, 3), window_attrs((1, 1), (1, 1, 1, 1), (1, 1), fill=7)),
    ((1, 32, 5, 4), (17, 32, 3, 3), window_attrs((2, 2), (1, 1, 1, 1), (1, 1), fill=127)),
    ((1, 17, 9, 10), (17, 1, 5, 5), window_attrs((2, 2), (2, 2, 2, 2), (1, 1), groups=17, fill=5)),
    ((2, 6, 5, 6), (9, 2, 3, 3), window_attrs((1, 2), (1, 1, 1, 1), (1, 1), groups=3, fill=100)),
    ((2, 3, 20), (5, 3, 4), window_attrs((3,), (2, 1), (2,), fill=100)),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), window_attrs((1, 2, 1), (0, 1, 0, 1, 1, 0), (1, 1, 1), fill=1)),
    ((0, 3, 4, 4), (2, 3, 3, 3), window_attrs((1, 1), (1, 1, 1, 1), (1, 1))),
]  # fmt: skip


@pytest.mark.parametrize("case", CONVS)
@pytest.mark.parametrize("types", [(I8, I8), (U8, I8), (U8, U8), (I8, U8)], ids=str)
def test_windows(case: Any, types: tuple[DType, DType]) -> None:
    check(conv(case, types), last=True)
    check(conv(case, types, weight=False), extreme=True)


@pytest.mark.parametrize("case", CONVS[:8])
def test_windows_of_floats(case: Any) -> None:
    x, w, attrs = case
    plain = {**attrs, "fill": 0}
    for types in ((F8E4M3, F8E4M3), (F8E5M2, F8E4M3)):
        for target in (TARGET, OLDER):
            check(conv((x, w, plain), types), last=True, most=2e-6, target=target)


def test_windows_cut_otherwise() -> None:
    case = CONVS[3]
    for tile in (Tile(16, 16, 64, 4, 3), Tile(32, 16, 128, 4, 3, sums=2)):
        check(conv(case, (U8, I8)), last=True, schedule=tile)
    check(conv(CONVS[5], (U8, I8)), last=True, schedule=Direct(8, 8, 2, 4, True))


# Machine code.


def test_cubins() -> None:
    """Tensor cores of Hopper for both kinds, without a register spilled."""
    wide = [product(I8, I8, 4096, 768, 3072), layer(4096, 768, 3072, F8E4M3, "gelu")]
    few = [product(U8, I8, 512, 768, 768), layer(64, 256, 256, I8), product(F8E4M3, F8E5M2, 2, 512, 512)]
    for name, graphs in (("sm_90a", [*wide, *few]), ("sm_86", [wide[0], few[0]])):
        target = BACKEND.target(name)
        sources = [(f"k{n}", BACKEND.emit(kernel_of(graph), target).source) for n, graph in enumerate(graphs)]
        built = BACKEND.build(sources, target, None, jobs=1)
        for symbol, image in built.images.items():
            assert image.spilled_bytes == 0, (name, symbol, image)


def test_texts_for_newer_devices() -> None:
    target = BACKEND.target("compute_80")
    graphs = [product(I8, I8, 64, 128, 64), product(F8E4M3, F8E4M3, 64, 128, 64), layer(64, 128, 64, F8E4M3)]
    sources = [(f"k{n}", BACKEND.emit(kernel_of(graph), target).source) for n, graph in enumerate(graphs)]
    built = BACKEND.build(sources, target, None, jobs=2)
    assert b"mma.sync" in built.code and b"s8.s8.s32" in built.code and b"e4m3" not in built.code


def test_an_element_type_that_an_emitter_cannot_read() -> None:
    b = Builder()
    graph = b.finish((b.top_k(b.input("x", F8E4M3, (4, 9)), k=2, axis=1)[0],))
    assert "8-bit floats" in BACKEND.lacks(graph.nodes[0])
    b = Builder()
    graph = b.finish((b.matmul_8bit(b.input("x", F8E4M3, (4, 9)), b.input("w", F8E4M3, (9, 4))),))
    assert BACKEND.lacks(graph.nodes[0]) == ""
    assert F16 not in FLOAT8
