"""Runs the blocks of a Markdown page, as a reader would, and puts what they print into the page.

- ```LANGUAGE file=NAME: the block's text is a file; blocks of the same name are joined in order.
- ```console: lines that begin with "$ " are commands (a final backslash continues one), the lines behind a command
  are what it prints, errors included. Commands run in an empty folder in which docs/ and runtime/ are those of the
  repository. `export` holds for the commands that follow. A command that fails is an error.
- needs=NAME,NAME behind either: commands or Python modules without which the block is skipped.
- ```text and blocks of other languages without file= are only shown.

In printed lines, "..." stands for any text, and a line of only "..." for any lines; what matches stays as it is.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST_SECONDS = 300


@dataclass
class Block:
    """A fenced block: the number of its first line (from 0, in the page) and its lines."""

    language: str
    words: Mapping[str, str]
    first: int
    lines: list[str]


@dataclass
class Page:
    """What came out of a run: the page with true output, what differed, and what was skipped and why."""

    text: str
    differences: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def blocks_of(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    block: Block | None = None
    for number, line in enumerate(text.splitlines()):
        if block is not None and line == "```":
            yield block
            block = None
        elif block is not None:
            block.lines.append(line)
        elif line.startswith("```"):
            language, *words = line[3:].split() or [""]
            block = Block(language, dict(word.split("=", 1) for word in words if "=" in word), number + 1, [])
    if block is not None:
        raise ValueError(f"line {block.first}: the block has no end")


def run_page(text: str, folder: Path, environment: Mapping[str, str]) -> Page:
    """Runs every block of a page in `folder`, which is empty."""
    for name in ("docs", "runtime"):
        (folder / name).symlink_to(ROOT / name)
    runner = _Runner(folder, {**os.environ, **_settings(), **environment})
    lines = text.splitlines()
    page = Page(text)
    replaced: list[tuple[Block, list[str]]] = []
    for block in blocks_of(text):
        missing = [name for name in block.words.get("needs", "").split(",") if name and not _is_here(name)]
        if missing:
            page.skipped.append(f"line {block.first}: needs {', '.join(missing)}")
        elif "file" in block.words:
            runner.write(block.words["file"], block.lines)
        elif block.language == "console":
            replaced.append((block, list(runner.console(block, page.differences))))
    for block, new in reversed(replaced):
        lines[block.first : block.first + len(block.lines)] = new
    page.text = "\n".join(lines) + "\n"
    return page


def matches(expected: list[str], found: list[str]) -> bool:
    """Whether printed lines are as the page has them, where "..." stands for anything."""
    regex = ""
    for line in expected:
        some = ".*".join(re.escape(part) for part in line.split("..."))
        regex += r"(?:.*\n)*" if line == "..." else some + r"\n"
    return re.fullmatch(regex, "".join(f"{line}\n" for line in found)) is not None


class _Runner:
    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.exports: list[str] = []

    def write(self, name: str, lines: list[str]) -> None:
        path = self.folder / name
        before = path.read_text() + "\n" if path.exists() else ""
        path.write_text(before + "\n".join(lines) + "\n")

    def console(self, block: Block, differences: list[str]) -> Iterator[str]:
        """The lines of a console block with true output; a difference is noted."""
        for first, command, expected in _commands(block):
            shown = command.split("\n")
            yield f"$ {shown[0]}"
            yield from shown[1:]
            found = self._run(command, block.first + first)
            if matches(expected, found):
                yield from expected
                continue
            differences.append(f"line {block.first + first + 1}: $ {command}\n{_difference(expected, found)}")
            yield from found

    def _run(self, command: str, line: int) -> list[str]:
        script = "\n".join(["set -o pipefail", *self.exports, command])
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=dict(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_SECONDS,
        )
        if done.returncode not in (0, 141):  # 141: `head` has read enough
            raise RuntimeError(f"line {line + 1}: exit code {done.returncode} from\n$ {command}\n{done.stdout}")
        if command.startswith("export "):
            self.exports.append(command)
        return [text.rstrip() for text in done.stdout.rstrip("\n").split("\n")] if done.stdout.strip() else []


def _commands(block: Block) -> Iterator[tuple[int, str, list[str]]]:
    """(line in the block, command, printed lines) of a console block."""
    index = 0
    while index < len(block.lines):
        if not block.lines[index].startswith("$ "):
            raise ValueError(f"line {block.first + index + 1}: expected a command, `$ ...`")
        start, command = index, block.lines[index][2:]
        while command.endswith("\\"):
            index += 1
            command += "\n" + block.lines[index]
        index += 1
        printed = index
        while index < len(block.lines) and not block.lines[index].startswith("$ "):
            index += 1
        yield start, command, block.lines[printed:index]


def _difference(expected: list[str], found: list[str]) -> str:
    import difflib

    return "\n".join(difflib.unified_diff(expected, found, "the page", "printed now", lineterm="", n=1))


def _is_here(name: str) -> bool:
    return shutil.which(name) is not None or importlib.util.find_spec(name) is not None


def _settings() -> dict[str, str]:
    """What makes commands print the same on every machine; the tools of this Python come first."""
    tools = str(Path(sys.executable).parent)
    search = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(search),
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
