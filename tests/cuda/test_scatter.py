"""Scatters for CUDA, under Triton's interpreter: every sample of the op table, layouts, in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import from_numpy
from aot.evaluate import evaluate_op
from aot.ops import OPS
from tests.backend.test_loops import NHWC, compare, graph_of, kernel_of, normal
from tests.cuda import interpreter
from tests.cuda.test_loops import check
from tests.ops.samples import samples_of

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
RNG = np.random.default_rng(3)


@pytest.mark.parametrize("name", ["scatter_elements", "scatter_nd"])
def test_samples(name: str) -> None:
    for sample in samples_of(name):
        builder = Builder()
        given = [
            builder.input(f"x{n}", from_numpy(a.dtype), a.shape) for n, a in enumerate(sample.operands) if a is not None
        ]
        kernel = kernel_of(builder.finish(builder.op(name, *given, **sample.attrs)))
        got = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), [a for a in sample.operands if a is not None])
        want = evaluate_op(OPS[name], OPS[name].check_attrs(sample.attrs), sample.operands)
        compare(got[0], want[0], max(sample.relative, 1e-6), max(sample.absolute, 1e-7))


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_layouts(axis: int) -> None:
    x = normal(2, 5, 4, 6)
    indices, updates = RNG.integers(-x.shape[axis], x.shape[axis], x.shape), normal(*x.shape, seed=2)

    def scatter(b: Builder, x: Any, i: Any, u: Any) -> Any:
        return b.scatter_elements(x, i, u, axis=axis, reduction="add")

    check(scatter, x, indices, updates, layouts={0: NHWC}, absolute=1e-5)
    check(scatter, x, indices, updates, out={0: NHWC}, absolute=1e-5)


def test_symbolic_sizes() -> None:
    n, e = Symbol("n", lo=0).dim, Symbol("e", lo=0).dim
    x, places, updates = normal(9, 37), RNG.integers(-9, 9, (5, 37)), normal(5, 37, seed=1)
    shapes = [(n, 37), (e, 37), (e, 37)]
    for reduction in ("none", "max"):
        check(
            lambda b, x, i, u, r=reduction: b.scatter_elements(x, i, u, axis=0, reduction=r), x, places, updates,
            shapes=shapes, symbols={"n": 9, "e": 5},
        )  # fmt: skip


def test_data_that_is_there_already_is_not_copied() -> None:
    graph = graph_of(lambda b, x, i, u: b.scatter_nd(x, i, u), normal(6, 8), np.array([[1]]), normal(1, 8))
    text = BACKEND.emit(kernel_of(graph), TARGET).source
    assert "if p0.to(tl.int64) != p3.to(tl.int64):" in text
