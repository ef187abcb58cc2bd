"""Inputs for a model: from .npz files, or random with stated dimensions.

Random inputs depend on the seed, the input's name and its shape alone. Integers are 0 or 1: small enough
to be an index or a mask of any model.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from aot import dims as dimension
from aot.dims import Symbol
from aot.errors import OptionError
from aot.ir import Array
from aot.options import DimRange, parse_dim_option
from aot.program import Program

Feed = dict[str, Array]
TYPICAL_EXTENT = 64  # of a dimension that is not an input's first and that nothing is said about


class DimType(click.ParamType[DimRange]):
    """NAME=N or NAME=LO..HI."""

    name = "name=n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DimRange:
        if isinstance(value, DimRange):
            return value
        try:
            return parse_dim_option(str(value))
        except OptionError as error:
            self.fail(f"{error.message}. {error.hint}", param, ctx)


def feed_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --inputs, --random and --dim to a command."""
    for option in (
        click.option(
            "--dim",
            "dims",
            multiple=True,
            type=DimType(),
            metavar="NAME=N",
            help="A symbolic dimension of random inputs. May be repeated.",
        ),
        click.option("--random", "seed", type=int, metavar="SEED", help="Random inputs from this seed."),
        click.option(
            "--inputs",
            "paths",
            multiple=True,
            type=click.Path(path_type=Path),
            metavar="F.npz",
            help="Arrays by input name. May be repeated.",
        ),
    ):
        function = option(function)
    return function


def feeds(
    program: Program, paths: Sequence[Path], seed: int | None, dims: Sequence[DimRange]
) -> list[tuple[str, Feed]]:
    """(what it is, arrays by input name) for each file, or one random feed where no file is given."""
    if paths:
        if seed is not None or dims:
            raise OptionError("--inputs fixes the inputs; --random and --dim say how to make them up")
        return [(path.name, read_npz(path)) for path in paths]
    values = extents(program, dims)
    seed = seed or 0
    shown = ", ".join(f"{name}={value}" for name, value in values.items())
    return [(f"random inputs, seed {seed}{', ' if shown else ''}{shown}", random_feed(program, values, seed))]


def read_npz(path: Path) -> Feed:
    """The arrays of an .npz file; raises OptionError for anything else."""
    hint = "Write it with numpy.savez(path, **{input_name: array, ...})."
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise OptionError("it holds one bare array, not arrays by name", where=str(path), hint=hint)
        with file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise OptionError("no such file", where=str(path)) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise OptionError(f"not an .npz file of plain arrays: {error}", where=str(path), hint=hint) from error


def npz_bytes(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of an .npz file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:  # numpy.savez takes no name such as "file"
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def generic(programs: Sequence[Program]) -> Program:
    """The program that takes every shape the artifact takes."""
    return next((program for program in programs if not program.variant), programs[0])


def extents(program: Program, dims: Sequence[DimRange]) -> dict[str, int]:
    """A value for each symbol: as asked, else 1 for an input's first axis and a typical extent elsewhere."""
    asked: dict[str, int] = {}
    for dim in dims:
        if dim.lo != dim.hi:
            raise OptionError(f"one extent is wanted here, not --dim {dim}")
        asked[dim.name] = dim.lo
    known = {symbol.name: symbol for symbol in program.symbols}
    for name in asked:
        if name not in known:
            raise OptionError(
                f"no symbolic dimension {name!r}",
                hint=f"The model has: {', '.join(known) or 'none'}.",
            )
    first = {s.name for port in program.inputs for dim in port.type.shape[:1] for s in dimension.symbols_of(dim)}
    return {name: asked.get(name, _typical(symbol, name in first)) for name, symbol in known.items()}


def _typical(symbol: Symbol, first_axis: bool) -> int:
    wanted = max(symbol.lo, 1 if first_axis else TYPICAL_EXTENT)
    if symbol.hi is not None:
        wanted = min(wanted, symbol.hi)
    return max(-(-wanted // symbol.divisor) * symbol.divisor, 1) if symbol.divisor > 1 else wanted


def random_feed(program: Program, values: Mapping[str, int], seed: int) -> Feed:
    """Arrays for every input: floats are standard normal, integers 0 or 1."""
    result: Feed = {}
    for port in program.inputs:
        shape = tuple(dimension.evaluate(dim, values) for dim in port.type.shape)
        generator = np.random.default_rng([seed & 0xFFFFFFFF, zlib.crc32(port.name.encode("utf-8", "replace"))])
        is_float = port.type.dtype.is_float
        array: Array = generator.standard_normal(shape) if is_float else generator.integers(0, 2, shape)
        result[port.name] = np.asarray(array).astype(port.type.dtype.numpy)
    return result
