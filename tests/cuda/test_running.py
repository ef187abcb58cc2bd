"""Running maxima and minima for CUDA, under Triton's interpreter: samples, pieces, NaN, layouts, symbolic sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import BOOL, F32, F64, I8, I64, from_numpy
from aot.evaluate import evaluate_op
from aot.ops import OPS
from tests.backend.test_loops import NHWC, compare, kernel_of, normal
from tests.cuda import interpreter
from tests.cuda.test_loops import check
from tests.ops.samples import samples_of

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
NAMES = ["running_max", "running_min"]


def both(name: str, keep: slice = slice(None)) -> Any:
    """A builder function of the values and the places."""
    return lambda b, x: tuple(b.op(name, x))[keep]


@pytest.mark.parametrize("name", NAMES)
def test_samples(name: str) -> None:
    for sample in samples_of(name):
        builder = Builder()
        (x,) = sample.operands
        assert x is not None
        graph = builder.finish(builder.op(name, builder.input("x", from_numpy(x.dtype), x.shape)))
        kernel = kernel_of(graph)
        got = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), [x])
        for g, e in zip(got, evaluate_op(OPS[name], {}, sample.operands), strict=True):
            compare(g, e, 0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_rows(name: str) -> None:
    x = normal(5, 19)
    x[0, 3], x[0, 9], x[1, 0], x[2, :], x[3, 5:] = np.nan, np.nan, np.inf, -np.inf, np.inf
    for given in (x, x.astype(np.float64), np.zeros((3, 0), np.float32), np.zeros((0, 3), np.float32), normal(7)):
        check(both(name), given)
    for dtype in ("int8", "uint8", "int64", "bool"):
        check(both(name), np.nan_to_num(normal(3, 4, 9) * 3).clip(0 if dtype[0] == "u" else -9, 9).astype(dtype))
    check(both(name, slice(1)), normal(2, 9))
    check(both(name, slice(1, 2)), normal(2, 9))


@pytest.mark.parametrize("name", NAMES)
def test_pieces_and_symbolic_sizes(name: str) -> None:
    x = normal(1, 2100).round()
    x[0, 0] = 9 if name == "running_max" else -9  # carried through all
    check(both(name), x)
    x[0, 1500], x[0, 1023] = np.nan, -0.0
    check(both(name), x)
    s, t = Symbol("S", lo=0).dim, Symbol("T", lo=0).dim
    for size in ((0, 3), (3, 0), (2, 33)):
        check(both(name), normal(*size), shapes=[(s, t)], symbols={"S": size[0], "T": size[1]})


def test_a_layout() -> None:
    check(both("running_max"), normal(2, 3, 4, 5), layouts={0: NHWC}, out={0: NHWC})


def test_cubins() -> None:
    sources: list[tuple[str, str]] = []
    for dtype in (F32, F64, I64, I8, BOOL):
        for name in NAMES:
            builder = Builder()
            graph = builder.finish(builder.op(name, builder.input("x", dtype, (64, 5000))))
            sources.append((f"k{len(sources)}", BACKEND.emit(kernel_of(graph), TARGET).source))
    for symbol, image in BACKEND.build(sources, TARGET, None).images.items():
        assert image.spilled_bytes == 0 and image.registers <= 128, (symbol, image)
