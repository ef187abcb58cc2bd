"""What was fused into which kernel, and what was not and why: for people, and as a document.

`aotc build --explain-fusion` and `aotc inspect --fusion` show the same. Invariant: everything here comes
out of the artifact, in the names of the user's model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from aot.program import Program

EXAMPLES = 3  # names shown of a group, fewer where they are long
LINE_LETTERS = 120
NAME_LETTERS = 64  # of a name, before its middle is left out
PATTERN_NODES = 8  # of a kernel, before its middle is left out


@dataclass(frozen=True, slots=True)
class FusedGroup:
    """Kernels of one kind made of the same nodes by name: `pattern` without numbers and scopes, as `Conv + Relu`."""

    kind: str
    pattern: str
    kernels: tuple[tuple[str, ...], ...]  # the model's nodes in each


@dataclass(frozen=True, slots=True)
class Refused:
    """What did not happen for one reason: fusions of one pair of ops, or one rewrite rule."""

    what: str
    reason: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fusion:
    """The whole story of one program.

    `alone`: kernels of a single node, by kind. `without_kernel`: nodes of the model that became constants,
    sizes, or another view of the same bytes.
    """

    fused: tuple[FusedGroup, ...]
    alone: Mapping[str, int]
    without_kernel: int
    not_fused: tuple[Refused, ...]
    not_rewritten: tuple[Refused, ...]


def fusion_of(meta: Mapping[str, Any], program: Program) -> Fusion:
    """Groups the kernels of a program, and the refusals that its build recorded."""
    groups: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    alone: dict[str, int] = {}
    kernel_of: dict[str, set[int]] = {}
    for number, (kernel, step) in enumerate(program.launches):
        kind = kernel.kind
        for name in step.locs:
            kernel_of.setdefault(name, set()).add(number)
        if len(step.locs) > 1:
            groups.setdefault((kind, _pattern(step.locs)), []).append(step.locs)
        else:
            alone[kind] = alone.get(kind, 0) + 1
    fused = [FusedGroup(kind, pattern, tuple(kernels)) for (kind, pattern), kernels in groups.items()]
    not_fused: dict[tuple[str, str], dict[str, None]] = {}
    not_rewritten: dict[tuple[str, str], dict[str, None]] = {}
    for rule, where, reason in meta.get("fusion_refusals", []):
        sides = [_split(side) for side in where.split(" -> ")] if rule == "fuse" else []
        if len(sides) != 2:
            not_rewritten.setdefault((rule, _plain(reason)), {})[_split(where)[1]] = None
            continue
        (first, before), (second, after) = sides[0], sides[1]
        here, there = kernel_of.get(before, set()), kernel_of.get(after, set())
        if here & there or not here or not there:
            continue  # they met after all, are parts of one node, or belong to another program of the artifact
        not_fused.setdefault((f"{first} -> {second}", reason), {})[f"{before} -> {after}"] = None
    total = int(meta.get("source", {}).get("node_count", 0))
    return Fusion(
        tuple(sorted(fused, key=lambda group: -len(group.kernels))),
        dict(sorted(alone.items())),
        max(total - len(kernel_of), 0) if total else 0,
        _refused(not_fused),
        _refused(not_rewritten),
    )


def fusion_lines(fusion: Fusion) -> list[str]:
    """The story as text."""
    kernels = sum(len(group.kernels) for group in fusion.fused)
    nodes = len({name for group in fusion.fused for names in group.kernels for name in names})
    lines = [f"fused: {_count(nodes, 'node')} of the model in {_count(kernels, 'kernel')}"]
    for group in fusion.fused:
        ends = _examples([names[-1] for names in group.kernels])
        lines += _lines(f"  {len(group.kernels)} x {group.kind}: {group.pattern}", f"up to {ends}")
    if fusion.alone:
        kinds = ", ".join(f"{count} {kind}" for kind, count in fusion.alone.items())
        lines.append(f"alone: {_count(sum(fusion.alone.values()), 'kernel')} of one node or a part of it ({kinds})")
    if fusion.without_kernel:
        became = "became constants, sizes, or views of other tensors"
        if fusion.without_kernel == 1:
            became = "became a constant, a size, or a view of another tensor"
        lines.append(f"no kernel: {_count(fusion.without_kernel, 'node')} {became}")
    for title, refused, what in (
        ("not fused", fusion.not_fused, "pair"),
        ("not rewritten", fusion.not_rewritten, "place"),
    ):
        count = sum(len(item.places) for item in refused)
        if count:
            lines.append(f"{title}: {_count(count, what)}")
        for item in refused:
            lines += _lines(f"  {len(item.places)} x {item.what}: {item.reason}", _examples(item.places))
    if not fusion.not_fused and not fusion.not_rewritten:
        lines.append("nothing that was possible by form was left undone")
    return lines


def print_fusion(fusion: Fusion) -> None:
    """The story on stdout."""
    for line in fusion_lines(fusion):
        title, colon, rest = line.partition(":")
        click.echo(line if line.startswith(" ") else f"{click.style(title, bold=True)}{colon}{rest}")


def _refused(found: Mapping[tuple[str, str], Mapping[str, None]]) -> tuple[Refused, ...]:
    items = [Refused(what, reason, tuple(places)) for (what, reason), places in found.items()]
    return tuple(sorted(items, key=lambda item: (-len(item.places), item.what, item.reason)))


def _split(where: str) -> tuple[str, str]:
    """(op, the last of the model's nodes) of a node as `Node.where` describes it."""
    op, bracket, names = where.partition(" (")
    if not bracket or not names.endswith(")"):
        return op, where
    return op, names[:-1].rpartition(", ")[2]


def _plain(reason: str) -> str:
    """A reason without the list of nodes that an op was made of: only the last of them."""
    return re.sub(r"\((?:[^()]*, )+([^()]*)\)", r"(\1)", reason)


def _pattern(names: Sequence[str]) -> str:
    """What is left of node names without scopes and numbers, joined; repeats are counted."""
    parts: list[tuple[str, int]] = []
    for name in names:
        last = re.split(r"[/.:;]", name.rstrip("/.:;0123456789_"))[-1] or name
        if parts and parts[-1][0] == last:
            parts[-1] = (last, parts[-1][1] + 1)
        else:
            parts.append((last, 1))
    words = [word if count == 1 else f"{count} {word}" for word, count in parts]
    if len(words) > PATTERN_NODES:
        words = [*words[: PATTERN_NODES // 2], f"… {len(words) - PATTERN_NODES} more …", *words[-PATTERN_NODES // 2 :]]
    return " + ".join(words)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _lines(text: str, examples: str) -> list[str]:
    """A group on one line where that is short enough, else on two."""
    one = f"{text} ({examples})"
    return [one] if len(one) <= LINE_LETTERS else [text, f"      {examples}"]


def _examples(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown: list[str] = []
    for name in dict.fromkeys(" -> ".join(_short(side) for side in name.split(" -> ")) for name in names):
        if shown and (len(shown) == EXAMPLES or len(", ".join((*shown, name))) > LINE_LETTERS):
            break
        shown.append(name)
    rest = len(names) - len(shown)
    return f"{', '.join(shown)}, … {rest} more" if rest else ", ".join(shown)


def _short(name: str) -> str:
    """A name without its middle, where it is long: both ends tell the most."""
    half = NAME_LETTERS // 2 - 1
    return name if len(name) <= NAME_LETTERS else f"{name[:half]}…{name[-half:]}"
