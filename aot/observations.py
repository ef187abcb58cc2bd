"""What calibration has seen of a tensor, and the ranges that follow from it.

An Observation has counts by bins of floats (see aot/ops/observe.py) and sums by channel, all of them integers, so that
those of several shards add up to the same whatever their order. Ranges: `minmax`, `percentile`, `mse` (least squared
error) and `entropy` (least divergence, as Migacz described for TensorRT at GTC 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from aot.errors import CompilerError

Array = np.ndarray[Any, np.dtype[Any]]

MANTISSA_BITS = 4
"""Bits of the mantissa that tell bins apart: sixteen bins from one power of two to the next."""

SHIFT = 23 - MANTISSA_BITS
BINS = 1 << (32 - SHIFT)
"""The bin of a float is its bits without the last SHIFT; so there are bins for both signs, infinities and NaN."""

OBSERVERS = ("minmax", "percentile", "mse", "entropy")

_FINE = 2.0**40
"""Parts of one that sums are kept in besides whole numbers: both are exact up to 2**18 samples."""

_MOST_SUM, _MOST_SQUARES = 1 << 44, (1 << 62) - 1
"""Bounds of the sums of one sample, so that those of many do not overflow; totals of squares stay at theirs."""

_CLIPS = np.exp2(-np.arange(0, 6, 0.125))
"""The parts of a range that `mse` tries."""

_LINEAR_BINS = 2048
"""Bins of the histogram that `entropy` compares distributions on."""


@cache
def _edges() -> tuple[Array, Array]:
    """The absolute values between which the numbers of each bin lie; infinite ones are bounded by the largest float."""
    places = np.arange(BINS, dtype=np.uint32) & (BINS // 2 - 1)
    largest = np.float32(np.finfo(np.float32).max)
    # Bins of infinity and NaN, which nothing asks about, lie at the largest float: comparisons with NaN are false.
    lower, upper = ((numbers << np.uint32(SHIFT)).view(np.float32) for numbers in (places, places + np.uint32(1)))
    return tuple(np.where(edge < largest, edge, largest).astype(np.float64) for edge in (lower, upper))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """What was seen of one tensor.

    counts: i64 [BINS]. low, high: f32 [channels], of finite numbers. whole, fine, square_whole, square_fine: i64
    [channels], sums of the numbers and of their squares, in ones and in parts of 2**-40. rows: numbers per channel.
    """

    counts: Array
    low: Array
    high: Array
    whole: Array
    fine: Array
    square_whole: Array
    square_fine: Array
    rows: int

    @staticmethod
    def of_run(counts: Array, low: Array, high: Array, sums: Array, squares: Array) -> Observation:
        """From the results of one `observe`."""
        channels = low.size
        rows = int(counts.sum()) // channels if channels else 0
        return Observation(counts, low, high, *_fixed(sums, _MOST_SUM), *_fixed(squares, _MOST_SQUARES), rows)

    def __add__(self, other: Observation) -> Observation:
        if self.low.shape != other.low.shape:
            raise CompilerError(f"observations of {self.low.size} and of {other.low.size} channels do not add up")
        return Observation(
            self.counts + other.counts, np.minimum(self.low, other.low), np.maximum(self.high, other.high),
            self.whole + other.whole, self.fine + other.fine,
            np.minimum(self.square_whole + other.square_whole, _MOST_SQUARES), self.square_fine + other.square_fine,
            self.rows + other.rows,
        )  # fmt: skip

    @property
    def elements(self) -> int:
        return int(self.counts.sum())

    @property
    def not_finite(self) -> int:
        """How many numbers were infinite or NaN."""
        exponent = np.arange(BINS) >> MANTISSA_BITS & 255
        return int(self.counts[exponent == 255].sum())

    @property
    def least(self) -> float:
        """The least finite number; 0 where there is none."""
        low = float(np.min(self.low, initial=np.inf))
        return low if np.isfinite(low) else 0.0

    @property
    def greatest(self) -> float:
        """The greatest finite number; 0 where there is none."""
        high = float(np.max(self.high, initial=-np.inf))
        return high if np.isfinite(high) else 0.0

    @property
    def most(self) -> Array:
        """f64 [channels]: the largest magnitude of each channel."""
        both = np.stack([np.abs(self.low), np.abs(self.high)]).astype(np.float64)
        return np.asarray(np.where(np.isfinite(both), both, 0).max(axis=0))

    @property
    def means(self) -> Array:
        """f64 [channels]: the mean of each channel."""
        return np.asarray((self.whole + self.fine / _FINE) / max(self.rows, 1))

    @property
    def squares(self) -> Array:
        """f64 [channels]: the mean square of each channel."""
        return np.asarray((self.square_whole + self.square_fine / _FINE) / max(self.rows, 1))

    @property
    def is_constant(self) -> bool:
        """Whether every finite number was the same."""
        return self.least == self.greatest

    def constant_channels(self) -> int:
        """How many channels had one value only."""
        return int(np.sum(self.low == self.high)) if self.rows > 1 else 0

    def range(self, observer: str, percentile: float = 99.99, levels: int = 255) -> tuple[float, float]:
        """(low, high) to quantize between; zero lies within. `levels`: steps between them."""
        bounds = min(self.least, 0.0), max(self.greatest, 0.0)
        if observer == "minmax" or bounds == (0.0, 0.0) or not self.elements:
            return bounds
        if observer == "percentile":
            return self._percentile(bounds, percentile)
        if observer == "mse":
            return self._least_error(bounds, levels)
        if observer == "entropy":
            return self._least_divergence(bounds, levels)
        raise CompilerError(f"no observer {observer!r}")

    def _bins(self) -> tuple[Array, Array, Array]:
        """(lower, upper, count) of the occupied bins in ascending order, as signed numbers within what was seen."""
        lower, upper = _edges()
        occupied = np.flatnonzero(self.counts * (np.arange(BINS) >> MANTISSA_BITS & 255 != 255))
        sign = np.where(occupied < BINS // 2, 1.0, -1.0)
        ends = np.stack([lower[occupied] * sign, upper[occupied] * sign])
        low = np.clip(ends.min(axis=0), self.least, self.greatest)
        high = np.clip(ends.max(axis=0), self.least, self.greatest)
        order = np.lexsort((high, low))
        return low[order], high[order], self.counts[occupied][order].astype(np.float64)

    def _percentile(self, bounds: tuple[float, float], percentile: float) -> tuple[float, float]:
        """Without the share of 1 - percentile / 100 at each end."""
        low, high, count = self._bins()
        below = np.cumsum(count) / count.sum()
        share = 1 - percentile / 100
        first = int(np.searchsorted(below, share, side="right"))
        last = int(np.searchsorted(below, 1 - share, side="left"))
        last = min(last, len(high) - 1)
        return max(min(float(low[min(first, len(low) - 1)]), 0.0), bounds[0]), min(
            max(float(high[last]), 0.0), bounds[1]
        )

    def _least_error(self, bounds: tuple[float, float], levels: int) -> tuple[float, float]:
        """The ends are tried one after the other: few tensors have tails on both sides that matter to each other."""
        error = self._error_of(levels)
        start, end = bounds
        for _ in range(2):
            end = min((bounds[1] * clip for clip in _CLIPS), key=lambda e: error(start, e)) if bounds[1] > 0 else 0.0
            start = min((bounds[0] * clip for clip in _CLIPS), key=lambda s: error(s, end)) if bounds[0] < 0 else 0.0
        return float(start), float(end)

    def _error_of(self, levels: int) -> Callable[[float, float], float]:
        """The squared error, summed, of rounding to `levels` steps between two ends."""
        low, high, count = self._bins()
        middle = (low + high) / 2
        spread = (high - low) ** 2 / 12  # the numbers of a bin lie evenly in it, about

        def error(start: float, end: float) -> float:
            step = (end - start) / levels
            outside = np.maximum(middle - end, 0) + np.maximum(start - middle, 0)
            inside = np.minimum(step * step / 12, middle * middle + spread)  # less than half a step becomes zero
            return float(np.sum(count * np.where(outside > 0, outside * outside + spread, inside)))

        return error

    def error(self, low: float, high: float, levels: int = 255) -> float:
        """The mean squared error of rounding what was seen to `levels` steps between low and high."""
        return self._error_of(levels)(low, high) / max(self.elements, 1)

    def saturated(self, low: float, high: float) -> float:
        """The share of the numbers that lie outside of low to high."""
        start, end, count = self._bins()
        middle = (start + end) / 2
        return float(count[(middle < low) | (middle > high)].sum() / max(count.sum(), 1))

    def _least_divergence(self, bounds: tuple[float, float], levels: int) -> tuple[float, float]:
        """Of the magnitudes: what is cut off counts with the last bin, what is kept is merged to `levels` / 2 steps."""
        low, high, count = self._bins()
        most = max(-bounds[0], bounds[1])
        magnitude = np.minimum(np.abs(low + high) / 2 / most * _LINEAR_BINS, _LINEAR_BINS - 1).astype(int)
        histogram = np.bincount(magnitude, weights=count, minlength=_LINEAR_BINS)
        steps = max(levels // 2, 1)
        best, found = np.inf, _LINEAR_BINS
        for kept in range(steps, _LINEAR_BINS + 1, 16):
            reference = histogram[:kept].copy()
            reference[-1] += histogram[kept:].sum()
            groups = np.arange(kept) * steps // kept
            occupied = histogram[:kept] > 0
            sums = np.bincount(groups, weights=histogram[:kept], minlength=steps)
            shares = np.bincount(groups, weights=occupied, minlength=steps)
            merged = np.where(occupied, (sums / np.maximum(shares, 1))[groups], 0)
            divergence = _divergence(reference, merged)
            if divergence < best:
                best, found = divergence, kept
        cut = most * found / _LINEAR_BINS
        return float(max(bounds[0], -cut)), float(min(bounds[1], cut))

    def to_arrays(self) -> dict[str, Array]:
        """The fields as arrays; counts as the occupied bins and how often each occurs."""
        occupied = np.flatnonzero(self.counts)
        return {
            "bins": occupied.astype(np.uint16), "counts": self.counts[occupied], "low": self.low, "high": self.high,
            "whole": self.whole, "fine": self.fine, "square_whole": self.square_whole,
            "square_fine": self.square_fine, "rows": np.asarray(self.rows, np.int64),
        }  # fmt: skip

    @staticmethod
    def from_arrays(arrays: Mapping[str, Array]) -> Observation:
        """The inverse of to_arrays. Raises KeyError, ValueError or IndexError for what to_arrays did not write."""
        counts = np.zeros(BINS, np.int64)
        counts[arrays["bins"]] = arrays["counts"]
        names = ("low", "high", "whole", "fine", "square_whole", "square_fine")
        fields = [arrays[name] for name in names]
        if len({field.shape for field in fields}) != 1 or counts.min() < 0:
            raise ValueError("observations of different channels")
        low, high = (field.astype(np.float32) for field in fields[:2])
        whole, fine, square_whole, square_fine = (field.astype(np.int64) for field in fields[2:])
        return Observation(counts, low, high, whole, fine, square_whole, square_fine, int(arrays["rows"]))


def _fixed(sums: Array, most: int) -> tuple[Array, Array]:
    """Sums as whole numbers and the rest in parts of 2**-40: their own sums do not depend on an order."""
    bounded = np.nan_to_num(sums, nan=0.0)
    kept = np.abs(bounded) < most
    whole = np.rint(np.where(kept, bounded, 0.0))
    fine = np.where(kept, np.rint((bounded - whole) * _FINE), 0.0).astype(np.int64)
    return np.where(kept, whole.astype(np.int64), np.sign(bounded).astype(np.int64) * most), fine


def _divergence(reference: Array, other: Array) -> float:
    """Kullback and Leibler's divergence of two histograms; where the other has nothing, it is given a little."""
    left, right = reference / reference.sum(), other / max(other.sum(), 1)
    little = 1e-9
    place = left > 0
    return float(np.sum(left[place] * np.log(left[place] / np.maximum(right[place], little))))
