"""Options of a build: one frozen value, hashed into cache keys and written into the artifact.

Invariant: two builds of one model with equal `CompileOptions.digest()` and equal tools give the same
bytes. Fields that only say where or how fast the work is done are left out of the digest.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from aot.dtypes import BF16, F16, DType
from aot.errors import OptionError
from aot.quantization import Quantization

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
IO_DTYPES: Mapping[str, DType | None] = {"model": None, "fp16": F16, "bf16": BF16}
WEIGHTS = ("embedded", "packed", "external", "none")
Binding = tuple[tuple[str, int], ...]  # what one variant fixes: (dimension name, extent), sorted

_HERE = {"output": False}  # the field does not change a byte of the output


class DimRange(NamedTuple):
    """`--dim NAME=LO..HI`: inclusive bounds of a dimension; equal bounds fix it, hi None leaves it open."""

    name: str
    lo: int
    hi: int | None

    def __str__(self) -> str:
        return f"{self.name}={self.lo}" if self.lo == self.hi else f"{self.name}={self.lo}..{self.hi or ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Everything that a user can ask of a build.

    `targets`: "backend" or "backend:architecture"; a bare backend means its default architectures.
    `dims`: bounds for symbolic dimensions: DimRange, texts as --dim takes them, or a mapping of names to a size or
    to (lowest, highest), None for no highest.
    `values`: (input, number or nested tuple of numbers) pairs, or a mapping: inputs that become constants.
    `overridable`: initializers that become inputs; "all": every one that the model also declares as an input.
    `trust_pickle`: read weights of a .pt2 file that only a pickle holds, which can run code.
    `variants`: one specialized program each, tried in this order before the general one.
    `precision`: of float32 arithmetic, on targets that have it: "fp32" multiplies as IEEE says, "tf32" with 10 bits of
    mantissa, "fp16" and "bf16" also store activations and weights so; sums, reductions and elementwise ops are in f32.
    `io_dtype`: of float32 inputs, outputs and state: "model" leaves them, "fp16" and "bf16" convert them.
    `exact`: forbid reassociation and fused multiply-add across ops.
    `host_steps`: whether a GPU may leave nodes that it has no kernel for to the CPU; else the build fails, naming them.
    `weights`: where they live: "embedded" (each once), "packed" (as each target packs them), "external" or "none".
    `strip_debug`: leave IR text and kernel sources out.
    `quantization`: which products are quantized and how: a record, as `aotc quantize` writes it.
    `disable`: passes ("NAME", "NAME:n" for its n-th run) or rewrite rules to skip.
    `bisect`: only the first so many rewrites fire.
    `dump_dir`: numbered IR text after each pass.
    `cache_dir`: the folder of compiled kernels, by content; None: compile every kernel.
    `jobs`: parallel compilers; None: one per core.
    `c_compiler`: the command to compile kernels with; "": search.

    Raises OptionError for values that make no sense.
    """

    targets: tuple[str, ...] = ("cpu",)
    dims: tuple[DimRange, ...] = ()
    values: tuple[tuple[str, Any], ...] = ()
    overridable: tuple[str, ...] = ()
    trust_pickle: bool = False
    variants: tuple[Binding, ...] = ()
    precision: str = "fp32"
    io_dtype: str = "model"
    exact: bool = False
    host_steps: bool = True
    weights: str = "embedded"
    strip_debug: bool = False
    quantization: Quantization | None = None
    disable: tuple[str, ...] = ()
    bisect: int | None = None
    dump_dir: Path | None = field(default=None, metadata=_HERE)
    cache_dir: Path | None = field(default=None, metadata=_HERE)
    jobs: int | None = field(default=None, metadata=_HERE)
    c_compiler: str = field(default="", metadata=_HERE)  # its version is in the artifact's list of tools

    def __post_init__(self) -> None:
        for name in ("dump_dir", "cache_dir"):
            folder = getattr(self, name)
            object.__setattr__(self, name, None if folder is None else Path(folder))
        pairs = self.values.items() if isinstance(self.values, Mapping) else self.values
        held = {name: _plain_value(name, value) for name, value in pairs}
        if len(held) != len(pairs):
            raise OptionError("--set gives an input twice", hint="Give each input one value.")
        object.__setattr__(self, "values", tuple(sorted(held.items())))
        names = (self.overridable,) if isinstance(self.overridable, str) else self.overridable
        object.__setattr__(self, "overridable", tuple(dict.fromkeys(names)))
        if not self.targets:
            raise OptionError("no target given", hint="Name at least one, such as --target cpu.")
        if len(set(self.targets)) != len(self.targets):
            raise OptionError(f"a target is given twice: {', '.join(self.targets)}")
        if self.precision not in PRECISIONS:
            raise OptionError(f"unknown precision {self.precision!r}", hint=f"Known: {', '.join(PRECISIONS)}.")
        if self.io_dtype not in IO_DTYPES:
            raise OptionError(f"unknown io dtype {self.io_dtype!r}", hint=f"Known: {', '.join(IO_DTYPES)}.")
        if self.weights not in WEIGHTS:
            raise OptionError(f"unknown weights mode {self.weights!r}", hint=f"Known: {', '.join(WEIGHTS)}.")
        if self.weights == "none" and self.quantization is not None:
            raise OptionError(
                "callers have the model's weights, not quantized ones: weights='none' does not go with quantization",
                hint="Keep them in the file (embedded), or beside it (external).",
            )
        if self.bisect is not None and self.bisect < 0:
            raise OptionError(f"--bisect counts rewrites from 0, got {self.bisect}")
        if self.jobs is not None and self.jobs < 1:
            raise OptionError(f"--jobs needs at least 1, got {self.jobs}")
        object.__setattr__(self, "dims", tuple(_dim_ranges(self.dims)))
        seen: dict[str, DimRange] = {}
        for dim in self.dims:
            _check_range(dim)
            if dim.name in seen and seen[dim.name] != dim:
                raise OptionError(f"dimension {dim.name!r} is bound twice: {seen[dim.name]} and {dim}")
            seen[dim.name] = dim
        for binding in self.variants:
            for name, extent in binding:
                allowed = seen.get(name)
                if allowed and (extent < allowed.lo or (allowed.hi is not None and extent > allowed.hi)):
                    raise OptionError(f"variant {name}={extent} lies outside --dim {allowed}")

    def dim(self, name: str) -> DimRange | None:
        """The bounds asked for a dimension."""
        return next((dim for dim in self.dims if dim.name == name), None)

    @property
    def dim_bounds(self) -> dict[str, tuple[int, int | None]]:
        """(lo, hi) by dimension name, as the frontends take them."""
        return {dim.name: (dim.lo, dim.hi) for dim in self.dims}

    def to_json(self) -> dict[str, Any]:
        """The fields that change the output, as JSON values."""
        result: dict[str, Any] = {}
        for item in fields(self):
            if item.metadata.get("output", True):
                value = getattr(self, item.name)
                held = value.digest if isinstance(value, Quantization) else value
                result[item.name] = json.loads(json.dumps(held))
        return result

    def digest(self) -> str:
        """SHA-256, in hex, over the fields that change the output."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


def _plain_value(name: str, value: Any) -> Any:
    """A value of --set as numbers and nested tuples; arrays have `tolist`."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(_plain_value(name, item) for item in value)
    if not isinstance(value, (bool, int, float)) or (isinstance(value, float) and not math.isfinite(value)):
        raise OptionError(f"{value!r} is not a finite number", where=f"input {name!r}", hint="Give numbers or lists.")
    return value


