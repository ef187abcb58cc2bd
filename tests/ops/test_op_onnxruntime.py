"""The op table against ONNX Runtime, which no one here wrote."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from aot.evaluate import evaluate_op
from aot.ir import Array
from aot.ops import OPS, Sample

OPSET = 21
Spec = tuple[str, dict[str, Any], list[Array | None]]  # ONNX op, attributes, inputs


def run_onnx(op_type: str, attrs: Mapping[str, Any], inputs: list[Array | None], opset: int = OPSET) -> Array | None:
    """The first output of a one-node model; None where ONNX Runtime refuses it (types, ranks, ranges)."""
    names = ["" if array is None else f"in{number}" for number, array in enumerate(inputs)]
    present = [(name, array) for name, array in zip(names, inputs, strict=True) if array is not None]
    attrs = {name: value for name, value in attrs.items() if value != ()}
    node = helper.make_node(op_type, names, ["out"], **attrs)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in present
        ],
        [onnx.ValueInfoProto(name="out")],
    )
    if op_type == "Cast":
        graph.output[0].CopyFrom(helper.make_tensor_value_info("out", attrs["to"], None))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, dict(present))[0])
    except Exception as error:
        if "ONNXRuntimeError" in str(error):
            return None
        raise


def with_attrs(onnx_name: str, *names: str) -> Callable[[Sample], Spec]:
    """The same operands, and these attributes under the same names."""
    return lambda s: (onnx_name, {n: s.attrs[n] for n in names if n in s.attrs}, list(s.operands))


def _axes(s: Sample) -> Array:
    return np.array(s.attrs["axes"], dtype=np.int64)


def _reduce(onnx_name: str) -> Callable[[Sample], Spec]:
    return lambda s: (
        onnx_name,
        {"keepdims": int(s.attrs.get("keepdims", True)), "noop_with_empty_axes": 1},  # type: ignore[arg-type]
        [*s.operands, _axes(s)],
    )


def _arg(onnx_name: str) -> Callable[[Sample], Spec]:
    return lambda s: (
        onnx_name,
        {
            "axis": s.attrs["axis"],
            "keepdims": int(s.attrs.get("keepdims", True)),  # type: ignore[arg-type]
            "select_last_index": int(s.attrs.get("last", False)),  # type: ignore[arg-type]
        },
        list(s.operands),
    )


def _layer_norm(s: Sample) -> Spec:
    x, *rest = s.operands
    assert x is not None
    axis = s.attrs["axis"]
    scale = rest[0] if rest and rest[0] is not None else np.ones(x.shape[axis:], x.dtype)
    bias = rest[1:2]
    return "LayerNormalization", {"axis": axis, "epsilon": s.attrs.get("epsilon", 1e-5)}, [x, scale, *bias]


def _window(onnx_name: str, *names: str) -> Callable[[Sample], Spec]:
    renamed = {"window": "kernel_shape", "groups": "group", "ceil": "ceil_mode", "include_pad": "count_include_pad"}

    def make(s: Sample) -> Spec:
        attrs = {}
        for name in ("strides", "pads", "dilations", *names):
            if name in s.attrs:
                value = s.attrs[name]
                attrs[renamed.get(name, name)] = int(value) if isinstance(value, bool) else value
        return onnx_name, attrs, list(s.operands)

    return make


def _scan(onnx_name: str) -> Callable[[Sample], Spec]:
    return lambda s: (
        onnx_name,
        {name: int(s.attrs.get(name, False)) for name in ("exclusive", "reverse")},  # type: ignore[arg-type]
        [*s.operands, np.array(s.attrs["axis"])],
    )


def _pad(s: Sample) -> Spec:
    pads = np.array([*s.attrs["before"], *s.attrs["after"]], dtype=np.int64)  # type: ignore[misc]
    x, *value = s.operands
    return "Pad", {"mode": s.attrs.get("mode", "constant")}, [x, pads, *value]


def _one_hot(s: Sample) -> Spec:
    indices, values = s.operands
    return "OneHot", {"axis": s.attrs["axis"]}, [indices, np.array(s.attrs["depth"]), values]


def _slice(s: Sample) -> Spec:
    starts, sizes, steps = (np.array(s.attrs[name], dtype=np.int64) for name in ("starts", "sizes", "steps"))
    ends = starts + sizes * steps
    ends = np.where((steps < 0) & (ends < 0), np.iinfo(np.int64).min, ends)
    return "Slice", {}, [s.operands[0], starts, ends, np.arange(len(starts)), steps]


def _resize(s: Sample) -> Spec:
    attrs = {
        "mode": s.attrs.get("mode", "nearest"),
        "coordinate_transformation_mode": s.attrs.get("coordinate", "half_pixel"),
        "nearest_mode": s.attrs.get("nearest", "round_prefer_floor"),
        "cubic_coeff_a": s.attrs.get("cubic_a", -0.75),
        "exclude_outside": int(bool(s.attrs.get("exclude_outside", False))),
    }
    if "scales" in s.attrs:
        return "Resize", attrs, [s.operands[0], None, np.array(s.attrs["scales"], dtype=np.float32)]
    return "Resize", attrs, [s.operands[0], None, None, np.array(s.attrs["shape"], dtype=np.int64)]


def _to(s: Sample) -> Spec:
    return "Cast", {"to": helper.np_dtype_to_tensor_dtype(s.attrs["to"].numpy)}, list(s.operands)  # type: ignore[union-attr]


MAPPED: dict[str, Callable[[Sample], Spec]] = {
    "softmax": with_attrs("Softmax", "axis"), "log_softmax": with_attrs("LogSoftmax", "axis"),
    "layer_norm": _layer_norm, "instance_norm": with_attrs("InstanceNormalization", "epsilon"),
    "batch_norm": with_attrs("BatchNormalization", "epsilon"),
    "group_norm": lambda s: (
        "GroupNormalization", {"epsilon": s.attrs.get("epsilon", 1e-5), "num_groups": s.attrs["groups"]},
        list(s.operands),
    ),
    "reduce_sum": _reduce("ReduceSum"), "reduce_max": _reduce("ReduceMax"), "reduce_min": _reduce("ReduceMin"),
    "reduce_prod": _reduce("ReduceProd"), "reduce_mean": _reduce("ReduceMean"),
    "argmax": _arg("ArgMax"), "argmin": _arg("ArgMin"), "cumsum": _scan("CumSum"),
    "matmul": with_attrs("MatMul"), "conv": _window("Conv", "groups"),
    "conv_transpose": _window("ConvTranspose", "groups", "output_padding"),
    "max_pool": _window("MaxPool", "window", "ceil"),
    "avg_pool": _window("AveragePool", "window", "ceil", "include_pad"),
    "gather": with_attrs("Gather", "axis"), "gather_elements": with_attrs("GatherElements", "axis"),
    "gather_nd": with_attrs("GatherND", "batch_dims"), "pad": _pad, "concat": with_attrs("Concat", "axis"),
    "tile": lambda s: ("Tile", {}, [s.operands[0], np.array(s.attrs["repeats"], dtype=np.int64)]),
    "trilu": lambda s: ("Trilu", {"upper": int(bool(s.attrs.get("upper", True)))},
                        [s.operands[0], np.array(s.attrs.get("k", 0))]),
    "one_hot": _one_hot, "slice": _slice, "resize": _resize, "cast": _to,
    "transpose": with_attrs("Transpose", "perm"),
    "reshape": lambda s: ("Reshape", {"allowzero": 1},
                          [s.operands[0], np.array(s.attrs["shape"], dtype=np.int64)]),
    "expand": lambda s: ("Expand", {}, [s.operands[0], np.array(s.attrs["shape"], dtype=np.int64)]),
    "clip": with_attrs("Clip"), "leaky_relu": with_attrs("LeakyRelu", "alpha"), "elu": with_attrs("Elu", "alpha"),
    "selu": with_attrs("Selu", "alpha", "gamma"), "celu": with_attrs("Celu", "alpha"),
    "hardsigmoid": with_attrs("HardSigmoid", "alpha", "beta"), "shrink": with_attrs("Shrink", "bias", "lambd"),
    "thresholded_relu": with_attrs("ThresholdedRelu", "alpha"), "gelu": with_attrs("Gelu", "approximate"),
    "isinf": lambda s: ("IsInf", {k: int(bool(v)) for k, v in s.attrs.items()}, list(s.operands)),
    "mod": lambda s: ("Mod", {}, list(s.operands)),
    "fmod": lambda s: ("Mod", {"fmod": 1}, list(s.operands)),
    "pow": with_attrs("Pow"), "min": with_attrs("Min"), "max": with_attrs("Max"),
}  # fmt: skip


def cases() -> list[Any]:
    found = []
    for name, op in sorted(OPS.items()):
        makers = [MAPPED[name]] if name in MAPPED else [with_attrs(onnx_name) for onnx_name in op.onnx]
        for maker in makers:
            for number, sample in enumerate(op.samples(np.random.default_rng(zlib.crc32(name.encode())))):
                found.append(pytest.param(name, sample, maker, id=f"{name}-{maker(sample)[0]}-{number}"))
    return found


@pytest.mark.parametrize(("name", "sample", "maker"), cases())
def test_reference_agrees_with_onnxruntime(name: str, sample: Sample, maker: Callable[[Sample], Spec]) -> None:
    expected = run_onnx(*maker(sample))
    if expected is None:
        pytest.skip("ONNX Runtime refuses this")
    if name == "reduce_mean" and sample.operands[0].size == 0:  # type: ignore[union-attr]
        pytest.skip("the mean of nothing: 0 there, NaN here as in numpy and torch")
    op = OPS[name]
    (got,) = evaluate_op(op, op.check_attrs(sample.attrs), sample.operands)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
    else:
        if name in (
            "reduce_max",
            "reduce_min",
            "max_pool",
        ):  # ONNX Runtime may lose a NaN; numpy, torch and this do not
            expected = np.where(np.isnan(got), np.nan, expected)
        tight = sample.relative <= 1e-5
        np.testing.assert_allclose(got, expected, rtol=2e-5 if tight else 1e-3, atol=2e-6 if tight else 1e-4)


def test_most_of_the_table_is_compared() -> None:
    """A refusal is a skip; an op of which every sample is refused would be no test at all."""
    compared: dict[str, int] = {}
    for case in cases():
        name, sample, maker = case.values
        compared[name] = compared.get(name, 0) + (run_onnx(*maker(sample)) is not None)
    assert [name for name, count in compared.items() if not count] == []
    assert len(compared) > 85
