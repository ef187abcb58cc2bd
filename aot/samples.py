"""Data for calibration and measurement: files, folders, functions and iterators as samples, one run's inputs each.

Files are read one after the other, as they are gone through: data may be larger than memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from aot.array_files import load_arrays, read_npy
from aot.errors import AotError, OptionError
from aot.ir import Array, Value

Sample = Mapping[str, Array]
"""The inputs of one run, by name."""

Samples = Callable[[], Iterable[Sample]]
"""Goes through the samples from the first on, as often as it is called."""

Data = str | Path | Iterable[Sample] | Samples
"""A path, or "module:function", or samples, or a function that gives them."""

_SHAPES = (
    "Data are .npz files with the inputs by name (one run, or many along a leading axis), a folder of such files, "
    "a folder with an .npy file for each input (samples along the leading axis), or module:function."
)


def open_samples(
    data: Data, inputs: Sequence[Value], held: int | None = 0, defaults: Mapping[str, Array] | None = None
) -> Samples:
    """The samples of `data` for a model with these inputs.

    An iterator gives its samples once. The first `held` of them (None: all) are kept for going through them again.
    `defaults`: what inputs are that a sample may leave out, such as state.
    Raises OptionError for a path or a function that does not exist; what does not fit is found when it is read.
    """
    defaults = defaults or {}

    def checked(samples: Callable[[], Any]) -> Samples:
        return lambda: _checked(samples(), inputs, defaults)

    if isinstance(data, (str, Path)):
        path = Path(data)
        if path.exists():
            return checked(lambda: _of_path(path, _Ports(inputs, defaults)))
        if ":" in str(data) and path.suffix not in (".npz", ".npy"):
            function = _function(str(data))
            return checked(lambda: _called(function, str(data)))
        raise OptionError("no such file or folder", where=str(path), hint=_SHAPES)
    if callable(data):
        return checked(data)
    if isinstance(data, Mapping):
        raise OptionError(
            "the data is one mapping of names to arrays, and samples are wanted",
            hint="Give a list of the inputs of each run: [{name: array, …}, …].",
        )
    if isinstance(data, Iterator):
        return checked(_Once(data, held))
    return checked(lambda: data)


class _Once:
    """An iterator's samples; the first few of them again."""

    def __init__(self, data: Iterator[Sample], held: int | None) -> None:
        self.data, self.most = data, held
        self.held: list[Sample] = []
        self.lost = False

    def __call__(self) -> Iterator[Sample]:
        yield from list(self.held)
        if self.lost:
            raise OptionError(
                "the data is an iterator, and was gone through before", hint="Give a list, or a function that gives it."
            )
        for sample in self.data:
            if self.most is None or len(self.held) < self.most:
                self.held.append(sample)
            else:
                self.lost = True
            yield sample


def _called(function: Samples, name: str) -> Iterator[Any]:
    """What a function that the user named gives; raises OptionError where it fails."""
    try:
        found = function()
        if isinstance(found, Mapping) or not isinstance(found, Iterable):
            raise OptionError(f"it gave {type(found).__name__}, not samples", where=name, hint=_SHAPES)
        yield from found
    except AotError:
        raise
    except Exception as error:
        raise OptionError(f"the data failed: {type(error).__name__}: {error}", where=name) from error


def _function(text: str) -> Samples:
    """The function that module:function names."""
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # the module's own code may fail as it likes
        raise OptionError(
            f"cannot load the data {text!r}: {error}",
            hint=f"{_SHAPES} PYTHONPATH says where modules are.",
        ) from error
    if not callable(found):
        raise OptionError(f"{text} is no function", hint="It must give samples: inputs of one run each, by name.")
    made: Samples = found
    return made


class _Ports:
    """Inputs by name; those without a default must be in every file."""

    def __init__(self, inputs: Sequence[Value], defaults: Mapping[str, Array]) -> None:
        self.types = {value.name: value.type for value in inputs}
        self.needed = [name for name in self.types if name not in defaults]


def _of_path(path: Path, ports: _Ports) -> Iterator[Sample]:
    """The samples of a file or a folder, one after the other."""
    if path.is_dir():
        yield from _of_folder(path, ports)
        return
    found = load_arrays(path)
    if isinstance(found, np.ndarray):
        if len(ports.needed) != 1:
            raise OptionError(
                f"the file holds one array, and the model has {len(ports.needed)} inputs", where=str(path), hint=_SHAPES
            )
        found = {ports.needed[0]: found}
    yield from _split(found, ports, str(path))


