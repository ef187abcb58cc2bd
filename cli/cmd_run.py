"""`aotc run`: an artifact on inputs from a file, or on random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from aot.cli.common import check_writable, common_options, note, print_json, print_table, wants
from aot.cli.feeds import feed_options, feeds, generic, npz_bytes
from aot.cli.loading import load_model, load_options, open_artifact
from aot.errors import OptionError
from aot.options import DimRange


@click.command("run")
@click.argument("artifact", type=click.Path(path_type=Path))
@feed_options
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT.npz", help="Write the outputs there.")
@load_options(None)
@common_options
def command(
    artifact: Path,
    paths: tuple[Path, ...],
    seed: int | None,
    dims: tuple[DimRange, ...],
    output: Path | None,
    threads: int | None,
    target: str | None,
    weights: Path | None,
) -> None:
    """Run ARTIFACT once and print what comes out.

    Without --inputs the inputs are random; --dim gives symbolic dimensions a value.
    """
    if len(paths) > 1:
        raise OptionError("run takes one --inputs file", hint="verify and bench take several.")
    if output is not None:
        check_writable(output)
    from aot.artifacts import write_whole

    program = generic(open_artifact(artifact).programs)
    ((what, feed),) = feeds(program, paths, seed, dims)
    model = load_model(artifact, threads, target, weights)
    outputs = {name: np.asarray(value) for name, value in model.run(feed).items()}
    if output is not None:
        write_whole(output, npz_bytes(outputs))
    rows = [statistics(name, value) for name, value in outputs.items()]
    if wants("json"):
        print_json({"inputs": {"what": what, "shapes": {k: list(v.shape) for k, v in feed.items()}}, "outputs": rows})
        return
    if not paths:
        note(what)
    print_table([*rows[0]] if rows else ["output"], [[_cell(value) for value in row.values()] for row in rows])


def statistics(name: str, array: Any) -> dict[str, Any]:
    """Shape, type and a few numbers of an output."""
    row: dict[str, Any] = {"output": name, "type": str(array.dtype), "shape": list(array.shape)}
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    for label, function in (("min", np.min), ("max", np.max), ("mean", np.mean)):
        row[label] = float(function(finite.astype(np.float64))) if finite.size else None
    row["not_finite"] = int(array.size - finite.size)
    return row


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else value
