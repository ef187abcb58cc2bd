"""Products with weights in 4 and 8 bits for CUDA, under Triton's interpreter, against the reference of the op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.backend.cuda.contract import Stream, Tile
from aot.backend.cuda.packed import emit_packed
from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import BF16, F16, F32, I8, U8, DType
from aot.evaluate import evaluate
from aot.ir import Array, Graph
from tests.cuda import interpreter
from tests.cuda.test_8bit import kernel_of

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
ROUNDING = {F16: 2.0**-10, BF16: 2.0**-7, F32: 2.0**-21}


def graph_of(
    rows: tuple[Dim, ...], summed: int, columns: int, bits: int, block: int, zero: bool = False, *,
    dtype: DType = F16, scale: DType = F32, weight: bool = True, epilogue: bool = False, prologue: bool = False,
) -> Graph:  # fmt: skip
    b = Builder()
    stored, held = (-(-summed // 2), U8) if bits == 4 else (summed, I8)
    blocks = -(-summed // block)
    x = b.input("x", dtype, (*rows, summed))
    w = b.input("w" if weight else "v", held, (stored, columns))
    scales = b.input("w_scale", scale, (blocks, columns))
    zeros = b.input("w_zero", held, (blocks, columns)) if zero else None
    result = b.matmul_packed(b.sigmoid(x) if prologue else x, w, scales, zeros, bits=bits, block=block)
    if epilogue:
        result = b.add(b.silu(result) if hasattr(b, "silu") else b.relu(result), b.input("r", dtype, result.type.shape))
    return b.finish((result,))


def arrays_of(graph: Graph, bits: int, symbols: dict[str, int]) -> list[Array]:
    random = np.random.default_rng(5)
    found: list[Array] = []
    for value in graph.inputs:
        shape = [symbols[str(e)] if not isinstance(e, int) else e for e in value.type.shape]
        dtype = value.type.dtype
        if dtype.is_integer:
            low, high = (0, 16) if bits == 4 and value.name == "w_zero" else (np.iinfo(dtype.numpy).min, 256)
            made: Array = random.integers(low, min(high, int(np.iinfo(dtype.numpy).max) + 1), shape)
        else:
            made = random.standard_normal(shape)
            made = np.asarray(np.abs(made) * 0.1) if "scale" in value.name else made
        found.append(made.astype(dtype.numpy))
    return found


def check(graph: Graph, schedule: Any = None, symbols: dict[str, int] | None = None, target: Any = TARGET) -> str:
    """Compares with the reference; the schedule. The weight has the left operand's type where it is multiplied."""
    kernel = kernel_of(graph)
    root: Any = kernel.root
    arrays = arrays_of(graph, root.weight.bits, symbols or {})
    emitted = emit_packed(kernel, target, schedule)
    (got,) = interpreter.run(kernel, emitted, arrays, symbols)
    (wanted,) = evaluate(graph, arrays, symbols)
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    if wanted.size:
        error = np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max()
        assert error <= ROUNDING[graph.inputs[0].type.dtype] * np.abs(wanted.astype(np.float64)).max(), error
    return emitted.schedule


