"""The audit log: a line of JSON for each decision, for people; the journal is what counts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aot.runtime.serving.journal import StateError


class Audit:
    """Appends lines. Those that a crash kept from the file are written again from the journal's decisions."""

    def __init__(self, path: Path, decisions: Sequence[dict[str, Any]]) -> None:
        """`decisions`: the latest, with their "number", as the journal has them. Raises StateError as `flush` does."""
        self.path = path
        self._whole_bytes = 0
        lines = self._read()
        last = max((line["number"] for line in lines), default=0)
        self._unwritten = [line for line in decisions if line["number"] > last]
        self.flush()

    def _read(self) -> list[dict[str, Any]]:
        """The whole lines that can be read; what follows the last line end is a torn line, to be overwritten."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateError(
                f"the audit log cannot be read: {error.strerror or error}", where=str(self.path)
            ) from error
        self._whole_bytes = data.rfind(b"\n") + 1
        lines = []
        for text in data[: self._whole_bytes].split(b"\n"):
            try:
                line = json.loads(text)
                if isinstance(line, dict) and isinstance(line.get("number"), int):
                    lines.append(line)
            except (ValueError, RecursionError):
                continue  # damaged by others: the file is theirs to look after, its other lines stay
        return lines

    def add(self, line: dict[str, Any]) -> None:
        """One decision, which the journal has already: a log that cannot be written now is written later."""
        self._unwritten.append(line)
        try:
            self.flush()
        except StateError:
            pass

    def flush(self) -> None:
        """Writes what is unwritten, and syncs. Raises StateError where it cannot; then it is as it was."""
        if not self._unwritten:
            return
        # What is no Unicode, as in an argument of another encoding, becomes JSON's escape for it.
        texts = [json.dumps(line, ensure_ascii=False) + "\n" for line in self._unwritten]
        data = "".join(texts).encode(errors="backslashreplace")
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(file, self._whole_bytes)
                view, at = memoryview(data), self._whole_bytes
                while view:
                    written = os.pwrite(file, view, at)
                    view, at = view[written:], at + written
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise StateError(
                f"the audit log cannot be written: {error.strerror or error}", where=str(self.path)
            ) from error
        self._whole_bytes = at
        self._unwritten = []

    def lines(self) -> list[dict[str, Any]]:
        """All decisions, the oldest first."""
        unwritten = list(self._unwritten)
        whole = self._whole_bytes
        lines = self._read()
        self._whole_bytes = whole
        return lines + unwritten
