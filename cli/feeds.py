"""Inputs for a model: files, numbers on the command line, or random arrays with stated dimensions.

Random inputs depend on the seed, the input's name and its shape alone. Integers are 0 or 1: small enough
to be an index or a mask of any model. Arrays from files are checked by name and element type here, so that
the message can name the file; their shapes are the runtime's to check, which knows the guards.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any

import click
import numpy as np

from aot import dims as dimension
from aot.array_files import load_arrays, read_npy
from aot.axes import by_symbol
from aot.cli.common import note
from aot.dims import Symbol
from aot.errors import OptionError
from aot.ir import Array
from aot.options import DimRange, parse_dim_option
from aot.program import Port, Program
from aot.text import type_text

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


@dataclass(frozen=True, slots=True)
class FeedChoice:
    """What the command line says of inputs.

    `files`: .npz files with arrays by input name, or .npy files for the one input that is not named.
    `named`: NAME=FILE.npy, NAME=NUMBER or NAME=[NUMBERS], part of every case. `random`: make up the others.
    """

    files: tuple[Path, ...]
    named: tuple[str, ...]
    random: bool
    seed: int | None
    dims: tuple[DimRange, ...]

    @property
    def is_random(self) -> bool:
        """Whether nothing at all is given, so that everything is made up."""
        return not self.files and not self.named


def feed_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds FILES, --inputs, --input, --random, --seed and --dim to a command, which takes them as `choice`."""

    @wraps(function)
    def gathered(
        *,
        files: tuple[Path, ...],
        paths: tuple[Path, ...],
        named: tuple[str, ...],
        random: bool,
        seed: int | None,
        dims: tuple[DimRange, ...],
        **others: Any,
    ) -> Any:
        return function(choice=FeedChoice((*files, *paths), named, random, seed, dims), **others)

    path = click.Path(path_type=Path)
    for option in (
        click.option("--dim", "dims", multiple=True, type=DimType(), metavar="NAME=N",
                     help="A symbolic dimension of random inputs. May be repeated."),
        click.option("--seed", type=int, metavar="N", help="Of random inputs. Default: 0."),
        click.option("--random", is_flag=True, help="Random values for all inputs that are not given."),
        click.option("--input", "named", multiple=True, metavar="NAME=VALUE",
                     help="One input: a .npy file, a number, or a list such as [1,2]. May be repeated."),
        click.option("--inputs", "paths", multiple=True, type=path, metavar="FILE", help="As FILES. May be repeated."),
        click.argument("files", nargs=-1, type=path, metavar="[FILES]..."),
    ):  # fmt: skip
        gathered = option(gathered)
    return gathered


def feeds(
    program: Program, choice: FeedChoice, also: Collection[str] = (), defaults: Mapping[str, Array] | None = None
) -> list[tuple[str, Feed]]:
    """(what it is, arrays by input name) for each file, or for what is named, or one random feed.

    `also` are names of inputs that the artifact does not have and that may be given all the same; `defaults`
    are the values of inputs that are not given.
    Raises OptionError for what cannot be read, and for names and element types that do not fit.
    """
    ports = {port.name: port for port in program.inputs}
    named = dict(_named(text, ports, also) for text in choice.named)
    if len(named) != len(choice.named):
        raise OptionError("--input gives an input twice", hint="Give each input once.")
    cases = [(path.name, _read(path, ports, named, also)) for path in choice.files]
    if not cases and named:
        cases = [("given inputs", dict(named))]
    makes_up = choice.random or choice.is_random
    if (choice.seed is not None or choice.dims) and not makes_up:
        raise OptionError(
            "the inputs are given; --seed and --dim say how to make them up",
            hint="Add --random to make up those that are not given.",
        )
    result = []
    for what, feed in cases or [("", {})]:
        feed = {name: array for name, array in (defaults or {}).items() if name in ports} | feed
        missing = [port for name, port in ports.items() if name not in feed]
        if makes_up and missing:
            values = extents(program, choice.dims, feed)
            chosen = [f"{symbol.name}={values[symbol.name]}" for symbol in program.input_symbols]
            shown = [f"random inputs, seed {choice.seed or 0}", *chosen]
            if cases:
                shown[0] = f"{what}, the others random, seed {choice.seed or 0}"
            what = ", ".join(shown)
            feed = random_feed(program, values, choice.seed or 0) | feed
        elif missing:
            needed = ", ".join(f"{port.name!r}: {type_text(port.type)}" for port in missing)
            kept = {program.inputs[given].name for given, _ in program.state}
            state = [port.name for port in missing if port.name in kept]
            hint = "Give them with --input NAME=FILE.npy, or add --random to make them up."
            if state:
                hint += (
                    f" What each run replaces ({', '.join(state)}) is state: give what it holds before the first run."
                )
            raise OptionError(
                f"{'inputs are' if len(missing) > 1 else 'an input is'} missing: {needed}",
                where="" if what == "given inputs" else what,
                hint=hint,
            )
        for name, array in feed.items():
            if array.dtype.kind == "f" and np.isnan(array).any():
                note(f"input {name!r} holds NaN, in {int(np.isnan(array).sum())} of {array.size} elements")
        result.append((what, feed))
    return result


