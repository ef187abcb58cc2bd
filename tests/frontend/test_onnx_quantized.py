"""Quantized operators of ONNX against ONNX Runtime, on random numbers, imported and lowered.

Integers must be equal where the operator's definition says one result; where ONNX Runtime rounds through another path
(its requantization multiplies by one rounded factor, ours by the scales), a few may be one step apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aot.dtypes import I8, U8, DType
from aot.errors import ModelError, UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load
from aot.ir import Graph
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES
from aot.transforms.lower_quantized import lower_quantized
from tests.frontend.models import Array, by_onnxruntime
from tests.passes.test_join import Joiner

MICROSOFT = "com.microsoft"
OPERANDS = ((U8, I8), (I8, I8))


def rng(seed: int = 0) -> Any:
    return np.random.default_rng(seed)


def words(*shape: int, dtype: Any = np.uint8, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    found: Array = rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)
    return found


def floats(*shape: int, seed: int = 0) -> Array:
    found: Array = rng(seed).normal(0, 1, shape).astype(np.float32)
    return found


def scales(*shape: int, seed: int = 3) -> Array:
    found: Array = rng(seed).uniform(0.005, 0.02, shape).astype(np.float32)
    return found


def f(number: float) -> Array:
    return np.asarray(number, np.float32)


def u(number: int) -> Array:
    return np.asarray(number, np.uint8)


def i(number: int) -> Array:
    return np.asarray(number, np.int8)


def model_of(
    op_type: str, operands: Sequence[Array | None], inputs: Sequence[int], *, domain: str = "", opset: int = 21,
    results: int = 1, **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:  # fmt: skip
    """A model of one node, named `the_node`; `inputs` are the operands that are given at run time."""
    names = ["" if operand is None else f"x{n}" for n, operand in enumerate(operands)]
    node = helper.make_node(op_type, names, [f"y{n}" for n in range(results)], name="the_node", domain=domain, **attrs)
    graph = helper.make_graph(
        [node],
        "test",
        [
            helper.make_tensor_value_info(
                names[n], helper.np_dtype_to_tensor_dtype(np.asarray(operands[n]).dtype), np.asarray(operands[n]).shape
            )
            for n in inputs
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output],
        [
            numpy_helper.from_array(np.asarray(x), names[n])
            for n, x in enumerate(operands)
            if x is not None and n not in inputs
        ],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model, {names[n]: np.asarray(operands[n]) for n in inputs}


def lowered(graph: Graph, operands: tuple[DType, DType]) -> Graph:
    context = Context(backend=Joiner(eight_bit_operands=operands))
    return PassManager((*CORE_PASSES, lower_quantized), context).run(graph)


def compare(got: Array, want: Array, tolerance: float, apart: float) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.dtype.kind == "f":
        most = float(np.abs(want).max(initial=1e-3))
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * most)
        return
    difference = np.abs(got.astype(np.int64) - want.astype(np.int64))
    assert difference.max(initial=0) <= (apart > 0) and (difference > 0).mean() <= apart, difference


def check(
    op_type: str, operands: Sequence[Array | None], inputs: Sequence[int] = (0,), *, tolerance: float = 1e-5,
    apart: float = 0.0, ops: str = "", loops: bool = False, **more: Any,
) -> None:  # fmt: skip
    """A node against ONNX Runtime: as imported, and lowered for both orders of types. `ops` must be in the latter."""
    model, feed = model_of(op_type, operands, inputs, **more)
    wanted = by_onnxruntime(model, feed)
    graph = load(model)
    for got, right in zip(evaluate(graph, feed), wanted, strict=True):
        compare(got, right, tolerance, apart)
    for types in OPERANDS if not loops else ():  # what is in a loop is lowered when it is cut out of it
        result = lowered(graph, types)
        for got, right in zip(evaluate(result, feed), wanted, strict=True):
            compare(got, right, tolerance, apart)
        for name in ops.split():
            assert name in {node.op for node in result.nodes}, [node.op for node in result.nodes]


TYPES = [np.uint8, np.int8, np.uint16, np.int16]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("domain", ["", MICROSOFT])
def test_quantize_and_dequantize(dtype: Any, domain: str) -> None:
    info = np.iinfo(dtype)
    zero = np.asarray((info.min + info.max) // 2 + 3, dtype)
    x = floats(3, 4, 5) * 2
    x[0, 0] = [0.5 * 0.013, 1e9, -1e9, 0, -0.5 * 0.013]
    check("QuantizeLinear", [x, f(0.013), zero], domain=domain)
    check("DequantizeLinear", [words(3, 4, 5, dtype=dtype), f(0.013), zero], domain=domain)
    s, z = scales(4), words(4, dtype=dtype, seed=4)
    for axis in (1, -2):
        check("QuantizeLinear", [x, s, z], axis=axis, domain=domain)
        check("DequantizeLinear", [words(3, 4, 5, dtype=dtype), s, z], axis=axis, domain=domain)


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23])
def test_quantize_without_a_zero_point(opset: int) -> None:
    check("QuantizeLinear", [floats(3, 4) * 3, f(0.02)], opset=opset)
    check("DequantizeLinear", [words(3, 4), f(0.02)], opset=opset)
    check("DequantizeLinear", [words(3, 4, dtype=np.int8), f(0.02)], opset=opset)


def test_dequantize_of_32_bits() -> None:
    x = np.array([[1, -5, 1 << 24, (1 << 24) + 1, -(1 << 30)]], np.int32)
    check("DequantizeLinear", [x, f(0.1)], opset=21)
    check("DequantizeLinear", [x, f(0.1), np.asarray(0, np.int32)], opset=13)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_blocks(dtype: Any, axis: int) -> None:
    shape, blocks = (8, 6, 4), [8, 6, 4]
    blocks[axis] //= 2
    s, z = scales(*blocks), words(*blocks, dtype=dtype, seed=7)
    check("QuantizeLinear", [floats(*shape), s, z], axis=axis, block_size=2)
    check("DequantizeLinear", [words(*shape, dtype=dtype), s, z], axis=axis, block_size=2)


def test_a_last_block_that_is_shorter() -> None:
    x, s = words(4, 7), scales(4, 3)
    model, feed = model_of("DequantizeLinear", [x, s, words(4, 3, seed=5)], [0], axis=1, block_size=3)
    places = np.arange(7) // 3
    zero = words(4, 3, seed=5)[:, places].astype(np.float32)
    np.testing.assert_allclose(evaluate(load(model), feed)[0], (x - zero) * s[:, places], rtol=1e-6)


def test_output_dtype() -> None:
    check("QuantizeLinear", [floats(3, 4), f(0.02)], output_dtype=TensorProto.INT8)
    check("QuantizeLinear", [floats(3, 4), f(0.02)], output_dtype=TensorProto.INT16)
    model, feed = model_of("DequantizeLinear", [words(3, 4), f(0.02)], [0], opset=23, output_dtype=TensorProto.FLOAT16)
    assert evaluate(load(model), feed)[0].dtype == np.float16


def test_half_precision() -> None:
    half = np.asarray(0.0625, np.float16)
    check("QuantizeLinear", [floats(3, 40).astype(np.float16), half, u(128)])
    check("DequantizeLinear", [words(3, 40), half, u(128)])


def test_dynamic_quantize() -> None:
    for x in (floats(3, 50), np.abs(floats(7)), -np.abs(floats(7)), np.zeros((3, 2), np.float32), floats(1)):
        check("DynamicQuantizeLinear", [x], opset=13, results=3, apart=0.02)


def qlinear_matmul(
    rows: tuple[int, ...], a: Any, b: Any, a_zero: Array, b_scale: Array, b_zero: Array
) -> Sequence[Array | None]:
    return [
        words(*rows, 24, dtype=a), f(0.02), a_zero, words(24, 7, dtype=b, seed=2), b_scale, b_zero, f(0.05),
        a_zero,
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [(5,), (2, 5)])
def test_qlinear_matmul(rows: tuple[int, ...]) -> None:
    more: dict[str, Any] = {"opset": 13, "apart": 0.05, "ops": "matmul_8bit"}
    check("QLinearMatMul", qlinear_matmul(rows, np.uint8, np.int8, u(120), f(0.01), i(0)), **more)
    check("QLinearMatMul", qlinear_matmul(rows, np.uint8, np.uint8, u(120), f(0.01), u(110)), **more)
    check("QLinearMatMul", qlinear_matmul(rows, np.int8, np.int8, i(-7), f(0.01), i(5)), **more)
    each = scales(7), np.zeros(7, np.int8)
    check("QLinearMatMul", qlinear_matmul(rows, np.uint8, np.int8, u(120), *each), **more)


@pytest.mark.parametrize(("a", "b"), [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)])
@pytest.mark.parametrize("known", [True, False])
def test_matmul_integer(a: Any, b: Any, known: bool) -> None:
    """The zero point of the activation is known when building, or computed."""
    x, w = words(3, 5, 300, dtype=a), words(300, 6, dtype=b, seed=2)
    inputs = (0,) if known else (0, 2)
    x_zero = np.asarray(17, a)
    check("MatMulInteger", [x, w], ops="matmul_8bit")
    check("MatMulInteger", [x, w, x_zero], inputs, ops="matmul_8bit")
    check("MatMulInteger", [x, w, x_zero, np.asarray(101, b)], inputs, ops="matmul_8bit")
    check("MatMulInteger", [x, w, x_zero, words(6, dtype=b, seed=9)], inputs, ops="matmul_8bit")
    check("MatMulInteger", [x[0], words(3, 300, 6, dtype=b), x_zero, np.asarray(3, b)], (0, 1), ops="matmul_8bit")


def test_matmul_integer_of_vectors_and_rows() -> None:
    a, b = words(9), words(9, 4, seed=2)
    for left, right in ((a, b), (b.T, a), (a, a)):
        model, feed = model_of("MatMulInteger", [left, right, u(3), u(5)], [0, 1])
        want = (left.astype(np.int32) - 3) @ (right.astype(np.int32) - 5)
        np.testing.assert_array_equal(evaluate(load(model), feed)[0], want)
    zeros = words(4, seed=6)
    model, feed = model_of("MatMulInteger", [b.T, b, zeros, u(5)], [0, 1])
    want = (b.T.astype(np.int32) - zeros[:, None]) @ (b.astype(np.int32) - 5)
    np.testing.assert_array_equal(evaluate(load(model), feed)[0], want)


CONV: dict[str, Any] = {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}


@pytest.mark.parametrize(("groups", "channels"), [(1, 4), (2, 4), (4, 1)])
def test_qlinear_conv(groups: int, channels: int) -> None:
    outputs = 4 if groups == 4 else 6
    bias = rng(5).integers(-5000, 5000, outputs).astype(np.int32)
    for a, w, zeros in ((np.uint8, np.int8, (u(120), i(0))), (np.uint8, np.uint8, (u(3), u(128)))):
        x = words(2, channels * groups, 7, 9, dtype=a)
        weight = words(outputs, channels, 3, 2, dtype=w, seed=2)
        for held in (None, bias):
            operands = [x, f(0.02), zeros[0], weight, f(0.01), zeros[1], f(0.05), u(7), held]
            check(
                "QLinearConv", operands[: 9 if held is not None else 8], opset=13, group=groups, apart=0.05,
                ops="conv_8bit", **CONV,
            )  # fmt: skip
    each = [
        x,
        f(0.02),
        u(120),
        words(outputs, channels, 3, 2, dtype=np.int8),
        scales(outputs),
        np.zeros(outputs, np.int8),
    ]
    more: dict[str, Any] = {"opset": 13, "group": groups, "apart": 0.05, "ops": "conv_8bit", **CONV}
    check("QLinearConv", [*each, f(0.05), u(7), bias], **more)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "VALID"])
def test_qlinear_conv_pads_itself(auto_pad: str) -> None:
    operands = [words(1, 3, 8, 8), f(0.02), u(99), words(4, 3, 3, 3, dtype=np.int8), f(0.01), i(0), f(0.05), u(7)]
    check("QLinearConv", operands, opset=13, apart=0.05, auto_pad=auto_pad, strides=[2, 2])


@pytest.mark.parametrize("known", [True, False])
def test_conv_integer(known: bool) -> None:
    x, w = words(2, 4, 7, 9), words(6, 4, 3, 2, seed=2)
    inputs = (0,) if known else (0, 2)
    check("ConvInteger", [x, w], opset=13, ops="conv_8bit", **CONV)
    check("ConvInteger", [x, w, u(9)], inputs, opset=13, ops="conv_8bit", **CONV)
    check("ConvInteger", [x, w, u(9), u(100)], inputs, opset=13, ops="conv_8bit", **CONV)
    check("ConvInteger", [x, w[:, :2], u(9), u(100)], inputs, opset=13, group=2, ops="conv_8bit", **CONV)
    signed = words(6, 4, 3, 2, dtype=np.int8)
    check("ConvInteger", [x, signed, u(9), i(0)], inputs, opset=13, ops="conv_8bit", **CONV)


def test_conv_integer_of_open_sizes_pads_with_the_zero_point() -> None:
    model, _ = model_of(
        "ConvInteger", [words(1, 3, 8, 8), words(4, 3, 3, 3), u(50)], [0], opset=13, auto_pad="SAME_LOWER",
        strides=[2, 2],
    )  # fmt: skip
    for place in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[place].dim_param = f"size{place}"
    graph = load(model)
    for size in (7, 8):
        feed = {"x0": words(1, 3, size, size + 1)}
        np.testing.assert_array_equal(evaluate(graph, feed)[0], by_onnxruntime(model, feed)[0])


# Faults.


def refused(op_type: str, operands: Sequence[Array | None], inputs: Sequence[int] = (0,), **more: Any) -> str:
    model, _ = model_of(op_type, operands, inputs, **more)
    with pytest.raises((ModelError, UnsupportedError)) as error:
        load(model)
    assert "the_node" in str(error.value)
    return str(error.value)


def test_what_is_quantized_already() -> None:
    assert "u8, which is quantized already" in refused("QuantizeLinear", [words(3), f(0.1), u(0)])


@pytest.mark.parametrize("wrong", [0.0, np.nan, np.inf])
def test_a_scale_that_gives_no_numbers(wrong: float) -> None:
    several = np.array([0.1, wrong, 0.2], np.float32)
    assert f"its scale is {wrong:g}" in refused("QuantizeLinear", [floats(3), f(wrong), u(0)])
    assert f"its scale number 1 of 3 is {wrong:g}" in refused("QuantizeLinear", [floats(2, 3), several], axis=1)
    if wrong != 0.0:  # numbers of the scale 0 are all 0
        assert f"its scale is {wrong:g}" in refused("DequantizeLinear", [words(3), f(wrong), u(0)])


def test_a_zero_point_of_another_type_or_shape() -> None:
    text = refused("DequantizeLinear", [words(3), f(0.1), i(0)])
    assert "the zero point is i8, the numbers are u8" in text
    text = refused("QuantizeLinear", [floats(3), f(0.1), u(0)], output_dtype=TensorProto.INT8)
    assert "the zero point is u8, output_dtype is i8" in text
    text = refused("QuantizeLinear", [floats(2, 3), scales(3), np.zeros(2, np.uint8)])
    assert "have shapes [2] and [3]" in text


def test_an_axis_that_is_not_there() -> None:
    assert "axis 5 is out of range for a tensor of rank 2" in refused(
        "QuantizeLinear", [floats(2, 3), scales(3)], axis=5
    )


def test_scales_that_do_not_fit() -> None:
    assert "extent of axis 1" in refused("QuantizeLinear", [floats(2, 3), scales(4)], axis=1)
    text = refused("DequantizeLinear", [words(4, 10), scales(4, 2)], axis=1, block_size=4)
    assert "blocks of 4 do not divide axis 1, which has 10 elements and 2 scales" in text
    assert "need 3 scales" in text.replace("10 elements need", "need")


def test_zero_points_of_floats_of_8_bits() -> None:
    import ml_dtypes

    x = floats(3, 4)
    model, feed = model_of("QuantizeLinear", [x, f(0.02), np.zeros((), ml_dtypes.float8_e4m3fn)], [0])
    (made,) = evaluate(load(model), feed)
    assert made.dtype == ml_dtypes.float8_e4m3fn
    np.testing.assert_array_equal(made, np.clip(x / f(0.02), -448, 448).astype(ml_dtypes.float8_e4m3fn))
    assert "must be 0" in refused("QuantizeLinear", [x, f(0.02), np.ones((), ml_dtypes.float8_e4m3fn)])
    text = refused("QuantizeLinear", [x, f(0.02), np.zeros((), ml_dtypes.float8_e4m3fn)], saturate=0)
    assert "does not saturate" in text
