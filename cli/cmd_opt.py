"""`aotc opt`: compiler passes on a model or on IR text. Text in, text out: it is how bugs are reported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import click

from aot.cli.common import check_file, common_options, note, print_json, print_table, seconds_text, wants, write_text
from aot.cli.feeds import DimType
from aot.cli.operators import operators_option
from aot.control import has_control
from aot.errors import ModelError, OptionError
from aot.file_kinds import kind_of
from aot.ir import Graph
from aot.options import IO_DTYPES, PRECISIONS, CompileOptions, DimRange
from aot.passes import Context, Pass, PassManager, check_disable, unique_names
from aot.text import consts_of, parse_graph, print_graph

RULES_COLUMNS = 120  # of the lists of rules


@click.command("opt")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--pass", "names", multiple=True, metavar="NAME", help="Run this pass. May be repeated, in order.")
@click.option("--from", "start", metavar="NAME", help="Start with this pass of the pipeline.")
@click.option("--until", metavar="NAME", help="Stop after this pass of the pipeline.")
@click.option(
    "--dump-after-all", "dump_dir", type=click.Path(path_type=Path), metavar="DIR", help="Text after each pass."
)
@click.option("--why", nargs=2, metavar="RULE NODE", help="Say why a rewrite did not happen there (* is any rule).")
@click.option("--disable", multiple=True, metavar="PASS[:n]", help="Skip a pass, its n-th run, or a rewrite rule.")
@click.option("--bisect", type=int, metavar="N", help="Let only the first N rewrites happen.")
@click.option("--dim", "dims", multiple=True, type=DimType(), metavar="NAME=LO..HI", help="Bounds of a dimension.")
@click.option("--target", default="cpu", show_default=True, help="For the passes that ask the target.")
@click.option("--exact", is_flag=True, help="As for build.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="fp32", help="As for build.")
@click.option("--io-dtype", type=click.Choice(list(IO_DTYPES)), default="model", help="As for build.")
@click.option("--weights", type=click.Path(path_type=Path), metavar="MODEL", help="Where a .air file's constants are.")
@click.option("--block", type=click.IntRange(0), metavar="N", help="Work on one block of a model with control flow.")
@operators_option
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT.air", help="Default: stdout.")
@click.option("--list", "list_passes", is_flag=True, help="List the passes of the pipeline.")
@common_options
def command(
    model: Path | None,
    names: tuple[str, ...],
    start: str | None,
    until: str | None,
    dump_dir: Path | None,
    why: tuple[str, str] | None,
    disable: tuple[str, ...],
    bisect: int | None,
    dims: tuple[DimRange, ...],
    target: str,
    exact: bool,
    precision: str,
    io_dtype: str,
    weights: Path | None,
    block: int | None,
    operators: tuple[str, ...],
    output: Path | None,
    list_passes: bool,
) -> None:
    """Run compiler passes on MODEL (FILE.air or MODEL.onnx) and print the resulting IR.

    Without --pass the whole pipeline runs, from the first pass that takes the file's level.
    """
    from aot.pipeline import PIPELINE

    if list_passes:
        report_passes(PIPELINE)
        return
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    from aot import custom, driver

    click.get_current_context().with_resource(custom.use(operators))
    options = CompileOptions(
        targets=(target,), dims=dims, disable=disable, bisect=bisect, exact=exact, precision=precision,
        io_dtype=io_dtype, dump_dir=dump_dir,
    )  # fmt: skip
    graph = read_graph(model, weights, options)
    if has_control(graph) or block is not None:
        cut = blocks_of(graph)
        if block is None:
            report_uncut(graph, len(cut), output)
            return
        if block >= len(cut):
            raise OptionError(f"no block {block}", hint=f"The model is cut into {len(cut)} blocks, numbered from 0.")
        graph = cut[block]
    passes = choose(PIPELINE, names, start, until, graph)
    check_disable(passes, disable, PIPELINE)
    backend, hardware = driver.resolve_targets(options)[0]
    context = Context(options=options, target=hardware, backend=backend)
    manager = PassManager(passes, context)
    result = manager.run(graph)
    if output is not None:
        write_text(output, print_graph(result))
    if wants("json"):
        report_json(result, manager, why)
    elif why is not None:
        report_why(graph, manager, *why)
    elif output is None:
        click.echo(print_graph(result), nl=False)
    if why is None:
        for record in manager.records:
            change = f"{record.nodes_before} -> {record.nodes_after} nodes" if record.changed else "unchanged"
            state = "disabled" if record.disabled else f"{change}, {record.rewrites} rewrites"
            note(f"{record.name}: {state}, {seconds_text(record.seconds)}")
        if bisect is not None and context.rewrites.last:
            note(f"last of {context.rewrites.fired} rewrites: {context.rewrites.last}")
    for text in context.diagnostics.notes:
        note(text)


def blocks_of(graph: Graph) -> tuple[Graph, ...]:
    """The graphs that passes work on: the graph, or the blocks that its control cuts it into."""
    from aot.partition import partition

    return partition(graph).blocks if has_control(graph) else (graph,)


def report_uncut(graph: Graph, count: int, output: Path | None) -> None:
    """The graph with its control, on which no pass runs."""
    text = print_graph(graph)
    if output is not None:
        write_text(output, text)
    elif wants("json"):
        print_json({"blocks": count, "text": text})
    else:
        click.echo(text, nl=False)
    note(f"passes run on the {count} blocks that control cuts this into: --block N works on one")


def read_graph(path: Path, weights: Path | None, options: CompileOptions) -> Graph:
    """The graph in a file: IR text (.air), or a model that the frontend reads."""
    from aot import frontend

    check_file(path, "IR text or a model")
    kind = kind_of(path)
    if kind is not None and path.suffix == ".air" and kind.name not in ("ir", "text", "empty") and not kind.is_model:
        raise ModelError(kind.instead_of("IR text or a model"), where=str(path), hint=kind.model_remedy)
    is_text = (
        path.suffix == ".air" if kind is None else kind.name == "ir" or (path.suffix == ".air" and not kind.is_model)
    )
    if not is_text:
        return frontend.load(path, dims=options.dim_bounds)
    known = consts_of(frontend.load(weights)) if weights is not None else {}
    try:
        return parse_graph(path.read_text(encoding="utf-8"), known.get)
    except ModelError as error:
        raise ModelError(error.message, where=f"{path}, {error.where}", hint=error.hint) from error
    except UnicodeDecodeError as error:
        raise ModelError(f"not text: {error}", where=str(path)) from error


def choose(
    pipeline: Sequence[Pass], names: Sequence[str], start: str | None, until: str | None, graph: Graph
) -> list[Pass]:
    """The passes to run: those named, or a stretch of the pipeline."""
    known = {item.name: item for item in pipeline}
    for name in (*names, start, until):
        if name is not None and name not in known:
            raise OptionError(f"no pass {name!r}", hint=f"Passes: {', '.join(unique_names(pipeline))}.")
    if names:
        if start or until:
            raise OptionError("--pass names the passes to run; --from and --until choose from the pipeline")
        return [known[name] for name in names]
    first = next((i for i, item in enumerate(pipeline) if item.takes == graph.level), len(pipeline))
    if start is not None:
        first = next(i for i, item in enumerate(pipeline) if item.name == start)
    chosen: list[Pass] = []
    for item in pipeline[first:]:
        chosen.append(item)
        if item.name == until:
            return chosen
    if until is not None:
        raise OptionError(f"pass {until!r} does not come after the start", hint="See aotc opt --list.")
    return chosen


def report_passes(pipeline: Sequence[Pass]) -> None:
    """The pipeline, one row per run of a pass."""
    runs: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    for item in pipeline:
        runs[item.name] = runs.get(item.name, 0) + 1
        levels = {"takes": item.takes.name.lower(), "gives": item.gives.name.lower()}
        rows.append({"pass": f"{item.name}:{runs[item.name]}", **levels, "what": item.doc, "rules": item.rules})
    if wants("json"):
        print_json(rows)
        return
    print_table([*rows[0]][:-1], [list(row.values())[:-1] for row in rows])
    for item in {item.name: item for item in pipeline if item.rules}.values():
        click.echo()
        click.echo(fill(f"rules of {item.name}: {', '.join(item.rules)}", RULES_COLUMNS, subsequent_indent="  "))


def report_json(graph: Graph, manager: PassManager, why: tuple[str, str] | None) -> None:
    """Everything about a run as one document."""
    diagnostics = manager.context.diagnostics
    refusals = diagnostics.why(*why) if why is not None else diagnostics.refusals
    print_json(
        {
            "passes": manager.records,
            "rewrites": manager.context.rewrites.by_rule,
            "refusals": [{"rule": r.rule, "where": r.where, "reason": r.reason} for r in refusals],
            "notes": diagnostics.notes,
            **({} if why is not None else {"text": print_graph(graph)}),
        }
    )


def report_why(graph: Graph, manager: PassManager, rule: str, node: str) -> None:
    """Why a rule did not fire at a node: the recorded reasons, or what is known instead."""
    refusals = manager.context.diagnostics.why(rule, node)
    for refusal in refusals:
        click.echo(f"{refusal.rule} at {refusal.where}: {refusal.reason}")
    if refusals:
        return
    if not any(node in item.where for item in graph.nodes):
        raise OptionError(f"no node {node!r} in the model", hint="Give the name of a node, or a part of it.")
    rules = {refusal.rule for refusal in manager.context.diagnostics.refusals} | set(manager.context.rewrites.by_rule)
    fired = manager.context.rewrites.by_rule.get(rule, 0)
    if rule not in rules and rule != "*":
        raise OptionError(
            f"no rule {rule!r} fired or declined anywhere",
            hint=f"Rules that did: {', '.join(sorted(rules)) or 'none'}.",
        )
    click.echo(f"{rule} never matched at {node!r} by form; it fired {fired} times elsewhere in this run")
