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


@pytest.mark.parametrize("name", HALVES)
def test_state_in_16_bits(tmp_path: Path, name: str) -> None:
    """A cache that the module holds: its initial value, its updates and what a step reads are of the narrow type."""
    torch = pytest.importorskip("torch")
    dtype, error = HALVES[name]

    class Step(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.full((8, 6), 0.3))

        def forward(self, row: Any, place: Any) -> Any:
            self.cache.index_copy_(0, place, row)
            return self.cache.sum(0)

    program = torch.export.export(Step(), (torch.ones(1, 6), torch.tensor([2])), strict=False)
    path = tmp_path / "step.aot"
    aot.compile(program, target="cpu:x86-64-v3", io_dtype=name).save(path)
    model = aot.load(path)
    (pair,) = model.state
    state = model.new_state()
    held = np.asarray(state[pair.input])
    assert held.dtype == dtype.numpy and (held == np.float32(0.3).astype(dtype.numpy)).all()
    wanted = held.astype(np.float32)
    for place in (2, 7, 2):
        row = np.full((1, 6), 1.1 + place, np.float32).astype(dtype.numpy)
        (total,) = model.run({"row": row, "place": np.array([place])}, state=state).values()
        wanted[place] = row.astype(np.float32)
        assert total.dtype == dtype.numpy
        np.testing.assert_allclose(total.astype(np.float32), wanted.sum(0), rtol=error)
        np.testing.assert_array_equal(np.asarray(state[pair.input]).astype(np.float32), wanted)
