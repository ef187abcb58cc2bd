"""Kernels of whole ops: sorts and scatters over layouts, halos, symbols, threads, and with results nobody reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.backend.cpu import CpuBackend
from aot.backend.cpu.isa import Isa
from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import from_numpy
from aot.evaluate import evaluate_op
from aot.ir import Layout
from aot.ops import OPS
from tests.backend.harness import ISAS, run_threads
from tests.backend.test_loops import NHWC, check, kernel_of
from tests.ops.samples import samples_of

RNG = np.random.default_rng(4)
N, E = Symbol("N", lo=0), Symbol("E", lo=0)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["sort", "top_k", "scatter_elements", "scatter_nd", "tree_ensemble"])
def test_threads_do_not_matter(name: str, isa: Isa) -> None:
    """Every fifth sample, with 1 to 4 threads: `run_threads` compares the bits."""
    for sample in samples_of(name)[::5]:
        builder = Builder()
        given = [
            None if a is None else builder.input(f"x{n}", from_numpy(a.dtype), a.shape)
            for n, a in enumerate(sample.operands)
        ]
        kernel = kernel_of(builder.finish(builder.op(name, *given, **sample.attrs)))
        arrays = [a for a in sample.operands if a is not None]
        got = run_threads(kernel, CpuBackend().emit(kernel, isa.target), isa, arrays)
        want = evaluate_op(OPS[name], OPS[name].check_attrs(sample.attrs), sample.operands)
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(mine.astype(np.float64), theirs, sample.relative, sample.absolute)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [1, 2, 3])
def test_layouts(axis: int, isa: Isa) -> None:
    """Channels last in, halos around the result, and the other way."""
    x = normal(2, 5, 4, 6)
    halo = Layout((0, 2, 3, 1), ((0, 0), (0, 0), (1, 2), (2, 1)))
    for source, result in ((NHWC, Layout()), (Layout(), NHWC), (NHWC, halo)):
        places = {0: source}
        check(isa, lambda b, x: b.sort(x, axis=axis)[0], x, layouts=places, out={0: result})
        check(isa, lambda b, x: b.top_k(x, axis=axis, k=3)[0], x, layouts=places, out={0: result})
        extent = x.shape[axis]
        indices = RNG.integers(-extent, extent, x.shape)
        updates = normal(*x.shape)

        def scatter(b: Builder, x: Any, i: Any, u: Any) -> Any:
            return b.scatter_elements(x, i, u, axis=axis, reduction="add")

        check(isa, scatter, x, indices, updates, layouts={0: source, 2: result if not result.halo else source},
              out={0: result}, absolute=1e-5)  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sizes", [(5, 9), (1, 1), (300, 40), (4, 0), (0, 0)], ids=str)
def test_symbolic_sizes(sizes: tuple[int, int], isa: Isa) -> None:
    n, e = sizes
    symbols = {"N": n, "E": e}
    check(isa, lambda b, x: b.sort(x, axis=0)[0], normal(n, 3), shapes=[(N.dim, 3)], symbols=symbols)
    check(isa, lambda b, x: b.sort(x, axis=1)[1], normal(3, n), shapes=[(3, N.dim)], symbols=symbols)
    if e and not n:
        return
    places = RNG.integers(-n, n, (e, 37)) if n else np.zeros((e, 37), np.int64)
    shapes: list[Any] = [(N.dim, 37), (E.dim, 37), (E.dim, 37)]
    for reduction in ("none", "max"):

        def scatter(b: Builder, x: Any, i: Any, u: Any, reduction: str = reduction) -> Any:
            return b.scatter_elements(x, i, u, axis=0, reduction=reduction)

        check(isa, scatter, normal(n, 37), places, normal(e, 37), shapes=shapes, symbols=symbols)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_are_moved_whole_where_an_index_is_repeated(isa: Isa) -> None:
    """Indices that an expand repeats along a row are read once per row."""
    column = Layout(strides=(1, 0))
    places = np.broadcast_to(RNG.integers(0, 6, (11, 1)), (11, 67)).copy()

    def scatter(b: Builder, x: Any, i: Any, u: Any) -> Any:
        return b.scatter_elements(x, i, u, axis=0, reduction="mul")

    kernel = check(isa, scatter, normal(6, 67), places, normal(11, 67), layouts={1: column}, absolute=1e-4)
    assert "store_f32(to + k" in CpuBackend().emit(kernel, isa.target).source


@pytest.mark.parametrize("isa", ISAS)
def test_a_result_that_nobody_reads(isa: Isa) -> None:
    x = normal(4, 900)
    check(isa, lambda b, x: b.sort(x, axis=1, descending=True)[1], x)
    check(isa, lambda b, x: b.top_k(x, axis=1, k=5, largest=False)[0], x)
    check(isa, lambda b, x: b.top_k(x, axis=1, k=700)[1], x)