def parse_set_option(text: str) -> tuple[str, Any]:
    """Reads `NAME=VALUE`, a number, true, false or a list such as [1,2]; raises OptionError."""
    name, separator, value = text.rpartition("=")
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not separator or not name or not isinstance(found, (int, float, list)):
        raise OptionError(f"cannot read --set {text!r}", hint="Write NAME=3, NAME=true or NAME=[1,2].")
    return name, _plain_value(name, found)


def _dim_ranges(given: Any) -> Iterator[DimRange]:
    if isinstance(given, Mapping):
        given = [(name, *(size if isinstance(size, tuple) else (size, size))) for name, size in given.items()]
    for item in (given,) if isinstance(given, str) else given:
        if isinstance(item, str):
            yield parse_dim_option(item)
            continue
        kinds = [type(part) for part in item] if isinstance(item, tuple | list) else []
        if kinds not in ([str, int, int], [str, int, type(None)]):
            raise OptionError(f"{item!r} is no bound of a dimension", hint="Give NAME=N texts, or {NAME: (LO, HI)}.")
        yield DimRange(*item)


def _check_range(dim: DimRange) -> None:
    if not dim.name:
        raise OptionError("a dimension needs a name", hint="Write NAME=LO..HI or NAME=N.")
    if dim.lo < 0 or (dim.hi is not None and dim.hi < dim.lo):
        raise OptionError(f"empty range {dim.lo}..{dim.hi} for dimension {dim.name!r}")


def parse_dim_option(text: str) -> DimRange:
    """Reads `NAME=N`, `NAME=LO..HI` or `NAME=LO..`; raises OptionError."""
    name, separator, value = text.rpartition("=")
    match = re.fullmatch(r"\s*(\d+)\s*(?:(\.\.)\s*(\d*))?\s*", value)
    if not separator or not name.strip() or match is None:
        raise OptionError(f"cannot read --dim {text!r}", hint="Write NAME=N, NAME=LO..HI or NAME=LO.. (open above).")
    lo = int(match[1])
    hi = lo if match[2] is None else int(match[3]) if match[3] else None
    dim = DimRange(name.strip(), lo, hi)
    _check_range(dim)
    return dim


def parse_variant_option(text: str) -> tuple[str, tuple[int, ...]]:
    """Reads `NAME=1,8` as (name, extents); raises OptionError."""
    name, separator, value = text.rpartition("=")
    if not separator or not name.strip() or re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", value) is None:
        raise OptionError(f"cannot read --variant {text!r}", hint="Write NAME=1,8: one program for each extent.")
    return name.strip(), tuple(dict.fromkeys(int(item) for item in value.split(",")))


def combine_variants(choices: Iterable[tuple[str, Sequence[int]]]) -> tuple[Binding, ...]:
    """Every combination of the extents given for each dimension, in the order given."""
    merged: dict[str, list[int]] = {}
    for name, extents in choices:
        merged.setdefault(name, []).extend(e for e in extents if e not in merged.get(name, ()))
    if not merged:
        return ()
    return tuple(tuple(sorted(zip(merged, combination, strict=True))) for combination in product(*merged.values()))
