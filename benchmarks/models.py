"""Writes well-known architectures as ONNX files with random weights, the way exporters write them.

resnet50, mobilenetv3 (large) and bert-base; batch (and sequence length) dynamic. Weights are drawn from
a fixed seed and scaled so that activations stay near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class _Writer:
    """Collects nodes and initializers of one model."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.count = 0

    def name(self, hint: str) -> str:
        self.count += 1
        return f"{hint}_{self.count}"

    def weight(self, array: np.ndarray, hint: str) -> str:
        name = self.name(hint)
        self.initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def ints(self, values: Sequence[int], hint: str = "shape") -> str:
        return self.weight(np.asarray(values, dtype=np.int64), hint)

    def scalar(self, value: float) -> str:
        return self.weight(np.asarray(value, dtype=np.float32), "scalar")

    def op(self, op: str, *inputs: str, **attributes: object) -> str:
        name = self.name(op)
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def normal(self, *shape: int, fan_in: int) -> np.ndarray:
        return (self.random.standard_normal(shape) * np.sqrt(2.0 / fan_in)).astype(np.float32)

    def conv(self, x: str, channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        weight = self.normal(out, channels // groups, kernel, kernel, fan_in=channels // groups * kernel * kernel)
        pad = kernel // 2
        return self.op(
            "Conv",
            x,
            self.weight(weight, "weight"),
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
            group=groups,
        )

    def batch_norm(self, x: str, channels: int, gain: float = 1.0) -> str:
        scale = (gain * self.random.uniform(0.8, 1.2, channels)).astype(np.float32)
        bias = self.random.uniform(-0.1, 0.1, channels).astype(np.float32)
        mean = self.random.uniform(-0.1, 0.1, channels).astype(np.float32)
        variance = self.random.uniform(0.8, 1.2, channels).astype(np.float32)
        names = [self.weight(a, "bn") for a in (scale, bias, mean, variance)]
        return self.op("BatchNormalization", x, *names, epsilon=1e-5)

    def linear(self, x: str, width: int, out: int) -> str:
        product = self.op("MatMul", x, self.weight(self.normal(width, out, fan_in=2 * width), "weight"))
        return self.op("Add", self.weight(self.random.uniform(-0.1, 0.1, out).astype(np.float32), "bias"), product)

    def model(
        self, name: str, inputs: dict[str, tuple[int, list[str | int]]], outputs: dict[str, list[str | int]]
    ) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, name,
            [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
            self.initializers,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="aotc-benchmarks")
        model.ir_version = 8
        return model


def resnet50() -> onnx.ModelProto:
    """ResNet-50 v1.5, input `x` [batch, 3, 224, 224]."""
    w = _Writer(50)
    x = w.op("Relu", w.batch_norm(w.conv("x", 3, 64, 7, 2), 64))
    x = w.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            y = w.op("Relu", w.batch_norm(w.conv(x, channels, width, 1), width))
            y = w.op("Relu", w.batch_norm(w.conv(y, width, width, 3, step), width))
            y = w.batch_norm(w.conv(y, width, 4 * width, 1), 4 * width, gain=0.3)
            if block == 0:
                x = w.batch_norm(w.conv(x, channels, 4 * width, 1, step), 4 * width)
            x = w.op("Relu", w.op("Add", y, x))
            channels = 4 * width
    x = w.op("Flatten", w.op("GlobalAveragePool", x), axis=1)
    weight = w.weight(w.normal(1000, 2048, fan_in=4096), "fc")
    bias = w.weight(np.zeros(1000, np.float32), "fc_bias")
    w.nodes.append(helper.make_node("Gemm", [x, weight, bias], ["logits"], name="fc", transB=1))
    return w.model("resnet50", {"x": (TensorProto.FLOAT, ["batch", 3, 224, 224])}, {"logits": ["batch", 1000]})


_MOBILENET_V3_LARGE = (
    # kernel, expanded, out, squeeze, hard swish, stride
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip


def mobilenetv3() -> onnx.ModelProto:
    """MobileNetV3-Large, input `x` [batch, 3, 224, 224]; hard swish as Mul(x, HardSigmoid(x))."""
    w = _Writer(3)

    def activate(x: str, hard_swish: bool) -> str:
        if not hard_swish:
            return w.op("Relu", x)
        return w.op("Mul", x, w.op("HardSigmoid", x, alpha=1.0 / 6.0, beta=0.5))

    def squeeze(x: str, channels: int) -> str:
        inner = -(-channels // 4 // 8) * 8
        s = w.op("GlobalAveragePool", x)
        s = w.op("Relu", w.conv(s, channels, inner, 1))
        s = w.op("HardSigmoid", w.conv(s, inner, channels, 1), alpha=1.0 / 6.0, beta=0.5)
        return w.op("Mul", s, x)

    x = activate(w.batch_norm(w.conv("x", 3, 16, 3, 2), 16), True)
    channels = 16
    for kernel, expanded, out, has_squeeze, hard, stride in _MOBILENET_V3_LARGE:
        y = x
        if expanded != channels:
            y = activate(w.batch_norm(w.conv(y, channels, expanded, 1), expanded), hard)
        y = activate(w.batch_norm(w.conv(y, expanded, expanded, kernel, stride, expanded), expanded), hard)
        if has_squeeze:
            y = squeeze(y, expanded)
        y = w.batch_norm(w.conv(y, expanded, out, 1), out)
        x = w.op("Add", y, x) if stride == 1 and out == channels else y
        channels = out
    x = activate(w.batch_norm(w.conv(x, 160, 960, 1), 960), True)
    x = w.op("Flatten", w.op("GlobalAveragePool", x), axis=1)
    first, second = (
        w.weight(w.normal(1280, 960, fan_in=960), "fc"),
        w.weight(w.normal(1000, 1280, fan_in=1280) / 80, "fc"),
    )
    x = activate(w.op("Gemm", x, first, w.weight(np.zeros(1280, np.float32), "bias"), transB=1), True)
    w.nodes.append(
        helper.make_node(
            "Gemm", [x, second, w.weight(np.zeros(1000, np.float32), "bias")], ["logits"], name="fc", transB=1
        )
    )
    return w.model("mobilenetv3", {"x": (TensorProto.FLOAT, ["batch", 3, 224, 224])}, {"logits": ["batch", 1000]})


def bert_base(layers: int = 12) -> onnx.ModelProto:
    """BERT-base encoder: `input_ids`, `attention_mask`, `token_type_ids` [batch, sequence] -> `hidden`.

    Layer norm and GELU are written out in primitive ops, shapes are computed at run time, as
    torch's exporter did up to opset 16.
    """
    w = _Writer(12)
    width, heads, vocabulary = 768, 12, 30522
    head = width // heads

    def layer_norm(x: str) -> str:
        mean = w.op("ReduceMean", x, axes=[-1])
        centred = w.op("Sub", x, mean)
        variance = w.op("ReduceMean", w.op("Pow", centred, w.scalar(2.0)), axes=[-1])
        unit = w.op("Div", centred, w.op("Sqrt", w.op("Add", variance, w.scalar(1e-12))))
        scale = w.weight(w.random.uniform(0.9, 1.1, width).astype(np.float32), "gamma")
        return w.op(
            "Add", w.op("Mul", unit, scale), w.weight(w.random.uniform(-0.1, 0.1, width).astype(np.float32), "beta")
        )

    def dim(x: str, axis: int) -> str:
        return w.op(
            "Unsqueeze",
            w.op("Gather", w.op("Shape", x), w.weight(np.asarray(axis, np.int64), "axis"), axis=0),
            w.ints([0]),
        )

    def split_heads(x: str) -> str:
        shape = w.op("Concat", dim(x, 0), dim(x, 1), w.ints([heads]), w.ints([head]), axis=0)
        return w.op("Reshape", x, shape)

    table = (0.5 * w.random.standard_normal((vocabulary, width))).astype(np.float32)
    x = w.op("Gather", w.weight(table, "word_embeddings"), "input_ids")
    kinds = w.op("Gather", w.weight(0.5 * w.normal(2, width, fan_in=2), "type_embeddings"), "token_type_ids")
    positions = w.op("Slice", w.ints(list(range(512)), "positions"), w.ints([0]), dim("input_ids", 1), w.ints([0]))
    places = w.op("Gather", w.weight(0.5 * w.normal(512, width, fan_in=2), "position_embeddings"), positions)
    x = layer_norm(w.op("Add", w.op("Add", x, kinds), places))
    mask = w.op(
        "Cast", w.op("Unsqueeze", w.op("Unsqueeze", "attention_mask", w.ints([1])), w.ints([2])), to=TensorProto.FLOAT
    )
    mask = w.op("Mul", w.op("Sub", w.scalar(1.0), mask), w.scalar(-10000.0))
    for _ in range(layers):
        q = w.op("Transpose", split_heads(w.linear(x, width, width)), perm=[0, 2, 1, 3])
        k = w.op("Transpose", split_heads(w.linear(x, width, width)), perm=[0, 2, 3, 1])
        v = w.op("Transpose", split_heads(w.linear(x, width, width)), perm=[0, 2, 1, 3])
        scores = w.op("Add", w.op("Div", w.op("MatMul", q, k), w.scalar(float(np.sqrt(head)))), mask)
        context = w.op("Transpose", w.op("MatMul", w.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        joined = w.op("Reshape", context, w.op("Concat", dim(context, 0), dim(context, 1), w.ints([width]), axis=0))
        x = layer_norm(w.op("Add", w.linear(joined, width, width), x))
        y = w.linear(x, width, 4 * width)
        y = w.op(
            "Mul",
            w.op("Mul", y, w.op("Add", w.op("Erf", w.op("Div", y, w.scalar(float(np.sqrt(2))))), w.scalar(1.0))),
            w.scalar(0.5),
        )
        x = layer_norm(w.op("Add", w.linear(y, 4 * width, width), x))
    w.nodes.append(helper.make_node("Identity", [x], ["hidden"], name="hidden"))
    tokens = (TensorProto.INT64, ["batch", "sequence"])
    return w.model(
        "bert_base",
        {"input_ids": tokens, "attention_mask": tokens, "token_type_ids": tokens},
        {"hidden": ["batch", "sequence", width]},
    )


MODELS = {"resnet50": resnet50, "mobilenetv3": mobilenetv3, "bert_base": bert_base}


def inputs(name: str) -> list[dict[str, np.ndarray]]:
    """Input cases of a model of this file."""
    random = np.random.default_rng(7)
    if name == "bert_base":
        cases = []
        for batch, sequence in ((1, 128), (2, 24)):
            mask = np.ones((batch, sequence), np.int64)
            mask[-1, sequence * 3 // 4 :] = 0
            cases.append({
                "input_ids": random.integers(0, 30522, (batch, sequence)), "attention_mask": mask,
                "token_type_ids": np.zeros((batch, sequence), np.int64),
            })  # fmt: skip
        return cases
    return [{"x": random.standard_normal((batch, 3, 224, 224)).astype(np.float32)} for batch in (1, 3)]


def write(name: str, folder: Path) -> Path:
    """Writes one model into a folder, unless it is there, and returns its path."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(MODELS[name](), str(path))
    return path
