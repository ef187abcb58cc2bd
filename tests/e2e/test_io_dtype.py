"""--io-dtype through the runtime: numpy arrays of 16-bit floats in and out, also as state; and what verify says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.cli.main import main
from aot.dtypes import BF16, F16
from aot.errors import GuardError
from tests.e2e.conftest import DIGITS

HALVES = {"fp16": (F16, 2.0**-10), "bf16": (BF16, 2.0**-7)}


@pytest.mark.parametrize("name", HALVES)
def test_digits(build: Callable[..., Path], held_out: dict[str, Any], name: str) -> None:
    dtype, error = HALVES[name]
    model = aot.load(build(io_dtype=name, target="cpu:x86-64-v3"))
    assert [(spec.name, spec.dtype) for spec in (*model.inputs, *model.outputs)] == [
        ("image", dtype.name), ("logits", dtype.name),
    ]  # fmt: skip
    logits = model.run({"image": held_out["images"].astype(dtype.numpy)})["logits"]
    assert logits.dtype == dtype.numpy
    largest = np.abs(held_out["logits"]).max()
    assert np.abs(logits.astype(np.float32) - held_out["logits"]).max() <= 4 * error * largest
    assert (logits.argmax(1) == held_out["labels"]).mean() > 0.95
    with pytest.raises(GuardError, match="image"):
        model.run({"image": held_out["images"]})


@pytest.mark.parametrize("name", HALVES)
def test_verify_compares_with_float32(
    build: Callable[..., Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    artifact = build(io_dtype=name, target="cpu:x86-64-v3")
    words = ["verify", str(artifact), "--against", str(DIGITS / "digits.onnx"), "--dim", "batch=5"]
    assert main(words) == 0
    assert "logits" in capsys.readouterr().out
    assert main([*words, "--rtol", "1e-6", "--atol", "1e-6"]) == 3


def test_precision_of_a_cpu_is_fp32_with_a_note(build: Callable[..., Path]) -> None:
    artifact = aot.compile(DIGITS / "digits.onnx", target="cpu:x86-64-v3", precision="fp16")
    assert any("cpu:x86-64-v3 are fp32, not fp16" in note for note in artifact.report.notes)
    assert artifact.meta["precisions"] == {"cpu:x86-64-v3": "fp32"}
