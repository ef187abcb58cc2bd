"""ONNX Runtime's own quantized operators (com.microsoft) against it, on random numbers, imported and lowered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

import aot
from aot.errors import ModelError, UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load
from tests.frontend import test_onnx_quantized as base
from tests.frontend.models import Array, by_onnxruntime
from tests.frontend.test_onnx_quantized import MICROSOFT, f, floats, i, model_of, rng, scales, u, words

STEP = 0.02
"""The share of results that may be one step apart: ONNX Runtime requantizes through tables and rounded factors."""


def check(op_type: str, operands: Sequence[Array | None], inputs: Sequence[int] = (0,), **more: Any) -> None:
    base.check(op_type, operands, inputs, domain=MICROSOFT, **more)


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_elementwise(op_type: str, dtype: Any) -> None:
    zeros = [np.asarray(number, dtype) for number in (7, 100, 60)]
    x, y = words(30, 4, 5, dtype=dtype), words(4, 1, dtype=dtype, seed=2)
    operands = [x, f(0.02), zeros[0], y, f(0.03), zeros[1], f(0.0617), zeros[2]]
    check(op_type, operands, (0, 3), apart=STEP)
    check(op_type, operands[:7], (0, 3), apart=STEP)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_activations(dtype: Any) -> None:
    x, zero = words(3, 40, dtype=dtype), np.asarray(20, dtype)
    check(
        "QLinearSigmoid", [x, f(0.04), zero, f(1 / 256), np.asarray(-128 if dtype is np.int8 else 0, dtype)], apart=STEP
    )
    check("QLinearLeakyRelu", [x, f(0.04), zero, f(0.03), zero], alpha=0.1, apart=STEP)
    check("QLinearLeakyRelu", [x, f(0.04), zero, f(0.03), zero], apart=STEP)


@pytest.mark.parametrize(("version", "axis"), [(13, -1), (13, 1), (12, 1), (12, 2)])
def test_softmax(version: int, axis: int) -> None:
    operands = [words(3, 4, 6), f(0.05), u(100), f(1 / 256), u(0)]
    model, feed = model_of("QLinearSoftmax", operands, [0], domain=MICROSOFT, opset=13, axis=axis)
    model.graph.node[0].attribute.append(helper.make_attribute("opset", version))
    want = by_onnxruntime(model, feed)[0]
    base.compare(evaluate(load(model), feed)[0], want, 0.0, 0.1)


def test_where() -> None:
    condition = rng().integers(0, 2, (3, 4)).astype(bool)
    operands = [condition, words(3, 4), f(0.02), u(7), words(4, seed=2), f(0.03), u(9), f(0.025), u(3)]
    check("QLinearWhere", operands, (0, 1, 4), apart=STEP)


def test_concat() -> None:
    operands = [f(0.02), u(5), words(2, 3), f(0.02), u(5), words(2, 4, seed=2), f(0.03), u(100)]
    check("QLinearConcat", operands, (2, 5), axis=1, apart=STEP)
    check("QLinearConcat", operands, (2, 5), axis=-1, apart=STEP)


def test_means() -> None:
    check("QLinearGlobalAveragePool", [words(2, 3, 5, 6), f(0.02), u(5), f(0.015), u(9)], channels_last=0, apart=STEP)
    check("QLinearGlobalAveragePool", [words(2, 5, 6, 3), f(0.02), u(5), f(0.015), u(9)], channels_last=1, apart=STEP)
    window: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    for include in (0, 1):
        operands = [words(2, 3, 7, 9), f(0.02), u(5), f(0.015), u(9)]
        check("QLinearAveragePool", operands, count_include_pad=include, apart=STEP, **window)
    operands = [words(2, 7, 9, 3), f(0.02), u(5), f(0.015), u(9)]
    check("QLinearAveragePool", operands, channels_last=1, apart=STEP, **window)


def test_reduce_mean_as_its_definition_says() -> None:
    """ONNX Runtime has the schema and no kernel."""
    x = words(2, 3, 8)
    model, feed = model_of(
        "QLinearReduceMean", [x, f(0.02), u(5), f(0.015), u(9)], [0], domain=MICROSOFT, axes=[2], keepdims=0
    )
    mean = ((x.astype(np.float32) - 5) * f(0.02)).mean(axis=2)
    np.testing.assert_array_equal(evaluate(load(model), feed)[0], np.clip(np.rint(mean / f(0.015)) + 9, 0, 255))


@pytest.mark.parametrize("turned", [(0, 0), (1, 1)])
def test_gemm(turned: tuple[int, int]) -> None:
    a, b = words(5, 16), words(16, 6, dtype=np.int8)
    a, b = (a.T if turned[0] else a), (b.T if turned[1] else b)
    attrs: dict[str, Any] = {"transA": turned[0], "transB": turned[1]}
    bias = rng(4).integers(-4000, 4000, 6).astype(np.int32)
    for b_scale, b_zero in ((f(0.01), i(0)), (scales(6), np.zeros(6, np.int8))):
        operands = [a, f(0.02), u(120), b, b_scale, b_zero, bias, f(0.05), u(100)]
        check("QGemm", operands, apart=0.05, ops="matmul_8bit", **attrs)
        check("QGemm", operands[:7], ops="matmul_8bit", alpha=0.5, **attrs)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_products_to_floats(dtype: Any) -> None:
    x, zero = words(2, 5, 24, dtype=dtype), np.asarray(11, dtype)
    w, bias = words(24, 6, dtype=np.int8, seed=2), floats(6)
    check("MatMulIntegerToFloat", [x, w, f(0.02), f(0.01), zero, i(3), bias], (0, 2, 4), ops="matmul_8bit")
    each = [x, w, f(0.02), scales(6), zero, np.zeros(6, np.int8)]
    check("MatMulIntegerToFloat", each, (0, 2, 4), ops="matmul_8bit")
    check("MatMulIntegerToFloat", [x, w, f(0.02), f(0.01)], ops="matmul_8bit")


def test_products_quantized_at_run() -> None:
    x, w = floats(2, 5, 24), words(24, 6, dtype=np.int8, seed=2)
    check("DynamicQuantizeMatMul", [x, w, f(0.01), i(0), floats(6)], ops="matmul_8bit", tolerance=1e-4)
    check("DynamicQuantizeMatMul", [x, w, scales(6), np.zeros(6, np.int8)], ops="matmul_8bit", tolerance=1e-4)


# Weights in blocks.


def packed(columns: int, blocks: int, block: int, bits: int, seed: int = 0) -> Array:
    return words(columns, blocks, block * bits // 8, seed=seed)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", ["none", "packed", "float"])
@pytest.mark.parametrize("summed", [64, 50])
def test_matmul_n_bits(bits: int, zero: str, summed: int) -> None:
    if (bits, zero) == (8, "float"):
        pytest.skip("ONNX Runtime has no such kernel")
    columns, block = 10, 16
    blocks = -(-summed // block)
    zeros: Array | None = None
    if zero == "packed":
        zeros = words(columns, -(-blocks * bits // 8), seed=4)
    elif zero == "float":
        zeros = rng(4).integers(0, 1 << bits, (columns, blocks)).astype(np.float32)
    operands = [floats(3, summed), packed(columns, blocks, block, bits), scales(columns, blocks), zeros]
    attrs: dict[str, Any] = {"K": summed, "N": columns, "bits": bits, "block_size": block}
    check("MatMulNBits", operands[: 3 + (zeros is not None)], tolerance=2e-5, ops="matmul_packed", **attrs)
    biased = [*operands[:3], zeros, None, floats(columns)]
    check("MatMulNBits", biased, tolerance=2e-5, ops="matmul_packed", **attrs)


def test_matmul_n_bits_of_2_bits_and_of_broken_zero_points() -> None:
    """By its definition: zero points that are no whole numbers, and groups in another order."""
    columns, blocks, block = 6, 4, 16
    x, s = floats(3, 64), scales(columns, blocks)
    for bits, zeros, groups in (
        (2, None, None), (4, np.full((columns, blocks), 7.25, np.float32), None),
        (4, None, rng(8).permutation(np.repeat(np.arange(4), 16)).astype(np.int32)),
    ):  # fmt: skip
        held = packed(columns, blocks, block, bits)
        model, feed = model_of(
            "MatMulNBits", [x, held, s, zeros, groups][: 5 if groups is not None else 4 if zeros is not None else 3],
            [0], domain=MICROSOFT, K=64, N=columns, bits=bits, block_size=block,
        )  # fmt: skip
        shifts = np.arange(0, 8, bits)
        numbers = ((held[..., None] >> shifts) & ((1 << bits) - 1)).reshape(columns, 64).astype(np.float32)
        order = np.arange(64) // 16 if groups is None else groups
        middle = np.float32(1 << (bits - 1)) if zeros is None else zeros[:, order]
        want = x @ ((numbers - middle) * s[:, order]).T
        for graph in (load(model), base.lowered(load(model), base.OPERANDS[0])):
            np.testing.assert_allclose(evaluate(graph, feed)[0], want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("with_zero", [True, False])
def test_gather_block_quantized(bits: int, with_zero: bool) -> None:
    rows, width, block = 20, 32, 16
    table = words(rows, width * bits // 8)
    zeros = words(rows, width // block * bits // 8, seed=5) if with_zero else None
    indices = rng(3).integers(0, rows, (2, 3))
    operands = [table, indices, scales(rows, width // block), zeros]
    attrs: dict[str, Any] = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    check("GatherBlockQuantized", operands[: 4 if with_zero else 3], (1,), ops="gather dequantize", **attrs)


# Attention.


@pytest.mark.parametrize("mask", ["none", "lengths", "keys", "full"])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(mask: str, causal: int) -> None:
    batch, length, width, heads = 2, 6, 16, 2
    operands: list[Array | None] = [
        words(batch, length, width), words(width, 3 * width, dtype=np.int8, seed=2), floats(3 * width), f(0.01),
        f(0.01), None, u(120), i(0),
    ]  # fmt: skip
    keys = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], np.int32)
    operands[5] = {
        "none": None, "lengths": np.array([6, 4], np.int32), "keys": keys,
        "full": np.broadcast_to(keys[:, None], (2, 6, 6)).copy(),
    }[mask]  # fmt: skip
    check("QAttention", operands, tolerance=1e-4, num_heads=heads, unidirectional=causal, ops="matmul_8bit")


def test_attention_with_a_past() -> None:
    batch, length, width, heads, before = 1, 3, 16, 2, 4
    operands = [
        words(batch, length, width), words(width, 3 * width, dtype=np.int8, seed=2), floats(3 * width), f(0.01),
        f(0.01), None, u(120), i(0), floats(2, batch, heads, before, width // heads),
    ]  # fmt: skip
    check("QAttention", operands, (0, 8), tolerance=1e-4, results=2, num_heads=heads, unidirectional=1)


# LSTM.


def lstm(
    steps: int, batch: int, directions: int, columns: bool, hidden: int = 12, width: int = 7
) -> list[Array | None]:
    """The operands of a DynamicQuantizeLSTM, lengths, states and peepholes left out."""
    shape = (directions, 4 * hidden) if columns else (directions,)
    w_scale, r_scale = scales(*shape), scales(*shape, seed=4)
    zero = np.zeros(shape, np.int8)
    return [
        floats(steps, batch, width), words(directions, width, 4 * hidden, dtype=np.int8),
        words(directions, hidden, 4 * hidden, dtype=np.int8, seed=2), floats(directions, 8 * hidden), None, None, None,
        None, w_scale, zero, r_scale, zero,
    ]  # fmt: skip


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_lstm(direction: str, columns: bool, batch: int) -> None:
    operands = lstm(5, batch, 2 if direction == "bidirectional" else 1, columns)
    more: dict[str, Any] = {"results": 3, "hidden_size": 12, "direction": direction, "tolerance": 1e-4, "loops": True}
    check("DynamicQuantizeLSTM", operands, **more)
    states = [floats(operands[1].shape[0], batch, 12, seed=seed) for seed in (6, 7)]  # type: ignore[union-attr]
    check("DynamicQuantizeLSTM", [*operands[:5], *states, *operands[7:]], (0, 5, 6), **more)


def test_lstm_with_lengths_and_peepholes() -> None:
    for direction in ("forward", "reverse"):
        operands = lstm(5, 3, 1, True)
        operands[4], operands[7] = np.array([5, 2, 4], np.int32), floats(1, 36, seed=8)
        more: dict[str, Any] = {"results": 3, "hidden_size": 12, "direction": direction, "loops": True}
        check("DynamicQuantizeLSTM", operands, (0, 4), tolerance=1e-4, clip=0.8, **more)
        check("DynamicQuantizeLSTM", operands, (0, 4), tolerance=1e-4, input_forget=1, **more)


def test_lstm_with_other_activations() -> None:
    more: dict[str, Any] = {"results": 3, "hidden_size": 12, "loops": True}
    check("DynamicQuantizeLSTM", lstm(4, 2, 1, False), activations=["HardSigmoid", "Relu", "Softsign"], **more)


# Through the compiler.


def compiled_cases() -> dict[str, tuple[str, Sequence[Array | None], tuple[int, ...], dict[str, Any]]]:
    """Names, and (op, operands, which of them are inputs, the rest of `model_of` and tolerances)."""
    window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "opset": 13}
    image, kernel = words(1, 16, 9, 9), words(8, 16, 3, 3, dtype=np.int8, seed=2)
    table = words(20, 16)
    own = {"domain": MICROSOFT}
    blocks: dict[str, Any] = {"bits": 4, "block_size": 16, **own}
    attention: list[Array | None] = [
        words(2, 6, 16), words(16, 48, dtype=np.int8, seed=2), floats(48), f(0.01), f(0.01), None, u(120), i(0),
    ]  # fmt: skip
    matrix, zeros, old = words(24, 7, dtype=np.int8, seed=2), np.zeros(8, np.int8), {"opset": 13}
    nibbles = {"K": 50, "N": 10, **blocks}
    both = {"direction": "bidirectional", "hidden_size": 12, "results": 3, **own}
    return {
        "conv": ("QLinearConv", [image, f(0.02), u(9), kernel, scales(8), zeros, f(0.5), u(7)], (0,), window),
        "conv integer": ("ConvInteger", [image, kernel, u(9), i(0)], (0, 2), window),
        "matmul": ("QLinearMatMul", [words(5, 24), f(0.02), u(9), matrix, f(0.01), i(3), f(0.1), u(99)], (0,), old),
        "matmul integer": ("MatMulInteger", [words(5, 24), matrix, u(9), i(3)], (0, 2), old),
        "dynamic": ("DynamicQuantizeMatMul", [floats(5, 24), matrix, f(0.01), i(0), floats(7)], (0,), own),
        "4 bits": ("MatMulNBits", [floats(5, 50), packed(10, 4, 16, 4), scales(10, 4)], (0,), nibbles),
        "rows": ("GatherBlockQuantized", [table, np.array([3, 19, 0]), scales(20, 2)], (1,), blocks),
        "attention": ("QAttention", attention, (0,), {"num_heads": 2, **own}),
        "lstm": ("DynamicQuantizeLSTM", lstm(5, 2, 2, True), (0,), both),
    }  # fmt: skip


@pytest.mark.parametrize("name", compiled_cases())
def test_compiled(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    op_type, operands, inputs, more = compiled_cases()[name]
    model, feed = model_of(op_type, operands, inputs, **more)
    cache = tmp_path_factory.getbasetemp() / "kernels"
    with aot.load(aot.compile(model.SerializeToString(), "cpu:x86-64-v3", cache_dir=cache).data) as loaded:
        results = loaded.run(feed)
    for info, want in zip(model.graph.output, by_onnxruntime(model, feed), strict=True):
        base.compare(results[info.name], want, 1e-4, 0.05)


# Faults.


def refused(op_type: str, operands: Sequence[Array | None], **attrs: Any) -> str:
    model, _ = model_of(op_type, operands, [0], domain=MICROSOFT, **attrs)
    with pytest.raises((ModelError, UnsupportedError)) as error:
        load(model)
    assert "the_node" in str(error.value)
    return str(error.value)


def test_faults_name_the_node() -> None:
    assert "has 7 to 8 operands; the node has 3" in refused("QLinearAdd", [words(3), f(0.1), u(0)])
    operands = [words(3), f(0.1), u(0), f(0.1), u(0)]
    assert "no attribute 'beta'; it has alpha" in refused("QLinearLeakyRelu", operands, beta=1.0)
    pieces = [f(0.1), u(0), words(3), f(0.1), u(0), words(3)]
    assert "each piece has a scale" in refused("QLinearConcat", pieces, axis=0)
    weight = [floats(3, 64), packed(10, 4, 16, 4), scales(10, 4)]
    assert "are 320 bytes; the weight has" in refused(
        "MatMulNBits", [weight[0], weight[1][:5], weight[2]], K=64, N=10, block_size=16
    )
    assert "weights of 3 bits" in refused("MatMulNBits", weight, K=64, N=10, block_size=16, bits=3)
    attention = [words(1, 3, 16), words(16, 48, dtype=np.int8), floats(48), f(0.01), f(0.01)]
    assert "does not divide into queries" in refused("QAttention", attention, num_heads=5)
