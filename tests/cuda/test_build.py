"""Whole builds for a GPU: what is known of pointers, what is refused, one file for several targets."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.assemble import assemble
from aot.backend.cuda import CudaBackend
from aot.backend.cuda.compile import header_of
from aot.builder import Builder
from aot.dtypes import F16, F32, F64
from aot.errors import UnsupportedError
from aot.ir import Graph
from aot.options import CompileOptions
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES, TARGET_PASSES
from aot.program import Program

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")


def program_of(graph: Graph) -> Program:
    """The plan and texts of a graph, not compiled."""
    context = Context(options=CompileOptions(), target=TARGET, backend=BACKEND)
    ordered = PassManager((*CORE_PASSES, *TARGET_PASSES), context).run(graph)
    return assemble(ordered, BACKEND, TARGET, variant="", node_budget=1000).program


@pytest.mark.parametrize("start", [1, 8])
def test_pointers_into_the_middle_of_a_tensor_are_not_taken_for_aligned(start: int) -> None:
    builder = Builder()
    x = builder.input("x", F16, (100,))
    part = builder.slice(x, starts=(start,), sizes=(64,), steps=(1,))
    program = program_of(builder.finish((builder.reduce_max(part, axes=(0,), keepdims=True),)))
    (step,) = program.steps
    assert step.arguments[0].offset_bytes == 2 * start
    header = header_of(program.kernels[step.kernel].source)
    assert header["aligned"] == ([0, 1] if 2 * start % 16 == 0 else [1])


def test_all_that_a_gpu_cannot_do_is_told_at_once() -> None:
    builder = Builder()
    values = builder.op("eigh", builder.input("s", F32, (4, 4)))
    q = builder.input("q", F64, (1, 2, 3, 8))
    attended = builder.attention(q, q, q, scale=1.0)
    with pytest.raises(UnsupportedError) as told:
        program_of(builder.finish((*values, attended)))
    text = str(told.value)
    assert "no kernels for cuda:sm_90a" in text and "--target cpu" in text
    for what in ("eigh", "attention with sums in f64"):
        assert what in text
