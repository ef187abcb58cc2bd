"""A model through ONNX and through torch.export is one graph before fusion: the same kernels follow."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import replace
from typing import Any

import pytest

from aot.frontend import load
from aot.ir import Graph, Node, Value
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES
from aot.text import print_graph

pytest.importorskip("torch")
pytest.importorskip("onnx")
import torch

from tests.torch.idioms import idioms


class Mlp(torch.nn.Module):
    """A feed-forward block before which rows are normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class ConvBlock(torch.nn.Module):
    """Convolution, batch normalization and ReLU, twice; the second convolution is depthwise."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.pool = torch.nn.AvgPool2d(2)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.first(x)))
        return self.pool(torch.relu(self.second(x)))


class Attention(torch.nn.Module):
    """Self-attention with its projections."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(16, 16) for _ in range(3))
        self.out = torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = (part(x).reshape(batch, length, 2, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / 8**0.5
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, 16))


class WholeAttention(Attention):
    """The same, by torch's fused function."""

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = (part(x).reshape(batch, length, 2, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, 16))


class Recurrent(torch.nn.Module):
    """Two layers of LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(6, 4, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        output, (hidden, _) = self.lstm(x, (h, c))
        return output, hidden


MODELS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "mlp": (Mlp, [(2, 5, 16)]),
    "convolutions": (ConvBlock, [(1, 3, 8, 8)]),
    "attention": (Attention, [(2, 6, 16)]),
    "fused attention": (WholeAttention, [(2, 6, 16)]),
    "lstm": (Recurrent, [(2, 5, 6), (4, 2, 4), (4, 2, 4)]),
}
SHARED = (
    "norm, weight first", "norm, one plus weight", "norm, square root", "rotary, halves", "rotary, neighbours",
    "rotary, pairs", "rotary, part", "gate, silu", "gate, gelu by hand", "gate, quick", "gate, joined",
    "patches, convolution", "patches, projection", "windows", "windows, shifted", "decoder layer",
    "grouped attention, expand", "grouped attention, by hand", "grouped attention, axis", "grouped attention, einsum",
)  # fmt: skip
"""Idioms that torch's exporter of ONNX takes."""


def needed(graph: Graph) -> list[Node]:
    """The nodes, each after those that make its operands in their order; from the outputs on."""
    makers = {value: node for node in graph.nodes for value in node.outputs}
    found: list[Node] = []

    def visit(value: Value) -> None:
        node = makers.get(value)
        if node is None or node in found:
            return
        for operand in node.operands:
            visit(operand)
        found.append(node)

    for value in graph.outputs:
        visit(value)
    return found


def canonical(graph: Graph) -> str:
    """The graph's text with nodes in the order in which the outputs need them, and no names or locations."""
    names: dict[Value, Value] = {}

    def renamed(value: Value) -> Value:
        if value not in names:
            names[value] = Value(value.type, "")
        return names[value]

    inputs = tuple(Value(value.type, f"in{number}") for number, value in enumerate(graph.inputs))
    names.update(zip(graph.inputs, inputs, strict=True))
    nodes: list[Node] = []
    for node in needed(graph):
        operands = tuple(None if value is None else renamed(value) for value in node.inputs)
        outputs = tuple(renamed(value) for value in node.outputs)
        nodes.append(replace(node, inputs=operands, outputs=outputs, locs=()))
    consts = {renamed(value): replace(const, source="") for value, const in graph.consts.items()}
    plain = graph.with_(
        name="g", inputs=inputs, consts=consts, nodes=tuple(nodes), outputs=tuple(renamed(v) for v in graph.outputs)
    )
    # Exporters of ONNX round scales to float32, some of them twice.
    return re.sub(r"\d+\.\d{7,}", lambda found: f"{float(found[0]):.6g}", print_graph(plain))


@pytest.mark.parametrize("name", MODELS)
def test_onnx_and_export_give_one_graph(name: str) -> None:
    make, shapes = MODELS[name]
    torch.manual_seed(3)
    model = make().eval()
    compare(model, tuple(torch.randn(*shape) for shape in shapes))


@pytest.mark.parametrize("name", SHARED)
def test_idioms_give_one_graph(name: str) -> None:
    make, arguments = idioms()[name]
    torch.manual_seed(3)
    compare(make().eval(), arguments())


def compare(model: Any, examples: tuple[Any, ...]) -> None:
    written = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, examples, written, dynamo=False, opset_version=20)
        program = torch.export.export(model, examples, strict=False)
    texts = [
        canonical(PassManager(CORE_PASSES, Context()).run(load(source))) for source in (written.getvalue(), program)
    ]
    # torch's attention gives 0 for a row that a mask closes throughout; the exporter of ONNX writes one that gives NaN.
    texts = [text.replace("zero_empty=true", "zero_empty=false") for text in texts]
    assert texts[0] == texts[1]
