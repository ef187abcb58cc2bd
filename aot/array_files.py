"""Arrays from and to files, and what to say of files that hold none. Pickles are never read: they could run code."""

from __future__ import annotations

import io
import json
import tokenize
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from aot.errors import OptionError
from aot.file_kinds import ARCHIVE_FAULTS, FileKind, kind_of

Array = np.ndarray[Any, np.dtype[Any]]

SAVE_NPZ = "Write it with numpy.savez(path, **{input_name: array, …}): arrays of numbers, by name."
SAVE_NPY = "Write it with numpy.save(path, array): one array of numbers."

_UNREADABLE = (
    *ARCHIVE_FAULTS, TypeError, AttributeError, OverflowError, MemoryError, SyntaxError, tokenize.TokenError,
)  # fmt: skip
"""What reading a damaged file of arrays may raise: of encryption, of unknown compression, of sizes without end."""


def read_npy(path: Path) -> Array:
    """The array of an .npy file; raises OptionError for anything else."""
    found = load_arrays(path)
    if isinstance(found, dict):
        raise OptionError("it holds arrays by name (.npz), not one", where=str(path), hint=SAVE_NPY)
    return found


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file; raises OptionError for anything else."""
    found = load_arrays(path)
    if not isinstance(found, dict):
        raise OptionError("it holds one bare array, not arrays by name", where=str(path), hint=SAVE_NPZ)
    return found


def load_arrays(path: Path) -> dict[str, Array] | Array:
    """The arrays of an .npz file by name, or the one of an .npy file; raises OptionError for anything else."""
    try:
        file: Any = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            return file
        with file:
            kind = kind_of(path)
            if kind is not None and kind.name != "arrays":
                raise _no_arrays(path, kind)
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise OptionError("no such file", where=str(path)) from error
    except IsADirectoryError as error:
        raise OptionError("it is a folder", where=str(path), hint=f"{SAVE_NPZ} {SAVE_NPY}") from error
    except _UNREADABLE as error:
        kind = kind_of(path)
        if kind is not None and kind.name not in ("array", "arrays", "pickle", "text", "zip", "zip damaged", "empty"):
            raise _no_arrays(path, kind) from error
        reason = str(error)
        if "pickle" in reason:  # numpy takes every unknown file for a pickle
            with path.open("rb") as unread:
                start = unread.read(2)
            reason = "it begins as neither does"
            if start in (b"\x93N", b"PK") or start[:1] == b"\x80":
                reason = "it holds Python objects (pickles), which could run code when they are read"
        raise OptionError(
            f"not an .npz or .npy file of plain arrays: {reason}", where=str(path), hint=f"{SAVE_NPZ} {SAVE_NPY}"
        ) from error


def _no_arrays(path: Path, kind: FileKind) -> OptionError:
    """The error for a file of another kind that was given as one of inputs."""
    hint = f"Inputs are .npz or .npy files. {SAVE_NPZ}"
    return OptionError(kind.instead_of("a file of arrays"), where=str(path), hint=hint)


def read_file(path: Path, what: str, hint: str) -> bytes:
    """The bytes of a file; raises OptionError where there is none."""
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise OptionError(f"cannot read {what}: {reason}", where=str(path), hint=hint) from error


def archive_bytes(document: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """An .npz file of arrays and one JSON document, without time stamps: equal contents give equal bytes."""
    text = json.dumps(document, sort_keys=True, allow_nan=False).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (("record", np.frombuffer(text, np.uint8)), *sorted(arrays.items())):
            entry = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def read_archive(data: bytes, expected: str, where: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """The document and the arrays of archive_bytes; `expected`: the document's format, such as aot.calibration/1.

    Raises OptionError for anything else. Nothing in the file is executed.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        document = json.loads(arrays.pop("record").tobytes(), parse_constant=_no_number)
        found = document["format"]
    except _UNREADABLE as error:
        what = expected.removeprefix("aot.").partition("/")[0]
        raise OptionError(
            f"not a {what} file of aotc: {error}", where=where, hint="It is damaged, or another file."
        ) from error
    if found != expected:
        raise OptionError(
            f"the file says that it is {found!r}; expected {expected!r}", where=where,
            hint="Give the file that is asked for, or write it again with this version of aotc.",
        )  # fmt: skip
    return document, arrays
