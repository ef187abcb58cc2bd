"""Loops over time in models' own code, exported step by step: rolled up, and the same numbers as eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.evaluate import evaluate
from aot.frontend import load
from aot.ir import Graph
from aot.passes import Context
from aot.transforms.roll import roll
from tests.torch.programs import exported, leaves

torch = pytest.importorskip("torch")

T, N, H = 7, 5, 8


class Loop(torch.nn.Module):  # type: ignore[name-defined]
    """A cell of torch in a loop; all its states stacked, and the last ones."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell = getattr(torch.nn, kind)(N, H)
        self.has_two = kind == "LSTMCell"

    def forward(self, x: Any) -> Any:
        h = c = torch.zeros(x.shape[0], H)
        rows = []
        for step in range(x.shape[1]):
            if self.has_two:
                h, c = self.cell(x[:, step], (h, c))
            else:
                h = self.cell(x[:, step], h)
            rows.append(h)
        return torch.stack(rows, 1), h, c


def rolled(function: Any, *inputs: Any, decompose: bool = False) -> Graph:
    """The graph after the pass, once it agreed with eager."""
    program = exported(function, inputs)
    graph = load(program.run_decompositions() if decompose else program)
    result = roll(graph, Context())
    with torch.no_grad():
        wanted = leaves(function(*inputs))
    for mine, theirs in zip(evaluate(result, [x.numpy() for x in inputs]), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)
    return result


def count(graph: Graph, op: str) -> int:
    return sum(node.op == op for node in graph.nodes)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells_in_a_loop(kind: str) -> None:
    result = rolled(Loop(kind).eval(), torch.randn(3, T, N))
    assert count(result, "recur_cell") == 1
    assert count(result, "matmul") == 1


def test_a_layer_that_was_decomposed() -> None:
    class Layer(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(N, H, 2, batch_first=True, bidirectional=True)

        def forward(self, x: Any) -> Any:
            return self.lstm(x)[0]

    result = rolled(Layer().eval(), torch.randn(2, T, N), decompose=True)
    assert count(result, "recur_cell") == 4
    assert count(result, "tanh") <= 8  # those of first steps, whose states have another shape


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("batch", [1, 3])
def test_layers_whose_outputs_and_last_states_are_read(kind: str, batch: int) -> None:
    """The last state is reshaped as those between steps are: a chain of one step more, of which too much is read."""

    class Layer(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(torch.nn, kind)(N, H, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    result = rolled(Layer().eval(), torch.randn(batch, T, N), decompose=True)
    assert count(result, "recur_cell") == 1
    assert count(result, "matmul") <= 2


def test_vectors_and_columns() -> None:
    """`h = tanh(W @ x[:, t] + U @ h)`, as books write it."""
    w, u = torch.randn(H, N), torch.randn(H, H) * 0.3

    def run(x: Any) -> Any:
        h, rows = torch.zeros(H), []
        for step in range(T):
            h = torch.tanh(w @ x[:, step] + u @ h)
            rows.append(h)
        return torch.stack(rows, 1)

    result = rolled(run, torch.randn(N, T))
    assert count(result, "recur_cell") == 1


def test_selective_scan() -> None:
    """The slow path of state-space models: elementwise states, a product with each of them behind."""

    def run(a: Any, b: Any, c: Any) -> Any:
        h, rows = torch.zeros(2, H, 4), []
        for step in range(T):
            h = torch.exp(a)[:, :, step] * h + b[:, :, step]
            rows.append((h @ c[:, step].unsqueeze(-1))[:, :, 0])
        return torch.stack(rows, -1)

    result = rolled(run, -torch.rand(2, H, T, 4), torch.randn(2, H, T, 4), torch.randn(2, T, 4))
    assert count(result, "recur_map") == 1
    assert count(result, "matmul") == 1


def test_weighted_key_values() -> None:
    """RWKV: three states whose results are put into a tensor one by one."""

    def run(k: Any, v: Any) -> Any:
        top, bottom, most = torch.zeros(2, H), torch.zeros(2, H), torch.full((2, H), -1e38)
        decay, first = -torch.exp(torch.linspace(-1, 1, H)), torch.linspace(0, 1, H)
        out = torch.zeros_like(k)
        for step in range(T):
            key, value = k[:, step], v[:, step]
            new = torch.maximum(most, key + first)
            one, two = torch.exp(most - new), torch.exp(key + first - new)
            out[:, step] = (one * top + two * value) / (one * bottom + two)
            new = torch.maximum(most + decay, key)
            one, two = torch.exp(most + decay - new), torch.exp(key - new)
            top, bottom, most = one * top + two * value, one * bottom + two, new
        return out

    result = rolled(run, torch.randn(2, T, H), torch.randn(2, T, H))
    assert count(result, "recur_map") == 3
    assert count(result, "div") == 1


def test_onnx_loops_that_were_written_out() -> None:
    """Gather at a constant index, MatMul, Add, Tanh, Concat; the last step has another activation."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 0.4, (N, H)), "u": rng.normal(0, 0.4, (H, H)), "h": np.zeros((2, H))}
    held = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    nodes, state = [], "h"
    for step in range(T):
        held.append(numpy_helper.from_array(np.array(step), f"i{step}"))
        held.append(numpy_helper.from_array(np.array([1]), f"axes{step}"))
        nodes += [
            helper.make_node("Gather", ["x", f"i{step}"], [f"x{step}"], axis=1),
            helper.make_node("MatMul", [f"x{step}", "w"], [f"xw{step}"]),
            helper.make_node("MatMul", [state, "u"], [f"hu{step}"]),
            helper.make_node("Add", [f"xw{step}", f"hu{step}"], [f"sum{step}"]),
            helper.make_node("Tanh" if step < T - 1 else "Sigmoid", [f"sum{step}"], [f"h{step}"]),
            helper.make_node("Unsqueeze", [f"h{step}", f"axes{step}"], [f"row{step}"]),
        ]
        state = f"h{step}"
    nodes.append(helper.make_node("Concat", [f"row{step}" for step in range(T)], ["y"], axis=1))
    info = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(nodes, "loop", [info("x", 1, (2, T, N))], [info("y", 1, (2, T, H))], initializer=held),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    graph = load(model.SerializeToString())
    result = roll(graph, Context())
    x = rng.normal(size=(2, T, N)).astype(np.float32)
    np.testing.assert_allclose(evaluate(result, [x])[0], evaluate(graph, [x])[0], rtol=1e-4, atol=1e-5)
    (cell,) = [node for node in result.nodes if node.op == "recur_cell"]
    assert cell.inputs[0] is not None and cell.inputs[0].type.shape[0] == T - 1


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
def test_compiled(kind: str, tmp_path: Path) -> None:
    import aot

    module, x = Loop(kind).eval(), torch.randn(3, T, N)
    program = torch.export.export(module, (x,), strict=False)
    artifact = aot.compile(program, "cpu:x86-64-v3", cache_dir=str(tmp_path))
    assert artifact.report.figures["kernels_out"] < T
    with torch.no_grad():
        wanted = module(x)
    for mine, theirs in zip(artifact.load(threads=2)(x.numpy()), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)
