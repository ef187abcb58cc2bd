"""`aotc run`: an artifact on inputs from a file, or on random ones."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from aot.cli.common import check_writable, common_options, note, print_json, print_table, wants
from aot.cli.feeds import FeedChoice, feed_options, feeds, generic, npz_bytes
from aot.cli.loading import load_model, load_options, open_artifact
from aot.errors import OptionError

_SUFFIXES = "Name an .npz file for outputs by name, or an .npy file for the only one."
MOST_VALUES = 64  # of an output that is printed whole with --json


@click.command("run")
@click.argument("artifact", type=click.Path(path_type=Path))
@feed_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="OUT.npz",
    help="Write the outputs there, by name; OUT.npy for one.",
)
@load_options(None)
@common_options
def command(
    artifact: Path,
    choice: FeedChoice,
    output: Path | None,
    threads: int | None,
    target: str | None,
    weights: Path | None,
) -> None:
    """Run ARTIFACT once and print what comes out.

    FILES: an .npz file with arrays by input name, or an .npy file for a model of one input. Without any
    the inputs are random; --dim gives symbolic dimensions a value.
    """
    if len(choice.files) > 1:
        raise OptionError("run takes one file of inputs", hint="verify and bench take several.")
    if output is not None:
        check_writable(output)
        if output.suffix not in (".npz", ".npy"):
            raise OptionError(f"no file of arrays ends in {output.suffix!r}", where=str(output), hint=_SUFFIXES)
    from aot.artifacts import write_whole

    program = generic(open_artifact(artifact).programs)
    model = load_model(artifact, threads, target, weights)
    ((what, feed),) = feeds(program, choice, defaults=model.new_state())
    outputs = {name: np.asarray(value) for name, value in model.run(feed).items()}
    if output is not None:
        write_whole(output, _file_bytes(output, outputs))
    rows = [statistics(name, value) for name, value in outputs.items()]
    if wants("json"):
        for row, value in zip(rows, outputs.values(), strict=True):
            if value.size <= MOST_VALUES:
                row["values"] = value.tolist()
        print_json({"inputs": {"what": what, "shapes": {k: list(v.shape) for k, v in feed.items()}}, "outputs": rows})
        return
    if choice.random or choice.is_random:
        note(what)
    print_table([*rows[0]] if rows else ["output"], [[_cell(value) for value in row.values()] for row in rows])


def _file_bytes(path: Path, outputs: Mapping[str, Any]) -> bytes:
    """The outputs as an .npz file, or the only one as an .npy file."""
    if path.suffix != ".npy":
        return npz_bytes(outputs)
    if len(outputs) != 1:
        raise OptionError(f"an .npy file holds one array; there are {len(outputs)} outputs", hint="Write an .npz file.")
    buffer = io.BytesIO()
    np.save(buffer, next(iter(outputs.values())), allow_pickle=False)
    return buffer.getvalue()


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
