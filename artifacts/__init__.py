"""The artifact: one versioned file that holds programs, weights and what people want to know of them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.artifacts import read, safetensors
from aot.artifacts.layout import Section, WeightsMode
from aot.artifacts.sizes import TargetBytes, target_bytes
from aot.artifacts.table import replaced
from aot.artifacts.write import Weights, write, write_json
from aot.errors import ArtifactError, OptionError
from aot.file_kinds import not_an_artifact
from aot.ir import Array
from aot.program import Program

if TYPE_CHECKING:
    from aot.runtime import Model

__all__ = ["Artifact"]


class Artifact:
    """A built model. `data` are the bytes of the file; the rest is read from them when asked for.

    `external` are the bytes of the external weights file, named `external_name`, where the artifact
    was just built with weights="external".
    """

    def __init__(self, data: bytes, external_name: str = "", external: bytes = b"") -> None:
        self.data = data
        self.external_name = external_name
        self.external = external
        self.report: Any = None  # aot.driver.BuildReport of a fresh build; never part of the file

    @classmethod
    def build(
        cls,
        programs: Sequence[Program],
        *,
        meta: Mapping[str, Any],
        weights: Weights = "embedded",
        debug: Mapping[str, str] | None = None,
        self_test: Mapping[str, Array] | None = None,
        external_name: str = "",
    ) -> Artifact:
        """An artifact of `programs`; see `aot.artifacts.write.write`."""
        return cls(
            *write(programs, meta=meta, weights=weights, debug=debug, self_test=self_test, external_name=external_name)
        )

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Artifact:
        """Reads and checks a file. Raises ArtifactError for one that is missing, damaged or something else."""
        if not isinstance(path, str | os.PathLike):
            raise ArtifactError(f"expected a path, got {type(path).__name__}", hint="Artifact(data) takes bytes.")
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            said = not_an_artifact(path) or (f"cannot read it: {error.strerror or error}", "")
            raise ArtifactError(said[0], where=str(path), hint=said[1]) from error
        artifact = cls(data)
        try:
            _ = artifact.programs
        except ArtifactError as error:
            said = not_an_artifact(path) or (error.message, error.hint)
            raise ArtifactError(said[0], where=str(path), hint=said[1]) from error
        return artifact

    @cached_property
    def reader(self) -> read.Reader:
        """The checked sections."""
        return read.Reader(self.data)

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The programs, in the order in which a loader tries them."""
        return self.reader.programs()

    @property
    def meta(self) -> dict[str, Any]:
        """What the build recorded for people: versions, options, the source's digest."""
        return self.reader.meta

    @property
    def debug(self) -> dict[str, str]:
        """IR texts by name; empty where they were left out."""
        return dict(self.reader.debug.get("texts", {}))

    @property
    def self_test(self) -> dict[str, Array]:
        """The tensors of the self-test section; empty where there is none."""
        data = self.reader.section(Section.SELF_TEST)
        return safetensors.read(data)[0] if len(data) else {}

    @property
    def size_bytes(self) -> int:
        """Of the file, without external weights."""
        return len(self.data)

    @property
    def sections(self) -> dict[str, int]:
        """Bytes of each section by name."""
        return {entry.name: entry.bytes for entry in self.reader.entries.values()}

    @property
    def target_bytes(self) -> tuple[TargetBytes, ...]:
        """Where the bytes are: code, constants that are ready and constants that a load makes, of each target."""
        return target_bytes(self.reader)

    @property
    def weights_mode(self) -> str:
        """Where the weights are: "embedded", "external" or "none"."""
        row = self.reader.tables[Section.PROGRAMS][0]
        return WeightsMode(row["weights"]).name.lower()

    @property
    def external_file(self) -> str:
        """The name of the weights file that belongs beside the artifact; "" where there is none."""
        return self.reader.text(self.reader.tables[Section.PROGRAMS][0]["external_file"])

    @property
    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    def with_parts(self, *, meta: Mapping[str, Any], self_test: Mapping[str, Array]) -> Artifact:
        """The artifact with other metadata and another self-test, all else as it is; without signatures."""
        parts: dict[Section, bytes | None] = {Section.META: write_json(meta), Section.SIGNATURE: None}
        parts[Section.SELF_TEST] = safetensors.write(self_test)[0]
        made = Artifact(replaced(self.data, parts), self.external_name, self.external)
        made.report = self.report
        return made

    def constants(self, program: int = 0) -> dict[str, Array]:
        """The packed constants of a program whose weights are in the file, by name; views of it if they are ready."""
        return read.constant_arrays(self.reader, program)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, and its external weights beside it: whole, or not at all.

        Raises OptionError for a path that cannot be written, ArtifactError where the disk is full.
        """
        target = Path(path)
        if self.external:
            write_whole(target.with_name(self.external_name), self.external)
        write_whole(target, self.data)

    def load(self, **options: Any) -> Model:
        """The artifact ready to run; options as `aot.runtime.load` takes them."""
        from aot.runtime import load

        if self.external and "weights" not in options:
            options["weights"] = safetensors.read(self.external)[0]
        return load(self.data, **options)


def write_whole(path: Path, data: bytes) -> None:
    """Writes aside, flushes to the disk, then renames, so that no reader ever sees half a file."""
    aside = ""
    try:
        handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent or ".")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o666 & ~_umask())
        os.replace(aside, path)
        aside = ""
    except OSError as error:
        reason = error.strerror or str(error)
        if not aside:
            raise OptionError(
                f"cannot write there: {reason}", where=str(path), hint="Choose a folder that exists and is writable."
            ) from error
        raise ArtifactError(
            f"could not write {len(data)} bytes: {reason}; no file was left behind",
            where=str(path),
            hint="Free some space, or choose another path.",
        ) from error
    finally:
        if aside:
            os.unlink(aside)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
