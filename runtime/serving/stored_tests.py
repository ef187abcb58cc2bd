"""The self-test that an artifact holds: its inputs, and what the float reference made of them.

Reads the section by itself, since a process that serves has no compiler: the runtime's library, which checks every byte
of a file that it loads, gives people the metadata and not this. Numbers of the format: artifacts/layout.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from aot.errors import ArtifactError

MAGIC = b"AOTC\r\n\x1a\n"
SELF_TEST = 19  # the section's kind
TREE = 2  # a section's flag: its digest is that of the digests of its chunks
CHUNK_BYTES = 65536
_HEADER = struct.Struct("<8sIIQQ32sIIQ")
_ENTRY = struct.Struct("<IIQQIIII32s")
_MOST_TABLE_BYTES = 1 << 20
_DTYPES = {
    "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "U8": "uint8", "U16": "uint16",
    "U32": "uint32", "U64": "uint64", "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class StoredTest:
    """One run: arrays by name. `outputs` are the reference's, in float32 where the artifact's are 16 bits wide."""

    inputs: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)


def stored_tests(artifact: str | os.PathLike[str] | bytes) -> tuple[StoredTest, ...]:
    """The tests that an artifact holds, in their order; none where it was built without.

    Raises ArtifactError where the file is no artifact, or the section is damaged.
    """
    where = "" if isinstance(artifact, bytes) else str(os.fspath(artifact))
    try:
        data = _section(artifact)
        tensors = _tensors(data) if data else {}
        return from_tensors(tensors)
    except OSError as error:
        raise ArtifactError(f"cannot read it: {error.strerror or error}", where=where) from error
    except ImportError as error:
        raise ArtifactError(
            "its self-test has element types that numpy has not", where=where, hint="pip install ml_dtypes"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        raise ArtifactError(
            f"the self-test cannot be read: {error}", where=where, hint="Copy the file again, or build it again."
        ) from error


def to_tensors(tests: Mapping[int, StoredTest] | tuple[StoredTest, ...]) -> dict[str, Array]:
    """The tensors of the section, by the names that docs/format.md gives them."""
    numbered = tests.items() if isinstance(tests, Mapping) else enumerate(tests)
    found: dict[str, Array] = {}
    for number, test in numbered:
        found |= {f"input/{number}/{name}": array for name, array in test.inputs.items()}
        found |= {f"output/{number}/{name}": array for name, array in test.outputs.items()}
    return found


def from_tensors(tensors: Mapping[str, Array]) -> tuple[StoredTest, ...]:
    """The tests whose tensors these are; raises ValueError for a name of another form."""
    found: dict[int, StoredTest] = {}
    for key, array in tensors.items():
        side, _, rest = key.partition("/")
        number, separator, name = rest.partition("/")
        if side not in ("input", "output") or not separator or not number.isdecimal():
            raise ValueError(f"{key!r} is no input/N/NAME or output/N/NAME")
        test = found.setdefault(int(number), StoredTest())
        (test.inputs if side == "input" else test.outputs)[name] = array
    return tuple(found[number] for number in sorted(found))


def _section(artifact: str | os.PathLike[str] | bytes) -> bytes:
    """The bytes of the section, which match their digest and that of the header; b"" where there is none."""
    if isinstance(artifact, bytes):
        import io

        return _found(io.BytesIO(artifact))
    with open(artifact, "rb") as file:
        return _found(file)


def _found(file: BinaryIO) -> bytes:
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or header[:8] != MAGIC:
        raise ValueError("it is no artifact")
    _, _, header_bytes, _, table_offset, digest, count, size, _ = _HEADER.unpack(header)
    if not _HEADER.size <= header_bytes <= _MOST_TABLE_BYTES or size < _ENTRY.size or count * size > _MOST_TABLE_BYTES:
        raise ValueError("its header is damaged")
    header += file.read(header_bytes - len(header))
    file.seek(table_offset)
    table = file.read(count * size)
    if len(table) < count * size or hashlib.sha256(header[:32] + header[64:] + table).digest() != digest:
        raise ValueError("its header is damaged")
    for start in range(0, len(table), size):
        kind, flags, offset, length, *_, expected = _ENTRY.unpack_from(table, start)
        if kind == SELF_TEST:
            file.seek(offset)
            data = file.read(length)
            if len(data) < length or _digest(data, flags) != expected:
                raise ValueError("its bytes do not match their SHA-256")
            return data
    return b""


def _digest(data: bytes, flags: int) -> bytes:
    if not flags & TREE:
        return hashlib.sha256(data).digest()
    chunks = (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))
    return hashlib.sha256(b"".join(hashlib.sha256(chunk).digest() for chunk in chunks)).digest()


def _tensors(data: bytes) -> dict[str, Array]:
    """The tensors of a safetensors blob, by name; views of it."""
    (length,) = struct.unpack_from("<Q", data)
    start = 8 + length
    found = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            array = np.frombuffer(data[start + begin : start + end], np.uint8)
            found[name] = array.view(_dtype(_DTYPES[entry["dtype"]])).reshape(entry["shape"])
    return found


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # of artifacts with such inputs or outputs

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
