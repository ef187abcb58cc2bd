"""What the benchmarks share: timing in turns, means, how far outputs are apart, and the facts that go with figures."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np


def interleave(runs: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """Median seconds of each callable, taken in turns."""
    samples: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < 5:
        for run, taken in zip(runs, samples, strict=True):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in samples]


def prefer_realtime(wanted: bool = True) -> bool:
    """Asks for real-time scheduling while sampling, so that other work on the machine does not show; or ends it."""
    policy, priority = (os.SCHED_FIFO, 10) if wanted else (os.SCHED_OTHER, 0)
    try:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))
    except (OSError, AttributeError):
        return False
    return True


def geomean(values: Sequence[float]) -> float:
    """The geometric mean; NaN of nothing."""
    return float(np.exp(np.mean(np.log(values)))) if values else float("nan")


def milliseconds(value: float) -> str:
    """Milliseconds for a table."""
    return f"{value:.3f}" if value >= 0.1 else f"{value:.5f}"


def processor() -> str:
    """This machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def today() -> str:
    """The date, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def difference(got: Any, want: Any) -> float:
    """The largest difference, in tolerances; infinite where shapes, integers or places of NaN differ."""
    if got.shape != want.shape:
        return float("inf")
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else float("inf")
    got64, want64 = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if not np.array_equal(np.isnan(got64), np.isnan(want64)):
        return float("inf")
    with np.errstate(invalid="ignore"):
        apart = np.where(got64 == want64, 0.0, np.abs(got64 - want64)) / (1e-4 + 1e-3 * np.abs(want64))
    return float(np.nanmax(apart, initial=0))


def zoo_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that benchmarks of the zoo's models have in common."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, default=Path(os.environ.get("AOT_ZOO", "build/zoo")))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--folder", type=Path, default=Path("build/bench"))
    parser.add_argument("--write", action="store_true")
    return parser
