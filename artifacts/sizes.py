"""Where the bytes of an artifact are, for people: by target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aot.artifacts.layout import ConstantFlag, Section
from aot.artifacts.read import Reader


@dataclass(frozen=True, slots=True)
class TargetBytes:
    """Of the programs of one target: bytes of code; of constants that lie ready in the file, and that a load makes.

    `own_bytes`: of the code and constants in the file, what no other target uses.
    """

    target: str
    code_bytes: int
    ready_bytes: int
    made_bytes: int
    own_bytes: int


def target_bytes(reader: Reader) -> tuple[TargetBytes, ...]:
    """A row for each target, in the order of the file."""
    programs = reader.tables[Section.PROGRAMS]
    code: dict[str, dict[tuple[int, int], int]] = {}
    ready: dict[str, dict[tuple[int, int], int]] = {}
    made: dict[str, int] = {}
    for row in programs:
        target = reader.text(row["target"])
        place = (row["code_offset"], row["code_bytes"])
        code.setdefault(target, {})[place] = row["code_bytes"]
        own = ready.setdefault(target, {})
        made.setdefault(target, 0)
        seen: set[Any] = set()
        for constant in reader.run(Section.CONSTANTS, row["constants"]):
            if constant["flags"] & ConstantFlag.EMBEDDED:
                own[constant["offset"], constant["bytes"]] = constant["bytes"]
            elif (key := (constant["name"], constant["recipe"])) not in seen:
                seen.add(key)
                made[target] += constant["bytes"]
    return tuple(
        TargetBytes(
            target,
            sum(code[target].values()),
            sum(ready[target].values()),
            made[target],
            _only(code, target) + _only(ready, target),
        )
        for target in code
    )


def _only(places: Mapping[str, Mapping[tuple[int, int], int]], target: str) -> int:
    others = {place for name, found in places.items() if name != target for place in found}
    return sum(size for place, size in places[target].items() if place not in others)
