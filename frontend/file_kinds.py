"""Says what a file is that is no ONNX model, from its first bytes, and what to do about it.

Invariant: called only once reading has failed, so a guess costs no model that could be read.
"""

from __future__ import annotations

_TEXT_BYTES = 512  # of a file's start that are looked at to call it text


def describe(data: bytes) -> tuple[str, str]:
    """What the bytes are ("" where that is not known), and a hint."""
    if data[:4] == b"AOTC":
        return "it is an artifact, already built", "Run it with `aotc run`, or build from the model that it came from."
    if data[:4] == b"PK\3\4":
        return "it is a zip archive, as PyTorch writes", "Export the model to ONNX, with torch.onnx.export."
    if data[4:8] == b"TFL3":
        return "it is a TensorFlow Lite model", "Export the original model to ONNX, or convert this one with tf2onnx."
    if data[:4] == b"\x89HDF":
        return "it is an HDF5 file, as Keras writes", "Export the model to ONNX: model.export(PATH, format='onnx')."
    if data[8:10] == b'{"':
        return "it is a safetensors file: weights without a program", "Export the model that has these weights to ONNX."
    if data[:40].startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the file itself", "Fetch the file: git lfs pull."
    start = data[:_TEXT_BYTES]
    if start and all(byte in b"\t\n\r\f" or 32 <= byte < 127 for byte in start):
        return "it is text", "If it was downloaded, it may be an error page: fetch it again."
    return "", "The file is damaged or truncated, or no ONNX model: fetch or export it again."
