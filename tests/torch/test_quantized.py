"""Programs that were quantized in PyTorch: PT2E's ops, fake quantization, and programs of its own quantizer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.dtypes import I8, U8
from aot.errors import AotError
from aot.evaluate import evaluate
from aot.frontend import load
from aot.ir import Graph
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES
from aot.transforms.lower_quantized import lower_quantized
from tests.passes.test_join import Joiner
from tests.torch.opinfo import array_of
from tests.torch.programs import check_compiled, exported, leaves

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")
ops = torch.ops.quantized_decomposed


def lowered(graph: Graph) -> Graph:
    context = Context(backend=Joiner(eight_bit_operands=(U8, I8)))
    return PassManager((*CORE_PASSES, lower_quantized), context).run(graph)


def agree(got: Any, want: Any, step: float) -> None:
    """Equal, but that a number between two steps may become either."""
    assert got.dtype == want.dtype and got.shape == want.shape
    difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
    assert difference.max(initial=0) <= step * 1.001 and (difference > step * 1e-3).mean() < 0.01


def check(function: Callable[..., Any], *inputs: Any, step: float = 1.0, wanted: str = "") -> None:
    """A function, imported and lowered, against eager; `wanted` are ops that are there once it is lowered."""
    graph = load(exported(function, inputs))
    feeds = [array_of(tensor) for tensor in inputs]
    result = lowered(graph)
    for each in (graph, result):
        for got, want in zip(evaluate(each, feeds), leaves(function(*inputs)), strict=True):
            agree(got, array_of(want), step)
    assert set(wanted.split()) <= {node.op for node in result.nodes}, [node.op for node in result.nodes]


def randn(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


BOUNDS = [(torch.int8, -128, 127, 3), (torch.int8, -127, 127, 0), (torch.uint8, 0, 255, 128), (torch.uint8, 0, 127, 60)]


@pytest.mark.parametrize(("dtype", "low", "high", "zero"), BOUNDS)
def test_per_tensor(dtype: Any, low: int, high: int, zero: int) -> None:
    def plain(x: Any) -> Any:
        q = ops.quantize_per_tensor(x, 0.021, zero, low, high, dtype)
        return q, ops.dequantize_per_tensor(q, 0.021, zero, low, high, dtype)

    def with_tensors(x: Any, scale: Any, point: Any) -> Any:
        q = ops.quantize_per_tensor.tensor(x, scale, point, low, high, dtype)
        return q, ops.dequantize_per_tensor.tensor(q, scale, point, low, high, dtype)

    x = randn(5, 40) * 3
    check(plain, x)
    check(with_tensors, x, torch.tensor(0.021), torch.tensor(zero))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_per_channel(axis: int) -> None:
    x = randn(6, 8, 10)
    channels = x.shape[axis]
    scales = torch.linspace(0.01, 0.03, channels)
    zeros = torch.arange(channels) - 3

    def function(x: Any) -> Any:
        q = ops.quantize_per_channel(x, scales, zeros, axis, -128, 127, torch.int8)
        return q, ops.dequantize_per_channel(q, scales, zeros, axis, -128, 127, torch.int8)

    check(function, x)
    check(lambda x: ops.dequantize_per_channel(x, scales, None, axis, -128, 127, torch.int8), (x * 40).to(torch.int8))


def test_per_group() -> None:
    scales, zeros = torch.rand(6, 4) * 0.02 + 0.01, torch.zeros(6, 4, dtype=torch.int32)

    def function(x: Any) -> Any:
        q = ops.quantize_per_channel_group(x, scales, zeros, -128, 127, torch.int8, 8)
        return ops.dequantize_per_channel_group(q, scales, zeros, -128, 127, torch.int8, 8, torch.float32)

    check(function, randn(6, 32), step=0.03)


def test_parameters_found_at_run() -> None:
    def symmetric(x: Any) -> Any:
        scale, zero = ops.choose_qparams_symmetric.tensor(x, -127, 127, 1e-6, torch.int8)
        return scale, ops.quantize_per_tensor.tensor(x, scale, zero, -127, 127, torch.int8)

    def asymmetric(x: Any) -> Any:
        scale, zero = ops.choose_qparams.tensor(x, 0, 255, 1e-6, torch.uint8)
        return scale, zero, ops.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)

    def tokens(x: Any) -> Any:
        scale, zero = ops.choose_qparams_per_token(x, torch.int8)
        q = ops.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
        return ops.dequantize_per_token(q, scale, zero, -128, 127, torch.int8, torch.float32)

    def tokens_asymmetric(x: Any) -> Any:
        scale, zero = ops.choose_qparams_per_token_asymmetric(x, torch.int8)
        return ops.quantize_per_token(x, scale, zero, -128, 127, torch.int8)

    for function in (symmetric, asymmetric, tokens, tokens_asymmetric):
        check(function, randn(5, 33) + 0.3)


@pytest.mark.parametrize(
    ("low", "high", "zero"), [(0, 255, 128), (-128, 127, -3), (0, 127, 5), (-32768, 32767, 0), (0, 15, 8)]
)
def test_fake_quantize(low: int, high: int, zero: int) -> None:
    step = 0.02
    x = randn(6, 30) * 3
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, step, zero, low, high), x, step=step)
    scale, point = torch.tensor(step), torch.tensor(zero, dtype=torch.int32)
    check(lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, low, high), x, scale, point, step=step)
    scales, points = torch.linspace(0.01, step, 30), torch.full((30,), zero, dtype=torch.int32)
    check(lambda x: torch.fake_quantize_per_channel_affine(x, scales, points, 1, low, high), x, step=step)


class Layers(torch.nn.Module):  # type: ignore[name-defined]
    """What PT2E makes of a convolution, a pool and a linear layer: its ops around them."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("kernel", torch.randint(-127, 128, (8, 3, 3, 3), generator=generator, dtype=torch.int8))
        self.register_buffer("kernel_scales", torch.linspace(0.002, 0.006, 8))
        self.register_buffer("matrix", torch.randint(-127, 128, (10, 128), generator=generator, dtype=torch.int8))
        self.register_buffer("matrix_scales", torch.linspace(0.002, 0.006, 10))
        self.register_buffer("zeros", torch.zeros(10, dtype=torch.int64))
        self.bias = torch.nn.Parameter(torch.linspace(-1, 1, 8), requires_grad=False)

    def forward(self, x: Any) -> Any:
        def passed(x: Any, scale: float, zero: int) -> Any:
            q = ops.quantize_per_tensor(x, scale, zero, -128, 127, torch.int8)
            return ops.dequantize_per_tensor(q, scale, zero, -128, 127, torch.int8)

        w = ops.dequantize_per_channel(self.kernel, self.kernel_scales, self.zeros[:8], 0, -127, 127, torch.int8)
        y = torch.relu(torch.nn.functional.conv2d(passed(x, 0.02, 5), w, self.bias, stride=2, padding=1))
        y = passed(torch.nn.functional.max_pool2d(passed(y, 0.05, -128), 2), 0.05, -128)
        m = ops.dequantize_per_channel(self.matrix, self.matrix_scales, self.zeros, 0, -127, 127, torch.int8)
        return torch.nn.functional.linear(y.flatten(1), m)


