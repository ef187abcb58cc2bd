"""Damaged and hostile files, through both readers: always an ArtifactError, never a crash."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from aot.artifacts import Artifact, layout, table
from aot.artifacts.layout import Section, SectionFlag
from aot.artifacts.write import assemble, header_digest, section_digest
from aot.errors import ArtifactError, GuardError, RunError, TargetError
from aot.runtime import _library as native
from aot.runtime import load
from tests.runtime import fuzz_seeds, handmade

DAMAGED, NO_TARGET = 2, 4  # of aot_status
Opener = Callable[[bytes], object]


def open_python(data: bytes) -> object:
    return Artifact(data).programs


def open_native(data: bytes) -> object:
    model = load(data, threads=1)
    # The plan of a hostile file may be impossible, but never a crash.
    with contextlib.suppress(GuardError, RunError):
        model.reserve(**{dim.name: 7 for dim in model.dims})
    return model


READERS = pytest.mark.parametrize("opener", [open_python, open_native])


def must_be_damaged(opener: Opener, data: bytes) -> str:
    with pytest.raises(ArtifactError) as caught:
        opener(data)
    text = str(caught.value)
    assert "damaged" in text and "offset" in text, text
    return text


def sections_of(data: bytes) -> dict[Section, bytearray]:
    entries = table.read_entries(memoryview(data))
    return {Section(e.kind): bytearray(data[e.offset : e.offset + e.bytes]) for e in entries.values()}


@READERS
def test_good_file(opener: Opener, dense_bytes: bytes) -> None:
    opener(dense_bytes)


@READERS
def test_empty_and_foreign(opener: Opener, dense_bytes: bytes) -> None:
    must_be_damaged(opener, b"")
    must_be_damaged(opener, b"AOTC")
    assert "magic" in must_be_damaged(opener, b"PK\3\4" + dense_bytes[4:])
    assert "magic" in must_be_damaged(opener, bytes(len(dense_bytes)))
    # A transfer in text mode.
    must_be_damaged(opener, dense_bytes.replace(b"\r\n", b"\n"))


@READERS
def test_truncated_everywhere(opener: Opener, dense_bytes: bytes) -> None:
    lengths = [*range(0, 400, 7), *range(400, len(dense_bytes), 501), len(dense_bytes) - 1]
    for length in lengths:
        must_be_damaged(opener, dense_bytes[:length])
    must_be_damaged(opener, dense_bytes + b"\0")


@READERS
def test_every_header_and_table_byte(opener: Opener, dense_bytes: bytes) -> None:
    count = struct.unpack_from("<I", dense_bytes, 64)[0]
    end = layout.HEADER.size_bytes + count * layout.SECTION.size_bytes
    for position in range(end):
        flipped = bytearray(dense_bytes)
        flipped[position] ^= 1 << position % 8
        must_be_damaged(opener, bytes(flipped))


@READERS
def test_sampled_bytes_elsewhere(opener: Opener, dense_bytes: bytes) -> None:
    entries = table.read_entries(memoryview(dense_bytes)).values()
    positions = set(range(1600, len(dense_bytes), 97))
    for entry in entries:
        positions.update({entry.offset, entry.offset + entry.bytes // 2, entry.offset + entry.bytes - 1})
    for position in sorted(positions):
        flipped = bytearray(dense_bytes)
        flipped[position] ^= 0x10
        must_be_damaged(opener, bytes(flipped))


def test_every_bit_is_noticed() -> None:
    """Each bit of a small artifact, flipped alone. runtime/tests/robust_test.c does the same with one that has code."""
    data = bytearray(handmade.artifact(fuzz_seeds.dense()).data)
    lib = native.library()
    view = (ctypes.c_char * len(data)).from_buffer(data)
    address, size = ctypes.addressof(view), len(data)
    handle, error = ctypes.c_void_p(), native.new_error()
    model, text, load_memory = ctypes.byref(handle), ctypes.byref(error), lib.aot_model_load_memory
    for bit in range(8 * size):
        data[bit >> 3] ^= 1 << (bit & 7)
        status = load_memory(address, size, None, model, text)
        data[bit >> 3] ^= 1 << (bit & 7)
        assert status == DAMAGED, f"bit {bit & 7} of byte {bit >> 3}: status {status}"
    assert load_memory(address, size, None, model, text) == NO_TARGET  # its code is no code, but nothing is damaged


@READERS
def test_names_the_section(opener: Opener, dense_bytes: bytes) -> None:
    for entry in table.read_entries(memoryview(dense_bytes)).values():
        flipped = bytearray(dense_bytes)
        flipped[entry.offset] ^= 0xFF
        text = must_be_damaged(opener, bytes(flipped))
        assert entry.name in text and str(entry.offset) in text


def patched_table(data: bytes, section: Section, **changes: int) -> bytes:
    """The file with fields of a section's table entry changed, under a valid digest."""
    result = bytearray(data)
    count = struct.unpack_from("<I", data, 64)[0]
    names = [field.name for field in layout.SECTION.fields]
    start = layout.HEADER.size_bytes
    for number in range(count):
        at = start + number * layout.SECTION.size_bytes
        values = dict(zip(names, layout.SECTION.struct.unpack_from(data, at), strict=True))
        if values["kind"] == section:
            values.update(changes)
            layout.SECTION.struct.pack_into(result, at, *values.values())
    return sealed(result)


