"""How far two tensors are apart, in the figures that people look at, and histograms of them in text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from aot.ir import Array

_BAR = " ▁▂▃▄▅▆▇█"
_LEAST_POWER, _MOST_POWER = -12, 4  # decades of the histogram of differences


@dataclass(frozen=True, slots=True)
class Distance:
    """A tensor against the expected one, over the elements that are finite in both.

    max_error: the largest |difference|; infinite where one is NaN or infinite and the other is not. relative_error:
    the largest, over elements above a thousandth of the largest. share: root of the mean squared difference over that
    of the expected values. cosine: of the angle between both. snr_db: of the expected values to the difference,
    infinite where they are equal. most: the largest |expected|. not_finite: elements that are NaN or infinite in the
    tensor and not in the expected one, or the other way round.
    """

    elements: int
    max_error: float
    relative_error: float
    share: float
    cosine: float
    snr_db: float
    most: float
    wrong: int
    not_finite: int


def distance(found: Array, expected: Array) -> Distance:
    """Compares two arrays of one shape. NaN equals NaN, infinities their like; all figures are in double precision."""
    if not found.size:
        return Distance(0, 0.0, 0.0, 0.0, 1.0, math.inf, 0.0, 0, 0)
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if found.dtype.kind in "iu" and found.dtype == expected.dtype:
            same = found == expected  # beyond 2**53
        not_finite = int(np.count_nonzero(~finite & ~same))
        a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
        size = np.abs(b)
        most = float(size.max())
        scale = max(most, float(np.abs(a).max())) or 1.0  # squares of what is large or small stay in range
        difference = a - b
        largest = math.inf if not_finite else float(np.abs(difference).max())
        large = size > most * 1e-3
        relative = float(np.max(np.abs(difference)[large] / size[large], initial=0.0))
        squared = float(np.square(difference / scale).sum())
        of_found, of_expected = float(np.square(a / scale).sum()), float(np.square(b / scale).sum())
        dot = float((a / scale * (b / scale)).sum())
    cosine = dot / math.sqrt(of_found * of_expected) if of_found and of_expected else float(of_found == of_expected)
    if not_finite:
        share, snr_db = math.inf, -math.inf
    elif not squared:
        share, snr_db = 0.0, math.inf
    else:
        share = math.sqrt(squared / of_expected) if of_expected else math.inf
        snr_db = 10 * math.log10(of_expected / squared) if of_expected else -math.inf
    if not_finite:
        relative = math.inf
    return Distance(
        int(found.size),
        largest,
        relative,
        share,
        min(cosine, 1.0),
        snr_db,
        most,
        int(np.count_nonzero(~same)),
        not_finite,
    )


def decibels(value: float) -> str:
    """A ratio in decibels for people."""
    return f"{value:.0f} dB" if math.isfinite(value) else "equal" if value > 0 else "none"


def error_histogram(found: Array, expected: Array) -> list[str]:
    """Lines of text: how many elements differ by how much, a row for each power of ten."""
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = np.abs(a - b)[~same]
    rows = [("equal", int(np.count_nonzero(same)))] if same.any() else []
    finite = difference[np.isfinite(difference)]
    if finite.size:
        with np.errstate(all="ignore"):
            powers = np.clip(np.floor(np.log10(finite)), _LEAST_POWER, _MOST_POWER).astype(int)
        for power in range(int(powers.min()), int(powers.max()) + 1):
            label = f"1e{power:+03d}"
            mark = "<" if power == _LEAST_POWER else ">" if power == _MOST_POWER else ""
            rows.append((f"{mark}{label}", int(np.count_nonzero(powers == power))))
    if finite.size < difference.size:
        rows.append(("not finite", int(difference.size - finite.size)))
    return _bars(rows)


def _bars(rows: list[tuple[str, int]]) -> list[str]:
    most = max((count for _, count in rows), default=1) or 1
    width = max((len(label) for label, _ in rows), default=0)
    digits = max((len(f"{count:,}") for _, count in rows), default=0)
    return [f"{label.rjust(width)} {count:>{digits},} {'█' * math.ceil(24 * count / most)}" for label, count in rows]


def value_histogram(array: Array, low: float, high: float, bins: int = 48) -> str:
    """One line of text: how the finite values from `low` to `high` are distributed."""
    values = array.astype(np.float64).reshape(-1)
    values = values[np.isfinite(values)]
    if not values.size or not high > low:
        return _BAR[-1] if values.size else ""
    counts, _ = np.histogram(np.clip(values, low, high), bins, (low, high))
    most = counts.max()
    return "".join(_BAR[math.ceil(8 * count / most)] for count in counts)


def value_range(*arrays: Array) -> tuple[float, float]:
    """The smallest and the largest finite value of several arrays; (0, 0) where there is none."""
    low, high = math.inf, -math.inf
    for array in arrays:
        values = array.astype(np.float64)
        values = values[np.isfinite(values)]
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    return (low, high) if low <= high else (0.0, 0.0)