def _named(text: str, ports: Mapping[str, Port], also: Collection[str]) -> tuple[str, Array]:
    """One --input as (name, array)."""
    name, equals, value = text.partition("=")
    while equals and name not in ports and name not in also and "=" in value:  # names may have a = too
        more, _, value = value.partition("=")
        name = f"{name}={more}"
    if not equals:
        if len(ports) == 1 and Path(text).is_file():
            name, value = next(iter(ports)), text
        else:
            raise OptionError(f"cannot read --input {text!r}", hint="Write NAME=FILE.npy, NAME=NUMBER or NAME=[1,2].")
    if name not in ports and name not in also:
        first = text.partition("=")[0]
        raise OptionError(f"no input {first!r}", hint=_known(first, ports))
    numbers = literal(value)
    if numbers is None:
        return name, _fitting(read_npy(Path(value)), name, ports, value)
    dtype = ports[name].type.dtype.numpy if name in ports else numbers.dtype
    with np.errstate(all="ignore"):
        converted = numbers.astype(dtype)
    if not np.array_equal(converted.astype(numbers.dtype), numbers) and dtype.kind in "iub":
        raise OptionError(f"input {name!r} takes {type_text(ports[name].type)}; {value} is not of that type")
    return name, converted


def literal(text: str) -> Array | None:
    """A number, true, false, or a (nested) list of these as an array; None for anything else."""
    try:
        value = json.loads(text)
        array = np.asarray(value)
    except ValueError:
        return None
    if isinstance(value, (dict, str)) or value is None or array.dtype.kind not in "biuf":
        return None
    return array


def _read(path: Path, ports: Mapping[str, Port], named: Feed, also: Collection[str]) -> Feed:
    """The inputs that a file gives, with those that are named."""
    feed = load_arrays(path)
    if isinstance(feed, np.ndarray):
        left = [name for name in ports if name not in named]
        if len(left) != 1:
            raise OptionError(
                f"the file holds one array, and {len(left)} inputs are not given",
                where=str(path),
                hint=f"Say whose it is: --input NAME={path}. {_known('', ports)}",
            )
        return {left[0]: _fitting(feed, left[0], ports, str(path)), **named}
    for name in feed:
        if name not in ports and name not in also:
            raise OptionError(f"no input {name!r}", where=str(path), hint=_known(name, ports))
    return {name: _fitting(array, name, ports, str(path)) for name, array in feed.items()} | named


def _known(name: str, ports: Mapping[str, Port]) -> str:
    """A hint with the names that there are, the close ones first."""
    close = get_close_matches(name, list(ports), 2)
    names = ", ".join(f"{port.name!r}: {type_text(port.type)}" for port in ports.values())
    return f"{f'Did you mean {close[0]!r}? ' if close else ''}The inputs are {names or 'none'}."


def _fitting(array: Array, name: str, ports: Mapping[str, Port], where: str) -> Array:
    """The array as the runtime takes it: in this machine's byte order, row-major; the element type must be right."""
    if array.dtype.byteorder not in "=|":
        array = array.astype(array.dtype.newbyteorder("="))
    if name in ports:
        wanted = ports[name].type.dtype.numpy
        if array.dtype != wanted:
            raise OptionError(
                f"input {name!r}: expected {wanted} elements, got {array.dtype}",
                where=where,
                hint=f"Convert the array with .astype({str(wanted)!r}) before saving it.",
            )
    return np.asarray(array, order="C")


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


def extents(program: Program, dims: Sequence[DimRange], given: Mapping[str, Array] | None = None) -> dict[str, int]:
    """A value for each symbol: as asked, as `given` arrays have it, else 1 for a first axis and a typical extent."""
    asked: dict[str, int] = {}
    for dim in dims:
        if dim.lo != dim.hi:
            raise OptionError(f"one extent is wanted here, not --dim {dim}")
        asked[dim.name] = dim.lo
    known = {symbol.name: symbol for symbol in program.symbols}
    shapes = {port.name: port.type.shape for port in program.inputs}
    asked = by_symbol(asked.items(), list(known), shapes)
    held: dict[str, int] = {}
    for port in program.inputs:
        array = (given or {}).get(port.name)
        if array is not None and array.ndim == port.type.rank:
            for wanted, extent in zip(port.type.shape, array.shape, strict=True):
                found = dimension.linear_symbol(wanted)
                if found is not None:
                    held[found[0].name] = (extent - found[2]) // found[1]
    first = {s.name for port in program.inputs for dim in port.type.shape[:1] for s in dimension.symbols_of(dim)}
    return {name: asked.get(name, held.get(name, _typical(symbol, name in first))) for name, symbol in known.items()}


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
