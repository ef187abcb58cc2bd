"""Runs the self-test that an artifact holds: are its numbers those of the build, and is it as fast as it was there?

The rule for numbers. For every output the differences from the reference (max_abs, relative, cosine; of whole numbers
max_abs) may be at most FACTOR times the largest that the build recorded over its samples, and never need be less than
rounding explains: FLOORS, a share of the output's largest value (for relative, of its length; for cosine, the square of
it). Where the program that runs has another precision than the one that was measured, the floor is that of the wider
rounding of both. Flips of the largest (top1) are shown and not judged: within the limit of max_abs they are ties.

The rule for latency. The median of some runs on the first input may be at most SLOWER times the 90th percentile that
the build recorded. On a machine of another kind, or with other threads, that is told and decides nothing.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from aot.errors import AotError
from aot.runtime._library import library
from aot.runtime._machine import this_machine
from aot.runtime.serving.compare import LARGEST, METRICS
from aot.runtime.serving.expected import ErrorDistribution, expected_of
from aot.runtime.serving.stored_tests import StoredTest, stored_tests

FACTOR = 3.0
SLOWER = 1.5
FLOORS: Mapping[str, float] = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 1e-2, "bf16": 5e-2}
UNRECORDED = 10.0
"""How many floors an output may be off where the build recorded no errors."""
WARM_UP_RUNS = 3
TIMED_SECONDS = 1.0
LEAST_RUNS, MOST_RUNS = 5, 200
_JUDGED = ("max_abs", "relative", "cosine")
_HALVES = {"float16": "fp16", "bfloat16": "bf16"}

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Check:
    """One output of one input against the reference. `limit` is None for a metric that is shown only."""

    input: int
    output: str
    metric: str
    value: float
    limit: float | None

    @property
    def passed(self) -> bool:
        return self.limit is None or self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of a run: median, 10th and 90th percentile, over `runs`, with `threads` on `machine`."""

    median_seconds: float
    p10_seconds: float
    p90_seconds: float
    runs: int
    threads: int
    target: str
    machine: Mapping[str, Any]

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> Latency:
        return cls(**{name: held[name] for name in cls.__slots__})

    def to_json(self) -> dict[str, Any]:
        """The object that the metadata of an artifact has."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What a self-test found. `inputs`: how many were run; 0: the artifact holds none.

    `latency_problem` is "" where the latency is inside the band, or cannot be judged; `warnings` say why it cannot.
    """

    target: str
    inputs: int
    checks: tuple[Check, ...]
    problems: tuple[str, ...]
    latency: Latency | None
    recorded: Latency | None
    latency_problem: str
    warnings: tuple[str, ...]

    @property
    def numbers_passed(self) -> bool:
        return not self.problems and all(check.passed for check in self.checks)

    @property
    def passed(self) -> bool:
        """Whether numbers and latency are as the build left them."""
        return self.numbers_passed and not self.latency_problem

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "passed": self.passed,
            "numbers_passed": self.numbers_passed,
            "target": self.target,
            "inputs": self.inputs,
            "checks": [asdict(check) | {"passed": check.passed} for check in self.checks],
            "problems": list(self.problems),
            "latency": None if self.latency is None else self.latency.to_json(),
            "recorded_latency": None if self.recorded is None else self.recorded.to_json(),
            "latency_problem": self.latency_problem,
            "warnings": list(self.warnings),
        }


def self_test(
    model: Any,
    artifact: str | os.PathLike[str] | bytes,
    *,
    threads: int | None = None,
    time_it: bool = True,
) -> SelfTest:
    """Runs the tests of an artifact on `model`, which was loaded from it.

    `threads` is what `aot.load` was given. `time_it=False` leaves latency out. A run that fails is a problem, not an
    exception. Raises ArtifactError where the file cannot be read, RunError where recorded errors are malformed.
    """
    tests = stored_tests(artifact)
    meta = model.meta
    expected = expected_of(meta)
    target = model.target
    warnings: list[str] = []
    if not tests:
        text = "the artifact holds no inputs to test with: build it with --self-test"
        return SelfTest(target, 0, (), (), None, _recorded(meta), "", (text,))
    floor = _floor(meta, target)
    checks: list[Check] = []
    problems: list[str] = []
    for number, test in enumerate(tests):
        try:
            found = run_once(model, test.inputs)
        except AotError as error:
            problems.append(f"input {number}: the run failed: {error.message}")
            continue
        for name, reference in test.outputs.items():
            if name not in found:
                problems.append(f"input {number}: there is no output {name!r}")
            elif found[name].shape != reference.shape:
                shapes = f"{list(found[name].shape)}, expected {list(reference.shape)}"
                problems.append(f"input {number}: output {name!r} has the shape {shapes}")
            else:
                checks += _checks(number, name, reference, found[name], expected.get(name), floor)
    recorded, latency, latency_problem = _recorded(meta), None, ""
    if time_it and not problems:
        latency = measure_latency(model, tests[0], threads)
        latency_problem, told = _judge_latency(latency, recorded)
        warnings += told
    return SelfTest(
        target, len(tests), tuple(checks), tuple(problems), latency, recorded, latency_problem, tuple(warnings)
    )


