"""A journal in a directory: entries that survive kill -9 and power loss at any instant, with snapshots and a lock.

The directory holds `lock`, segments `journal-N` (entries after snapshot N, in order) and `snapshot-N` (the state when
segment N was begun). An entry is its length, a CRC-32 of length and bytes, and the bytes. Entries are written and
synced before `append` returns; a snapshot is written beside, synced, renamed and the directory synced, and only then
are segments dropped that no kept snapshot needs. The last snapshot but one is kept with its segments, so one damaged
snapshot loses nothing. The order of writes is that of Pillai et al., "All file systems are not created equal" (2014).

Invariant: what is recovered is a prefix of what was appended, and holds everything that `append` returned for, unless
bytes on disk were changed; then it ends before the first damaged entry, and `notes` say so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import weakref
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.errors import RunError

_HEADER = struct.Struct("<II")
_MAGIC = {"journal": b"AOTJRN1\n", "snapshot": b"AOTSNP1\n"}
_LONGEST = 1 << 30
_NAME = re.compile(r"(journal|snapshot)-(\d{8})")


class LockedError(RunError):
    """Another controller holds the state directory."""


class StateError(RunError):
    """The state directory cannot be read or written, now."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """`snapshot`: its bytes, None where there is none. `entries`: what was appended since. `notes`: what was damaged,
    for people. `segment`: where to go on, and `size_bytes`: after how many bytes; None: in a new segment."""

    snapshot: bytes | None
    entries: tuple[bytes, ...]
    notes: tuple[str, ...]
    segment: int
    size_bytes: int | None


class Journal:
    """The one writer of a directory; makes it where it is missing. Raises RunError where another one holds it."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._file = -1
        self._must_repair = self._must_sync = False
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot("make the state directory", self.directory, error) from error
        self._lock = _take_lock(self.directory)
        _open.add(self)
        try:
            self.recovered = read_journal(self.directory)
            self._segment = self.recovered.segment
            self._size = 0
            if self.recovered.size_bytes is not None:
                self._open_segment(self.recovered.size_bytes)
        except BaseException:
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        """Of the segment that is written now: how much a restart must read."""
        return self._size

    def append(self, entries: Sequence[bytes]) -> None:
        """Appends entries; on disk when this returns. Raises RunError, having appended none of them, if it cannot."""
        self._check_open()
        if self._file < 0:
            raise RunError("a journal begins with a snapshot", where=str(self.directory))
        if any(len(entry) > _LONGEST for entry in entries):
            raise RunError(f"an entry of a journal has at most {_LONGEST} bytes", where=str(self.directory),
                           hint="Add fewer records at once.")  # fmt: skip
        self._sync()
        data = b"".join(_framed(entry) for entry in entries)
        try:
            if self._must_repair:
                os.ftruncate(self._file, self._size)
                os.fsync(self._file)
                self._must_repair = False
            _write_all(self._file, data, self._size)
            os.fsync(self._file)
        except OSError as error:
            # A part may be there. It is cut off now, or before the next entry, or ends a recovery as a torn one does.
            self._must_repair = True
            try:
                os.ftruncate(self._file, self._size)
            except OSError:
                pass
            raise _cannot("write the journal", self._path("journal", self._segment), error) from error
        self._size += len(data)

    def _check_open(self) -> None:
        if self._lock < 0:
            raise RunError("the journal is closed, or belongs to the process that this one was forked from",
                           where=str(self.directory))  # fmt: skip

    def snapshot(self, state: bytes) -> None:
        """Replaces all entries so far by a state. Raises RunError, with everything as it was, if it cannot."""
        self._check_open()
        following = self._segment + 1 if self._file >= 0 or self.recovered.snapshot is not None else self._segment
        path, entries = self._path("snapshot", following), self._path("journal", following)
        beside = path.with_suffix(".new")
        segment = -1
        try:
            # The segment is there first: without the snapshot it follows the one before, with no entries.
            segment = self._new_file(entries, _MAGIC["journal"])
            os.close(self._new_file(beside, _MAGIC["snapshot"] + _framed(state)))
            os.replace(beside, path)
        except OSError as error:
            if segment >= 0:
                os.close(segment)
            for leftover in (beside, entries):
                _remove(leftover)
            raise _cannot("write a snapshot", path, error) from error
        if self._file >= 0:
            os.close(self._file)
        self._file, self._segment, self._size, self._must_repair = segment, following, len(_MAGIC["journal"]), False
        self._must_sync = True  # the new segment is right with and without the snapshot's new name, once it is there
        self._sync()
        self._drop_older()

    def _sync(self) -> None:
        if not self._must_sync:
            return
        try:
            _sync_directory(self.directory)
        except OSError as error:
            raise _cannot("sync the state directory", self.directory, error) from error
        self._must_sync = False

    def _new_file(self, path: Path, data: bytes) -> int:
        """A new file with these bytes, synced; its descriptor."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write_all(file, data, 0)
            os.fsync(file)
        except BaseException:
            os.close(file)
            raise
        return file

    def _open_segment(self, size_bytes: int) -> None:
        """Goes on in the last segment, after its last whole entry."""
        path = self._path("journal", self._segment)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if size_bytes < len(_MAGIC["journal"]):
                os.ftruncate(self._file, 0)
                _write_all(self._file, _MAGIC["journal"], 0)
                size_bytes = len(_MAGIC["journal"])
            os.ftruncate(self._file, size_bytes)
            os.fsync(self._file)
            _sync_directory(self.directory)
        except OSError as error:
            raise _cannot("repair the journal", path, error) from error
        self._size = size_bytes

    def _drop_older(self) -> None:
        """Removes what the last two snapshots do not need; what cannot be removed now is tried again later."""
        for leftover in self.directory.glob("snapshot-*.new"):
            _remove(leftover)
        kept = sorted(number for kind, number in _numbered(self.directory) if kind == "snapshot")[-2:]
        for kind, number in _numbered(self.directory):
            if number < kept[0]:
                _remove(self._path(kind, number))

    def _path(self, kind: str, number: int) -> Path:
        return self.directory / f"{kind}-{number:08d}"

    def close(self) -> None:
        """Releases the directory; may be called twice."""
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # also where a child is just being forked, which has it too
        self._close_files()

    def _close_files(self) -> None:
        for name in ("_file", "_lock"):
            descriptor = getattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)


_open: weakref.WeakSet[Journal] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child must not write what its parent writes, nor keep the directory locked when that has ended."""
    for journal in list(_open):
        journal._close_files()  # without unlocking, which would unlock the parent's


