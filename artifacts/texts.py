"""The debug section: texts by name, with every line stored once.

Kernels of one model for several targets, and graphs on their way to several programs, differ in few lines. A text is a
list of runs of lines: first, count, first, count, …; lines are numbered as they first come, so new text is one run.
No compressor: its output would depend on its version, and the same inputs must give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def encode(kernels: Sequence[Mapping[str, str]], texts: Mapping[str, str]) -> bytes:
    """The section of kernel sources by symbol, for each program, and of texts by name."""
    lines: dict[str, int] = {}

    def runs(text: str) -> list[int]:
        found: list[int] = []
        for line in text.split("\n"):
            number = lines.setdefault(line, len(lines))
            if found and found[-2] + found[-1] == number:
                found[-1] += 1
            else:
                found += (number, 1)
        return found

    value: dict[str, Any] = {
        "kernels": [{symbol: runs(text) for symbol, text in sorted(sources.items())} for sources in kernels],
        "texts": {name: runs(text) for name, text in sorted(texts.items())},
    }
    value["lines"] = list(lines)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def decode(value: Mapping[str, Any]) -> dict[str, Any]:
    """{"kernels": [{symbol: text}], "texts": {name: text}} of a parsed section. Raises ValueError for a damaged one."""
    lines = value.get("lines")
    kernels, texts = value.get("kernels", []), value.get("texts", {})
    if not isinstance(kernels, list) or not all(isinstance(each, dict) for each in (texts, *kernels)):
        raise ValueError("texts by name are expected")
    if lines is None:  # files before format 1.4 hold the texts themselves
        return {"kernels": kernels, "texts": texts}
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ValueError("lines of text are expected")
    return {
        "kernels": [{symbol: _text(lines, runs) for symbol, runs in sources.items()} for sources in kernels],
        "texts": {name: _text(lines, runs) for name, runs in texts.items()},
    }


def _text(lines: Sequence[str], runs: Any) -> str:
    if not isinstance(runs, list) or len(runs) % 2 or not all(isinstance(number, int) for number in runs):
        raise ValueError("runs of lines are expected")
    found: list[str] = []
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        if not 0 <= first <= first + count <= len(lines):
            raise ValueError(f"lines {first} to {first + count} do not exist")
        found += lines[first : first + count]
    return "\n".join(found)