def run_once(model: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of one run, as arrays of their own; the inputs stay as they are, state among them."""
    outputs = model.run({name: np.array(array, order="C") for name, array in inputs.items()})
    return {name: np.array(value) for name, value in outputs.items()}


def differences(reference: Array, found: Array) -> dict[str, float]:
    """How far an output is from the reference, by metric: max_abs, relative, cosine and, where rows have several
    numbers, top1 of floats; max_abs of whole numbers and truth values."""
    if reference.shape != found.shape:
        return {"max_abs": LARGEST}
    is_float = reference.dtype.kind in "fV" or reference.dtype.name.startswith(("bfloat", "float"))
    names = ["max_abs"]
    if is_float:
        names += ["relative", "cosine"] + (["top1"] if reference.ndim and reference.shape[-1] > 1 else [])
    return {name: min(METRICS[name](reference, found), LARGEST) for name in names}


def machine_facts(target: str) -> dict[str, Any]:
    """What a latency depends on, by which two machines are told apart: the CPU's model, level and count, the GPU."""
    machine = this_machine()
    facts: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cpu_level": machine.cpu_level,
        "cpus": int(library().aot_default_thread_count()),
    }
    return facts | ({"gpu_capability": machine.capability} if target.startswith("cuda:") else {})


def measure_latency(model: Any, test: StoredTest, threads: int | None) -> Latency:
    """Times runs on one input, for about a second, after some that are not counted."""
    inputs = {name: np.array(array, order="C") for name, array in test.inputs.items()}
    for _ in range(WARM_UP_RUNS):
        model.run(inputs)
    seconds: list[float] = []
    stop = time.perf_counter() + TIMED_SECONDS
    while len(seconds) < LEAST_RUNS or (time.perf_counter() < stop and len(seconds) < MOST_RUNS):
        start = time.perf_counter()
        model.run(inputs)
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    last = len(seconds) - 1
    low, high = seconds[round(0.1 * last)], seconds[round(0.9 * last)]
    used = threads or int(library().aot_default_thread_count())
    return Latency(median(seconds), low, high, len(seconds), used, model.target, machine_facts(model.target))


def precision_of(meta: Mapping[str, Any], target: str) -> str:
    """In what precision the programs for a target compute."""
    return str(meta.get("precisions", {}).get(target, "fp32"))


def _floor(meta: Mapping[str, Any], target: str) -> float:
    """The share of an output that rounding explains: of the precision that runs, where another one was measured."""
    here = precision_of(meta, target)
    measured = str(meta.get("self_test", {}).get("precision", here))
    if here == measured:
        return FLOORS["fp32"]
    return max(FLOORS.get(here, FLOORS["fp32"]), FLOORS.get(measured, FLOORS["fp32"]))


def _checks(
    number: int,
    name: str,
    reference: Array,
    found: Array,
    recorded: Mapping[str, ErrorDistribution] | None,
    floor: float,
) -> list[Check]:
    half = _HALVES.get(found.dtype.name)
    if half is not None and reference.dtype == np.float32:
        floor = max(floor, FLOORS[half])  # the output itself is rounded so
    floor = floor if recorded else UNRECORDED * floor
    is_whole = reference.dtype.kind in "biu"
    finite = np.abs(reference[np.isfinite(reference)].astype(np.float64)) if not is_whole else np.zeros(0)
    largest = float(finite.max(initial=0.0))
    floors = {"max_abs": 0.0 if is_whole else floor * largest, "relative": floor, "cosine": floor * floor}
    made = []
    for metric, value in differences(reference, found).items():
        limit = None
        if metric in _JUDGED:
            seen = recorded[metric].largest if recorded and metric in recorded else 0.0
            limit = min(max(FACTOR * seen, floors[metric]), LARGEST / 2)
        made.append(Check(number, name, metric, value, limit))
    return made


def _recorded(meta: Mapping[str, Any]) -> Latency | None:
    held = meta.get("latency")
    try:
        return Latency.from_json(held) if isinstance(held, Mapping) else None
    except KeyError:
        return None


def _judge_latency(found: Latency, recorded: Latency | None) -> tuple[str, list[str]]:
    """What is wrong with a latency, and what keeps it from being judged."""
    if recorded is None:
        return "", ["the build recorded no latency: nothing to compare with"]
    same = {name: getattr(recorded, name) == getattr(found, name) for name in ("target", "threads", "machine")}
    limit = SLOWER * recorded.p90_seconds
    is_slower = found.median_seconds > limit
    text = (
        f"the median of a run is {found.median_seconds * 1e3:.3g} ms, "
        f"{SLOWER:g} times the 90th percentile of the build is {limit * 1e3:.3g} ms"
    )
    if all(same.values()):
        return (text, []) if is_slower else ("", [])
    others = ", ".join(name for name, is_same in same.items() if not is_same)
    told = f"latency is not judged: the build measured it with another {others}"
    return "", [f"{told}; {text}" if is_slower else told]


def _cpu_name() -> str:
    """The CPU's model as the system names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
