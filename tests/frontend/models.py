"""Small ONNX models, and the comparison of an imported graph with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from aot.evaluate import evaluate
from aot.frontend import load
from aot.ir import Graph
from aot.verify import verify

onnxruntime = pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, np.dtype[Any]]
Shape = Sequence[int | str | None]

onnxruntime.set_default_logger_severity(3)


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[int, Shape]],
    outputs: Sequence[str],
    *,
    opset: int = 17,
    constants: Mapping[str, Array] | None = None,
    **more: Any,
) -> onnx.ModelProto:
    """A model; `inputs` maps names to (element type, shape)."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *more.pop("opsets", [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=min(10, onnx.IR_VERSION), **more)


def single(
    op_type: str,
    operands: Sequence[Array | None],
    *,
    opset: int,
    results: int = 1,
    constant: Sequence[int] = (),
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, and its feed. Operands whose number is in `constant` become initializers."""
    names = ["" if operand is None else f"x{i}" for i, operand in enumerate(operands)]
    node = helper.make_node(op_type, names, [f"y{i}" for i in range(results)], name="the_node", **attrs)
    arrays = {name: np.asarray(operand) for name, operand in zip(names, operands, strict=True) if operand is not None}
    fixed = {f"x{i}" for i in constant}
    inputs = {
        name: (helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
        if name not in fixed
    }
    model = model_of(
        [node],
        inputs,
        list(node.output),
        opset=opset,
        constants={name: arrays[name] for name in fixed if name in arrays},
    )
    return model, {name: arrays[name] for name in inputs}


def by_onnxruntime(model: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime computes, without its graph rewriting."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(result) for result in session.run(None, dict(feed))]


def assert_same(got: Sequence[Array], want: Sequence[Array], relative: float = 1e-4, absolute: float = 1e-5) -> None:
    """Equal dtypes and shapes; integers equal, floats close."""
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        if theirs.dtype.kind in "biu":
            np.testing.assert_array_equal(mine, theirs)
        else:
            wide = mine.astype(np.float64), theirs.astype(np.float64)
            np.testing.assert_allclose(*wide, rtol=relative, atol=absolute)


def check_against_onnxruntime(
    model: onnx.ModelProto, feed: Mapping[str, Array], relative: float = 1e-4, absolute: float = 1e-5
) -> Graph:
    """Imports, interprets, compares; gives the graph for a closer look."""
    graph = load(model)
    verify(graph)
    assert_same(evaluate(graph, feed), by_onnxruntime(model, feed), relative, absolute)
    return graph


FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
