"""Dimensions named by an input that has them: `INPUT.AXIS`, such as `x.0` for the first extent of input x.

A model gives names to some of its dimensions, and PyTorch saves none: this name is there for every one, wherever a
dimension is named, and beside the name of the symbol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aot.dims import Dim, linear_symbol, plain_symbol
from aot.errors import OptionError

Shapes = Mapping[str, Sequence[Dim]]
"""The shape of each input by name."""


def names_axis(name: str, shapes: Shapes) -> bool:
    """Whether a name is that of an axis of an input."""
    port, dot, axis = name.rpartition(".")
    return bool(dot) and axis.isdecimal() and port in shapes and int(axis) < len(shapes[port])


def symbol_value(name: str, extent: int, shapes: Shapes) -> tuple[str, int] | None:
    """The symbol, and its value, that make the axis `name` that large; None where the axis always is.

    Raises OptionError for an axis that has another size, or none that follows from one symbol.
    """
    port, _, axis = name.rpartition(".")
    dim = shapes[port][int(axis)]
    where = f"dimension {name}"
    if isinstance(dim, int):
        if dim != extent:
            raise OptionError(f"{extent} is asked for, and the size is always {dim}", where=where)
        return None
    found = linear_symbol(dim)
    if found is None:
        raise OptionError(f"the size is {dim}", where=where, hint="Give sizes by the names of the symbols in it.")
    symbol, scale, offset = found
    if (extent - offset) % scale or extent < offset:
        raise OptionError(f"{extent} is asked for, and the size is {dim} for a whole number {symbol.name}", where=where)
    return symbol.name, (extent - offset) // scale


def by_symbol(asked: Iterable[tuple[str, int]], symbols: Sequence[str], shapes: Shapes) -> dict[str, int]:
    """The sizes by symbol of what is asked for by symbol, or by INPUT.AXIS.

    Raises OptionError for a name that is no dimension, and for two sizes of one.
    """
    found: dict[str, int] = {}
    for name, extent in asked:
        if name not in symbols and not names_axis(name, shapes):
            raise OptionError(
                f"the model has no dimension {name!r}",
                hint=f"It has {described(symbols, shapes)}; INPUT.AXIS names any size.",
            )
        pair = (name, extent) if name in symbols else symbol_value(name, extent, shapes)
        if pair is not None and found.setdefault(*pair) != pair[1]:
            raise OptionError(f"{pair[0]} is given two sizes: {found[pair[0]]} and {pair[1]}")
    return found


def described(symbols: Iterable[str], shapes: Shapes) -> str:
    """The names of symbols for a hint, each with an axis that is it: "s77 (x.0), batch (ids.0)"; "none" for none."""
    places: dict[str, str] = {}
    for port, shape in shapes.items():
        for axis, dim in enumerate(shape):
            symbol = plain_symbol(dim)
            if symbol is not None:
                places.setdefault(symbol.name, f"{port}.{axis}")
    return ", ".join(f"{name} ({places[name]})" if name in places else name for name in symbols) or "none"
