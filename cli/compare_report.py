"""A comparison as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from aot.cli.blame import Compared, Fault, Row, wrong_outputs
from aot.cli.common import note, print_facts, print_table
from aot.cli.measures import decibels
from aot.cli.rebuild import Culprit

HEADINGS = ("step", "tensor", "shape", "node", "max error", "relative", "cosine", "SNR", "expected", "own", "")
_SHOWN = 24
_KINDS = {
    "kernel": "the code of a kernel",
    "meaning": "what the program computes for these nodes",
    "import": "the import of these nodes",
    "drift": "errors that grow along the network",
}


def report(compared: Compared, culprit: Culprit | None, top: int | None, artifact: Path) -> None:
    """The verdict, the first node to blame with its histograms, the table and what was not compared."""
    fault = compared.fault
    if fault.kind:
        click.echo(f"{click.style('differs', fg='red', bold=True)}: {_KINDS[fault.kind]}")
        print_facts(fault_facts(fault))
        report_histograms(fault)
        click.echo()
    if culprit is not None:
        label = {"rewrite": "the rewrite", "passes": "the passes"}.get(culprit.kind, "the search")
        click.echo(f"{click.style(label, bold=True)}: {culprit.text} ({culprit.builds} builds)")
        click.echo()
    shown = chosen_rows(compared, top)
    if shown:
        title = f"{len(compared.rows)} tensors" if len(shown) == len(compared.rows) else ""
        title = title or f"{len(shown)} of {len(compared.rows)} tensors, those nearest to their bounds"
        print_table(HEADINGS, [cells(row) for row in shown], title=f"{artifact.name}: {title}, in the order of the run")
    for line in remarks(compared):
        note(line)
    for output in wrong_outputs(compared.outputs, compared.rows):
        what = output.reason or f"{output.wrong} of {output.elements} elements, largest error {output.max_error:.3g}"
        click.echo(f"output {output.name}: {what}")
    verdict = click.style("agree", fg="green") if compared.passed else click.style("differ", fg="red", bold=True)
    measured = f"{len(compared.rows)} tensors and {len(compared.outputs)} outputs against {compared.reference}"
    click.echo(f"{verdict}: {measured} ({compared.precision})")


def fault_facts(fault: Fault) -> list[tuple[str, str]]:
    """(name, value) of what is to blame, in the names of the model."""
    unit = " elements" if fault.counts else ""
    facts = [
        ("node", fault.nodes[-1] if fault.nodes else ""),
        ("tensor", fault.tensor),
        ("kernel", f"{fault.kernel} (step {fault.order})" if fault.kernel else ""),
        ("error", f"{_figure(fault.error, fault.counts)}{unit}, expected at most {_figure(fault.bound, fault.counts)}"),
        ("nodes", "\n".join(_shortened(fault.nodes))),
        ("why", fault.why),
        ("ledger", fault.ledger),
    ]
    return [(name, value) for name, value in facts if value]


def _shortened(nodes: Sequence[str], most: int = 12) -> list[str]:
    """The last so many nodes."""
    if len(nodes) <= most:
        return list(nodes)
    return [f"... {len(nodes) - most} before these", *nodes[-most:]]


def report_histograms(fault: Fault) -> None:
    """How many elements differ by how much, and how the values of both lie."""
    found = fault.histograms()
    if not found:
        return
    click.echo(click.style("|difference|", bold=True))
    for line in found["differences"]:
        click.echo(f"  {line}")
    click.echo(click.style("values", bold=True) + f" from {found['low']:.4g} to {found['high']:.4g}")
    click.echo(f"  expected |{found['expected']}|")
    click.echo(f"  found    |{found['found']}|")


def cells(row: Row) -> tuple[Any, ...]:
    """A row of the table; HEADINGS names the columns."""
    against = row.against
    own = f"{_ratio(row.own.ratio)} of bound"
    mark = "BLAMED" if row.is_beyond and not row.own.follows else "differs" if row.is_beyond else ""
    figures: tuple[Any, ...] = ("", "", "", "")
    if against is not None:
        figures = (
            f"{against.max_error:.3g}", f"{against.relative_error:.2g}", f"{against.cosine:.7f}",
            decibels(against.snr_db),
        )  # fmt: skip
    return (
        row.order,
        row.name,
        "x".join(map(str, row.shape)) or "scalar",
        row.nodes[-1] if row.nodes else "",
        *figures,
        "" if row.drift_bound is None else f"{row.drift_bound:.2g}",
        own,
        mark or ("drifted" if row.has_drifted else ""),
    )


def _ratio(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 1000 else f"{ratio:.0e}" if math.isfinite(ratio) else "beyond any"


def _figure(value: float, counts: bool) -> str:
    return f"{value:.0f}" if counts else "not finite" if not math.isfinite(value) else f"{value:.3g}"


def chosen_rows(compared: Compared, top: int | None) -> list[Row]:
    """The rows to print: those that are nearest to their bounds or beyond, in the order of the run."""
    most = _SHOWN if top is None else top
    by_ratio = sorted(
        compared.rows, key=lambda row: -row.own.ratio if row.own.confirmed or not row.own.is_beyond else 0
    )
    first = [row for row in compared.rows if row.is_beyond][:1]
    chosen = {id(row) for row in (*first, *by_ratio)[: max(most, len(first))]}
    return [row for row in compared.rows if id(row) in chosen]


def remarks(compared: Compared) -> list[str]:
    """What was not compared, and why; every tensor is counted."""
    made = list(compared.notes)
    if compared.unmatched:
        made.append(f"{compared.unmatched} tensors of the program have no name in the model: stretches go across them")
    if compared.model_only:
        made.append(f"{compared.model_only} tensors of the model are inside of kernels, or folded")
    if compared.other_shape:
        made.append(f"of another shape or type than in the model: {_some(compared.other_shape)}")
    if compared.renamed:
        what = "other values than the model's under its names, without an effect on what follows"
        made.append(f"{what}: {_some(compared.renamed)}")
    amplified, row = compared.amplified
    if amplified:
        where = f", most at {row.nodes[-1] if row.nodes else row.name}" if row is not None else ""
        made.append(
            f"beyond the tolerance of aotc verify, but no further than rounding is carried in this network: "
            f"{_some(amplified)}; errors grow{where}"
        )
    if compared.kernels:
        made.append(f"{compared.kernels} kernels were compared with what they mean on the tensors that they read")
    if compared.kernels_left_out:
        made.append(f"{compared.kernels_left_out} kernels could not be compared with what they mean")
    if compared.nodes_left_out:
        made.append(f"{compared.nodes_left_out} nodes of the model could not be run alone")
    return made


def _some(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def as_json(compared: Compared, culprit: Culprit | None) -> dict[str, Any]:
    """The whole comparison as one document."""
    fault = compared.fault
    return {
        "passed": compared.passed,
        "reference": compared.reference,
        "precision": compared.precision,
        "fault": None
        if not fault.kind
        else {
            "kind": fault.kind, "tensor": fault.tensor, "node": fault.nodes[-1] if fault.nodes else "",
            "nodes": fault.nodes, "kernel": fault.kernel, "step": fault.order, "error": fault.error,
            "bound": fault.bound, "why": fault.why, "ledger": fault.ledger, "histograms": fault.histograms(),
        },
        "bisect": None if culprit is None else asdict(culprit),
        "tensors": [
            {
                "step": row.order, "tensor": row.name, "kernel": row.kernel, "nodes": row.nodes, "dtype": row.dtype,
                "shape": row.shape, "error": row.own.error, "bound": row.own.bound, "beyond": row.is_beyond,
                "follows": row.own.follows, "against": None if row.against is None else asdict(row.against),
                "expected_error": row.drift_bound, "drifted": row.has_drifted,
            }
            for row in compared.rows
        ],
        "outputs": [asdict(output) | {"passed": output.passed} for output in compared.outputs],
        "kernels": compared.kernels,
        "not_compared": {
            "kernels": compared.kernels_left_out, "nodes": compared.nodes_left_out, "without_name": compared.unmatched,
            "model_only": compared.model_only, "other_shape": compared.other_shape, "renamed": compared.renamed,
        },
        "notes": compared.notes,
    }  # fmt: skip
