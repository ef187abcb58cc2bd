"""The weights file beside an artifact: whether it is there, of the right size, and has the right bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.artifacts.layout import Section, WeightsMode
from aot.artifacts.read import Reader
from aot.errors import ArtifactError

_WINDOW_BYTES = 1 << 22
_MOST_HEADER_BYTES = 1 << 28  # of a safetensors file


@dataclass(frozen=True, slots=True)
class ExternalFile:
    """`needed_bytes`: the least that the file must have for every weight to lie inside it."""

    path: Path
    needed_bytes: int


def external_file(reader: Reader, artifact: Path) -> ExternalFile | None:
    """The weights file that an artifact at a path looks for; None where its weights are not in one.

    Of the sections it needs programs, sources and strings.
    """
    rows = [row for row in reader.tables[Section.PROGRAMS] if row["weights"] == WeightsMode.EXTERNAL]
    if not rows:
        return None
    name = reader.text(rows[0]["external_file"])
    if not name or Path(name).name != name:
        reader.fail(Section.PROGRAMS, f"{name!r} is no name of a file beside the artifact")
    sources = _sources(reader)
    return ExternalFile(artifact.parent / name, max((at + size for at, size, _, _ in sources), default=0))


def size_problem(file: ExternalFile) -> str:
    """What is wrong with the file's presence or size, "" if nothing; reads the first bytes of it at most.

    A safetensors file says itself how long it is; where it does, any other size is wrong.
    """
    try:
        size = file.path.stat().st_size if file.path.is_file() else None
        with file.path.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length)) if 0 < length <= _MOST_HEADER_BYTES else None
    except OSError as error:
        return f"the weights file {file.path.name} is missing" if not file.path.exists() else f"{error.strerror}"
    except (ValueError, RecursionError):
        header = None
    if size is None:
        return f"the weights file {file.path.name} is no file"
    ends = _ends(header)
    expected = 8 + length + max(ends) if ends else file.needed_bytes
    if size < max(expected, file.needed_bytes) or (ends and size != expected):
        return f"the weights file {file.path.name} has {size} bytes, expected {max(expected, file.needed_bytes)}"
    return ""


def _ends(header: Any) -> list[int]:
    """Where each tensor ends, if JSON is what a safetensors file begins with; else nothing."""
    entries = [value for key, value in header.items() if key != "__metadata__"] if isinstance(header, dict) else []
    try:
        return [int(entry["data_offsets"][1]) for entry in entries]
    except (TypeError, LookupError, ValueError):
        return []


def check_external(reader: Reader, artifact: Path) -> bool:
    """Compares every weight beside an artifact with the digest that the artifact has; False: there is no file to read.

    Raises ArtifactError for one that differs.
    """
    file = external_file(reader, artifact)
    if file is None or not file.path.exists():
        return False
    if problem := size_problem(file):
        raise ArtifactError(problem, where=str(file.path), hint="Copy it again from where the artifact was built.")
    with file.path.open("rb") as opened:
        for place, size, digest, name in _sources(reader):
            found = hashlib.sha256()
            opened.seek(place)
            while size:
                part = opened.read(min(size, _WINDOW_BYTES))
                if not part:
                    break
                found.update(part)
                size -= len(part)
            if found.digest() != digest:
                raise ArtifactError(
                    f"weight {reader.text(name)!r} is not the one of the build",
                    where=str(file.path),
                    hint="Copy it again from where the artifact was built.",
                )
    return True


def _sources(reader: Reader) -> list[tuple[int, int, bytes, int]]:
    """(offset, bytes, SHA-256, name) of each weight that is read from the external file, each once.

    A source at offset 0 is not in the file (there lies its header): no constant is made from it.
    """
    rows = reader.tables[Section.SOURCES]
    return sorted({(r["external_offset"], r["bytes"], r["sha256"], r["name"]) for r in rows if r["external_offset"]})
