"""Where the bytes of an artifact are, for people: by target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aot.artifacts.layout import ConstantFlag, Section, WeightsMode
from aot.artifacts.read import Reader
from aot.program import RecipeOp

_Places = dict[tuple[int, int], int]
"""Sizes by (offset, size) in a section."""


@dataclass(frozen=True, slots=True)
class TargetBytes:
    """Of the programs of one target: bytes of code; of constants that lie ready in the file, and that a load makes.

    `own_bytes`: of the code, constants and weights in the file, what no other target uses.
    """

    target: str
    code_bytes: int
    ready_bytes: int
    made_bytes: int
    own_bytes: int


def target_bytes(reader: Reader) -> tuple[TargetBytes, ...]:
    """A row for each target, in the order of the file."""
    code: dict[str, _Places] = {}
    ready: dict[str, _Places] = {}
    used: dict[str, _Places] = {}
    made: dict[str, dict[tuple[int, tuple[int, int]], int]] = {}
    for row in reader.tables[Section.PROGRAMS]:
        target = reader.text(row["target"])
        for table in (code, ready, used):
            table.setdefault(target, {})
        made.setdefault(target, {})
        code[target][row["code_offset"], row["code_bytes"]] = row["code_bytes"]
        sources = reader.run(Section.SOURCES, row["sources"])
        for constant in reader.run(Section.CONSTANTS, row["constants"]):
            place = (constant["offset"], constant["bytes"])
            if constant["flags"] & ConstantFlag.EMBEDDED:
                ready[target][place] = used[target][place] = constant["bytes"]
                continue
            made[target][constant["name"], constant["recipe"]] = constant["bytes"]
            for step in reader.run(Section.RECIPES, constant["recipe"]):
                if step["op"] == RecipeOp.SOURCE and row["weights"] == WeightsMode.EMBEDDED:
                    source = sources[reader.values(step["operands"])[0]]
                    used[target][source["external_offset"], source["bytes"]] = source["bytes"]
    return tuple(
        TargetBytes(
            target,
            sum(code[target].values()),
            sum(ready[target].values()),
            sum(made[target].values()),
            _only(code, target) + _only(used, target),
        )
        for target in code
    )


def _only(places: Mapping[str, _Places], target: str) -> int:
    others = {place for name, found in places.items() if name != target for place in found}
    return sum(size for place, size in places[target].items() if place not in others)
