"""`aotc diff`: what changed between two artifacts, from the source model down to the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from aot.cli.common import DIFFERS, bytes_text, common_options, plain, print_json, wants
from aot.cli.loading import open_artifact
from aot.program import Program

Change = dict[str, Any]  # {"what", "change": added | removed | changed, "before", "after"}


@click.command("diff")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--exit-code", is_flag=True, help="Exit with 3 when the artifacts differ.")
@common_options
def command(a: Path, b: Path, exit_code: bool) -> None:
    """Show what changed from artifact A to artifact B."""
    first, second = open_artifact(a), open_artifact(b)
    same = first.digest == second.digest
    sections = {} if same else compare(first, second)
    if wants("json"):
        print_json({"identical": same, "a": str(a), "b": str(b), "changes": sections})
    elif same:
        click.echo("identical: the same bytes")
    else:
        report(sections, first.size_bytes, second.size_bytes)
    click.get_current_context().exit(DIFFERS if exit_code and not same else 0)


def compare(first: Any, second: Any) -> dict[str, list[Change]]:
    """The changes by section; sections without changes are absent."""
    before, after = first.meta, second.meta
    sections: dict[str, list[Change]] = {
        "source": changes(before.get("source", {}), after.get("source", {})),
        "options": changes(before.get("options", {}), after.get("options", {})),
        "tools": changes(
            {"aotc": before.get("aotc"), **before.get("tools", {})},
            {"aotc": after.get("aotc"), **after.get("tools", {})},
        ),
        "build": changes(before.get("build", {}), after.get("build", {})),
    }
    rest = {"source", "options", "tools", "build", "aotc"}
    sections["meta"] = changes(
        {key: value for key, value in before.items() if key not in rest},
        {key: value for key, value in after.items() if key not in rest},
    )
    old = {program_name(program): program for program in first.programs}
    new = {program_name(program): program for program in second.programs}
    sections["programs"] = changes({name: "" for name in old}, {name: "" for name in new})
    for name in old:
        if name in new:
            for section, found in compare_programs(old[name], new[name]).items():
                sections[f"{section} of {name}"] = found
    return {name: found for name, found in sections.items() if found}


def program_name(program: Program) -> str:
    """How a program is told apart from the others of its artifact."""
    return f"{program.target} {program.variant}".strip()


def compare_programs(old: Program, new: Program) -> dict[str, list[Change]]:
    """Interface, kernels, plan and weights of two programs for the same target and variant."""
    return {
        "interface": changes(interface(old), interface(new)),
        "kernels": changes(kernels(old), kernels(new)),
        "plan": changes(plan(old), plan(new)),
        "weights": changes(
            {source.name: _weight(source) for part in old.parts for source in part.sources},
            {source.name: _weight(source) for part in new.parts for source in part.sources},
        ),
    }


def interface(program: Program) -> dict[str, str]:
    """What a caller sees: ports and symbols."""
    ports = [*(("input", port) for port in program.inputs), *(("output", port) for port in program.outputs)]
    result = {f"{what} {port.name}": str(port.type) for what, port in ports}
    for symbol in program.symbols:
        hi = "" if symbol.hi is None else symbol.hi
        multiple = f", multiple of {symbol.divisor}" if symbol.divisor > 1 else ""
        result[f"dimension {symbol.name}"] = f"{symbol.lo}..{hi}{multiple}"
    return result


def kernels(program: Program) -> dict[str, Any]:
    """Kernels by label (numbered where a label repeats): kind, schedule, nodes and source."""
    result: dict[str, Any] = {}
    seen: dict[str, int] = {}
    for kernel in program.distinct_kernels:
        seen[kernel.label] = seen.get(kernel.label, 0) + 1
        name = kernel.label if seen[kernel.label] == 1 else f"{kernel.label} ({seen[kernel.label]})"
        nodes = ", ".join(kernel.locs)
        result[name] = {"kind": kernel.kind, "schedule": kernel.schedule, "nodes": nodes, "symbol": kernel.symbol}
    return result


def plan(program: Program) -> dict[str, Any]:
    """The plan in a few numbers."""
    return {
        "blocks": len(program.parts),
        "flow": [step.op.name.lower() for step in program.flow.steps] if program.flow is not None else [],
        "steps": len(program.launches),
        "barriers": sum(step.barrier for _, step in program.launches),
        "buffers": sum(len(part.buffers) for part in program.parts),
        "peak_bytes": str(program.peak_bytes),
        "lower_bound_bytes": str(program.lower_bound_bytes),
        "planner": program.planner,
        "guards": len(program.guards),
        "code_bytes": program.code_bytes,
        "order": [kernel.label for kernel, _ in program.launches],
    }


def _weight(source: Any) -> str:
    shape = "x".join(map(str, source.const.shape)) or "scalar"
    return f"{source.const.dtype.name} {shape} {source.const.digest[:16]}"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """What was added, removed or changed, in the order of the names as they appear."""
    found: list[Change] = []
    for name in dict.fromkeys([*before, *after]):
        if name not in after:
            found.append({"what": name, "change": "removed", "before": before[name], "after": None})
        elif name not in before:
            found.append({"what": name, "change": "added", "before": None, "after": after[name]})
        elif plain(before[name]) != plain(after[name]):
            found.append({"what": name, "change": "changed", "before": before[name], "after": after[name]})
    return found


_MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


def report(sections: Mapping[str, Sequence[Change]], before_bytes: int, after_bytes: int) -> None:
    """The changes as lines, a heading per section."""
    click.echo(f"size {bytes_text(before_bytes)} -> {bytes_text(after_bytes)}")
    if not sections:
        click.echo("only the encoding differs: sources, options, kernels, plans and weights are equal")
    for name, found in sections.items():
        counts = ", ".join(
            f"{sum(item['change'] == change for item in found)} {change}"
            for change in _MARKS
            if any(item["change"] == change for item in found)
        )
        click.echo(click.style(f"{name}: {counts}", bold=True))
        for item in found:
            mark, colour = _MARKS[item["change"]]
            click.echo(f"  {click.style(mark, fg=colour)} {item['what']}{_detail(item)}")


def _detail(item: Change) -> str:
    before, after = item["before"], item["after"]
    if item["change"] == "changed":
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            parts = [f"{c['what']} {_short(c['before'])} -> {_short(c['after'])}" for c in changes(before, after)]
            return f": {'; '.join(parts)}"
        if isinstance(before, list) and isinstance(after, list):
            return f": {_list_change(before, after)}"
        return f": {_short(before)} -> {_short(after)}"
    value = after if item["change"] == "added" else before
    if isinstance(value, Mapping):
        value = value.get("schedule", "")
    return f": {_short(value)}" if value not in ("", None) else ""


def _list_change(before: Sequence[Any], after: Sequence[Any]) -> str:
    """How many entries two lists share, and where they part."""
    common = next(
        (i for i, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), min(len(before), len(after))
    )
    return f"{len(before)} -> {len(after)} entries, the first {common} equal"


def _short(value: Any) -> str:
    text = "none" if value in (None, "") else str(plain(value))
    return text if len(text) <= 100 else f"{text[:97]}..."
