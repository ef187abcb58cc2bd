"""Times of a model's kernels, and of the device's memory, as a profiler needs them.

On a GPU a kernel of a few microseconds is shorter than its launch and about as long as events are exact, so each is
launched many times in a row, in a graph of its own between two events. Everything is done in a session that nothing
else uses, on copies of the inputs: what the repeated launches leave in state is never seen by anyone.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aot.errors import RunError
from aot.runtime import _library as native
from aot.runtime import _tensors

if TYPE_CHECKING:
    from aot.runtime._model import Model

_ARGUMENT = 1  # AOT_ERROR_ARGUMENT
_PROFILE = 1  # AOT_SESSION_PROFILE
_RUNS = 10  # on a CPU
_ROUNDS = 3
_MOST_REPEATS = 200
_FEWEST_REPEATS = 5
_ROUND_SECONDS = 0.25  # of all kernels together, about


class StepTime(NamedTuple):
    """A kernel launch of a run: its label, the model's nodes that it computes, and the seconds that it takes.

    `starts_early`: it may begin before the kernel ahead of it has ended, and waits inside.
    """

    label: str
    nodes: tuple[str, ...]
    seconds: float
    starts_early: bool = False


class Times(NamedTuple):
    """What `Model.time_steps` found.

    `program`: the number of the program in the artifact. `run_seconds`: of a whole run; on a GPU as one graph among
    others in a row, without copies of inputs and results. `repeats`: launches of a kernel between two events.
    `method`: "graph" (each kernel many times in a graph of its own), "events" (an event around each launch, which is
    most of a short kernel's time), "barriers" (on a CPU: a barrier and a clock behind each step).
    """

    program: int
    steps: tuple[StepTime, ...]
    run_seconds: float
    method: str
    repeats: int


def time_steps(model: Model, inputs: Mapping[str, Any], repeats: int | None) -> Times:
    """See Model.time_steps."""
    if repeats is not None and repeats < 1:
        raise RunError(f"repeats must be at least 1, got {repeats}")
    state = _copies(model, inputs)
    given = model._given({**inputs, **state})
    results = {pair.output: state[pair.input] for pair in model.state}
    for name, view in zip(model._input_names, given, strict=True):
        if view.is_on_device:
            raise RunError("a profile wants inputs in CPU memory", where=name, hint="Give a numpy array.")
    if model.device is not None:
        found = _in_graphs(model, given, results, repeats)
        if found is not None:
            return found
    program, rows, run_ns = _one_by_one(model, given, results, repeats or _RUNS)
    steps = tuple(StepTime(*model._step(program, number), ns * 1e-9) for number, ns in enumerate(rows))
    return Times(program, steps, run_ns * 1e-9, "barriers" if model.device is None else "events", 1)


def profile(model: Model, inputs: Mapping[str, Any], repeats: int) -> list[tuple[str, tuple[str, ...], float]]:
    """See Model.profile."""
    state = _copies(model, inputs)
    results = {pair.output: state[pair.input] for pair in model.state}
    program, rows, _ = _one_by_one(model, model._given({**inputs, **state}), results, repeats)
    return [(*model._step(program, number), ns * 1e-9) for number, ns in enumerate(rows)]


def _copies(model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of our own for state, which is updated in place, as where the model is used."""
    if not model.state:
        return {}
    import numpy

    return {pair.input: numpy.array(inputs[pair.input], order="C") for pair in model.state if pair.input in inputs}


def _in_graphs(model: Model, given: list[Any], results: dict[str, Any], repeats: int | None) -> Times | None:
    """The times of a program without control flow; None for others."""
    lib, session, error = model._lib, model._new_session(), native.new_error()
    try:
        model._run_in(session, given, results, None)
        count, run_ns = ctypes.c_uint32(), ctypes.c_uint64()

        def measure(times: int, steps: Any) -> bool:
            status = lib.aot_session_time_steps(
                session, times, steps, len(steps), ctypes.byref(count), ctypes.byref(run_ns), ctypes.byref(error)
            )
            if status and status != _ARGUMENT:
                raise native.exception(status, error)
            return not status

        if not measure(3, (native.StepTimeInfo * 0)()):
            return None
        if repeats is None:
            fitting = int(_ROUND_SECONDS * 1e9 / max(run_ns.value, 1))
            repeats = min(max(fitting, _FEWEST_REPEATS), _MOST_REPEATS)
        rounds: list[Any] = []
        whole: list[int] = []
        for _ in range(_ROUNDS):
            rounds.append((native.StepTimeInfo * count.value)())
            measure(repeats, rounds[-1])
            whole.append(run_ns.value)
    finally:
        lib.aot_session_destroy(session)
    program, _, _ = _one_by_one(model, given, results, 0)
    steps = []
    for number, taken in enumerate(zip(*rounds, strict=True)):
        label, nodes = model._step(program, number)
        middle = _median([each.ns for each in taken])
        steps.append(StepTime(label, nodes, middle * 1e-9, bool(taken[0].starts_early)))
    return Times(program, tuple(steps), _median(whole) * 1e-9, "graph", repeats)


def _one_by_one(
    model: Model, given: list[Any], results: dict[str, Any], repeats: int
) -> tuple[int, list[float], float]:
    """The number of the program that runs, medians of the nanoseconds of its steps, and that of whole runs.

    Runs with and without a profile take turns, so that both meet the same machine.
    """
    lib, program, error = model._lib, ctypes.c_uint32(), native.new_error()
    inputs = model._input_addresses(*[view.address for view in given])
    # All results but state stay in the session's memory, where they cost nothing of Python's.
    views = [_tensors.view(n, results[n], writable=True) if n in results else None for n in model._output_names]
    targets = model._output_addresses(*[view.address if view else None for view in views])
    rows: list[list[int]] = []
    whole: list[int] = []
    sessions: list[int] = []
    try:
        for flags in (_PROFILE, 0):
            sessions.append(model._new_session(flags))
        for repeat in range(repeats + 1):
            for session in sessions:
                start = time.perf_counter_ns()
                status = lib.aot_session_run(
                    session, inputs, len(given), targets, len(views), None, ctypes.byref(error)
                )
                run_ns = time.perf_counter_ns() - start
                if status:
                    raise native.exception(status, error)
            count = lib.aot_session_profile(sessions[0], None, 0, ctypes.byref(program))
            taken = (ctypes.c_uint64 * count)()
            lib.aot_session_profile(sessions[0], taken, count, None)
            if repeat or not repeats:  # the first run pays for cold memory
                rows.append(list(taken))
                whole.append(run_ns)
    finally:
        for session in sessions:
            lib.aot_session_destroy(session)
    return program.value, [_median(column) for column in zip(*rows, strict=True)], _median(whole)


def _median(values: Sequence[int]) -> float:
    return sorted(values)[len(values) // 2]


def copy_rate(model: Model, most_bytes: int, repeats: int = 7) -> float:
    """Bytes per second, read and written, of the driver's own copy in the GPU's memory; 0: not enough memory.

    The difference of a copy of `most_bytes` and one of an eighth of that: what every copy costs falls out.
    """
    lib, handle, error = model._lib, model._live, native.new_error()

    def seconds(to: int, source: int, size_bytes: int) -> float:
        start = time.perf_counter_ns()
        status = lib.aot_device_copy(handle, to, source, size_bytes, None, ctypes.byref(error))
        if status:
            raise native.exception(status, error)
        return (time.perf_counter_ns() - start) * 1e-9

    while most_bytes >= 1 << 20:
        places = [ctypes.c_void_p(), ctypes.c_void_p()]
        try:
            if any(lib.aot_device_allocate(handle, most_bytes, ctypes.byref(p), ctypes.byref(error)) for p in places):
                most_bytes //= 2
                continue
            to, source = (place.value or 0 for place in places)
            seconds(to, source, most_bytes)
            whole = min(seconds(to, source, most_bytes) for _ in range(repeats))
            part = min(seconds(to, source, most_bytes // 8) for _ in range(repeats))
            return 2 * (most_bytes - most_bytes // 8) / max(whole - part, 1e-9)
        finally:
            for place in places:
                lib.aot_device_free(handle, place)
    return 0.0
