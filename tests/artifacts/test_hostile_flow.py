"""Flows that a loader accepts and that make no sense: run natively, they give errors, or results; never a crash.

Kernels and what they are launched with are machine code or as good as it, and not changed here: only the flow around
them is, its steps, tensors, symbols and types. Under a sanitizer this also shows that nothing outside of a tensor
is read or written: AOT_RUNTIME_LIBRARY names a library that was built with AOT_SANITIZE.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from aot.artifacts import layout
from aot.artifacts.layout import Section
from aot.artifacts.write import assemble
from aot.errors import AotError, ArtifactError
from aot.runtime import load
from tests.artifacts.test_damaged import sections_of

Sections = Mapping[Section, bytearray]
CHANGED = {
    Section.FLOW: frozenset(field.name for field in layout.RECORD_OF[Section.FLOW].fields),
    Section.PROGRAMS: frozenset(
        ("inputs", "outputs", "flow", "slots", "results", "blocks", "environment", "unbacked", "is_block", "symbols",
         "guards", "state")
    ),
    Section.PORTS: frozenset(("dtype", "shape")),
    Section.SYMBOLS: frozenset(("lo", "hi", "divisor", "flags")),
}  # fmt: skip
FEEDS = [
    {"x": np.arange(n, dtype=np.float32) - 1, "trips": np.array(trips), "limit": np.float32(limit).reshape(())}
    for n, trips, limit in ((3, 4, 9), (1, 0, 0), (8, 3, -5))
]


def words_of(section: Section) -> list[tuple[int, str]]:
    """(offset, field) of every 32 bits of a record."""
    words: list[tuple[int, str]] = []
    for field in layout.RECORD_OF[section].fields:
        for _ in range(struct.calcsize("<" + field.format) // 4):
            words.append((4 * len(words), field.name))
    return words


def runs_of(sections: Sections, section: Section, names: frozenset[str]) -> Iterator[int]:
    """The entries of the integers that runs of these fields name."""
    size, seen = layout.RECORD_OF[section].size_bytes, set()
    for row in range(len(sections[section]) // size):
        for offset, name in words_of(section):
            if name in names and (row, name) not in seen:
                seen.add((row, name))
                first, count = struct.unpack_from("<II", sections[section], row * size + offset)
                yield from range(first, first + count)


def mutant(original: Sections, entries: list[int], rng: random.Random) -> bytes:
    """One to five changes, under valid digests."""
    sections = {kind: bytearray(data) for kind, data in original.items()}
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        section = rng.choice((Section.FLOW,) * 4 + (Section.INTEGERS,) * 5 + (Section.PROGRAMS,) * 2 + tuple(CHANGED))
        data = sections[section]
        if section == Section.INTEGERS:
            value = rng.choice((*(rng.randrange(-1, 24) for _ in range(6)), rng.randrange(64), -2, 1 << 40))
            struct.pack_into("<q", data, 8 * rng.choice(entries), value)
            continue
        size = layout.RECORD_OF[section].size_bytes
        rows = len(data) // size
        row, other = rng.randrange(rows), rng.randrange(rows)
        if section == Section.FLOW and rng.random() < 0.3:  # whole steps
            data[row * size : (row + 1) * size] = bytes(data[other * size : (other + 1) * size])
            continue
        offset, _ = rng.choice([word for word in words_of(section) if word[1] in CHANGED[section]])
        (old,) = struct.unpack_from("<I", data, row * size + offset)
        near = (0, 1, 2, old + 1, old - 1, rng.randrange(12), rng.randrange(64), -1, old ^ 1 << rng.randrange(8))
        struct.pack_into("<I", data, row * size + offset, rng.choice(near) & 0xFFFFFFFF)
    return assemble(sections)


def survive(original: bytes, seeds: range) -> tuple[int, int, int]:
    """Loads and runs mutants; how many were refused, gave an error, and ran."""
    sections = sections_of(original)
    entries = [
        *runs_of(sections, Section.FLOW, frozenset(("inputs", "outputs", "drops", "symbols", "dims"))),
        *runs_of(sections, Section.PROGRAMS, frozenset(("results", "environment", "blocks"))),
    ]
    refused = failed = ran = 0
    for seed in seeds:
        try:
            model = load(mutant(sections, entries, random.Random(seed)), threads=1 + seed % 2)
        except ArtifactError:
            refused += 1
            continue
        for feed in FEEDS:
            try:
                # An endless loop is a flow as well.
                model.run(feed, timeout_seconds=0.02)
                ran += 1
            except AotError:
                failed += 1
        model.close()
    return refused, failed, ran


def test_hostile_flows(flow_bytes: bytes) -> None:
    with contextlib.closing(load(flow_bytes, threads=1)) as model:
        for feed in FEEDS:
            model.run(feed)
    refused, failed, ran = survive(flow_bytes, range(1200))
    assert min(refused, failed, ran) > 100, (refused, failed, ran)


@pytest.mark.fuzz
def test_many_hostile_flows(flow_bytes: bytes) -> None:
    survive(flow_bytes, range(10_000, 200_000))
