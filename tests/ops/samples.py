"""Samples of the op table as test cases, with numbers and with symbols in place of the extents."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aot.dims import Dim, Symbol
from aot.dtypes import from_numpy
from aot.ir import TensorType
from aot.ops import OPS, OpDef, OpError, Sample, infer
from aot.ops.opdef import Attrs


def samples_of(name: str) -> list[Sample]:
    """The op's samples; the generator is seeded by its name, so ops do not depend on each other."""
    return list(OPS[name].samples(np.random.default_rng(zlib.crc32(name.encode()))))


def cases(wanted: Callable[[OpDef], object] = lambda op: True) -> list[Any]:
    """Parameters (name, sample) of every op that is wanted."""
    return [
        pytest.param(name, sample, id=f"{name}-{number}")
        for name in sorted(OPS)
        if wanted(OPS[name])
        for number, sample in enumerate(samples_of(name))
    ]


def types_of(sample: Sample) -> list[TensorType | None]:
    """The operands' types."""
    return [None if array is None else TensorType(from_numpy(array.dtype), array.shape) for array in sample.operands]


@dataclass(frozen=True)
class Variant:
    """A sample with symbols for some extents: what infer was given, what it said, and the symbols' values."""

    types: list[TensorType | None]
    attrs: Attrs
    results: tuple[TensorType, ...]
    symbols: dict[str, int]


def variants(name: str, sample: Sample) -> Iterator[Variant]:
    """Every way tried to put symbols in place of extents that infer accepts.

    First equal extents as one symbol, everywhere; then all axes of the first operand as symbols of
    their own; then one axis of it at a time.
    """
    extents = sorted({n for array in sample.operands if array is not None for n in array.shape if n > 1})
    yield from _accepted(name, sample, {n: f"s{n}" for n in extents}, None)
    if sample.operands and sample.operands[0] is not None:
        axes = [axis for axis, n in enumerate(sample.operands[0].shape) if n > 1]
        for chosen in [axes, *([axis] for axis in axes)]:
            yield from _accepted(name, sample, {}, chosen)


def _accepted(name: str, sample: Sample, by_extent: dict[int, str], axes: list[int] | None) -> Iterator[Variant]:
    symbols: dict[str, int] = {}

    def named(symbol: str, extent: int) -> Dim:
        symbols[symbol] = extent
        return Symbol(symbol, lo=2).dim

    def replaced(extent: Any) -> Any:
        return named(by_extent[extent], extent) if extent in by_extent else extent

    types = types_of(sample)
    attrs = dict(sample.attrs)
    if axes is None:
        types = [None if t is None else TensorType(t.dtype, tuple(map(replaced, t.shape))) for t in types]
        for key in ("shape", "sizes"):
            value = attrs.get(key)
            if isinstance(value, tuple):
                attrs[key] = tuple(map(replaced, value))
    else:
        first = sample.operands[0]
        assert first is not None
        shape = tuple(named(f"a{axis}", n) if axis in axes else n for axis, n in enumerate(first.shape))
        types[0] = TensorType(from_numpy(first.dtype), shape)
    try:
        results = infer(name, attrs, types)
    except OpError:
        return  # it wants fixed extents here, or cannot prove that they fit
    yield Variant(types, OPS[name].check_attrs(attrs), results, symbols)