def _of_folder(path: Path, ports: _Ports) -> Iterator[Sample]:
    by_input = {name: path / f"{name}.npy" for name in ports.types}
    present = {name: file for name, file in by_input.items() if file.is_file()}
    files = sorted(file for file in path.iterdir() if file.suffix in (".npz", ".npy"))
    if present and not any(file.suffix == ".npz" for file in files):
        missing = [name for name in ports.needed if name not in present]
        if missing:
            raise OptionError(
                f"there is no {missing[0]}.npy",
                where=str(path),
                hint=f"An .npy file for each input: {', '.join(ports.needed)}.",
            )
        yield from _split({name: _mapped(file) for name, file in present.items()}, ports, str(path), always=True)
        return
    if not files:
        raise OptionError("the folder holds no .npz or .npy file", where=str(path), hint=_SHAPES)
    for file in files:
        yield from _of_path(file, ports)


def _mapped(path: Path) -> Array:
    """The array of an .npy file, read as it is used; raises OptionError for anything else."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):  # an empty array cannot be mapped, either
        return read_npy(path)
    return found if isinstance(found, np.ndarray) else read_npy(path)


def _split(arrays: Mapping[str, Array], named: _Ports, where: str, always: bool = False) -> Iterator[Sample]:
    """One sample, or as many as the leading axis has: where arrays have an axis more than inputs, or a fixed first
    extent that is not theirs; `always`: where the file is of one input, its first axis counts samples."""
    ports = named.types
    for name in arrays:
        if name not in ports:
            close = get_close_matches(name, list(ports), 1)
            meant = f"Did you mean {close[0]!r}? " if close else ""
            raise OptionError(f"no input {name!r}", where=where, hint=f"{meant}The inputs are {', '.join(ports)}.")
    missing = [name for name in named.needed if name not in arrays]
    if missing:
        raise OptionError(f"input {missing[0]!r} is missing", where=where, hint=f"The file has {', '.join(arrays)}.")
    ranks = {name: array.ndim - ports[name].rank for name, array in arrays.items()}
    if all(more == 1 for more in ranks.values()):
        yield from _along(arrays, where, keep=False)
    elif all(more == 0 for more in ranks.values()):
        first = {name: ports[name].shape[0] for name, array in arrays.items() if array.ndim}
        many = any(arrays[name].shape[0] != extent for name, extent in first.items() if extent == 1)
        if many or (always and all(extent == 1 or not isinstance(extent, int) for extent in first.values())):
            yield from _along(arrays, where, keep=True)
        else:
            yield {name: np.asarray(array) for name, array in arrays.items()}
    else:
        name = next(name for name, more in ranks.items() if more not in (0, 1) or more != max(ranks.values()))
        raise OptionError(
            f"input {name!r} has {ports[name].rank} axes; the array has {arrays[name].ndim}", where=where, hint=_SHAPES
        )


def _along(arrays: Mapping[str, Array], where: str, keep: bool) -> Iterator[Sample]:
    """Samples along the leading axis; `keep`: it stays, with extent 1."""
    counts = {name: array.shape[0] for name, array in arrays.items() if array.ndim}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise OptionError(f"the inputs have different numbers of samples: {told}", where=where)
    for number in range(next(iter(counts.values()), 0)):
        place: Any = slice(number, number + 1) if keep else number
        yield {name: np.asarray(array[place]) if array.ndim else array for name, array in arrays.items()}


def _checked(samples: Any, inputs: Sequence[Value], defaults: Mapping[str, Array]) -> Iterator[Sample]:
    """The samples, each with every input of the right type and without NaN; shapes are the runtime's to check."""
    ports = {value.name: value.type for value in inputs}
    try:
        iterator = iter(samples)
    except TypeError as error:
        raise OptionError(f"the data is {type(samples).__name__}, which gives no samples", hint=_SHAPES) from error
    for number, sample in enumerate(iterator):
        where = f"sample {number + 1} of the data"
        if not isinstance(sample, Mapping):
            raise OptionError(
                f"a sample is the inputs of one run, arrays by name, not {type(sample).__name__}", where=where
            )
        given = {**defaults, **{name: np.asarray(array) for name, array in sample.items()}}
        for name in given:
            if name not in ports:
                raise OptionError(f"no input {name!r}", where=where, hint=f"The inputs are {', '.join(ports)}.")
        for name, type_ in ports.items():
            if name not in given:
                raise OptionError(f"input {name!r} is missing", where=where, hint=f"It has {', '.join(given)}.")
            _check(given[name], name, type_.dtype.numpy, type_.rank, where)
        yield given


def _check(array: Array, name: str, dtype: Any, rank: int, where: str) -> None:
    if array.dtype != dtype:
        raise OptionError(
            f"input {name!r}: expected {dtype} elements, got {array.dtype}",
            where=where,
            hint=f"Convert the array with .astype({str(dtype)!r}).",
        )
    if array.ndim != rank:
        raise OptionError(f"input {name!r} has {rank} axes; the array has {array.ndim}: {array.shape}", where=where)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        count = int(array.size - np.isfinite(array).sum())
        raise OptionError(
            f"input {name!r} holds NaN or infinity, in {count} of {array.size} elements",
            where=where,
            hint="Leave such samples out: ranges that follow from them mean nothing.",
        )
