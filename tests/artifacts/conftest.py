"""Fixtures of the artifact tests; the programs are made by handmade.py."""

from __future__ import annotations

import onnx
import pytest

from tests.runtime import handmade


@pytest.fixture(scope="session")
def dense_bytes() -> bytes:
    """relu(x @ w + b) with a dynamic batch, as artifact bytes."""
    return handmade.artifact().data


def flow_model() -> onnx.ModelProto:
    """A loop around a branch, whose results are as long as data says."""
    import numpy as np
    from onnx import TensorProto, helper

    from tests.frontend.models import model_of

    def typed(name: str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, None)

    grown = helper.make_graph([helper.make_node("Concat", ["a", "one"], ["g"], axis=0)], "grown", [], [typed("g")])
    same = helper.make_graph([helper.make_node("Neg", ["a"], ["n"])], "same", [], [typed("n")])
    nodes = [
        helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0),
        helper.make_node("Less", ["s", "limit"], ["going"]),
        helper.make_node("If", ["going"], ["b"], then_branch=grown, else_branch=same),
    ]
    ports = [typed("i", TensorProto.INT64), typed("c", TensorProto.BOOL), typed("a")]
    body = helper.make_graph(nodes, "body", ports, [typed("going", TensorProto.BOOL), typed("b"), typed("s")])
    outer = [
        helper.make_node("Loop", ["trips", "", "x"], ["y", "sums"], body=body),
        helper.make_node("NonZero", ["y"], ["places"]),
    ]
    return model_of(
        outer,
        {"x": (TensorProto.FLOAT, ["n"]), "trips": (TensorProto.INT64, []), "limit": (TensorProto.FLOAT, [])},
        ["y", "sums", "places"],
        constants={"one": np.ones(1, np.float32)},
    )


@pytest.fixture(scope="session")
def flow_bytes() -> bytes:
    """The model of `flow_model` as artifact bytes."""
    import aot

    return aot.compile(flow_model(), "cpu:x86-64-v3").data


@pytest.fixture(scope="session")
def host_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A program for a GPU with a host step; the machine that reads it has no GPU."""
    import aot
    from tests.control.models import model_of
    from tests.simulated import TARGET, simulated_backend

    model = model_of("g (float[b,3,3] x) => (float[b] y) { e = Tanh (x) d = Det (e) y = Exp (d) }")
    with simulated_backend(frozenset({"determinant"})):
        folder = tmp_path_factory.mktemp("kernels")
        return aot.compile(model.SerializeToString(), target=TARGET, cache_dir=str(folder)).data