os.register_at_fork(after_in_child=_close_in_child)


def read_journal(directory: str | os.PathLike[str]) -> Recovered:
    """What a directory's journal holds, without changing or locking it. Raises RunError where nothing can be read.

    A writer that takes a snapshot meanwhile may remove what is being read: then it is read again.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise StateError("no such directory", where=str(directory))
    for attempt in range(5):
        try:
            return _read(directory)
        except FileNotFoundError:
            if attempt == 4:
                raise StateError("the journal changes faster than it can be read", where=str(directory)) from None
        except OSError as error:
            raise _cannot("read the journal", directory, error) from error
    raise AssertionError("unreachable")


def _read(directory: Path) -> Recovered:
    numbers = list(_numbered(directory))
    snapshots = sorted((number for kind, number in numbers if kind == "snapshot"), reverse=True)
    segments = sorted(number for kind, number in numbers if kind == "journal")
    notes: list[str] = []
    if not snapshots:
        if segments and (directory / f"journal-{segments[-1]:08d}").stat().st_size > len(_MAGIC["journal"]):
            raise RunError(
                "the journal has entries, but no snapshot that they follow", where=str(directory),
                hint="Restore the directory from a copy, or begin a new canary in an empty one.",
            )  # fmt: skip
        return Recovered(None, (), (), max(segments, default=0), None)
    for number in snapshots:
        state, _, damage = _entries(directory / f"snapshot-{number:08d}", "snapshot")
        if len(state) == 1 and not damage:
            break
        notes.append(f"snapshot-{number:08d} is damaged: {damage or 'it is not one entry'}; the one before is used")
    else:
        raise RunError(
            "every snapshot of the journal is damaged", where=str(directory),
            hint="Restore the directory from a copy, or begin a new canary in an empty one.",
        )  # fmt: skip
    last = max([number, *segments])
    found: list[bytes] = []
    for index in range(number, last + 1):
        path = directory / f"journal-{index:08d}"
        if not path.exists():
            if not (directory / f"snapshot-{number:08d}").exists():
                raise FileNotFoundError(path)  # a writer went on meanwhile
            notes.append(f"journal-{index:08d} is missing")
            return Recovered(state[0], tuple(found), tuple(notes), last, None)
        entries, size_bytes, damage = _entries(path, "journal")
        found += entries
        if damage:
            lost = path.stat().st_size - size_bytes
            if index == last and index > number and not size_bytes:
                continue  # begun just before the end
            notes.append(f"journal-{index:08d}: {damage}; {lost} bytes after the last whole entry are dropped")
            if index < last:
                notes.append(f"what was written after journal-{index:08d} cannot be used without it")
                return Recovered(state[0], tuple(found), tuple(notes), last, None)
    if number < last or number != snapshots[0]:
        return Recovered(state[0], tuple(found), tuple(notes), last, None)
    return Recovered(state[0], tuple(found), tuple(notes), last, size_bytes)


def _numbered(directory: Path) -> Iterator[tuple[str, int]]:
    for name in os.listdir(directory):
        match = _NAME.fullmatch(name)
        if match:
            yield match[1], int(match[2])


def _entries(path: Path, kind: str) -> tuple[list[bytes], int, str]:
    """(whole entries, where they end, what is wrong after that)."""
    data = path.read_bytes()
    magic = _MAGIC[kind]
    if data[: len(magic)] != magic:
        return [], 0, "its first bytes are damaged" if data else "it is empty"
    at = len(magic)
    entries: list[bytes] = []
    while at < len(data):
        if at + _HEADER.size > len(data):
            return entries, at, f"the entry at byte {at} is not whole"
        length, checksum = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + length
        if length > _LONGEST or end > len(data):
            return entries, at, f"the entry at byte {at} is not whole"
        body = data[at + _HEADER.size : end]
        if _checksum(body) != checksum:
            return entries, at, f"the entry at byte {at} is damaged"
        entries.append(body)
        at = end
    return entries, at, ""


def _checksum(body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(struct.pack("<I", len(body))))


def _framed(entry: bytes) -> bytes:
    return _HEADER.pack(len(entry), _checksum(entry)) + entry


def _write_all(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def _remove(path: Path) -> None:
    """Removes a file that does no harm where it stays."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take_lock(directory: Path) -> int:
    """Locks the directory for this process; the kernel releases it however the process ends."""
    path = directory / "lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _cannot("open the lock", path, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        os.close(lock)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise _cannot("lock the state directory", path, error) from error
        if owner == str(os.getpid()):
            raise LockedError(
                "another controller of this process works on this state directory", where=str(directory),
                hint="Close it first (Canary.close); closing a deployment leaves its canary open.",
            ) from None  # fmt: skip
        raise LockedError(
            f"another controller{f' (process {owner})' if owner else ''} works on this state directory",
            where=str(directory), hint="One controller a directory: end the other one, or use another directory.",
        ) from None  # fmt: skip
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except OSError:
        pass  # the process number is only for the message
    return lock


def _cannot(what: str, path: Path, error: OSError) -> StateError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StateError(
        f"cannot {what}: {'the disk is full' if full else error.strerror or error}", where=str(path),
        hint="Make room; the canary holds until its state can be written." if full
        else "Check that the directory exists, is on a local disk and may be written.",
    )  # fmt: skip