def test_layers_become_products_of_integers() -> None:
    layers = Layers()
    x = randn(2, 3, 16, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(layers, (x,))
    graph = load(program)
    result = lowered(graph)
    found = [node.op for node in result.nodes]
    assert {"conv_8bit", "matmul_8bit", "max_pool"} <= set(found) and not {"conv", "matmul", "dequantize"} & set(found)
    pool = next(node for node in result.nodes if node.op == "max_pool")
    assert pool.output.type.dtype is U8
    want = array_of(layers(x))
    for each in (graph, result):
        got = evaluate(each, [array_of(x)])[0]
        assert np.abs(got - want).max() <= 0.05 * 127 * 0.006 * 2 and np.abs(got - want).mean() < 1e-3


def test_layers_compiled(tmp_path: Path) -> None:
    check_compiled(Layers(), randn(2, 3, 16, 16), cache=tmp_path, relative=2e-2)


def test_a_file_of_a_quantized_program(tmp_path: Path) -> None:
    layers, x = Layers(), randn(2, 3, 16, 16)
    path = tmp_path / "quantized.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(layers, (x,)), path)
    got = evaluate(load(path), [array_of(x)])[0]
    assert np.abs(got - array_of(layers(x))).mean() < 1e-3


def test_programs_of_the_graph_quantizer() -> None:
    """What torch.ao.quantization makes of a model: observed, converted to PT2E's ops, exported."""
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import _convert_to_reference_decomposed_fx, prepare_fx

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(8 * 8 * 8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 5),
    ).eval()  # fmt: skip
    x = randn(4, 3, 16, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping("x86"), (x,))
        prepared(x)
        converted = _convert_to_reference_decomposed_fx(prepared)
        program = torch.export.export(converted, (x,))
        want = array_of(converted(x))
    graph = load(program)
    result = lowered(graph)
    found = [node.op for node in result.nodes]
    assert found.count("conv_8bit") == 1 and found.count("matmul_8bit") == 2 and "matmul" not in found
    step = np.diff(np.unique(want)).min() * 1.001
    for each in (graph, result):
        difference = np.abs(evaluate(each, [array_of(x)])[0] - want)
        assert difference.max() <= step and (difference > 0).mean() <= 0.2


def test_products_of_8_bits() -> None:
    a = torch.randint(-128, 128, (20, 32), dtype=torch.int8)
    b = torch.randint(-128, 128, (32, 16), dtype=torch.int8)
    check(torch._int_mm, a, b, wanted="matmul_8bit")
    weight, scale = torch.randint(-128, 128, (16, 32), dtype=torch.int8), torch.rand(16) * 0.02

    def packed(x: Any) -> Any:
        return torch.ops.aten._weight_int8pack_mm(x, weight, scale)

    x = randn(4, 32).to(torch.bfloat16)
    graph = load(exported(packed, (x,)))
    want = (x.float() @ (weight.float() * scale[:, None]).T).numpy()
    for each in (graph, lowered(graph)):
        np.testing.assert_allclose(evaluate(each, [array_of(x)])[0].astype(np.float32), want, rtol=2e-2, atol=2e-2)


def refused(function: Callable[..., Any], *inputs: Any) -> str:
    with pytest.raises(AotError) as error:
        load(exported(function, inputs))
    return str(error.value)


def test_faults() -> None:
    x = randn(3, 4)
    quantize: Callable[..., Any] = ops.quantize_per_tensor
    text = refused(lambda x: quantize(x, 0.0, 0, -128, 127, torch.int8) + 1, x)
    assert "its scale is 0" in text and "quantize_per_tensor" in text

    def channels(x: Any) -> Any:
        return ops.quantize_per_channel(
            x, torch.tensor([0.1, float("nan"), 0.2]), torch.zeros(3), 0, -128, 127, torch.int8
        )

    assert "its scale number 1 of 3 is nan" in refused(channels, x)

    scales, zeros = torch.rand(3) + 0.1, torch.full((3,), 0.5)

    def halves(x: Any) -> Any:
        return ops.quantize_per_channel(x, scales, zeros, 0, -128, 127, torch.int8)

    assert "zero points that are no numbers of i8" in refused(halves, x)
