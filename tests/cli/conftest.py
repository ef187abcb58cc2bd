"""A small artifact made by hand, and stand-ins for compiler and runtime: the command line alone is tested."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aot.artifacts import Artifact
from aot.dims import Symbol
from aot.dtypes import F32
from aot.errors import GuardError
from aot.ir import TensorType, const_of
from aot.program import (
    Argument,
    Buffer,
    Constant,
    Guard,
    GuardKind,
    KernelCode,
    Port,
    Program,
    RecipeOp,
    RecipeStep,
    Source,
    Space,
    Step,
)

N = Symbol("N", 1, 64)
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
META = {
    "aotc": "0.1.0",
    "build": {
        "ops_in": 3,
        "ops_simplified": 2,
        "kernels_out": 2,
        "kernels_distinct": 2,
        "kernels_by_kind": {"contract": 1, "map": 1},
        "bytes_moved_unfused": 4000,
        "bytes_moved_fused": 1000,
        "peak_bytes": 1536,
        "lower_bound_bytes": 1536,
        "planner": "greedy",
        "weights_bytes": 48,
    },
    "fusion_refusals": [["matmul-relu", "relu (act[0])", "the product has another user"]],
    "notes": ["N is at most 64"],
    "options": {"targets": ["cpu"], "exact": False},
    "source": {"digest": "ab" * 32, "opset": 17},
    "tools": {"cc": "gcc 12.2"},
}


def program(variant: str = "", schedule: str = "tile 6x4", weight: Any = WEIGHT) -> Program:
    """y = relu(x @ w) in two steps, with the product in the arena."""
    product = N.dim * 12
    return Program(
        target="cpu:x86-64-v3",
        variant=variant,
        symbols=(N,),
        inputs=(Port("x", TensorType(F32, (N.dim, 4))),),
        outputs=(Port("y", TensorType(F32, (N.dim, 3))),),
        state=(),
        guards=(Guard(GuardKind.BIND, 0, 0, 0, 1, 64), Guard(GuardKind.EQUAL, 0, 1, expected=4)),
        sources=(Source("fc.weight", const_of(weight, "fc.weight")),),
        constants=(Constant("fc.weight", F32.number, weight.shape, (RecipeStep(RecipeOp.SOURCE, (0,)),)),),
        buffers=(
            Buffer(Space.INPUT, 0, N.dim * 16),
            Buffer(Space.CONST, 0, 48),
            Buffer(Space.ARENA, 0, product, 0, (), 0, 1, "product"),
            Buffer(Space.ARENA, 1, product, 0, (2,), 1, 1, "spare"),
            Buffer(Space.OUTPUT, 0, product),
        ),
        kernels=(
            KernelCode("k_matmul", "contract", "matmul", ("fc",), schedule, "void k_matmul(void) {}"),
            KernelCode("k_relu", "map", "relu", ("act[0]",), "vector 16", "void k_relu(void) {}"),
        ),
        steps=(
            Step(0, (Argument(0), Argument(1), Argument(2)), (N.dim,), locs=("fc",)),
            Step(1, (Argument(2), Argument(4)), (N.dim,), locs=("act[0]",)),
        ),
        code=b"code",
        peak_bytes=N.dim * 24,
        lower_bound_bytes=N.dim * 24,
        planner="greedy, proved",
    )


def make_artifact(meta: Any = None, **changes: Any) -> Artifact:
    return Artifact.build([program(**changes)], meta=meta or META)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "model.aot"
    make_artifact().save(path)
    return path


class FakeModel:
    """What aot.runtime.load gives: relu(x @ w), plus an offset that a test can set."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset

    state: tuple[Any, ...] = ()
    target = "cpu:x86-64-v3"

    def new_state(self) -> dict[str, Any]:
        return {}

    def run(self, feed: dict[str, Any], state: dict[str, Any] | None = None) -> dict[str, Any]:
        assert not state
        if set(feed) != {"x"}:
            raise GuardError(f"unknown input {sorted(feed)}", where="x", hint="The inputs are: x.")
        return {"y": np.maximum(feed["x"] @ WEIGHT, 0) + np.float32(self.offset)}

    def profile(self, feed: dict[str, Any]) -> list[tuple[str, tuple[str, ...], float]]:
        return [("relu", ("act[0]",), 1e-6), ("matmul", ("fc",), 3e-6)]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for aot.runtime; `.offset` spoils its results, `.options` are what load was given."""
    state = SimpleNamespace(offset=0.0, options={})
    module = ModuleType("aot.runtime")

    def load(path: Path, **options: Any) -> FakeModel:
        state.options = options
        return FakeModel(state.offset)

    module.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aot.runtime", module)
    import aot

    monkeypatch.setattr(aot, "runtime", module, raising=False)
    return state


@pytest.fixture
def onnx_model(tmp_path: Path) -> Iterator[Path]:
    """The same model for ONNX Runtime."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"], "fc"), helper.make_node("Relu", ["p"], ["y"], "act")]
    x = helper.make_tensor_value_info("x", 1, ["N", 4])
    y = helper.make_tensor_value_info("y", 1, ["N", 3])
    weight = onnx.numpy_helper.from_array(WEIGHT, "w")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [weight]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    yield path
