"""Simulated traffic of a canary: pairs and requests with honest noise, and with a fault of known size.

What both versions share (load, the input, a slow drift) is drawn once for both; what is a version's own is drawn for
each. The recorded error distribution is a finite sample of the one that the pairs are drawn from, as a build's is.
Invariant: everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aot.errors import OptionError
from aot.runtime.serving.expected import ErrorDistribution
from aot.runtime.serving.records import Pair, Request

Floats = NDArray[np.float64]
Generator = np.random.Generator

FAULTS = {
    "none": "the candidate is as good as the stable version",
    "numeric": "errors of a share of inputs are SIZE times what they would be",
    "outlier": "errors of a share of inputs are SIZE times the recorded error (its 99th percentile)",
    "latency": "the candidate is SIZE times slower, in all buckets or in one",
    "crash": "a fraction SIZE of the candidate's runs crashes",
    "guard": "a fraction SIZE of the candidate's requests fails its guards",
    "leak-latency": "the candidate grows slower: SIZE times after an hour",
    "leak-errors": "the candidate fails ever more often: a fraction SIZE after an hour",
    "bad-client": "a client sends a fraction SIZE of requests that fail on both versions",
    "no-traffic": "nothing comes",
}
"""Names of faults, and what SIZE means. `bad-client` is no fault of the candidate, `no-traffic` no evidence."""

HARMLESS = ("none", "bad-client", "no-traffic")
"""With these a rollback is false."""

_OK, _GUARD, _CRASH, _TIMEOUT = range(4)
_OUTCOMES = ("ok", "guard", "crash", "timeout")
_PERIODS_SECONDS = (17.0, 290.0, 3600.0)  # of the load: bursts, minutes, and a drift over the rollout
_ERROR_QUANTILE = 0.99  # of the recorded distribution: CanaryPolicy's default
_RECORDED = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)


@dataclass(frozen=True)
class Bucket:
    """A shape bucket: its share of the traffic (weights need not add up to 1) and its usual run."""

    name: str
    weight: float
    median_seconds: float


@dataclass(frozen=True)
class ErrorModel:
    """One metric of one output: lognormal, or with `flips` a Bernoulli variable of probability `median`."""

    output: str
    metric: str
    median: float
    spread: float = 0.0  # standard deviation of the logarithm
    flips: bool = False

    def draw(self, generator: Generator, count: int) -> Floats:
        """Errors of inputs, shape (count,)."""
        if self.flips:
            return (generator.random(count) < self.median).astype(np.float64)
        return self.median * np.exp(self.spread * generator.standard_normal(count))


@dataclass(frozen=True)
class Fault:
    """One of FAULTS, its size, the share of inputs it touches (numeric faults) and the bucket ("": all; latency)."""

    kind: str = "none"
    size: float = 0.0
    share: float = 1.0
    bucket: str = ""

    def __post_init__(self) -> None:
        if self.kind not in FAULTS:
            raise OptionError(f"no fault is called {self.kind}", hint=f"Known: {', '.join(FAULTS)}.")
        is_rate = self.kind in ("crash", "guard", "bad-client", "leak-errors")
        if self.kind not in ("none", "no-traffic") and not 0 < self.size <= (1 if is_rate else float("inf")):
            wanted = "a fraction above 0, at most 1" if is_rate else "a factor above 0"
            raise OptionError(f"the size of a {self.kind} fault is {wanted}; it is {self.size:g}")
        if not 0 < self.share <= 1:
            raise OptionError(f"the share of inputs is above 0 and at most 1; it is {self.share:g}")

    def __str__(self) -> str:
        parts = [self.kind]
        if self.kind not in ("none", "no-traffic"):
            parts.append(f"{self.size:g}")
        if self.share < 1:
            parts.append(f"on {self.share:.3g} of inputs")
        if self.bucket:
            parts.append(f"in {self.bucket}")
        return " ".join(parts)


@dataclass(frozen=True)
class Traffic:
    """How requests come and what they cost, of both versions.

    `pairs_per_second` are shadowed, the others of `requests_per_second` are live. `load_spread` is the standard
    deviation of the logarithm of the load that both versions share, `input_spread` of what the input adds, `own_spread`
    of what each run adds; a fraction `stalls` of runs takes 1 + Pareto(2.5) times as long. `failures` is the rate of
    failures of each version by itself (timeouts). `recorded` is the number of inputs of the recorded distribution.
    """

    pairs_per_second: float = 2.0
    requests_per_second: float = 10.0
    load_spread: float = 0.15
    input_spread: float = 0.10
    own_spread: float = 0.08
    stalls: float = 0.01
    failures: float = 0.0005
    recorded: int = 1000
    buckets: tuple[Bucket, ...] = (
        Bucket("batch=1", 0.6, 0.004), Bucket("batch=8", 0.3, 0.012), Bucket("batch=32", 0.1, 0.040),
    )  # fmt: skip
    errors: tuple[ErrorModel, ...] = (
        ErrorModel("logits", "max_abs", 2e-3, 0.3), ErrorModel("logits", "top1", 0.004, flips=True),
        ErrorModel("hidden", "relative", 5e-3, 0.3),
    )  # fmt: skip

    def expected(self, generator: Generator) -> dict[str, dict[str, ErrorDistribution]]:
        """The distribution that a build would have recorded, from `recorded` inputs."""
        found: dict[str, dict[str, ErrorDistribution]] = {}
        for model in self.errors:
            values = np.sort(model.draw(generator, self.recorded))
            quantiles = tuple((p, float(np.quantile(values, p, method="higher"))) for p in _RECORDED)
            found.setdefault(model.output, {})[model.metric] = ErrorDistribution(self.recorded, quantiles)
        return found


@dataclass
class Block:
    """A run of pairs, in the order of their time; arrays of shape (count,). Seconds are NaN where a run failed."""

    times: Floats
    buckets: NDArray[np.int64]  # index into Traffic.buckets
    stable: NDArray[np.int64]  # index into _OUTCOMES
    candidate: NDArray[np.int64]
    stable_seconds: Floats
    candidate_seconds: Floats
    values: dict[tuple[str, str], Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def stable_failed(self) -> NDArray[np.bool_]:
        """Whether the stable version failed, shape (count,)."""
        failed: NDArray[np.bool_] = self.stable != _OK
        return failed

    @property
    def candidate_failed(self) -> NDArray[np.bool_]:
        """Whether the candidate failed, shape (count,)."""
        failed: NDArray[np.bool_] = self.candidate != _OK
        return failed

    def pairs(self, traffic: Traffic, first: int = 0, end: int | None = None) -> Iterator[Pair]:
        """The records first … end - 1, as a judge reads them."""
        part = slice(first, end)
        names = [bucket.name for bucket in traffic.buckets]
        outputs: dict[str, list[tuple[str, list[float]]]] = {}
        for (output, metric), values in self.values.items():
            outputs.setdefault(output, []).append((metric, values[part].tolist()))
        columns = zip(
            self.times[part].tolist(), self.buckets[part].tolist(), self.stable[part].tolist(),
            self.candidate[part].tolist(), self.stable_seconds[part].tolist(), self.candidate_seconds[part].tolist(),
            strict=True,
        )  # fmt: skip
        for number, (time, bucket, stable, candidate, of_stable, of_candidate) in enumerate(columns):
            both = stable == _OK and candidate == _OK
            yield Pair(
                time=time,
                bucket=names[bucket],
                stable=_OUTCOMES[stable],
                candidate=_OUTCOMES[candidate],
                stable_seconds=of_stable if stable == _OK else None,
                candidate_seconds=of_candidate if candidate == _OK else None,
                values={
                    output: {metric: column[number] for metric, column in metrics}
                    for output, metrics in outputs.items()
                } if both else {},
                key=f"{first + number}",
            )  # fmt: skip


class Rollout:
    """The traffic of one rollout: blocks of pairs, and the requests between them; from one seed."""

    def __init__(self, traffic: Traffic, fault: Fault, seed: int | tuple[int, ...], start: float = 0.0) -> None:
        if fault.bucket and fault.bucket not in [bucket.name for bucket in traffic.buckets]:
            known = ", ".join(bucket.name for bucket in traffic.buckets)
            raise OptionError(f"no bucket is called {fault.bucket}", hint=f"Known: {known}.")
        self.traffic = traffic
        self.fault = fault
        self.generator = np.random.default_rng(seed)
        self.expected = traffic.expected(self.generator)
        self.start = start
        self._time = 0.0  # seconds since the start
        self._phases = self.generator.uniform(0, 2 * np.pi, len(_PERIODS_SECONDS))
        weights = np.array([bucket.weight for bucket in traffic.buckets])
        self._cumulative = np.cumsum(weights / weights.sum())
        self._medians = np.array([bucket.median_seconds for bucket in traffic.buckets])

    def block(self, count: int) -> Block:
        """The next `count` pairs; none where nothing comes."""
        if self.fault.kind == "no-traffic":
            count = 0
        elapsed = self._time + np.cumsum(self.generator.exponential(1 / self.traffic.pairs_per_second, count))
        self._time = float(elapsed[-1]) if count else self._time
        return self._draw(elapsed)

    def live(self, block: Block, share: float) -> tuple[Block, NDArray[np.bool_]]:
        """Live requests while these pairs came, in the order of time, and which of them goes to the candidate.

        Each is drawn as if both versions ran; one of them does.
        """
        ratio = max(self.traffic.requests_per_second / self.traffic.pairs_per_second - 1, 0.0)
        count = int(self.generator.poisson(ratio * len(block)))
        begin, end = (block.times[0] - self.start, block.times[-1] - self.start) if len(block) else (0.0, 0.0)
        both = self._draw(np.sort(self.generator.uniform(begin, end, count)), with_values=False)
        to_candidate: NDArray[np.bool_] = self.generator.random(count) < share
        return both, to_candidate

    def requests(self, block: Block, share: float) -> Iterator[Request]:
        """The records of `live`."""
        both, to_candidate = self.live(block, share)
        names = [bucket.name for bucket in self.traffic.buckets]
        outcomes = np.where(to_candidate, both.candidate, both.stable).tolist()
        seconds = np.where(to_candidate, both.candidate_seconds, both.stable_seconds).tolist()
        rows = zip(both.times.tolist(), both.buckets.tolist(), to_candidate.tolist(), outcomes, seconds, strict=True)
        for time, bucket, mine, outcome, took in rows:
            yield Request(
                time=time,
                bucket=names[bucket],
                version="candidate" if mine else "stable",
                outcome=_OUTCOMES[outcome],
                seconds=took if outcome == _OK else None,
            )

    def _draw(self, elapsed: Floats, with_values: bool = True) -> Block:
        """Pairs at these seconds since the start."""
        random, traffic, count = self.generator, self.traffic, len(elapsed)
        buckets = np.searchsorted(self._cumulative, random.random(count), side="right").clip(0, len(self._medians) - 1)
        stable, candidate = self._fails(count), self._fails(count)
        common = self._medians[buckets] * self._load(elapsed)
        common *= np.exp(traffic.input_spread * random.standard_normal(count))
        stable_seconds, candidate_seconds = common * self._own(count), common * self._own(count)
        models = traffic.errors if with_values else ()
        values = {(model.output, model.metric): model.draw(random, count) for model in models}
        block = Block(self.start + elapsed, buckets, stable, candidate, stable_seconds, candidate_seconds, values)
        self._inject(block, elapsed)
        block.stable_seconds[block.stable_failed] = np.nan
        block.candidate_seconds[block.candidate_failed] = np.nan
        return block

    def _fails(self, count: int) -> NDArray[np.int64]:
        return np.where(self.generator.random(count) < self.traffic.failures, _TIMEOUT, _OK)

    def _own(self, count: int) -> Floats:
        """What each run adds: noise, and now and then a stall with a heavy tail; shape (count,)."""
        random, traffic = self.generator, self.traffic
        noise = np.exp(traffic.own_spread * random.standard_normal(count))
        stalled = random.random(count) < traffic.stalls
        noise[stalled] *= 1 + random.pareto(2.5, int(stalled.sum()))
        return noise

    def _load(self, elapsed: Floats) -> Floats:
        """Common to both versions: sinusoids of random phase; standard deviation of the logarithm `load_spread`."""
        waves = np.sin(2 * np.pi * elapsed[:, None] / np.array(_PERIODS_SECONDS) + self._phases)
        each = self.traffic.load_spread * np.sqrt(2 / len(_PERIODS_SECONDS))
        load: Floats = np.exp(each * waves.sum(axis=1))
        return load

    def _inject(self, block: Block, elapsed: Floats) -> None:
        fault, random, count = self.fault, self.generator, len(block)
        match fault.kind:
            case "numeric" | "outlier":
                if block.values:
                    self._spoil(block, random.random(count) < fault.share)
            case "latency":
                touched = np.ones(count, np.bool_)
                if fault.bucket:
                    names = [bucket.name for bucket in self.traffic.buckets]
                    touched = block.buckets == names.index(fault.bucket)
                block.candidate_seconds[touched] *= fault.size
            case "leak-latency":
                block.candidate_seconds *= 1 + (fault.size - 1) * elapsed / 3600
            case "crash" | "guard":
                touched = random.random(count) < fault.size
                block.candidate[touched] = _CRASH if fault.kind == "crash" else _GUARD
            case "leak-errors":
                block.candidate[random.random(count) < fault.size * elapsed / 3600] = _CRASH
            case "bad-client":
                touched = random.random(count) < fault.size
                block.stable[touched] = block.candidate[touched] = _GUARD

    def _spoil(self, block: Block, touched: NDArray[np.bool_]) -> None:
        """A numeric fault: flips happen where they would not, other errors grow."""
        for model in self.traffic.errors:
            values = block.values[model.output, model.metric]
            if model.flips:
                continue  # a wrong class is another fault than a larger error
            if self.fault.kind == "numeric":
                values[touched] *= self.fault.size
            else:
                values[touched] = self.fault.size * self.expected[model.output][model.metric].quantile(_ERROR_QUANTILE)
