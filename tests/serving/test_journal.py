"""The journal: whole after kill -9, truncation and damage at any byte, and a full disk; one writer a directory."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot.errors import RunError
from aot.runtime.serving import CanaryPolicy, Pair
from aot.runtime.serving.controller import Canary
from aot.runtime.serving.journal import Journal, LockedError, read_journal


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder in memory where there is one: these tests sync thousands of times."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        yield Path(name) / "state"


def begun(directory: Path, entries: int = 5) -> None:
    """A journal with a snapshot and entries of some lengths."""
    journal = Journal(directory)
    journal.snapshot(b"state 0")
    for index in range(entries):
        journal.append([f"entry {index}".encode() * (index + 1)])
    journal.close()


def test_entries_are_there_again(directory: Path) -> None:
    begun(directory)
    journal = Journal(directory)
    assert journal.recovered.snapshot == b"state 0" and not journal.recovered.notes
    assert [entry[:7] for entry in journal.recovered.entries] == [f"entry {index}".encode() for index in range(5)]
    journal.append([b"more", b""])
    journal.snapshot(b"state 1")
    journal.append([b"after"])
    journal.close()
    found = read_journal(directory)
    assert (found.snapshot, found.entries, found.notes) == (b"state 1", (b"after",), ())


def test_old_segments_are_dropped_but_the_last_snapshot_but_one_stays(directory: Path) -> None:
    journal = Journal(directory)
    for index in range(5):
        journal.snapshot(f"state {index}".encode())
        journal.append([f"entry {index}".encode()])
    journal.close()
    names = sorted(os.listdir(directory))
    assert names == ["journal-00000003", "journal-00000004", "lock", "snapshot-00000003", "snapshot-00000004"]
    (directory / "snapshot-00000004").write_bytes(b"rubbish")
    found = read_journal(directory)
    assert found.snapshot == b"state 3" and found.entries == (b"entry 3", b"entry 4")
    assert "snapshot-00000004 is damaged" in found.notes[0]


def test_every_truncation_leaves_a_prefix(directory: Path) -> None:
    begun(directory)
    path = directory / "journal-00000000"
    data, whole = path.read_bytes(), read_journal(directory).entries
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        found = read_journal(directory)
        count = len(found.entries)
        assert found.entries == whole[:count] and found.snapshot == b"state 0"
        assert (count == 5) == (size == len(data))
        with contextlib.closing(Journal(directory)) as journal:
            journal.append([b"next"])
        again = read_journal(directory)
        assert again.entries == (*whole[:count], b"next") and not again.notes


def test_every_damaged_byte_leaves_a_prefix_and_is_told(directory: Path) -> None:
    begun(directory)
    path = directory / "journal-00000000"
    data, whole = path.read_bytes(), read_journal(directory).entries
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        found = read_journal(directory)
        assert found.entries == whole[: len(found.entries)] and len(found.entries) < 5
        assert "journal-00000000" in found.notes[0] and "dropped" in found.notes[0]


@given(st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_anywhere_recovers_or_is_an_error(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "state"
        journal = Journal(folder)
        written: list[bytes] = []
        journal.snapshot(b"0")
        for _ in range(data.draw(st.integers(0, 8))):
            if data.draw(st.booleans()):
                journal.snapshot(str(len(written)).encode())
            else:
                written.append(data.draw(st.binary(max_size=20)))
                journal.append([written[-1]])
        journal.close()
        paths = sorted(path for path in folder.iterdir() if path.name != "lock")
        path = data.draw(st.sampled_from(paths))
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            content = content[: data.draw(st.integers(0, len(content)))]
        else:
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        changed = bytes(content) != path.read_bytes()
        path.write_bytes(bytes(content))
        try:
            found = read_journal(folder)
        except RunError as error:
            assert changed and "damaged" in error.message
            return
        first = int(found.snapshot or b"0")
        assert list(found.entries) == written[first : first + len(found.entries)]
        if not changed:
            assert first + len(found.entries) == len(written) and not found.notes


def test_a_journal_without_its_snapshot_is_refused(directory: Path) -> None:
    begun(directory)
    (directory / "snapshot-00000000").unlink()
    with pytest.raises(RunError, match="no snapshot"):
        Journal(directory)


def test_two_writers_are_refused(directory: Path) -> None:
    begun(directory)
    journal = Journal(directory)
    with pytest.raises(LockedError, match="of this process"):
        Journal(directory)
    journal.close()
    journal.close()
    Journal(directory).close()


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot make the state directory"):
        Journal(tmp_path / "file" / "state")


# A full disk.


class FullDisk:
    """os.pwrite, os.fsync and os.replace that fail from the `calls`-th call on; a write may write a part first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
        self.left, self.calls = calls, 0
        for name in ("pwrite", "fsync", "replace"):
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))

    def _failing(self, name: str, real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if name == "pwrite" and len(arguments[1]) <= 10 and arguments[2] == 0:
                return real(*arguments)  # the number of the process in the lock file, and magic
            self.calls += 1
            self.left -= 1
            if self.left >= 0:
                return real(*arguments)
            if name == "pwrite" and len(arguments[1]) > 1:
                real(arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return call


def test_a_disk_that_is_full_at_any_call_loses_nothing(directory: Path) -> None:
    for calls in range(40):
        folder = directory.with_name(f"state {calls}")
        journal = Journal(folder)
        journal.snapshot(b"0")
        written: list[bytes] = []
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, calls)
            failures = 0
            for index in range(6):
                try:
                    if index % 3 == 2:
                        journal.snapshot(str(len(written)).encode())
                    else:
                        journal.append([str(index).encode()])
                        written.append(str(index).encode())
                except RunError as error:
                    assert "the disk is full" in error.message
                    failures += 1
        assert failures == 0 if disk.left >= 0 else failures > 0
        journal.append([b"room again"])
        written.append(b"room again")
        journal.close()
        found = read_journal(folder)
        assert list(found.entries) == written[int(found.snapshot or b"0") :] and not found.notes


# Kill -9.


def _write_until_killed(folder: Path, told: int) -> None:
    """In a child: adds pairs, and tells after each add how many are on disk."""
    from aot.runtime.serving import controller

    controller._SEGMENT_BYTES = 3000  # so that snapshots are killed too
    canary = Canary(folder)
    for first in range(canary.judge.pairs, 10_000, 3):
        canary.add(Pair(0.0, "", "ok", "ok", 0.01, 0.01, key=str(key)) for key in range(first, first + 3))
        if first % 5 == 0:
            (canary.resume if canary.state == "paused" else canary.pause)("test", str(first))
        os.write(told, (first + 3).to_bytes(4, "little"))


def _kill_and_check(folder: Path, kills: int, seed: int) -> None:
    source = random.Random(seed)
    pairs = 0
    for _ in range(kills):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                _write_until_killed(folder, writing)
            finally:
                os._exit(1)
        os.close(writing)
        time.sleep(source.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
        said = max(pairs, int.from_bytes(told[-4:], "little"))
        with Canary(folder) as canary:
            pairs = canary.judge.pairs
            assert pairs in (said, said + 3), "a write that was told is lost, or more than the last one is there"
            numbers = [line["number"] for line in canary.audit()]
            assert numbers == list(range(1, len(numbers) + 1))
            assert canary._rollout.progress.number == numbers[-1]
            assert canary.judge._latency.pairs.count == max(0, pairs - 1)
    assert pairs > 0


def test_killed_at_random_instants(directory: Path) -> None:
    _kill_and_check(directory, 25, 1)


@pytest.mark.slow
def test_killed_hundreds_of_times(tmp_path: Path) -> None:
    _kill_and_check(tmp_path / "state", 400, 2)


def test_policy_of_a_killed_canary_stays(directory: Path) -> None:
    Canary(directory, CanaryPolicy(least_pairs=7)).close()
    with Canary(directory) as canary:
        assert canary.policy.least_pairs == 7


def test_a_forked_child_neither_writes_nor_locks(directory: Path) -> None:
    canary = Canary(directory)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(writing)
            try:
                canary.add([Pair(0.0, "", "ok", "ok", 0.01, 0.01)])
                code = 1
            except RunError:
                code = 0
            os.read(reading, 1)  # until the parent closes the other end
            os._exit(code)
        finally:
            os._exit(2)
    os.close(reading)
    try:
        with pytest.raises(LockedError):
            Journal(directory)  # the child's end of it changes nothing for the parent
        canary.close()
        with Canary(directory) as again:
            assert again.judge.pairs == 0
    finally:
        os.close(writing)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_entry_that_could_not_be_read_again_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.runtime.serving.journal._LONGEST", 100)
    journal = Journal(directory)
    journal.snapshot(b"state")
    with pytest.raises(RunError, match="at most 100 bytes"):
        journal.append([b"good", bytes(101)])
    journal.append([b"good"])
    journal.close()
    with pytest.raises(RunError, match="closed"):
        journal.snapshot(b"other")
    assert read_journal(directory).entries == (b"good",)
