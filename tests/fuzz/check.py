"""Builds a random model, runs it at every setting and thread count, and says what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import aot
from tests.fuzz.grow import Array, Case

ALL_THREADS = 2  # AOT_SESSION_ALL_THREADS: these models are so small that one would do
TOLERANCE = {"float16": 4e-3, "float32": 1e-4, "float64": 1e-6}


def difference(got: Array, expected: Array, shadow: Array) -> str:
    """What is wrong with an output; empty if nothing is."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"expected {expected.dtype}{list(expected.shape)}, got {got.dtype}{list(got.shape)}"
    if expected.dtype.kind != "f":
        wrong = got != expected
    else:
        exact, other = expected.astype(np.float64), shadow.astype(np.float64)
        tolerance = TOLERANCE[str(expected.dtype)]
        scale = np.abs(exact).max(initial=0)
        slack = tolerance * (np.abs(exact) + 0.1 * scale + 1e-3) + 10 * np.abs(exact - other)
        slack += 3 * np.abs(exact - other).max(initial=0)
        wrong = ~(np.abs(got.astype(np.float64) - exact) <= slack)
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} elements wrong, at {place}: expected {expected[place]}, got {got[place]}"
    )


def check(case: Case, cache: Path, targets: tuple[str, ...] = ("cpu:x86-64-v4",), **options: Any) -> list[str]:
    """Everything that is wrong: lines of text. Errors of the build are raised."""
    artifact = aot.compile(case.model.SerializeToString(), targets, cache_dir=cache, **options)
    data = artifact.data
    faults = []
    for target in targets:
        first: list[dict[str, Array]] = []
        for threads in (1, 2, 3):
            with aot.load(data, target=target, threads=threads) as model:
                model._options.flags = ALL_THREADS
                for index, feed in enumerate(case.feeds):
                    before = {name: array.copy() for name, array in feed.items()}
                    got = model.run(feed)
                    for name, array in before.items():
                        if not np.array_equal(array, feed[name]):
                            faults.append(f"{target}, setting {index}: input {name} was written to")
                    if threads == 1:
                        first.append(got)
                    for name, expected in case.expected[index].items():
                        if threads > 1:
                            if got[name].tobytes() != first[index][name].tobytes():
                                faults.append(f"{target}, setting {index}: {name} differs with {threads} threads")
                            continue
                        fault = difference(got[name], expected, case.shadows[index][name])
                        if fault:
                            faults.append(f"{target}, setting {index}: {name}: {fault}")
    return faults
