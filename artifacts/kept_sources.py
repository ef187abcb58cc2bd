"""Which weights of the model the file holds as they are, so that no weight is in it twice.

Programs of several targets read a weight in several packings: panels of columns on a CPU, rows on a GPU. Where these
together are larger than the weight, the file holds the weight, and a loader makes the packings of the program that it
takes (one that is the weight's own bytes is there already). Where all programs that read a weight read it alike, as on
two levels of x86-64, the file holds their packing, ready.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from aot import dtypes
from aot.ir import Const
from aot.program import Constant, Program, RecipeOp

WORTH = 1.15
"""Packings may be this much larger than the weights before they are left to the loader."""


@dataclass
class _Group:
    """Weights that recipes join, and what is made of them: the sizes of packings, and which each program reads."""

    sources: dict[str, Const] = field(default_factory=dict)
    sizes: dict[Hashable, int] = field(default_factory=dict)
    readers: dict[int, set[Hashable]] = field(default_factory=dict)

    @property
    def is_kept(self) -> bool:
        alike = len({frozenset(keys) for keys in self.readers.values()}) == 1
        return not alike and sum(self.sizes.values()) > WORTH * sum(source.bytes for source in self.sources.values())


def packing_key(program: Program, constant: Constant) -> Hashable:
    """Equal for constants that have the same bytes since the same recipe makes them of the same weights."""
    sources = [program.sources[step.operands[0]] for step in constant.recipe if step.op == RecipeOp.SOURCE]
    steps = tuple(step if step.op != RecipeOp.SOURCE else step.op for step in constant.recipe)
    return tuple(source.const.digest for source in sources), steps, constant.dtype, constant.shape


def constant_bytes(constant: Constant) -> int:
    """Bytes of a packed constant."""
    size = dtypes.BY_NUMBER[constant.dtype].itemsize_bytes
    for extent in constant.shape:
        size *= extent
    return size


def kept_sources(programs: Sequence[Program]) -> Mapping[str, Const]:
    """The weights to hold as they are, by digest, in the order in which programs name them."""
    groups: dict[str, _Group] = {}
    order: dict[str, Const] = {}
    for number, program in enumerate(programs):
        for part in (program, *(program.flow.blocks if program.flow is not None else ())):
            for constant in part.constants:
                sources = {
                    source.const.digest: source.const
                    for step in constant.recipe
                    if step.op == RecipeOp.SOURCE
                    for source in (part.sources[step.operands[0]],)
                }
                if not sources:
                    continue
                order |= sources
                group = _join(groups, sources)
                key = packing_key(part, constant)
                group.sizes[key] = constant_bytes(constant)
                group.readers.setdefault(number, set()).add(key)
    return {digest: const for digest, const in order.items() if groups[digest].is_kept}


def _join(groups: dict[str, _Group], sources: Mapping[str, Const]) -> _Group:
    """The one group that has all of these weights."""
    found = list({id(groups[digest]): groups[digest] for digest in sources if digest in groups}.values())
    joined = max(found, key=lambda group: len(group.sources), default=_Group())
    for other in found:
        if other is joined:
            continue
        joined.sources |= other.sources
        joined.sizes |= other.sizes
        for number, keys in other.readers.items():
            joined.readers.setdefault(number, set()).update(keys)
        groups |= dict.fromkeys(other.sources, joined)
    joined.sources |= sources
    groups |= dict.fromkeys(sources, joined)
    return joined
