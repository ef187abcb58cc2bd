"""Links of the chain: what can answer a request. Each has a name, a breaker, and `run` as Model has it.

A Version is an artifact in this process, with the fallbacks that come from its own file. It counts the runs in flight,
and its memory goes when it is retired and the last of them has ended.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from aot.errors import AotError, GuardError, RunError
from aot.runtime import Model, load
from aot.runtime.serving._process import SameFile
from aot.runtime.serving.breaker import Breaker
from aot.runtime.serving.causes import CLOSED, LinkError

SHORT_SECONDS = 0.005
"""Two runs together that take less are made twice where they are compared."""


class Runs(Protocol):
    """What answers: Model, or something like it."""

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """As Model.run."""


@dataclass(frozen=True)
class OnnxRuntime:
    """A fallback to declare: the original model, run by ONNX Runtime on the CPU.

    Its inputs and outputs must have the names of the artifact's. Where onnxruntime is not installed, the link is
    absent, which `statistics` says. A run is not stopped at its deadline.
    """

    path: str | os.PathLike[str]
    threads: int | None = None


class Link:
    """One place of the chain."""

    def __init__(self, name: str, runs: Runs, breaker: Breaker) -> None:
        self.name, self.runs, self.breaker = name, runs, breaker


class Version:
    """A loaded artifact and its links. `number` counts the artifacts of a deployment from 1.

    `in_flight` and `is_retired` belong to the deployment's lock.
    """

    def __init__(self, number: int, source: Any, model: Model, is_owned: bool, links: tuple[Link, ...]) -> None:
        self.number, self.source, self.model, self.links = number, source, model, links
        self.file = SameFile(source)
        self.breaker = links[0].breaker
        self.in_flight = 0
        self.is_retired = False
        self._owned: list[Model] = [model] if is_owned else []
        self._owned += [link.runs for link in links[1:] if isinstance(link.runs, Model)]
        self.absent: dict[str, str] = {}
        self.seen: dict[str, int] = {}  # runs by shape bucket, of those that were recorded
        self.buckets = bucket_places(model)
        self.is_closed = False

    def close(self) -> None:
        """Unloads what the deployment loaded; no run may be in flight."""
        self.is_closed = True
        for model in self._owned:
            model.close()


def seconds_of(model: Runs, inputs: Mapping[str, Any]) -> float | None:
    """What a run takes whose results nobody wants; None where it fails."""
    start = time.perf_counter()
    try:
        model.run(inputs)
    except AotError:
        return None
    return time.perf_counter() - start


def taken_alike(
    run: Callable[[], tuple[Any, float]], again: Callable[[], float | None], stable: Callable[[], float | None]
) -> tuple[Any, float, float | None]:
    """What `run` gives, and seconds of the candidate's and of stable's that differ by nothing but the version.

    One behind the other, in either order by chance, since the second finds more in the caches. Short runs are made once
    more, and only those count: the first ones find caches and cores as something else left them, which makes some
    several times as long as others. `run` gives the candidate's results and seconds, `again` and `stable` seconds.
    """
    is_behind = random.random() < 0.5
    twin = stable() if is_behind else None
    results, seconds = run()
    twin = twin if is_behind else stable()
    if twin is not None and seconds + twin < SHORT_SECONDS:
        is_behind = random.random() < 0.5
        twin = stable() if is_behind else None
        seconds = again() or seconds
        twin = twin if is_behind else stable()
    return results, seconds, twin


def load_model(source: Any, options: Mapping[str, Any]) -> tuple[Model, bool]:
    """The model of a path, of bytes, or itself; and whether it was loaded here, so that it is unloaded here too."""
    if isinstance(source, Model):
        return source, False
    return load(source, **options), True


def make_version(
    number: int,
    source: Any,
    options: Mapping[str, Any],
    fallback: Sequence[Any],
    new_breaker: Callable[[], Breaker],
    onnx_session: Callable[[OnnxRuntime, Model], Runs | None],
) -> Version:
    """Loads an artifact, and the CPU program of the same file where it is a declared fallback. Raises as `load`."""
    model, is_owned = load_model(source, options)
    links = [Link("stable", model, new_breaker())]
    absent = {}
    try:
        for declared in fallback:
            if isinstance(declared, OnnxRuntime):
                session = onnx_session(declared, model)
                if session is not None:
                    links.append(Link("onnxruntime", session, new_breaker()))
                continue
            why = ""
            if isinstance(source, Model):
                why = "stable is a loaded model; give its path, so that its CPU program can be loaded"
            elif declared == "cpu" and model.device is None:
                why = "stable runs on the CPU itself"
            else:
                target = declared if declared != "cpu" else _cpu_target(model)
                if target is None:
                    why = "the file has no program for this CPU"
                else:
                    links.append(Link(declared, load(source, **{**options, "target": target}), new_breaker()))
            if why:
                absent[declared] = why
    except BaseException:
        Version(number, source, model, is_owned, tuple(links)).close()
        raise
    version = Version(number, source, model, is_owned, tuple(links))
    version.absent = absent
    return version


def _cpu_target(model: Model) -> str | None:
    """The first target of the file for this machine's CPU; programs are in the order in which they are tried."""
    return next((spec.target for spec in model.programs if spec.target.startswith("cpu:") and spec.supported), None)


