"""An artifact whose weights lie in a file of their own: what is said where that is gone, another one, or damaged."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner, Result

import aot
from aot.artifacts import safetensors
from aot.cli.main import cli
from aot.errors import ArtifactError

MODEL = Path(__file__).parents[2] / "docs" / "digits" / "digits.onnx"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("external")
    artifact = aot.compile(MODEL, "cpu:x86-64-v3", weights="external", external_name="weights.safetensors")
    artifact.save(folder / "model.aot")
    aot.compile(MODEL, "cpu:x86-64-v3").save(folder / "whole.aot")
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(built, tmp_path / "copy"))


def refusal(*arguments: Any, **options: Any) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        aot.load(*arguments, **options)
    return caught.value


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_a_file_that_is_not_there(folder: Path) -> None:
    weights = folder / "weights.safetensors"
    weights.unlink()
    error = refusal(folder / "model.aot")
    assert error.where == str(weights)
    assert "the artifact's weights are in this file" in error.message and "No such file" in error.message
    assert "beside the artifact" in error.hint and "--weights FILE" in error.hint
    result = invoke("run", folder / "model.aot")
    assert result.exit_code == 1 and str(weights) in result.stderr and "--weights FILE" in result.stderr


def test_a_file_that_was_moved(folder: Path) -> None:
    """By path and by name in Python, by --weights in every command that runs the artifact; as .npz too."""
    moved = folder / "elsewhere" / "w.safetensors"
    moved.parent.mkdir()
    shutil.move(folder / "weights.safetensors", moved)
    arrays = safetensors.read(moved.read_bytes())[0]
    np.savez(folder / "w.npz", **cast(Any, arrays))
    image = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    expected = aot.load(folder / "whole.aot", threads=1)(image)
    for given in (moved, str(moved), arrays):
        np.testing.assert_array_equal(aot.load(folder / "model.aot", threads=1, weights=given)(image), expected)
    for path in (moved, folder / "w.npz"):
        assert invoke("run", folder / "model.aot", "--weights", path).exit_code == 0
        assert invoke("bench", folder / "model.aot", "--weights", path, "--seconds", 0.01).exit_code == 0
    assert "elsewhere/no" in refusal(folder / "model.aot", weights=folder / "elsewhere" / "no").where


def cut(data: bytes) -> bytes:
    return data[:-100]


def flipped(data: bytes) -> bytes:
    return data[:-50] + bytes([data[-50] ^ 1]) + data[-49:]


def other(data: bytes) -> bytes:
    return MODEL.read_bytes()[:1000]


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        (cut, r"has (\d+) bytes; (\d+) are expected", "truncated, or another file"),
        (other, r"has 1000 bytes; (\d+) are expected", "truncated, or another file"),
        (flipped, r"weight \S+ .* SHA-256 begins with ([0-9a-f]{8}), ([0-9a-f]{8}) is expected", "built with the"),
    ],
)
def test_a_file_with_other_bytes(change: Callable[[bytes], bytes], message: str, hint: str, folder: Path) -> None:
    weights = folder / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(change(whole))
    for error in (
        refusal(folder / "model.aot"),
        refusal(folder / "model.aot", weights=weights),
        refusal(folder / "model.aot", map_weights=True),
    ):
        assert error.where == str(weights)
        found = re.search(message, error.message)
        assert found and hint in error.hint, str(error)
        if change is cut:
            assert found.groups() == (str(len(whole) - 100), str(len(whole)))
    assert str(weights) in invoke("run", folder / "model.aot").stderr
    result = invoke("run", folder / "model.aot", "--weights", weights)
    assert result.exit_code in (1, 2) and str(weights) in result.stderr
    if change is flipped:
        aot.load(folder / "model.aot", verify_weights=False)


def test_weights_by_name_that_do_not_fit(folder: Path) -> None:
    arrays = safetensors.read((folder / "weights.safetensors").read_bytes())[0]
    name = min(arrays)
    shape = list(arrays[name].shape)
    for wrong, message in (
        (arrays[name].astype(np.float64), f"expected a row-major weight f32 {shape}, got f64 {shape}"),
        (arrays[name][:-1], f"expected a row-major weight f32 {shape}, got f32"),
        (arrays[name] + 1, "the values differ from those of the build"),
    ):
        error = refusal(folder / "model.aot", weights={**arrays, name: wrong})
        assert error.where == name and message in error.message
        np.savez(folder / "w.npz", **cast(Any, {**arrays, name: wrong}))
        assert f"w.npz, weight '{name}'" in invoke("run", folder / "model.aot", "--weights", folder / "w.npz").stderr


def test_an_artifact_in_memory_has_no_folder(folder: Path) -> None:
    error = refusal((folder / "model.aot").read_bytes())
    assert "in the file weights.safetensors beside it" in error.message and "loaded from memory" in error.message
    aot.load((folder / "model.aot").read_bytes(), weights=folder / "weights.safetensors")


def test_an_artifact_without_weights_takes_no_file(tmp_path: Path) -> None:
    artifact = aot.compile(MODEL, "cpu:x86-64-v3", weights="none")
    error = refusal(artifact.data, weights="some.safetensors")
    assert "by name, not from the file some.safetensors" in error.message


def test_weights_for_an_artifact_that_holds_them(folder: Path) -> None:
    result = invoke("run", folder / "whole.aot", "--weights", folder / "weights.safetensors")
    assert result.exit_code == 0 and "--weights is not used" in result.stderr
