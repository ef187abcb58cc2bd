"""What is said of files of other kinds: by the readers of models, by the loader of artifacts, and by every command."""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import aot
from aot.artifacts import Artifact
from aot.cli.main import cli
from aot.errors import AotError, ArtifactError, ModelError
from aot.file_kinds import kind_of
from aot.frontend import load
from aot.frontend.onnx_model import read_model

COMPAT = Path(__file__).parents[1] / "compat" / "dense-1.0.aot"


def zipped(parts: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    return buffer.getvalue()


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.ones(3))
    return buffer.getvalue()


def onnx_bytes() -> bytes:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    node = helper.make_node("Relu", ["x"], ["y"])
    ports = [value("x", TensorProto.FLOAT, [2])], [value("y", TensorProto.FLOAT, [2])]
    model = helper.make_model(helper.make_graph([node], "g", *ports), opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())


PROGRAM = {"m/data/weights/weight_0": bytes(4), "m/models/model.json": b"{}", "m/data/sample_inputs/model.pt": b""}

# What a file holds, what it is called, and what its hint must say where a model was asked for.
KINDS: dict[str, tuple[bytes, str, str]] = {
    "artifact": (b"AOTC\r\n\x1a\n" + bytes(64), "an artifact, already built", "aotc run"),
    "weights": (zipped({"m/data.pkl": pickle.dumps({"w": 1}, 2)}), "weights that torch.save wrote", "load_state_dict"),
    "module": (
        zipped({"m/data.pkl": pickle.dumps({"_modules": {}, "_parameters": {}}, 2)}),
        "a module that torch.save pickled", "torch.export.export(module",
    ),
    "script": (zipped({"m/constants.pkl": b"", "m/code/m.py": b""}), "a TorchScript module", "export"),
    "inductor": (zipped({"m/data/aotinductor/model/a.so": b""}), "an AOTInductor package", "torch.export.save(program"),
    "package": (
        zipped({"m/models/a.json": b"{}", "m/models/b.json": b"{}"}),
        "a package of 2 torch.export programs", "by itself",
    ),
    "old": (zipped({"serialized_exported_program.json": b"{}", "version": b"8"}), "before 2.8", "torch.export.load"),
    "cut": (zipped(PROGRAM)[:-30], "a torch.export program that is truncated or damaged", "again"),
    "cut weights": (zipped({"m/data/0": bytes(9)})[:-9], "that torch.save wrote that is truncated", "again"),
    "two bytes": (b"PK", "a zip archive that is truncated", "again"),
    "zip": (zipped({"word/document.xml": b"<x/>"}), "a zip archive", "torch.export"),
    "arrays": (npz(), "an .npz file", "inputs"),
    "array": (npy(), "an .npy file", "inputs"),
    "pickle": (pickle.dumps({1: 2}), "a pickle", "Export"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(64), "TensorFlow Lite", "ONNX"),
    "executorch": (b"\x1c\0\0\0ET12" + bytes(64), "ExecuTorch", "torch.export"),
    "keras": (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5", "ONNX"),
    "safetensors": (b'\x08\0\0\0\0\0\0\0{"w":{}}', "a safetensors file", "Export"),
    "gguf": (b"GGUF\3\0\0\0" + bytes(64), "GGUF", "Export"),
    "gzip": (b"\x1f\x8b\x08\0" + bytes(64), "gzip", "Unpack"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer", "git lfs pull"),
    "page": (b"<!DOCTYPE html>\n<html><body>404 \xe2\x80\x93</body></html>\n", "text", "error page"),
    "ir": (b"aot ir 1\ngraph g level=core {\n}\n", "text form", "aotc opt"),
    "library": (b"\x7fELF\2\1\1" + bytes(64), "shared library", "built from"),
    "cut onnx": (onnx_bytes()[:-9], "an ONNX model that is truncated", "again"),
    "nothing": (b"", "empty", "xport"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "model.bin"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_was_asked_for(kind: str, name: str, tmp_path: Path) -> None:
    data, message, hint = KINDS[kind]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.where == str(path)
    if not kind.startswith("cut") and kind not in ("two bytes", "nothing"):
        assert "not an ONNX model or a torch.export program" in caught.value.message


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("artifact", "nothing", "two bytes")])
def test_an_artifact_was_asked_for(kind: str, tmp_path: Path) -> None:
    """By Artifact.open, by aot.load of a path and of bytes; with the same words."""
    data, message, _ = KINDS[kind]
    path = tmp_path / "model.aot"
    path.write_bytes(data)
    found = []
    for opening in (lambda: Artifact.open(path), lambda: aot.load(path), lambda: aot.load(data)):
        with pytest.raises(ArtifactError) as caught:
            opening()
        found.append((caught.value.message, caught.value.hint))
    assert found[0] == found[1] == found[2]
    assert message in found[0][0]


def test_noise_is_not_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes([0xFF, 0x00, 0x9C] * 200))
    assert kind_of(path) is None
    with pytest.raises(ModelError, match="not a readable ONNX model") as caught:
        read_model(path)
    assert "damaged or truncated" in caught.value.hint
    with pytest.raises(ArtifactError, match="not an aotc artifact"):
        aot.load(path)


@pytest.mark.parametrize("seed", range(20))
def test_no_bytes_make_it_stumble(seed: int) -> None:
    """Cut and overwritten files of every kind are some kind, or none."""
    rng = np.random.default_rng(seed)
    for data, _, _ in KINDS.values():
        damaged = bytearray(data[: rng.integers(0, len(data) + 1)])
        for place in rng.integers(0, max(len(damaged), 1), 4) if damaged else ():
            damaged[place] = rng.integers(0, 256)
        kind_of(bytes(damaged))


def test_a_model_is_known_by_its_contents(tmp_path: Path) -> None:
    for name in ("model.onnx", "model.pt2", "model.pt", "model"):
        path = tmp_path / name
        path.write_bytes(onnx_bytes())
        assert [value.name for value in load(path).inputs] == ["x"]
    kind = kind_of(zipped(PROGRAM))
    assert kind is not None and kind.text == "a torch.export program"


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_every_command_names_what_it_was_given(tmp_path: Path) -> None:
    """A model where an artifact belongs and the reverse, either where inputs or weights belong."""
    model, program, weights = tmp_path / "m.onnx", tmp_path / "m.pt2", tmp_path / "m.pt"
    model.write_bytes(onnx_bytes())
    program.write_bytes(zipped(PROGRAM))
    weights.write_bytes(KINDS["weights"][0])
    cases: list[tuple[tuple[Any, ...], str, str]] = [
        (("run", model), "this is an ONNX model, not an artifact", f"aotc build {model}"),
        (("inspect", program), "this is a torch.export program, not an artifact", f"aotc build {program}"),
        (("verify", program, "--against", program), "a torch.export program, not an artifact", "aotc build"),
        (("bench", model, "--against", model), "this is an ONNX model, not an artifact", "aotc build"),
        (("diff", COMPAT, model), "this is an ONNX model, not an artifact", "aotc build"),
        (("diff", model, COMPAT), "this is an ONNX model, not an artifact", "aotc build"),
        (("run", weights), "that torch.save wrote", "torch.export"),
        (("verify", COMPAT, "--against", COMPAT), "this is an artifact, already built", "aotc diff"),
        (("verify", COMPAT, "--against", weights), "that torch.save wrote", "torch.export"),
        (("bench", COMPAT, "--against", COMPAT), "this is an artifact, already built", "aotc diff"),
        (("bench", COMPAT, "--against", weights), "that torch.save wrote", "torch.export"),
        (("build", COMPAT), "this is an artifact, already built", "aotc run"),
        (("build", "--check", weights), "that torch.save wrote", "torch.export"),
        (("opt", COMPAT), "this is an artifact, already built", "aotc run"),
        (("run", COMPAT, program), "this is a torch.export program, not a file of arrays", ".npz"),
        (("run", COMPAT, COMPAT), "this is an artifact, already built, not a file of arrays", ".npz"),
        (("run", COMPAT, "--weights", program), "this is a torch.export program", "safetensors"),
        (("run", COMPAT, "--weights", weights), "that torch.save wrote", "save_file"),
    ]
    for arguments, message, hint in cases:
        result = invoke(*arguments)
        assert result.exit_code in (1, 2), arguments
        assert message in result.stderr and hint in result.stderr, (arguments, result.stderr)
        document = json.loads(invoke(*arguments, "--json").stdout)
        assert message in document["error"]["message"], arguments


def test_opt_knows_text_and_models_by_their_contents(tmp_path: Path) -> None:
    text = "aot ir 1\ngraph g level=core {\n  %0 x: f32[2] = input\n  %1: f32[2] = neg(%0)\n  output %1\n}\n"
    for name, data in {"a.air": text.encode(), "a.txt": text.encode(), "m.air": onnx_bytes()}.items():
        (tmp_path / name).write_bytes(data)
        result = invoke("opt", tmp_path / name, "--pass", "fold")
        assert result.exit_code == 0 and result.stdout.startswith("aot ir 1"), result.stderr
    (tmp_path / "w.air").write_bytes(KINDS["weights"][0])
    assert "that torch.save wrote" in invoke("opt", tmp_path / "w.air").stderr
    (tmp_path / "b.air").write_bytes(bytes([0xFF, 0x00, 0x9C] * 200))
    assert "not text" in invoke("opt", tmp_path / "b.air").stderr


@pytest.mark.parametrize(
    ("source", "hint"), [({"weight": 1}, "A state dict is weights without a program"), (3, "")], ids=["dict", "number"]
)
def test_an_object_that_is_no_model(source: Any, hint: str) -> None:
    with pytest.raises(ModelError, match="a model is a path, bytes") as caught:
        load(source)
    assert caught.value.hint.startswith(hint)
    with pytest.raises(ArtifactError, match="expected the path or the bytes of an artifact") as not_loaded:
        aot.load(source)
    assert "aot.compile(model).load()" in not_loaded.value.hint


def test_what_pytorch_writes(tmp_path: Path) -> None:
    """Files of PyTorch itself, not made by hand."""
    torch: Any = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    program = torch.export.export(module, (torch.ones(2, 3),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(module.state_dict(), tmp_path / "state.pt2")
        torch.save(module.state_dict(), tmp_path / "old.pt2", _use_new_zipfile_serialization=False)
        torch.save({"model": module.state_dict(), "epoch": 3}, tmp_path / "checkpoint.pt")
        torch.save(module, tmp_path / "module.pth")
        torch.jit.save(torch.jit.trace(module, torch.ones(2, 3)), tmp_path / "script.pt2")
        torch.export.save(program, tmp_path / "program.pt2")
    (tmp_path / "program.onnx").write_bytes((tmp_path / "program.pt2").read_bytes())
    for name, kind in {
        "state.pt2": "torch weights", "old.pt2": "torch weights", "checkpoint.pt": "torch weights",
        "module.pth": "torch module", "script.pt2": "torch script", "program.pt2": "program", "program.onnx": "program",
    }.items():  # fmt: skip
        found = kind_of(tmp_path / name)
        assert found is not None and found.name == kind, name
        if kind != "program":
            with pytest.raises(AotError, match=r"not an ONNX model or a torch\.export program"):
                load(tmp_path / name)
    assert [value.name for value in load(tmp_path / "program.onnx").inputs] == ["input"]
    data = (tmp_path / "program.pt2").read_bytes()
    for part in (0.1, 0.5, 0.99):
        with pytest.raises(ModelError, match=r"a torch\.export program that is truncated"):
            load(data[: int(len(data) * part)])
    with pytest.raises(ModelError) as caught:
        load(module)
    assert "torch.export.export" in caught.value.hint


FOLDERS: dict[str, tuple[tuple[str, ...], str, str]] = {  # the names in them, what they are, what to do
    "other": (("notes.txt",), "a folder", ".onnx and .pt2"),
    "empty": ((), "a folder", ".onnx and .pt2"),
    "hugging face": (("config.json", "model.safetensors"), "a Hugging Face model", "from_pretrained"),
    "adapter": (("adapter_config.json", "adapter_model.safetensors"), "a Hugging Face model", "from_pretrained"),
    "optimum": (("config.json", "model.onnx"), "a folder", "Name the file in it: "),
    "several": (("b.pt2", "a.onnx"), "a folder", "a.onnx, or another of its 2"),
    "saved model": (("saved_model.pb", "variables"), "a TensorFlow SavedModel", "tf2onnx"),
    "diffusers": (("model_index.json", "unet"), "a pipeline of several models", "diffusers"),
    "unpacked": (("models", "data", "version"), "a torch.export program that was unpacked", ".pt2"),
    "core ml": (("Manifest.json", "Data"), "a Core ML package", "Export the model"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(name: str, tmp_path: Path) -> None:
    names, what, remedy = FOLDERS[name]
    folder = tmp_path / ("model.pt2" if name == "unpacked" else "model")
    folder.mkdir()
    for inner in names:
        (folder / inner).write_bytes(b"")
    for arguments, wanted in (
        (("build", folder), "not an ONNX model or a torch.export program"),
        (("build", "--check", folder), "not an ONNX model or a torch.export program"),
        (("opt", folder), "not IR text or a model"),
        (("verify", COMPAT, "--against", folder), "not a model to compare with"),
        (("bench", COMPAT, "--against", folder), "not a model to compare with"),
        (("run", folder), "not an artifact"),
        (("inspect", folder), "not an artifact"),
        (("diff", COMPAT, folder), "not an artifact"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2, arguments
        for text in (f"this is {what}" if what == "a folder" else what, wanted, remedy, str(folder)):
            assert text in " ".join(result.stderr.split()), (arguments, result.stderr)
    for call, error in ((load, ModelError), (aot.compile, ModelError), (aot.load, ArtifactError)):
        with pytest.raises(error) as caught:
            call(folder)
        assert what in caught.value.message and remedy in caught.value.hint
    with pytest.raises(ArtifactError) as caught:
        Artifact.open(folder)
    assert what in caught.value.message


def test_no_file(tmp_path: Path) -> None:
    for arguments in (("build",), ("run",), ("opt",), ("verify", COMPAT, "--against")):
        result = invoke(*arguments, tmp_path / "missing")
        assert result.exit_code == 2 and "no such file" in result.stderr
