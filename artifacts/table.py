"""Header and section table: what every reader checks first, of bytes in memory or of a file that is read in parts."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from aot.artifacts import layout
from aot.artifacts.layout import Section, SectionFlag
from aot.artifacts.write import header_digest, section_digest, section_row
from aot.errors import ArtifactError

_HINT = "Copy or download the file again, or build it again."
Digest = bytes
_WINDOW_BYTES = 1 << 20  # of padding that are looked at at a time


class View(Protocol):
    """The bytes of an artifact: a memoryview, or a file of which only what is asked for is read."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> memoryview: ...


class FileView:
    """A file as a View; nothing of it is kept. Close it, or use it as a context manager.

    Raises ArtifactError where it cannot be opened or read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.bytes_read = 0
        try:
            self._file = open(path, "rb", buffering=0)  # closed by close
            self._size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> ArtifactError:
        return ArtifactError(f"cannot read it: {error.strerror or error}", where=str(self.path))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice, /) -> memoryview:
        start, stop, _ = place.indices(self._size)
        data = bytearray()
        while start + len(data) < stop:  # a system gives at most 2 GiB at a time
            try:
                part = os.pread(self._file.fileno(), stop - start - len(data), start + len(data))
            except OSError as error:
                raise self._error(error) from error
            if not part:
                damaged(f"the file ended at byte {start + len(data)} while it was read", "file", start)
            data += part
        self.bytes_read += len(data)
        return memoryview(data)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> FileView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the section table."""

    kind: int
    flags: int
    offset: int
    bytes: int
    count: int
    entry_bytes: int
    alignment: int
    digest: Digest
    row_offset: int  # in the file

    @property
    def name(self) -> str:
        return Section(self.kind).name.lower() if self.kind in list(Section) else f"section {self.kind}"


def damaged(message: str, where: str, offset: int) -> NoReturn:
    """Raises the ArtifactError of a damaged file."""
    raise ArtifactError(f"the artifact is damaged: {where} at offset {offset}: {message}", hint=_HINT)


@dataclass(frozen=True, slots=True)
class Table:
    """Header and section table as they are in the file. `rows` are the bytes of the entries."""

    header: bytes
    rows: tuple[bytes, ...]
    offset: int  # of the first row
    version: str

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The rows, read."""
        found = []
        for number, row in enumerate(self.rows):
            kind, flags, offset, size, count, entry_bytes, *last = layout.SECTION.struct.unpack_from(row)
            alignment, reserved, digest = last
            place = self.offset + number * len(row)
            entry = Entry(kind, flags, offset, size, count, entry_bytes, alignment, digest, place)
            if alignment == 0 or alignment & (alignment - 1) or entry.offset % alignment or reserved:
                damaged("the section is misaligned", entry.name, entry.row_offset)
            found.append(entry)
        return tuple(found)


def read_table(data: View) -> Table:
    """Header and table, which match the header's digest; of the sections nothing is read."""
    if len(data) < layout.HEADER.size_bytes:
        damaged(f"the file has {len(data)} bytes, fewer than a header", "header", 0)
    fixed = layout.HEADER.struct.unpack(data[: layout.HEADER.size_bytes])
    values = dict(zip((f.name for f in layout.HEADER.fields), fixed, strict=True))
    if bytes(data[:8]) != layout.MAGIC:
        damaged("this is not an aotc artifact, or its first bytes are lost (wrong magic)", "header", 0)
    if values["file_bytes"] != len(data):
        damaged(f"the header says {values['file_bytes']} bytes, the file has {len(data)} (truncated?)", "header", 16)
    header_bytes, offset = values["header_bytes"], values["table_offset"]
    count, size = values["section_count"], values["section_entry_bytes"]
    if not layout.HEADER.size_bytes <= header_bytes <= len(data):
        damaged(f"header size {header_bytes}", "header", 12)
    if size < layout.SECTION.size_bytes or offset < header_bytes or offset + count * size > len(data):
        damaged(f"{count} sections of {size} bytes at {offset} do not fit the file", "section table", 64)
    table = bytes(data[offset : offset + count * size])
    if header_digest(bytes(data[:header_bytes]), table) != values["digest"]:
        damaged("the digest of header and section table does not hold", "header", 32)
    major, minor = values["version"] & 0xFFFF, values["version"] >> 16
    if major != layout.MAJOR:
        raise ArtifactError(
            f"the artifact has format version {major}.{minor}, this reader knows {layout.MAJOR}.x",
            hint="Use an aotc of the same major version, or build the artifact again with this one.",
        )
    rows = tuple(table[start : start + size] for start in range(0, count * size, size))
    return Table(bytes(data[:header_bytes]), rows, offset, f"{major}.{minor}")


