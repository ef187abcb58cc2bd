"""Loop kernels of every op of the table, from graphs, against the op's reference; hostile shapes and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from harness import ISAS, run, run_threads

from aot.backend.cpu import CpuBackend
from aot.backend.cpu.isa import V4, Isa
from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import F32, I64, from_numpy
from aot.evaluate import evaluate, evaluate_op
from aot.ir import Graph, Layout, Level, Node, Value
from aot.kernel import AttendRoot, ContractRoot, Kernel, WindowRoot
from aot.lower import lower
from aot.ops import OPS, Sample
from tests.ops.samples import cases

BACKEND = CpuBackend()


def kernel_of(graph: Graph, layouts: Mapping[int, Layout] | None = None, out: Mapping[int, Layout] | None = None) -> Kernel:
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
        None if a is None else builder.input(f"x{n}", from_numpy(a.dtype), a.shape) for n, a in enumerate(sample.operands)
    ]
    results = builder.op(name, *given, **sample.attrs)
    kernel = kernel_of(builder.finish(results))
    return None if isinstance(kernel.root, (ContractRoot, WindowRoot, AttendRoot)) else kernel


NOT_LOOPS = {"conv", "conv_transpose", "matmul", "attention", "winograd"}


@pytest.mark.parametrize(("name", "sample"), cases(lambda op: op.name not in NOT_LOOPS))
def test_every_op(name: str, sample: Sample) -> None:
    kernel = single(name, sample)
    if kernel is None:
        return
    emitted = BACKEND.emit(kernel, V4.target)
    arrays = [a for a in sample.operands if a is not None]
    got = run(kernel, emitted, V4, arrays)
    expected = evaluate_op(OPS[name], OPS[name].check_attrs(sample.attrs), sample.operands)
    for g, e in zip(got, expected, strict=True):
        compare(g, e, sample.relative, sample.absolute)
