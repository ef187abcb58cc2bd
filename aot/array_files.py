"""Arrays from files, and what to say of files that hold none. Pickles are never read: they could run code."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from aot.errors import OptionError
from aot.file_kinds import FileKind, kind_of

Array = np.ndarray[Any, np.dtype[Any]]

SAVE_NPZ = "Write it with numpy.savez(path, **{input_name: array, …}): arrays of numbers, by name."
SAVE_NPY = "Write it with numpy.save(path, array): one array of numbers."


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
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
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
