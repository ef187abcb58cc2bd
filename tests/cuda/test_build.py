"""Whole builds for a GPU: what is known of pointers, what is refused, one file for several targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

import aot
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
from tests.frontend.models import model_of

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


TARGETS = ("cuda:sm_90a", "cuda:sm_86", "cuda:compute_80", "cpu")


def test_one_file_for_two_gpus_newer_ones_and_the_cpu(tmp_path: Path) -> None:
    """Every weight is in it once; the CPU's program is the one that a file of its own has, to the bit."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((256, 1024)).astype(np.float32) / 16}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = model_of(nodes, {"x": (TensorProto.FLOAT, ["batch", 256])}, ["y"], constants=weights)
    built = aot.compile(model, TARGETS, cache_dir=tmp_path, precision="fp16")
    held = sum(array.nbytes for array in weights.values())
    assert built.sections["weights"] == held
    assert built.size_bytes < 1.15 * held + built.sections["code"]
    assert [row.target for row in built.target_bytes][:3] == list(TARGETS[:3])
    for row in built.target_bytes:
        assert row.code_bytes == row.own_bytes > 0  # what is its own is its code
    packed = aot.compile(model, TARGETS, cache_dir=tmp_path, precision="fp16", weights="packed")
    assert packed.sections["weights"] > 1.4 * held
    alone = aot.compile(model, "cpu", cache_dir=tmp_path)
    x = rng.standard_normal((7, 256)).astype(np.float32)
    cpu = alone.programs[0].target
    with alone.load(target=cpu) as one, built.load(target=cpu) as other, packed.load(target=cpu) as third:
        for found in (other(x), third(x)):
            np.testing.assert_array_equal(found, one(x))
    for number in range(len(built.programs)):
        ready = packed.constants(number)
        for name, array in built.constants(number).items():
            np.testing.assert_array_equal(array, ready[name], strict=True)
