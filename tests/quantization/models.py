"""Small models that can be quantized, their data, and the comparison of compiled programs with the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from aot import driver
from aot.calibrate import plain, run, running
from aot.evaluate import evaluate
from aot.ir import Array, Graph
from aot.options import CompileOptions
from aot.passes import Context
from aot.quantization import Quantization
from aot.runtime import target_supported
from aot.transforms.quantize import quantized

Feed = Mapping[str, Array]


class Maker:
    """Builds an ONNX model node by node; names of nodes are those of the ledger."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.inputs: list[Any] = []

    def array(self, *shape: int, scale: float = 1.0) -> Array:
        return (self.random.standard_normal(shape) * scale).astype(np.float32)

    def input(self, name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def const(self, array: Any, name: str = "") -> str:
        name = name or f"k{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def op(self, kind: str, *inputs: str, name: str = "", output: str = "", **attributes: Any) -> str:
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        output = output or f"{name}_out"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name, **attributes))
        return output

    def conv(self, x: str, weight: Array, bias: Array | None = None, name: str = "", **attributes: Any) -> str:
        operands = [x, self.const(weight)] + ([] if bias is None else [self.const(bias)])
        return self.op("Conv", *operands, name=name, **attributes)

    def dense(self, x: str, weight: Array, bias: Array | None = None, name: str = "", output: str = "") -> str:
        if bias is None:
            return self.op("MatMul", x, self.const(weight), name=name, output=output)
        made = self.op("MatMul", x, self.const(weight), name=name)
        return self.op("Add", made, self.const(bias), output=output)

    def model(self, *outputs: str, opset: int = 17) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "test", self.inputs, [onnx.ValueInfoProto(name=name) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def images(seed: int = 0) -> onnx.ModelProto:
    """Convolutions: plain with bias, in depth, in groups with strides, of one axis, pointwise; a residual; outputs that
    are products; any batch."""
    m = Maker(seed)
    x = m.input("image", "N", 3, 9, 8)
    a = m.op("Relu", m.conv(x, m.array(8, 3, 3, 3, scale=0.3), m.array(8), "stem", pads=[1, 1, 1, 1]))
    b = m.op("Relu", m.conv(a, m.array(8, 1, 3, 3, scale=0.4), name="depth", group=8, pads=[1, 1, 1, 1]))
    c = m.op("Add", m.conv(b, m.array(8, 8, 1, 1, scale=0.4), m.array(8), "point"), a)
    d = m.conv(c, m.array(12, 4, 3, 3, scale=0.2), m.array(12), "groups", group=2, strides=[2, 2])
    line = m.op("Reshape", d, m.const(np.array([0, 12, -1], np.int64)))
    e = m.conv(m.op("LeakyRelu", line), m.array(5, 12, 3, scale=0.2), name="line", dilations=[2], pads=[2, 2])
    pooled = m.op("Flatten", m.op("GlobalAveragePool", m.op("Relu", d)))
    head = m.op("Gemm", pooled, m.const(m.array(12, 7)), m.const(m.array(7)), name="head")
    return m.model(d, e, head)


def tokens(seed: int = 0) -> onnx.ModelProto:
    """Attention of two heads and a feed-forward layer: one input of three products, residuals, open sizes."""
    m = Maker(seed)
    x = m.input("tokens", "B", "T", 16)
    parts = []
    for name in "qkv":
        made = m.dense(x, m.array(16, 16, scale=0.25), m.array(16) if name != "k" else None, name)
        split = m.op("Reshape", made, m.const(np.array([0, 0, 2, 8], np.int64)))
        parts.append(m.op("Transpose", split, perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]))
    scores = m.op("Softmax", m.op("MatMul", parts[0], parts[1]), axis=-1)
    mixed = m.op("Transpose", m.op("MatMul", scores, parts[2]), perm=[0, 2, 1, 3])
    joined = m.op("Reshape", mixed, m.const(np.array([0, 0, 16], np.int64)))
    y = m.op("Add", m.dense(joined, m.array(16, 16, scale=0.25), m.array(16), "out"), x)
    hidden = m.op("Tanh", m.dense(y, m.array(16, 24, scale=0.25), m.array(24), "up"))
    z = m.op("Add", m.dense(hidden, m.array(24, 16, scale=0.2), None, "down"), y)
    return m.model(m.dense(z, m.array(16, 5, scale=0.25), None, "logits", "answer"))


def dense(seed: int = 0, widths: Sequence[int] = (12, 16, 16, 6)) -> onnx.ModelProto:
    """Layers of a perceptron: dense0, dense1, …"""
    m = Maker(seed)
    x = m.input("x", "N", widths[0])
    for number, (inner, outer) in enumerate(pairwise(widths)):
        last = number == len(widths) - 2
        x = m.dense(x, m.array(inner, outer, scale=inner**-0.5), m.array(outer, scale=0.1), f"dense{number}")
        x = x if last else m.op("Relu", x)
    return m.model(x)


SHAPES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "image": ((2, 3, 9, 8), (1, 3, 9, 8), (3, 3, 9, 8)),
    "tokens": ((2, 5, 16), (1, 7, 16), (3, 1, 16)),
    "x": ((9, 12), (4, 12), (1, 12)),
}


def data_of(name: str, count: int = 3, seed: int = 1) -> list[dict[str, Array]]:
    """Samples of several sizes for the input of that name."""
    random = np.random.default_rng(seed)
    shapes = SHAPES[name]
    return [{name: random.standard_normal(shapes[number % len(shapes)]).astype(np.float32)} for number in range(count)]


def core_graph(model: Any, options: CompileOptions) -> Graph:
    """What calibration works on."""
    (graph,) = driver.core_graphs(model, plain(options)).graphs
    return graph


def fake(graph: Graph, record: Quantization) -> Graph:
    """The graph with quantize and dequantize around its products."""
    return quantized(graph, record, Context(options=CompileOptions()))


def compiled(graph: Graph, data: Sequence[Feed], options: CompileOptions) -> list[dict[str, Array]]:
    """Outputs of a graph of the core level, built for this machine, for each sample."""
    with running(graph, options) as model:
        return [{name: np.array(array) for name, array in run(model, feed, n).items()} for n, feed in enumerate(data)]


def interpreted(graph: Graph, feed: Feed) -> dict[str, Array]:
    names = [value.name for value in graph.outputs]
    return dict(zip(names, evaluate(graph, feed), strict=True))


def build(model: Any, options: CompileOptions, record: Quantization | None = None, **changes: Any) -> Any:
    """An artifact for this machine."""
    candidates = driver.resolve_targets(options, quantized=True)
    here = next(target.name for _, target in candidates if target_supported(target.name))
    return driver.compile(model, options=replace(options, targets=(here,), quantization=record, **changes))


def relative_error(found: Array, expected: Array) -> float:
    """The norm of the difference in parts of the norm of what is expected."""
    wide = np.asarray(expected, np.float64)
    return float(np.linalg.norm(np.asarray(found, np.float64) - wide)) / max(float(np.linalg.norm(wide)), 1e-30)


def save_onnx(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path