def check_fallback(fallback: Sequence[Any]) -> None:
    """Raises RunError for a fallback that nobody knows, or that is given twice."""
    for index, declared in enumerate(fallback):
        is_cpu = isinstance(declared, str) and (declared == "cpu" or declared.startswith("cpu:"))
        if not is_cpu and not isinstance(declared, OnnxRuntime):
            raise RunError(
                f"a fallback is 'cpu', a CPU target such as 'cpu:x86-64', or OnnxRuntime(path); got {declared!r}"
            )
        if any(declared == other or type(declared) is type(other) is OnnxRuntime for other in fallback[:index]):
            raise RunError(f"the fallback {declared!r} is declared twice")


class OnnxSession:
    """The original model in ONNX Runtime, behind `run` as Model has it."""

    def __init__(self, declared: OnnxRuntime, model: Model) -> None:
        """Raises ImportError where onnxruntime is not installed, RunError for a model that is not the artifact's."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = declared.threads or 0
        where = os.fspath(declared.path)
        try:
            self._session = onnxruntime.InferenceSession(where, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise RunError(f"ONNX Runtime does not load the model: {error}", where=where) from error
        self._replaced_by = {pair.input: pair.output for pair in model.state}
        self._outputs = [spec.name for spec in model.outputs]
        given = {port.name for port in self._session.get_inputs()}, {port.name for port in self._session.get_outputs()}
        wanted = {spec.name for spec in model.inputs}, set(self._outputs)
        if given[0] != wanted[0] or not wanted[1] <= given[1]:
            raise RunError(
                f"its inputs and outputs are {sorted(given[0])} and {sorted(given[1])}, those of the artifact "
                f"{sorted(wanted[0])} and {sorted(wanted[1])}",
                where=where,
                hint="Give the model that the artifact was compiled from.",
            )

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """As Model.run, for arrays in CPU memory."""
        feeds = {name: np.asarray(value) for name, value in {**inputs, **(state or {})}.items()}
        try:
            found = self._session.run(self._outputs, feeds)
        except Exception as error:
            kind = GuardError if type(error).__name__ in ("InvalidArgument", "ValueError") else RunError
            raise kind(f"ONNX Runtime refuses: {error}", where="onnxruntime") from error
        return deliver(dict(zip(self._outputs, found, strict=True)), outputs, state, self._replaced_by)


def deliver(
    results: dict[str, Any],
    outputs: Mapping[str, Any] | None,
    state: Mapping[str, Any] | None,
    replaced_by: Mapping[str, str],
) -> dict[str, Any]:
    """Puts results into the arrays that the caller gave for outputs and state; returns what `Model.run` would.

    Raises GuardError, and changes nothing, where an array does not fit.
    """
    targets = dict(outputs or {})
    kept = set()
    for name, array in (state or {}).items():
        if name not in replaced_by:
            raise GuardError("the model has no such state", where=name)
        targets[replaced_by[name]] = array
        kept.add(replaced_by[name])
    for name, array in targets.items():
        result = results.get(name)
        fits = isinstance(array, np.ndarray) and isinstance(result, np.ndarray) and array.flags.writeable
        if not fits or (array.shape, array.dtype) != (getattr(result, "shape", ()), getattr(result, "dtype", None)):
            raise GuardError("the array that was given for it does not fit", where=f"output {name!r}")
    for name, array in targets.items():
        array[...] = results[name]
        results[name] = array
    return {name: array for name, array in results.items() if name not in kept}


def bucket_places(model: Model) -> tuple[tuple[str, str, int], ...]:
    """(dim, input, axis) for each extent that varies and is the axis of an input."""
    names = {dim.name for dim in model.dims}
    found: dict[str, tuple[str, str, int]] = {}
    for spec in model.inputs:
        for axis, extent in enumerate(spec.shape):
            if extent in names:
                found.setdefault(str(extent), (str(extent), spec.name, axis))
    return tuple(found.values())


def bucket_of(places: Sequence[tuple[str, str, int]], inputs: Mapping[str, Any]) -> str:
    """The shape bucket, such as "batch=8": each extent that varies, rounded up to a power of two."""
    parts = []
    for dim, name, axis in places:
        shape = getattr(inputs.get(name), "shape", ())
        if axis < len(shape):
            extent = int(shape[axis])
            parts.append(f"{dim}={1 << (extent - 1).bit_length() if extent > 1 else extent}")
    return ",".join(parts)


def closed_error() -> AotError:
    """For every use of a deployment that was closed."""
    return LinkError(CLOSED, "the deployment was closed")
