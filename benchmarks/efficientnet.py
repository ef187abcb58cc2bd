"""Writes EfficientNet-Lite0 with its trained weights as an ONNX file: the zoo has them as torch's state only."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from benchmarks.models import _Writer

_STAGES = ((1, 1), (2, 2), (2, 2), (2, 3), (1, 3), (2, 4), (1, 1))
"""Stride of the first block, blocks."""


def efficientnet_lite0(weights: Path) -> onnx.ModelProto:
    """EfficientNet-Lite0, input `x` [batch, 3, 224, 224] -> `logits` [batch, 1000]; `weights`: the package's .pth."""
    import torch

    state = {
        name: tensor.numpy() for name, tensor in torch.load(weights, map_location="cpu", weights_only=True).items()
    }
    w = _Writer(0)
    size = 224

    def conv(x: str, name: str, stride: int = 1) -> str:
        nonlocal size
        weight = state[f"{name}.weight"]
        kernel = weight.shape[-1]
        out = -(-size // stride)
        pad = max((out - 1) * stride + kernel - size, 0)
        size = out
        groups = weight.shape[0] if weight.shape[1] == 1 else 1
        pads = [pad // 2, pad // 2, pad - pad // 2, pad - pad // 2]
        held = w.weight(weight, "weight")
        return w.op("Conv", x, held, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=groups)

    def norm(x: str, name: str, bounded: bool = True) -> str:
        parts = [state[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")]
        x = w.op("BatchNormalization", x, *(w.weight(part, "bn") for part in parts), epsilon=1e-3)
        return w.op("Clip", x, w.scalar(0.0), w.scalar(6.0)) if bounded else x

    x = norm(conv("x", "_conv_stem", 2), "_bn0")
    number = 0
    for first, blocks in _STAGES:
        for block in range(blocks):
            name, stride = f"_blocks.{number}", first if block == 0 else 1
            y = norm(conv(x, f"{name}._expand_conv"), f"{name}._bn0") if number else x
            y = norm(conv(y, f"{name}._depthwise_conv", stride), f"{name}._bn1")
            y = norm(conv(y, f"{name}._project_conv"), f"{name}._bn2", bounded=False)
            x = w.op("Add", y, x) if block else y
            number += 1
    x = norm(conv(x, "_conv_head"), "_bn1")
    x = w.op("Flatten", w.op("GlobalAveragePool", x), axis=1)
    ends = [w.weight(state["_fc.weight"], "fc"), w.weight(state["_fc.bias"], "fc_bias")]
    w.nodes.append(helper.make_node("Gemm", [x, *ends], ["logits"], name="fc", transB=1))
    inputs = {"x": (TensorProto.FLOAT, ["batch", 3, 224, 224])}
    return w.model("efficientnet_lite0", inputs, {"logits": ["batch", 1000]})


def write(weights: Path, folder: Path) -> Path:
    """Writes the model into a folder, unless it is there, and returns its path."""
    path = folder / "efficientnet_lite0.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(efficientnet_lite0(weights), str(path))
    return path