def sealed(data: bytearray) -> bytes:
    """The file with a valid header digest."""
    count = struct.unpack_from("<I", data, 64)[0]
    end = layout.HEADER.size_bytes + count * layout.SECTION.size_bytes
    data[32:64] = header_digest(bytes(data[: layout.HEADER.size_bytes]), bytes(data[layout.HEADER.size_bytes : end]))
    return bytes(data)


@READERS
def test_bad_section_tables(opener: Opener, dense_bytes: bytes) -> None:
    for changes in (
        {"offset": 0},
        {"offset": layout.HEADER.size_bytes},
        {"offset": 1 << 63},
        {"bytes": (1 << 64) - 1},
        {"bytes": 1 << 40},
        {"count": 0xFFFFFFFF},
        {"entry_bytes": 0xFFFFFFFF},
        {"entry_bytes": 0},
        {"alignment": 0},
        {"alignment": 48},
        {"reserved": 1},
        {"kind": int(Section.STEPS)},
    ):
        must_be_damaged(opener, patched_table(dense_bytes, Section.BUFFERS, **changes))


@READERS
def test_padding_must_be_zero(opener: Opener, dense_bytes: bytes) -> None:
    entries = sorted(table.read_entries(memoryview(dense_bytes)).values(), key=lambda e: e.offset)
    gaps = [(a.offset + a.bytes, b.offset) for a, b in pairwise(entries)]
    gaps = [gap for gap in gaps if gap[0] < gap[1]]
    assert gaps
    for start, end in gaps:
        for position in (start, end - 1):
            dirty = bytearray(dense_bytes)
            dirty[position] = 1
            assert "padding" in must_be_damaged(opener, bytes(dirty))


@READERS
def test_a_missing_section(opener: Opener, dense_bytes: bytes) -> None:
    for kind in Section:
        sections = sections_of(dense_bytes)
        if kind in sections and kind not in layout.OPTIONAL_SECTIONS:
            del sections[kind]
            assert kind.name.lower() in must_be_damaged(opener, assemble(sections))


