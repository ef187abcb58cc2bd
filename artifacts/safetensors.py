"""Writes safetensors files: a JSON header, then row-major tensors. Reads back what it wrote.

The format is simple and public, and the serving side needs no parser for it: the artifact records
where in the file each tensor lies. Deterministic: tensors sorted by name, header padded to 64 bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from aot import dtypes
from aot.errors import ArtifactError
from aot.ir import Array

_NAMES = {
    "bool": "BOOL", "i8": "I8", "i16": "I16", "i32": "I32", "i64": "I64", "u8": "U8", "u16": "U16", "u32": "U32",
    "u64": "U64", "f16": "F16", "bf16": "BF16", "f32": "F32", "f64": "F64", "f8e4m3": "F8_E4M3", "f8e5m2": "F8_E5M2",
}  # fmt: skip
_DTYPES = {text: name for name, text in _NAMES.items()}


def write(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> tuple[bytes, dict[str, int]]:
    """The bytes of a file with `tensors`, and each tensor's offset in it."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    position = 0
    relative = {}
    arrays = []
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name]).reshape(tensors[name].shape)
        dtype = dtypes.from_numpy(array.dtype)
        if dtype.name not in _NAMES:
            raise ArtifactError(f"safetensors has no element type for {dtype}", where=name)
        header[name] = {
            "dtype": _NAMES[dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        relative[name] = position
        position += array.nbytes
        arrays.append(array)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % 64)
    start = 8 + len(text)
    data = b"".join([struct.pack("<Q", len(text)), text, *(array.tobytes() for array in arrays)])
    return data, {name: start + offset for name, offset in relative.items()}


def read(data: bytes | memoryview) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors (views of `data`) and metadata of a file. Raises ArtifactError where it is damaged."""
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(bytes(data[8 : 8 + length]))
        metadata = header.pop("__metadata__", {})
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            dtype = dtypes.BY_NAME[_DTYPES[entry["dtype"]]].numpy
            array = np.frombuffer(data[8 + length + begin : 8 + length + end], np.uint8)
            tensors[name] = array.view(dtype).reshape(entry["shape"])
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"damaged safetensors data: {error}") from error
    return tensors, metadata