def read_entries(data: View, hashed: Collection[int] | None = None) -> dict[int, Entry]:
    """The section table, with header, hashes, order, alignment and padding checked.

    `hashed`: the kinds whose bytes are read to compare their digests; None: all.
    """
    table = read_table(data)
    entries = _check_order(data, table)
    for entry in entries.values():
        if hashed is None or entry.kind in hashed:
            check_digest(data, entry)
    for kind in Section:
        if kind not in layout.OPTIONAL_SECTIONS | layout.LATER_SECTIONS and kind not in entries:
            damaged(f"section {kind.name.lower()} is missing", "section table", table.offset)
    return entries


def check_digest(data: View, entry: Entry) -> memoryview:
    """The bytes of a section, which match its digest."""
    found = data[entry.offset : entry.offset + entry.bytes]
    if section_digest(found, entry.flags) != entry.digest:
        damaged("the section's bytes do not match their SHA-256", entry.name, entry.offset)
    return found


def _check_order(data: View, table: Table) -> dict[int, Entry]:
    """The entries by kind: in order, inside the file, with zeros between them."""
    entries: dict[int, Entry] = {}
    _check_zero(data, len(table.header), table.offset, "header")
    end = table.offset + sum(map(len, table.rows))
    for entry in table.entries:
        if entry.kind in entries:
            damaged("the section is there twice", entry.name, entry.row_offset)
        start, length = entry.offset, entry.bytes
        if start < end or start > len(data) or length > len(data) - start:
            damaged(
                f"bytes {start}..{start + length} overlap another section or the end of the file",
                entry.name,
                entry.row_offset,
            )
        _check_zero(data, end, start, entry.name)
        end = start + length
        if entry.kind in list(Section):
            rows, size = entry.count, entry.entry_bytes
            known = 0 if entry.kind in layout.BYTE_SECTIONS else layout.RECORD_OF[Section(entry.kind)].size_bytes
            if bool(known) != bool(size) or (known and rows * size != length):
                damaged(f"{rows} records of {size} bytes do not fill {length} bytes", entry.name, entry.row_offset)
        elif entry.flags & SectionFlag.REQUIRED:
            raise ArtifactError(
                f"the artifact (format version {table.version}) needs {entry.name}, which this reader does not know",
                hint="Use a newer aotc.",
            )
        entries[entry.kind] = entry
    if end != len(data):
        damaged("bytes behind the last section", "file", end)
    return entries


def _check_zero(data: View, start: int, end: int, where: str) -> None:
    for place in range(start, end, _WINDOW_BYTES):
        if any(data[place : min(place + _WINDOW_BYTES, end)]):
            damaged("padding bytes are not zero", where, start)


def replaced(data: bytes | memoryview, sections: Mapping[Section, bytes | None]) -> bytes:
    """An artifact with some sections replaced, added, or (None) left out; all others as they are, in their order.

    `data` are the bytes of a sound file, of any minor version, whose version it keeps.
    """
    view = memoryview(data)
    table = read_table(view)
    kept = [
        (entry.kind, row, view[entry.offset : entry.offset + entry.bytes])
        for entry, row in zip(table.entries, table.rows, strict=True)
        if entry.kind not in sections
    ]
    size = len(table.rows[0])
    for kind, content in sorted(sections.items()):
        if content is not None:
            place = next((n for n, (k, _, _) in enumerate(kept) if k == Section.WEIGHTS or k > kind), len(kept))
            kept.insert(place, (kind, section_row(kind, content).ljust(size, b"\0"), memoryview(content)))
    position = table.offset + len(kept) * size
    rows: list[bytes] = []
    parts: list[bytes | memoryview] = []
    for _, row, held in kept:
        values = list(layout.SECTION.struct.unpack_from(row))
        padding = -position % values[6]
        values[2] = position + padding
        rows.append(layout.SECTION.struct.pack(*values) + row[layout.SECTION.size_bytes :])
        parts += [bytes(padding), held]
        position += padding + len(held)
    values = list(layout.HEADER.struct.unpack_from(table.header))
    values[3], values[5], values[6] = position, bytes(32), len(rows)
    header = layout.HEADER.struct.pack(*values) + table.header[layout.HEADER.size_bytes :]
    whole = b"".join(rows)
    header = header[:32] + header_digest(header, whole) + header[64:]
    return b"".join([header, bytes(table.offset - len(header)), whole, *parts])