CASES: list[Any] = [  # summed, columns, bits, block, zero
    (64, 33, 4, 32, False), (128, 16, 4, 32, True), (96, 20, 4, 16, True), (256, 9, 4, 128, False),
    (72, 40, 4, 72, True), (64, 24, 4, 64, False), (64, 33, 8, 64, False), (100, 20, 8, 100, True),
    (96, 17, 8, 16, True), (160, 8, 8, 32, False),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_streams(case: Any, dtype: DType) -> None:
    for rows in (1, 2):
        assert "stream" in check(graph_of((rows,), *case, dtype=dtype), Stream(8, 1024, 4))
    assert "stream" in check(graph_of((1,), *case, dtype=dtype, epilogue=True, scale=F16), Stream(4, 256, 4))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_few_rows(case: Any) -> None:
    """Beside f16 up to sixteen rows are one tile, whose numbers are made two at a time."""
    for shape in ((1,), (2,), (3,), (16,), (2, 3)):
        for scale in (F16, F32):
            schedule = check(graph_of(shape, *case, scale=scale, epilogue=len(shape) > 1 or shape[0] == 1))
            few = case[2:4] != (4, 16)  # with blocks of 16, four words have two scales
            assert ("few rows" if few else "stream" if shape in ((1,), (2,)) else "tiles") in schedule
    assert "few rows" in check(graph_of((7,), 160, 21, 4, 32, True, scale=F16, prologue=True))


def test_few_rows_cut_otherwise() -> None:
    for case in ((256, 80, 4, 32, True), (640, 33, 4, 128, False), (200, 40, 8, 200, True), (512, 40, 8, 64, True)):
        of_piece = 32 if case[2] == 4 else 16
        for rows, columns, pieces, warps in ((8, 16, 4, 2), (8, 32, 8, 4), (16, 32, 4, 8), (16, 16, 8, 2)):
            tile = Tile(rows, columns, warps * pieces * of_piece, warps, 1, warps)
            assert "few rows" in check(graph_of((3,), *case, scale=F16), tile)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_tiles(case: Any, dtype: DType) -> None:
    for rows in (5, 35):
        assert "tiles" in check(graph_of((rows,), *case, dtype=dtype, epilogue=True))


def test_streams_cut_otherwise() -> None:
    for case in (CASES[1], CASES[3], CASES[7]):
        for stream in (Stream(4, 64, 4), Stream(1, 32, 4), Stream(16, 256, 4)):
            assert "stream" in check(graph_of((2,), *case), stream)


def test_tiles_cut_otherwise() -> None:
    for case in (CASES[1], CASES[3], CASES[7]):
        for tile in (Tile(16, 16, 32, 4, 3), Tile(64, 32, 128, 4, 3)):
            assert "tiles" in check(graph_of((19,), *case), tile)


def test_sizes_that_are_not_known() -> None:
    rows, batch = Symbol("s", lo=0).dim, Symbol("b").dim
    graph = graph_of((batch, rows), 128, 40, 4, 32, True)
    for count in (0, 1, 9):
        check(graph, symbols={"b": 2, "s": count})


def test_what_is_computed_on_the_way() -> None:
    check(graph_of((2,), 100, 20, 8, 100, prologue=True))
    check(graph_of((20,), 100, 20, 8, 100, prologue=True))
    check(graph_of((2,), 96, 20, 4, 32, prologue=True), Stream(4, 64, 4))


@pytest.mark.parametrize("rows", [1, 20])
def test_weights_that_fill_no_words(rows: int) -> None:
    check(graph_of((rows,), 45, 40, 4, 32))
    check(graph_of((rows,), 70, 20, 8, 35, True))
    check(graph_of((rows,), 64, 20, 4, 2, True))
    check(graph_of((rows,), 64, 20, 4, 32, weight=False))


LLAMA = ((2048, 2048), (2048, 8192), (8192, 2048), (2048, 16384))
"""Summed and columns of a layer's products: attention's last, half of the gate's, the last, the gate's."""


@pytest.mark.parametrize("name", ["sm_90a", "sm_86", "compute_80"])
def test_machine_code(name: str) -> None:
    """No register is spilled."""
    target = BACKEND.target(name)
    graphs = [graph_of((1,), *shape, 4, 32) for shape in LLAMA[1:3]]
    graphs += [graph_of((2,), 2048, 2048, 4, 32, True, dtype=BF16), graph_of((1,), 2048, 2048, 8, 2048)]
    graphs += [graph_of((16,), 2048, 2048, 4, 32, True), graph_of((256,), 2048, 2048, 8, 128, dtype=BF16)]
    sources = [(f"k{n}", BACKEND.emit(kernel_of(graph), target).source) for n, graph in enumerate(graphs)]
    for symbol, image in BACKEND.build(sources, target, None, jobs=1).images.items():
        assert image.spilled_bytes == 0, (symbol, image)
