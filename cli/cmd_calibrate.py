"""`aotc calibrate`: what the tensors of a model look like on data, as a small file; and the sum of such files."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot.cli.common import (
    bytes_text,
    check_file,
    check_writable,
    common_options,
    note,
    print_facts,
    print_json,
    progress,
    wants,
)
from aot.cli.model_options import model_options
from aot.cli.operators import operators_option
from aot.cli.quantize_options import data_option
from aot.errors import OptionError
from aot.file_kinds import A_MODEL
from aot.options import CompileOptions

if TYPE_CHECKING:
    from aot.calibrate import Calibration


@click.command("calibrate")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="MODEL | FILES...")
@data_option(required=False)
@click.option("--merge", is_flag=True, help="FILES are calibrations of one model, on shards of the data: add them up.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: MODEL.calibration.")
@model_options
@operators_option
@common_options
def command(
    sources: tuple[Path, ...],
    data: str | None,
    merge: bool,
    output: Path | None,
    base: CompileOptions,
    operators: tuple[str, ...],
) -> None:
    """Run MODEL on data, once, and record the ranges of what its products with weights read.

    DATA: an .npz file with the inputs by name (one run, or many along a leading axis), a folder of such files, a folder
    with an .npy file for each input, or module:function, which gives samples. Memory does not depend on how many there
    are. The result is for `aotc quantize` and `aotc build --quantize`. Files of several shards of the data add up
    (--merge), in any order, to the file of all.
    """
    from aot import custom
    from aot.calibrate import Calibration, calibrate

    if merge:
        if data is not None:
            raise OptionError("--merge adds up calibrations that are there; --data makes one", hint="Give one of them.")
        parts = [Calibration.open(path) for path in sources]
        path = output or Path("merged.calibration")
        check_writable(path)
        report(path, reduce(add, parts))
        return
    if len(sources) != 1 or data is None:
        missing = "there is no data" if data is None else f"{len(sources)} models are given"
        raise OptionError(f"one model and its data are wanted; {missing}", hint="aotc calibrate MODEL --data PATH")
    (model,) = sources
    check_file(model, A_MODEL)
    path = output or Path(model.with_suffix(".calibration").name)
    check_writable(path)
    with custom.use(operators), progress() as tell:
        found = calibrate(model, data, base, tell)
    report(path, found)


def report(path: Path, found: Calibration) -> None:
    """Writes the file and says what is in it."""
    found.save(path)
    seen = found.taps
    odd = {name: each.not_finite for name, each in seen.items() if each.not_finite}
    constant = [name for name, each in seen.items() if each.elements and each.is_constant]
    if wants("json"):
        print_json(
            {"calibration": str(path), "samples": found.samples, "tensors": len(seen), "data": found.data,
             "graph": found.graph, "not_finite": odd, "constant": constant}
        )  # fmt: skip
        return
    print_facts(
        [
            ("calibration", f"{path}, {bytes_text(path.stat().st_size)}"),
            ("data", f"{found.samples} samples, digest {found.data[:16]}"),
            ("tensors", f"{len(seen)} observed"),
        ]
    )
    for name, count in odd.items():
        note(f"{name}: {count} of its inputs were infinite or NaN")
    for name in constant:
        note(f"{name}: its input was {seen[name].least:g} everywhere")
