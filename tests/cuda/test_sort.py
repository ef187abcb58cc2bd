"""Sorts for CUDA, under Triton's interpreter: every sample, types, ties, NaN, signed zeros, long rows, layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.backend.cuda import sort as emitter
from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import BF16, F32, F64, I64, U8, U32, U64, from_numpy
from aot.evaluate import evaluate_op
from aot.ir import Layout, Value
from aot.kernel import Kernel
from aot.ops import OPS
from tests.backend.test_loops import NHWC, kernel_of
from tests.cuda import interpreter
from tests.ops.samples import samples_of

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
N = Symbol("n", lo=0)
HOSTILE = np.array([np.nan, -0.0, 0.0, np.inf, -np.inf, 1.0, -np.nan, 1.0, -2.0, 0.0, 1e-45, -1e-45], np.float32)


@pytest.fixture
def fewer_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes as long for a small piece as for a large one."""
    monkeypatch.setattr(emitter, "COMPARED", 256)


def kernel(op: str, x: np.ndarray, shape: tuple[Dim, ...] = (), layout: Layout | None = None, **attrs: Any) -> Kernel:
    builder = Builder()
    made = builder.op(op, builder.input("x", from_numpy(x.dtype), shape or x.shape), **attrs)
    graph = builder.finish(made)
    return (
        kernel_of(graph, {0: layout} if layout else {}, {0: layout} if layout else {}) if layout else kernel_of(graph)
    )


def check(op: str, x: np.ndarray, shape: tuple[Dim, ...] = (), layout: Layout | None = None, **attrs: Any) -> str:
    """The same elements, bit for bit, in the same order."""
    made = kernel(op, x, shape, layout, **attrs)
    emitted = BACKEND.emit(made, TARGET)
    got = interpreter.run(made, emitted, [x], {"n": x.shape[-1], "k": 0})
    want = evaluate_op(OPS[op], OPS[op].check_attrs(attrs), [x])
    assert np.array_equal(got[1], want[1])
    assert got[0].tobytes() == np.ascontiguousarray(want[0]).tobytes()
    return emitted.schedule


@pytest.mark.usefixtures("fewer_pieces")
@pytest.mark.parametrize("op", ["sort", "top_k"])
def test_samples(op: str) -> None:
    for sample in samples_of(op):
        assert sample.operands[0] is not None
        attrs: dict[str, Any] = dict(sample.attrs)
        check(op, sample.operands[0], **attrs)


TYPES: list[Any] = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
TYPES += [np.float16, np.float32, np.float64, np.bool_, BF16.numpy]


@pytest.mark.parametrize("dtype", TYPES)
def test_types(dtype: Any) -> None:
    random = np.random.default_rng(1)
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        x = random.integers(info.min, info.max, (2, 37), dtype=dtype, endpoint=True)
        x[:, :4] = info.min, info.max, 0, info.max
    elif np.dtype(dtype) == np.bool_:
        x = random.integers(0, 2, (2, 37)).astype(dtype)
    else:
        x = np.tile(HOSTILE, (2, 3)).astype(dtype)
        x[1] = random.normal(0, 1, 36).round(1).astype(dtype)
    for descending in (False, True):
        check("sort", x, axis=1, descending=descending)
        check("top_k", x, axis=1, k=5, largest=descending)
        check("sort", x, axis=0, descending=descending)


@pytest.mark.usefixtures("fewer_pieces")
def test_sizes_that_are_known_when_running() -> None:
    for size in (0, 1, 2, 37, 600):
        x = np.random.default_rng(size).integers(0, 9, (2, size)).astype(np.float32)
        check("sort", x, (2, N.dim), axis=1)
        check("sort", x, (2, N.dim), axis=0, descending=True)
        if size >= 2:
            check("top_k", x, (2, Symbol("n", lo=2).dim), axis=1, k=2)
            assert "selected" not in check("top_k", x, axis=1, k=2)


def test_layouts() -> None:
    x = np.random.default_rng(0).normal(0, 1, (2, 5, 4, 6)).astype(np.float32)
    for axis in range(4):
        check("sort", x, layout=NHWC, axis=axis)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float64, np.uint8])
def test_the_first_of_long_rows(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitter, "SELECTED", 100)
    monkeypatch.setattr(emitter, "PIECE", 64)
    random = np.random.default_rng(2)
    for count in (100, 193):
        x = (random.normal(0, 3, (2, count)) * 10).round().astype(dtype)
        if np.dtype(dtype).kind == "f":
            x[0, 5:17] = HOSTILE
            x[1, :] = np.nan if count == 193 else x[1, :]
        for k in (1, 3, 37):
            for largest in (False, True):
                assert "selected" in check("top_k", x, axis=1, k=k, largest=largest)
    equal = np.full((1, 130), 7).astype(dtype)
    check("top_k", equal, axis=1, k=9)
    check("top_k", equal[:, :101], axis=1, k=100)


def test_only_values_or_places() -> None:
    x = np.random.default_rng(0).integers(0, 5, (3, 20)).astype(np.float32)
    for number in (0, 1):
        builder = Builder()
        made: tuple[Value, ...] = builder.sort(builder.input("x", F32, x.shape), axis=1)
        one = kernel_of(builder.finish((made[number],)))
        (got,) = interpreter.run(one, BACKEND.emit(one, TARGET), [x])
        want = evaluate_op(OPS["sort"], OPS["sort"].check_attrs({"axis": 1}), [x])[number]
        assert np.array_equal(got, want)


def test_cubins() -> None:
    texts: dict[str, str] = {}
    for dtype in (F32, F64, I64, U8, U32, U64, BF16):
        for op, shape, attrs in (
            ("sort", (64, 50), {}), ("sort", (3, 5000), {}), ("top_k", (8, 128000), {"k": 50}),
            ("sort", (N.dim,), {}),
        ):  # fmt: skip
            builder = Builder()
            made = builder.op(op, builder.input("x", dtype, shape), axis=-1, **attrs)
            texts[f"k{len(texts)}"] = BACKEND.emit(kernel_of(builder.finish(made)), TARGET).source
    for symbol, image in BACKEND.build(list(texts.items()), TARGET, None).images.items():
        assert image.spilled_bytes == 0 and image.registers <= 128, (symbol, image)
