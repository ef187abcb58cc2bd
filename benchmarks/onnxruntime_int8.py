"""ONNX Runtime's own quantization to 8 bits, in the settings that its users try."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LINEAR = ("Conv", "MatMul", "Gemm")
Sample = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True)
class Setting:
    """Of quantize_static: QDQ, u8 activations, i8 weights. linear: only products; percentile: in place of all."""

    per_channel: bool
    linear: bool
    percentile: float | None = None


SETTINGS = {
    "static tensor all": Setting(False, False),
    "static channel all": Setting(True, False),
    "static tensor linear": Setting(False, True),
    "static channel linear": Setting(True, True),
    "static channel linear 99.99": Setting(True, True, 99.99),
}


class _Reader:
    """Samples as the quantizer asks for them, without inputs that the model does not have."""

    def __init__(self, samples: Sequence[Sample], names: set[str]) -> None:
        self.samples: Iterator[Sample] = iter(samples)
        self.names = names

    def get_next(self) -> dict[str, Any] | None:
        sample = next(self.samples, None)
        return None if sample is None else {name: array for name, array in sample.items() if name in self.names}


def session(model: Path) -> Any:
    """A session of one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def sources(model: Path, folder: Path) -> tuple[Path, Path]:
    """The model without initializers among its inputs, and that prepared as the quantizer wants it (else as it is)."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    held = onnx.load(str(model))
    constants = {tensor.name for tensor in held.graph.initializer}
    kept = [value for value in held.graph.input if value.name not in constants]
    del held.graph.input[:]
    held.graph.input.extend(kept)
    plain, ready = folder / "plain.onnx", folder / "prepared.onnx"
    onnx.save(held, str(plain))
    logging.getLogger().setLevel(logging.ERROR)
    for skip in (False, True):
        try:
            with chdir(folder):  # it leaves files where it stands
                quant_pre_process(str(plain), str(ready), skip_symbolic_shape=skip)
            session(ready)
            return plain, ready
        except Exception:
            continue
    return plain, plain


def quantized_static(model: Path, setting: Setting, samples: Sequence[Sample], folder: Path) -> Any:
    """A session of the model, calibrated on the samples; raises what the quantizer raises."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    names = {port.name for port in session(model).get_inputs()}
    path = folder / "static.onnx"
    linear = list(LINEAR) if setting.linear else None
    method = CalibrationMethod.Percentile if setting.percentile else CalibrationMethod.MinMax
    more = {"CalibPercentile": setting.percentile} if setting.percentile else {}
    with redirect_stdout(io.StringIO()), chdir(folder):
        quantize_static(
            str(model), str(path), _Reader(samples, names), quant_format=QuantFormat.QDQ,
            per_channel=setting.per_channel, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            op_types_to_quantize=linear, calibrate_method=method, extra_options=more,
        )  # fmt: skip
    return session(path)


def quantized_dynamic(model: Path, folder: Path) -> Any:
    """A session of the model whose activations get their scales in every run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = folder / "dynamic.onnx"
    with chdir(folder):
        quantize_dynamic(str(model), str(path), per_channel=True, weight_type=QuantType.QInt8)
    return session(path)