@pytest.mark.parametrize("record", layout.RECORDS, ids=lambda record: record.name)
def test_hostile_records(record: layout.Record, dense_bytes: bytes, flow_bytes: bytes, host_bytes: bytes) -> None:
    """Every field of every record with wild values, correctly hashed: refused or harmless, never a crash."""
    assert record.section is not None
    refused = 0
    size = record.size_bytes
    with_flow = record.section in (Section.FLOW, Section.PROGRAMS)
    original = sections_of(host_bytes if record.section == Section.HOST else flow_bytes if with_flow else dense_bytes)
    original.setdefault(record.section, bytearray(2 * size))  # signatures
    rows = len(original[record.section]) // size
    for row in sorted({0, rows // 2, rows - 1}):
        for position in range(row * size, (row + 1) * size, 4):
            for value in (0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 200):
                sections = {kind: bytearray(data) for kind, data in original.items()}
                struct.pack_into("<I", sections[record.section], position, value)
                data = assemble(sections)
                for opener in (open_python, open_native):
                    try:
                        opener(data)
                    except (ArtifactError, TargetError) as error:  # a target of another name, or code that is no ELF
                        refused += "damaged" in str(error)
    assert refused or record.section in (Section.INTEGERS, Section.SYMBOLS)


@READERS
def test_other_versions(opener: Opener, dense_bytes: bytes) -> None:
    data = bytearray(dense_bytes)
    data[8] = layout.MAJOR + 1
    must_be_damaged(opener, bytes(data))  # a damaged version is damage
    with pytest.raises(ArtifactError, match="version") as caught:
        opener(sealed(data))
    assert "damaged" not in str(caught.value) and caught.value.hint
    newer = bytearray(dense_bytes)
    newer[10] = layout.MINOR + 1
    opener(sealed(newer))


def with_extra_section(data: bytes, flags: int) -> bytes:
    """The file with a section 99 behind the last one."""
    count = struct.unpack_from("<I", data, 64)[0]
    old_end = layout.HEADER.size_bytes + count * layout.SECTION.size_bytes
    shift = 4096
    entries = bytearray(data[layout.HEADER.size_bytes : old_end])
    for number in range(count):
        at = number * layout.SECTION.size_bytes
        offset = struct.unpack_from("<Q", entries, at + 8)[0]
        struct.pack_into("<Q", entries, at + 8, offset + shift)
    body = data[old_end:]
    end = old_end + shift + len(body)
    extra = b"something new"
    padding = bytes(-end % 64)
    position = end + len(padding)
    entries += layout.SECTION.struct.pack(99, flags, position, len(extra), 0, 0, 64, 0, section_digest(extra, flags))
    header = bytearray(data[: layout.HEADER.size_bytes])
    struct.pack_into("<Q", header, 16, position + len(extra))
    struct.pack_into("<I", header, 64, count + 1)
    gap = bytes(old_end + shift - layout.HEADER.size_bytes - len(entries))
    return sealed(bytearray(bytes(header) + bytes(entries) + gap + body + padding + extra))


@READERS
def test_unknown_sections(opener: Opener, dense_bytes: bytes) -> None:
    opener(with_extra_section(dense_bytes, 0))
    with pytest.raises(ArtifactError, match="section 99") as caught:
        opener(with_extra_section(dense_bytes, SectionFlag.REQUIRED))
    assert "version" in str(caught.value) and "damaged" not in str(caught.value)
    flipped = bytearray(with_extra_section(dense_bytes, 0))
    flipped[-1] ^= 1
    must_be_damaged(opener, bytes(flipped))


@READERS
def test_longer_and_shorter_records(opener: Opener, dense_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer writer appends fields; an older one lacks the last ones, which then count as zero."""
    sections = sections_of(dense_bytes)
    for kind, change in ((Section.PORTS, 8), (Section.DIMS, -4)):
        size = layout.RECORD_OF[kind].size_bytes
        data = sections[kind]
        rows = [bytes(data[i : i + size]) for i in range(0, len(data), size)]
        rows = [row + b"\7" * change if change > 0 else row[:change] for row in rows]
        sections[kind] = bytearray(b"".join(rows))

    class Resized:
        def __init__(self, record: layout.Record, change: int) -> None:
            self.size_bytes = record.size_bytes + change

    table = dict(layout.RECORD_OF)
    changed = {**table, Section.PORTS: Resized(table[Section.PORTS], 8), Section.DIMS: Resized(table[Section.DIMS], -4)}
    monkeypatch.setattr(layout, "RECORD_OF", changed)
    grown = assemble(sections)
    monkeypatch.setattr(layout, "RECORD_OF", table)
    opener(grown)
    assert Artifact(grown).programs == Artifact(dense_bytes).programs


def test_file_errors_name_the_file(tmp_path: Path, dense_bytes: bytes) -> None:
    path = tmp_path / "model.aot"
    path.write_bytes(dense_bytes[:-1])
    for opener in (Artifact.open, load):
        with pytest.raises(ArtifactError, match="damaged") as caught:
            opener(path)
        assert caught.value.where == str(path)
    for opener in (Artifact.open, load):
        with pytest.raises(ArtifactError):
            opener(tmp_path)
    assert handmade.artifact().data == dense_bytes
