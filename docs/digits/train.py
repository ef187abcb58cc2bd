"""Trains the demo model and writes digits.onnx and test.npz beside this file.

    pip install torch==2.13.0 scikit-learn onnx onnxruntime
    python docs/digits/train.py

The held-out images are set aside first and are looked at once, after the last epoch; the recipe (epochs, rate,
augmentation) is fixed below and was not chosen by them. On one machine two runs write the same bytes: one thread,
fixed seeds, deterministic kernels. The ONNX file is written node by node rather than exported, because exporters fold
batch normalization away, and the demo should show that the compiler does that itself.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = Path(__file__).parent
SEED = 20260101
HELD_OUT_IMAGES = 540
EPOCHS = 60
BATCH_IMAGES = 64


class Unit(nn.Module):
    """Convolution and batch normalization, the pair that the compiler folds into one."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel, padding=kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


class Block(nn.Module):
    """A residual block: full 3x3, depthwise 3x3, pointwise, then the skip is added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.full = Unit(channels, channels, 3)
        self.depthwise = Unit(channels, channels, 3, groups=channels)
        self.pointwise = Unit(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.full(x))
        y = torch.relu(self.depthwise(y))
        return torch.relu(self.pointwise(y) + x)


class Digits(nn.Module):
    """[batch, 1, 8, 8] grey images in 0..1 to [batch, 10] logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Unit(1, 16, 3)
        self.block1 = Block(16)
        self.widen = Unit(16, 32, 3)
        self.block2 = Block(32)
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block1(torch.relu(self.stem(x)))
        x = nn.functional.max_pool2d(x, 2)
        x = self.block2(torch.relu(self.widen(x)))
        return self.classifier(x.mean((2, 3)))


class OnnxWriter:
    """Collects the nodes and weights of the ONNX graph; every method returns its output's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, tensor: torch.Tensor) -> str:
        self.weights.append(numpy_helper.from_array(tensor.detach().numpy(), name))
        return name

    def node(self, op: str, name: str, inputs: list[str], output: str = "", **attributes: object) -> str:
        output = output or f"{name}.out"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output

    def unit(self, name: str, unit: Unit, x: str) -> str:
        kernel, padding, groups = unit.conv.kernel_size[0], unit.conv.padding[0], unit.conv.groups
        x = self.node(
            "Conv",
            f"{name}.conv",
            [x, self.weight(f"{name}.conv.weight", unit.conv.weight)],
            kernel_shape=[kernel, kernel],
            pads=[padding] * 4,
            group=groups,
        )
        norm = unit.norm
        assert norm.running_mean is not None and norm.running_var is not None
        parts = {"scale": norm.weight, "bias": norm.bias, "mean": norm.running_mean, "variance": norm.running_var}
        names = [self.weight(f"{name}.norm.{part}", tensor) for part, tensor in parts.items()]
        return self.node("BatchNormalization", f"{name}.norm", [x, *names], epsilon=norm.eps)

    def block(self, name: str, block: Block, x: str) -> str:
        y = self.node("Relu", f"{name}.relu1", [self.unit(f"{name}.full", block.full, x)])
        y = self.node("Relu", f"{name}.relu2", [self.unit(f"{name}.depthwise", block.depthwise, y)])
        y = self.unit(f"{name}.pointwise", block.pointwise, y)
        return self.node("Relu", f"{name}.relu3", [self.node("Add", f"{name}.add", [y, x])])


def write_onnx(model: Digits, path: Path) -> None:
    """Writes the trained model as opset 17, batch normalization kept, the batch dimension left open."""
    writer = OnnxWriter()
    x = writer.node("Relu", "stem.relu", [writer.unit("stem", model.stem, "image")])
    x = writer.block("block1", model.block1, x)
    x = writer.node("MaxPool", "pool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = writer.node("Relu", "widen.relu", [writer.unit("widen", model.widen, x)])
    x = writer.block("block2", model.block2, x)
    x = writer.node("GlobalAveragePool", "average", [x])
    x = writer.node("Flatten", "flatten", [x], axis=1)
    linear = [writer.weight(f"classifier.{n}", p) for n, p in model.classifier.named_parameters()]
    writer.node("Gemm", "classifier", [x, *linear], output="logits", transB=1)

    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(writer.nodes, "digits", [image], [logits], writer.weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="docs/digits/train.py")
    proto.ir_version = 8
    onnx.checker.check_model(proto, full_check=True)
    path.write_bytes(proto.SerializeToString(deterministic=True))


def shifted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The images moved by up to one pixel each way, black at the edge: the only augmentation."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    moves = torch.randint(0, 3, (len(images), 2), generator=generator).tolist()
    return torch.stack([padded[i, :, y : y + 8, x : x + 8] for i, (y, x) in enumerate(moves)])


def train(images: torch.Tensor, labels: torch.Tensor) -> Digits:
    """Trains on these images alone and returns the model in inference mode."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    model = Digits()
    steps = EPOCHS * -(-len(images) // BATCH_IMAGES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    for epoch in range(EPOCHS):
        total_loss = 0.0
        for batch in torch.randperm(len(images), generator=generator).split(BATCH_IMAGES):
            logits = model(shifted(images[batch], generator))
            loss = nn.functional.cross_entropy(logits, labels[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total_loss += loss.item() * len(batch)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1:3d}: training loss {total_loss / len(images):.4f}")
    return model.eval()


def accuracy(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """The share of images whose largest logit is the label's."""
    return float((logits.argmax(1) == labels).mean())


def main() -> None:
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=HELD_OUT_IMAGES, stratify=labels, random_state=SEED
    )
    model = train(torch.from_numpy(train_images), torch.from_numpy(train_labels))
    write_onnx(model, HERE / "digits.onnx")

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(HERE / "digits.onnx", options, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": test_images})
    with torch.no_grad():
        np.testing.assert_allclose(logits, model(torch.from_numpy(test_images)).numpy(), rtol=1e-3, atol=1e-4)
    np.savez_compressed(HERE / "test.npz", images=test_images, labels=test_labels, logits=logits)
    size_bytes = (HERE / "digits.onnx").stat().st_size
    share = accuracy(logits, test_labels)
    print(f"digits.onnx: {size_bytes / 1e3:.0f} KB, {share:.2%} on {len(test_labels)} held-out images")


if __name__ == "__main__":
    main()
