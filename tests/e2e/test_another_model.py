"""An artifact compared with a model that it was not built from: the commands say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import aot
from aot.cli.main import cli

onnx: Any = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
MODEL = Path(__file__).parents[2] / "docs" / "digits" / "digits.onnx"
ANOTHER = "It was built from another file, or from a model in memory: the SHA-256 of that begins with"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("another") / "digits.aot"
    aot.compile(MODEL, "cpu:x86-64-v3").save(path)
    return path


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def changed(path: Path, *, scale: float = 1, name: str = "", extent: int = 0) -> Path:
    """The model with its weights scaled, its input renamed, or with another width."""
    model = onnx.load(MODEL)
    for weight in model.graph.initializer if scale != 1 else ():
        value = onnx.numpy_helper.to_array(weight)
        if value.dtype == np.float32:
            weight.CopyFrom(onnx.numpy_helper.from_array(value * np.float32(scale), weight.name))
    for node in model.graph.node if name else ():
        node.input[:] = [name if each == "image" else each for each in node.input]
    (port,) = model.graph.input
    port.name = name or port.name
    if extent:
        port.type.tensor_type.shape.dim[3].dim_value = extent
    onnx.save(model, path)
    return path


def test_the_same_model_is_not_doubted(artifact: Path) -> None:
    for command in ("verify", "bench"):
        result = invoke(command, artifact, "--against", MODEL, *(("--seconds", 0.01) if command == "bench" else ()))
        assert result.exit_code == 0 and ANOTHER not in result.stderr, result.stderr


def test_other_weights(artifact: Path, tmp_path: Path) -> None:
    other = changed(tmp_path / "other.onnx", scale=1.01)
    result = invoke("verify", artifact, "--against", other)
    assert result.exit_code == 3 and ANOTHER in result.stderr and "of other.onnx with" in result.stderr
    result = invoke("bench", artifact, "--against", other, "--seconds", 0.01)
    assert result.exit_code == 0 and ANOTHER in result.stderr


def test_other_inputs(artifact: Path, tmp_path: Path) -> None:
    other = changed(tmp_path / "other.onnx", name="picture")
    for command in ("verify", "bench"):
        result = invoke(command, artifact, "--against", other)
        assert result.exit_code == 2
        assert "needs the inputs 'picture'; the artifact's inputs are 'image'" in result.stderr
        assert str(other) in result.stderr and ANOTHER in result.stderr


def test_other_sizes(artifact: Path, tmp_path: Path) -> None:
    result = invoke("verify", artifact, "--against", changed(tmp_path / "other.onnx", extent=9))
    assert result.exit_code == 1 and "ONNX Runtime cannot run the model" in result.stderr and ANOTHER in result.stderr
