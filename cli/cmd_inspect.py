"""`aotc inspect`: what is in an artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import click

from aot import dtypes
from aot.cli.common import (
    bytes_text,
    check_writable,
    common_options,
    host_steps_text,
    plain,
    precision_text,
    print_facts,
    print_json,
    print_table,
    target_bytes_text,
    wants,
    write_text,
)
from aot.cli.feeds import DimType, extents
from aot.cli.fusion import fusion_of, print_fusion
from aot.cli.loading import open_artifact
from aot.cli.machine import HERE, MachineType, here_facts, machine_text, selection_json
from aot.cli.memory_plan import memory_plan, summary, svg, text_bars
from aot.cli.operators import operators_text
from aot.dims import Dim, typical
from aot.errors import OptionError
from aot.options import DimRange
from aot.program import Constant, Program, RecipeOp, Space
from aot.program_text import guard_lines, program_text
from aot.text import type_text

OPS_COLUMNS = 100  # of the list of the model's ops
VIEWS = ("plan", "memory", "kernels", "guards", "fusion", "weights")


def _views(function: Callable[..., Any]) -> Callable[..., Any]:
    texts = {
        "plan": "Buffers, kernels and steps, as text.",
        "memory": "Where each buffer lies and how long it lives.",
        "kernels": "Kernels, their schedules and the user's nodes in them.",
        "guards": "The rules that inputs must keep.",
        "fusion": "What was fused, what was not, and why.",
        "weights": "Weights of the model, and the constants packed from them.",
    }
    for name in reversed(VIEWS):
        function = click.option(f"--{name}", "views", flag_value=name, multiple=True, help=texts[name])(function)
    return function


@click.command("inspect")
@click.argument("artifact", type=click.Path(path_type=Path))
@_views
@click.option("--source", metavar="KERNEL", help="Print the source of a kernel, by symbol or label.")
@click.option("--svg", "svg_path", type=click.Path(path_type=Path), metavar="FILE", help="--memory as a picture.")
@click.option("--program", "number", type=click.IntRange(0), default=0, show_default=True, help="Which program.")
@click.option("--dim", "dims", multiple=True, type=DimType(), metavar="NAME=N", help="Extent for --memory.")
@click.option(
    "--machine",
    type=MachineType(),
    metavar="sm=N,driver=N,cpu=LEVEL",
    help="Which program such a machine would run, and why not the others; here: this one.",
)
@common_options
def command(
    artifact: Path,
    views: tuple[str, ...],
    source: str | None,
    svg_path: Path | None,
    number: int,
    dims: tuple[DimRange, ...],
    machine: Any,
) -> None:
    """Show what is in ARTIFACT: an overview, or the parts asked for."""
    opened = open_artifact(artifact)
    if number >= len(opened.programs):
        raise OptionError(
            f"no program {number}", where=str(artifact), hint=f"It has the programs 0 to {len(opened.programs) - 1}."
        )
    program = opened.programs[number]
    if source is not None:
        print_source(program, source)
        return
    if machine is not None:
        print_selection(opened.programs, None if machine == HERE else machine)
        return
    if svg_path is not None:
        check_writable(svg_path)
        values = extents(program, dims)
        # A picture shows one arena: the largest of a flow's blocks, which sets how much memory a session takes.
        plan = max((memory_plan(part, values) for part in program.parts), key=lambda plan: plan.peak_bytes)
        write_text(svg_path, svg(plan, f"{artifact.name}, {program.target}"))
        views = views or ("memory",)
    if wants("json"):
        shown = {view: view_json(view, opened, program, dims) for view in views}
        print_json(shown if views else overview_json(artifact, opened))
        return
    if not views:
        print_facts(overview(artifact, opened))
    for view in views:
        if len(views) > 1:
            click.echo(click.style(view, bold=True, underline=True))
        print_view(view, opened, program, dims)


# The overview.


def overview(path: Path, artifact: Any) -> list[tuple[str, str]]:
    """What the file is, as facts."""
    meta = artifact.meta
    source = meta.get("source", {})
    facts = [("artifact", f"{path}, {bytes_text(artifact.size_bytes)}"), ("sha256", artifact.digest)]
    facts.append(("built by", f"aotc {meta.get('aotc', '?')}"))
    facts.append(("source", "\n".join(_source_lines(source)) or "unknown"))
    facts.append(("options", ", ".join(f"{name}={_short(value)}" for name, value in meta.get("options", {}).items())))
    if meta.get("host_steps"):
        facts.append(("host steps", host_steps_text(meta["host_steps"])))
    if meta.get("operators"):
        facts.append(("custom operators", operators_text(meta["operators"])))
    facts.append(("tools", ", ".join(f"{name} {version}" for name, version in meta.get("tools", {}).items())))
    for number, program in enumerate(artifact.programs):
        variant = f", variant {program.variant}" if program.variant else ""
        blocks = f"{len(program.parts)} blocks, " if program.flow is not None else ""
        counts = f"{len(program.distinct_kernels)} kernels, {len(program.launches)} steps"
        steps = f"{blocks}{counts}, {bytes_text(program.code_bytes)} of code"
        facts.append((f"program {number}", f"{program.target}{variant}{precision_text(meta, program.target)}: {steps}"))
    facts += here_facts(artifact.programs)
    program = artifact.programs[-1]
    facts.append(("inputs", "\n".join(f"{port.name}: {type_text(port.type)}" for port in program.inputs)))
    facts.append(("outputs", "\n".join(f"{port.name}: {type_text(port.type)}" for port in program.outputs)))
    if program.state:
        facts.append(("state", "\n".join(map(_state_text, state_json(program)))))
    bounds = [f"{s.name} in {s.lo}..{'' if s.hi is None else s.hi}" for s in program.input_symbols]
    facts.append(("dimensions", "\n".join(bounds) or "all fixed"))
    facts.append(
        ("sections", ", ".join(f"{name} {bytes_text(size)}" for name, size in artifact.sections.items() if size))
    )
    facts.append(("targets", target_bytes_text(artifact.target_bytes)))
    notes = meta.get("notes", [])
    return facts + ([("notes", "\n".join(notes))] if notes else [])


def _source_lines(source: Mapping[str, Any]) -> Iterator[str]:
    """What is known of the model; its ops all, over several lines, and no operator set where there is none (torch)."""
    for name, value in source.items():
        if name == "ops" and isinstance(value, Mapping):
            counts = ", ".join(f"{op} {count}" for op, count in value.items())
            yield from wrap(f"ops: {counts}", OPS_COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
        elif name == "symbols" and isinstance(value, Mapping):
            if value:
                pairs = (plain if plain == text else f"{plain} ({text})" for plain, text in value.items())
                yield _short(f"symbols: {', '.join(pairs)}")
        elif name != "opset" or value:
            yield f"{name}: {_short(value)}"


def state_json(program: Program) -> list[dict[str, Any]]:
    """For each input that a run replaces: its output, its size, and what its update moves in one piece of memory."""
    found = []
    held = dict(program.initial)
    for kept, new in program.state:
        steps: list[str] = []
        moved: Dim = 0
        for part in program.parts:
            own = {n for n, b in enumerate(part.buffers) if b.space is Space.OUTPUT and b.index == new}
            for step in part.steps if program.flow is None else ():
                written = len({argument.buffer for argument in step.arguments[-1:]} & own)
                if written:
                    steps.append(part.kernels[step.kernel].label)
                    moved = moved + step.bytes_moved
        found.append(
            {
                "input": program.inputs[kept].name,
                "output": program.outputs[new].name,
                "bytes": typical(program.inputs[kept].type.bytes),
                "moved_bytes": typical(moved),
                "kernels": steps,
                "initial": "the model's" if kept in held else "the caller's",
            }
        )
    return found


def _state_text(pair: Mapping[str, Any]) -> str:
    how = f"{bytes_text(pair['moved_bytes'])} moved in place by {', '.join(pair['kernels'])}"
    if not pair["kernels"]:
        how = "copied by the flow"
    return f"{pair['input']} -> {pair['output']}: {bytes_text(pair['bytes'])}, {pair['initial']} at first; {how}"


def print_selection(programs: Sequence[Program], machine: Any) -> None:
    """Which program a machine would run (None: this one), and why not the others."""
    found = selection_json(programs, machine)
    if wants("json"):
        print_json(found)
        return
    from aot.runtime import Machine

    print_facts(
        [
            ("machine", machine_text(Machine(**found["machine"])) + (" (this one)" if machine is None else "")),
            ("selected", found["selected"] or "no program runs there"),
        ]
    )
    rows = [
        (row["program"], row["target"], row["variant"] or "any shape", "selected" if row["selected"] else row["reason"])
        for row in found["programs"]
    ]
    print_table(("program", "target", "shapes", "why"), rows)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 96 else f"{text[:93]}..."


def overview_json(path: Path, artifact: Any) -> dict[str, Any]:
    """The same as a document, with all of the meta section."""
    return {
        "artifact": str(path),
        "bytes": artifact.size_bytes,
        "digest": artifact.digest,
        "meta": artifact.meta,
        "sections": artifact.sections,
        "target_bytes": artifact.target_bytes,
        "programs": [
            {
                "target": program.target,
                "variant": program.variant,
                "precision": artifact.meta.get("precisions", {}).get(program.target, "fp32"),
                "kernels": len(program.distinct_kernels),
                "steps": len(program.launches),
                "blocks": len(program.parts) if program.flow is not None else 0,
                "code_bytes": program.code_bytes,
                "peak_bytes": program.peak_bytes,
                "lower_bound_bytes": program.lower_bound_bytes,
                "planner": program.planner,
                "symbols": _symbols(program),
                "inputs": _ports(program.inputs),
                "outputs": _ports(program.outputs),
                "state": state_json(program),
                "host_steps": [
                    {"block": s.block, "node": ", ".join(s.locs), "op": s.op, "why": s.why} for s in program.host_steps
                ],
            }
            for program in artifact.programs
        ],
    }


def _symbols(program: Program) -> list[dict[str, Any]]:
    return [{"name": s.name, "lo": s.lo, "hi": s.hi, "divisor": s.divisor, "origin": s.origin} for s in program.symbols]


def _ports(ports: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"name": port.name, "dtype": port.type.dtype.name, "shape": port.type.shape} for port in ports]


# The views.


def print_view(view: str, artifact: Any, program: Program, dims: Sequence[DimRange]) -> None:
    """One view as text."""
    if view == "plan":
        click.echo(program_text(program), nl=False)
    elif view == "memory":
        values = extents(program, dims)
        for number, part in enumerate(program.parts):
            plan = memory_plan(part, values)
            click.echo(summary(plan) if program.flow is None else f"block {number}: {summary(plan)}")
            click.echo("\n".join(text_bars(plan)))
    elif view == "kernels":
        rows = kernel_rows(program)
        print_table(
            ("kernel", "kind", "launches", "schedule", "nodes", "symbol"),
            [(r["label"], r["kind"], r["launches"], r["schedule"], _names(r["nodes"]), r["symbol"]) for r in rows],
        )
    elif view == "guards":
        for line in guard_lines(program):
            click.echo(line.removeprefix("guard "))
        if not program.guards:
            click.echo("no rules beyond the types of the inputs")
    elif view == "fusion":
        print_fusion(fusion_of(artifact.meta, program))
    else:
        weights = weights_json(program)
        print_table(
            ("weight", "type", "bytes"),
            [(w["name"], f"{w['dtype']}{w['shape']}", w["bytes"]) for w in weights["sources"]],
        )
        print_table(
            ("constant", "type", "bytes", "made by", "from"),
            [
                (c["name"], f"{c['dtype']}{c['shape']}", c["bytes"], ", ".join(c["recipe"]), _names(c["sources"]))
                for c in weights["constants"]
            ],
        )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown}, … {len(names) - 6} more" if len(names) > 6 else shown


def view_json(view: str, artifact: Any, program: Program, dims: Sequence[DimRange]) -> Any:
    """One view as a document."""
    if view == "plan":
        return {"text": program_text(program)}
    if view == "memory":
        plans = [plain(memory_plan(part, extents(program, dims))) for part in program.parts]
        return plans[0] if program.flow is None else {"blocks": plans}
    if view == "kernels":
        return kernel_rows(program)
    if view == "guards":
        return guard_lines(program)
    if view == "fusion":
        return plain(fusion_of(artifact.meta, program))
    return weights_json(program)


def kernel_rows(program: Program) -> list[dict[str, Any]]:
    """A row per kernel, with the nodes of all its launches."""
    launches = Counter(kernel.symbol for kernel, _ in program.launches)
    nodes: dict[str, dict[str, None]] = {}
    for kernel, step in program.launches:
        nodes.setdefault(kernel.symbol, {}).update(dict.fromkeys(step.locs))
    return [
        {
            "label": kernel.label,
            "kind": kernel.kind,
            "launches": launches[kernel.symbol],
            "schedule": kernel.schedule,
            "nodes": list(nodes.get(kernel.symbol) or dict.fromkeys(kernel.locs)),
            "symbol": kernel.symbol,
        }
        for kernel in program.distinct_kernels
    ]


def weights_json(program: Program) -> dict[str, Any]:
    """Source weights, and the constants made of them."""
    sources = [
        {
            "name": source.name,
            "dtype": source.const.dtype.name,
            "shape": list(source.const.shape),
            "bytes": source.const.bytes,
            "digest": source.const.digest,
        }
        for source in {s.const.digest: s for part in program.parts for s in part.sources}.values()
    ]
    constants = [_constant(part, constant) for part in program.parts for constant in part.constants]
    return {"sources": sources, "constants": constants}


def _constant(program: Program, constant: Constant) -> dict[str, Any]:
    dtype = dtypes.BY_NUMBER[constant.dtype]
    elements = 1
    for extent in constant.shape:
        elements *= extent
    numbers = [number for step in constant.recipe if step.op == RecipeOp.SOURCE for number in step.operands]
    return {
        "name": constant.name,
        "dtype": dtype.name,
        "shape": list(constant.shape),
        "bytes": elements * dtype.itemsize_bytes,
        "recipe": [step.op.name.lower() for step in constant.recipe],
        "sources": [program.sources[number].name for number in numbers],
    }


def print_source(program: Program, wanted: str) -> None:
    """The source text of one kernel."""
    kernels = program.distinct_kernels
    found = [kernel for kernel in kernels if wanted in (kernel.symbol, kernel.label)]
    if not found:
        known = ", ".join(kernel.label or kernel.symbol for kernel in kernels[:8])
        raise OptionError(f"no kernel {wanted!r}", hint=f"Kernels: {known}{', …' if len(kernels) > 8 else ''}.")
    if not found[0].source:
        raise OptionError("the artifact holds no sources", hint="Build it without --strip-debug.")
    click.echo(found[0].source)
