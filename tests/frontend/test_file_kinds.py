"""What is said of files that are no ONNX models."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from aot.errors import ModelError
from aot.frontend.onnx_model import read_model


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02.")
    return buffer.getvalue()


KINDS = {
    "artifact": (b"AOTC\r\n\x1a\n" + bytes(64), "an artifact, already built", "aotc run"),
    "zip": (_zip(), "a zip archive", "torch.onnx.export"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(64), "TensorFlow Lite", "ONNX"),
    "keras": (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5", "ONNX"),
    "safetensors": (b'\x40\0\0\0\0\0\0\0{"w":{}}', "weights without a program", "ONNX"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer", "git lfs pull"),
    "page": (b"<!DOCTYPE html>\n<html><body>404</body></html>\n", "it is text", "error page"),
    "noise": (bytes([0xFF, 0x00, 0x9C] * 200), "not a readable ONNX model (", "damaged or truncated"),
    "nothing": (b"", "the file is empty", "Export"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_is_named_for_what_it_is(kind: str, tmp_path: Path) -> None:
    data, message, hint = KINDS[kind]
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        read_model(path)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.where == str(path)
