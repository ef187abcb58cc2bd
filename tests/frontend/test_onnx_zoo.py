"""The public models: each imports, and its interpreted graph agrees with ONNX Runtime on its smallest case."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aot.control import has_control
from aot.evaluate import evaluate
from aot.frontend import DimOption, check, load_variants, load_with_info
from tests.frontend.models import assert_same
from tests.zoo.catalogue import ZooModel, buildable, folder, make_inputs

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.zoo
@pytest.mark.parametrize("model", buildable(), ids=lambda model: model.name)
def test_public_model(model: ZooModel) -> None:
    where = folder()
    if where is None or not (where / model.file).exists():
        pytest.skip("the public models are not here: run tests/zoo/fetch.py and set AOT_ZOO")
    path: Path = where / model.file
    assert check(path) == []
    graphs, _ = load_variants(path)
    graph = graphs[0][1]
    # No shape arithmetic is left but how often loops run, and what the model leaves open stays open.
    assert not {"iota", "gather_nd"} & {node.op for node in graph.nodes}
    assert has_control(graph) or all(node.op != "dim_tensor" for node in graph.nodes)
    _, spec = min(model.cases, key=lambda case: sum(int(np.prod(entry["shape"])) for entry in case[1].values()))
    if len(graphs) > 1:  # the first case is for the first number that the model asks its input for
        _, spec = model.cases[0]
    inputs = make_inputs(spec)
    single = onnxruntime.SessionOptions()
    single.intra_op_num_threads = 1  # with more, dynamically quantized models differ from run to run
    session = onnxruntime.InferenceSession(str(path), single, providers=["CPUExecutionProvider"])
    expected = [np.asarray(result) for result in session.run(None, inputs)]
    assert_same(evaluate(graph, inputs), expected, 1e-3, model.absolute)


@pytest.mark.zoo
def test_declared_sizes_can_be_opened() -> None:
    where = folder()
    if where is None or not (where / "centerface.onnx").exists():
        pytest.skip("the public models are not here: run tests/zoo/fetch.py and set AOT_ZOO")
    dims: dict[str, DimOption] = {"input.1.0": "N", "input.1.2": "H", "input.1.3": "W"}
    graph, _ = load_with_info(where / "centerface.onnx", dims=dims)
    assert {symbol.name: symbol.divisor for symbol in graph.symbols} == {"N": 1, "H": 32, "W": 32}
    results = evaluate(graph, {"input.1": np.zeros((1, 3, 64, 96), np.float32)})
    assert results[0].shape == (1, 1, 16, 24)
