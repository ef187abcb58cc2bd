"""Requests from many threads through deployments whose candidates go wrong and whose artifacts are swapped meanwhile.

Every answer is compared with the numbers of the artifact that gave it. Used by a test with small models, and by
benchmarks/serving.py with real ones.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from aot import runtime
from aot.runtime.serving import Deployment, DeploymentPolicy
from aot.runtime.serving.faults import Fault

FAULTS: tuple[tuple[Fault, ...], ...] = (
    (Fault("wrong_numbers", size=1.0),),
    (Fault("crash", first=5, every=20),),
    (Fault("hang", first=10, every=50),),
    (Fault("guard", every=2),),
    (Fault("killed", first=30), Fault("wrong_numbers", every=3)),
    (Fault("device", first=3, every=10), Fault("slow", every=7, size=0.01)),
    (),
)
NOT_FATAL = tuple(
    tuple(fault for fault in faults if fault.kind not in ("crash", "killed", "hang")) for faults in FAULTS
)
"""For candidates in this process."""


@dataclass
class Served:
    """A model: artifacts of it, inputs, and for each artifact what it answers to each. `weight`: how many of the
    requests go to it, in proportion."""

    name: str
    artifacts: Sequence[Any]
    inputs: Sequence[dict[str, Any]]
    weight: int = 1
    expected: list[list[dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for artifact in self.artifacts:
            with runtime.load(artifact, threads=1) as model:
                self.expected.append([model.run(given) for given in self.inputs])


class Seen(NamedTuple):
    """One answer: whose, when, how long, and the artifacts whose numbers it has."""

    served: int
    link: str
    number: int
    tried: tuple[tuple[str, str], ...]
    begin: float
    end: float
    right: tuple[bool, ...]


@dataclass
class Outcome:
    """What was seen. `seconds_of_stable`: by model, of whole requests that went to stable at once.

    `ended_after_rollback`: answers of a candidate whose caller noted their end after the rollback had returned; it may
    have slept in between.
    """

    requests: int = 0
    lost: int = 0
    changed_later: int = 0
    wrong_of_stable: int = 0
    wrong_of_candidates: int = 0
    wrong_after_rollback: int = 0
    from_candidate_after_rollback: int = 0
    ended_after_rollback: int = 0
    swaps: int = 0
    links: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    seconds_of_stable: dict[str, list[float]] = field(default_factory=dict)
    restarts: int = 0
    errors: list[str] = field(default_factory=list)

    def percentile(self, percent: float) -> dict[str, float]:
        """Of the seconds of stable."""
        return {name: float(np.percentile(seconds, percent)) for name, seconds in self.seconds_of_stable.items()}


def _equal(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(np.array_equal(found[name], wanted[name], equal_nan=True) for name in wanted)


class Stress:
    """`requests` at least from `threads` threads, and `swaps` swaps (0: a quiet run, without candidates)."""

    def __init__(
        self,
        served: Sequence[Served],
        requests: int,
        threads: int,
        swaps: int,
        policy: DeploymentPolicy,
        faults: Sequence[Sequence[Fault]] = FAULTS,
    ) -> None:
        self._served, self._requests, self._swaps, self._faults = served, requests, swaps, faults
        options = {"threads": 1}
        self._deployments = [Deployment(each.artifacts[0], policy=policy, load_options=options) for each in served]
        self._threads = threads
        self._turns = [index for index, each in enumerate(served) for _ in range(each.weight)]
        self._count = itertools.count()
        self._are_swaps_done = swaps == 0
        self._done = 0
        self._lock = threading.Lock()
        self.outcome = Outcome()
        self._seen: list[Seen] = []
        self._artifact_of: dict[tuple[int, int], int] = {(index, 1): 0 for index in range(len(served))}
        self._candidates: set[tuple[int, int]] = set()
        self._rolled_back: dict[tuple[int, int], float] = {}

    def run(self) -> Outcome:
        """Runs it all and counts."""
        workers = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(self._threads)]
        try:
            for worker in workers:
                worker.start()
            try:
                self._change()
            finally:
                self._are_swaps_done = True
            for worker in workers:
                worker.join()
        finally:
            for deployment in self._deployments:
                deployment.close()
        self._judge()
        return self.outcome

    def _ask(self, seed: int) -> None:
        seen: list[Seen] = []
        last: tuple[dict[str, Any], dict[str, Any]] | None = None
        lost = changed = 0
        for number in self._count:
            if number >= self._requests and self._are_swaps_done:
                break
            index = self._turns[number % len(self._turns)]
            served = self._served[index]
            place = (number // len(self._turns) + seed) % len(served.inputs)
            given = served.inputs[place]
            wanted = [expected[place] for expected in served.expected]
            outputs = None
            if number % 2:
                outputs = {name: np.empty_like(array) for name, array in wanted[0].items()}
            begin = time.monotonic()
            try:
                answer = self._deployments[index].run_detailed(given, key=number, outputs=outputs)
            except Exception as error:
                lost += 1
                self.outcome.errors.append(f"{served.name}: {type(error).__name__}: {error}")
                continue
            end = time.monotonic()
            right = tuple(_equal(answer.outputs, each) for each in wanted)
            seen.append(Seen(index, answer.link, answer.number, answer.tried, begin, end, right))
            if last is not None and not _equal(*last):
                changed += 1  # somebody answered once more, into arrays that were given away
            last = (answer.outputs, {name: array.copy() for name, array in answer.outputs.items()})
            self._done = number
        with self._lock:
            self._seen += seen
            self.outcome.lost += lost
            self.outcome.changed_later += changed

    def _change(self) -> None:
        part = self._requests / (self._swaps + 1)
        for step in range(self._swaps):
            self._wait_for(part if step else 0)
            index = step % len(self._served)
            deployment, served = self._deployments[index], self._served[index]
            running = deployment.statistics()["candidate"]
            if running is not None:
                self.outcome.restarts += running.get("restarts", 0)
                deployment.roll_back("the next fault")
                self._rolled_back[index, running["number"]] = time.monotonic()
            other = (step // len(self._served) + 1) % len(served.artifacts)
            deployment.swap(served.artifacts[other])
            self._artifact_of[index, deployment.statistics()["stable"]["number"]] = other
            self.outcome.swaps += 1
            deployment.start_candidate(served.artifacts[0], test_faults=self._faults[step % len(self._faults)])
            self._candidates.add((index, deployment.statistics()["candidate"]["number"]))
        self._wait_for(part if self._swaps else 0)
        for index, deployment in enumerate(self._deployments):
            running = deployment.statistics()["candidate"]
            if running is not None:
                self.outcome.restarts += running.get("restarts", 0)
                deployment.roll_back("the end")
                self._rolled_back[index, running["number"]] = time.monotonic()

    def _wait_for(self, requests: float) -> None:
        """Until so many more were answered."""
        end = self._done + requests
        while self._done < end:
            time.sleep(0.005)

    def _judge(self) -> None:
        outcome = self.outcome
        outcome.requests = len(self._seen) + outcome.lost
        for seen in self._seen:
            outcome.links[seen.link] += 1
            outcome.causes.update(f"{link}: {cause}" for link, cause in seen.tried)
            if seen.link == "stable":
                if not seen.right[self._artifact_of[seen.served, seen.number]]:
                    outcome.wrong_of_stable += 1
                if not seen.tried:
                    seconds = outcome.seconds_of_stable.setdefault(self._served[seen.served].name, [])
                    seconds.append(seen.end - seen.begin)
                continue
            assert (seen.served, seen.number) in self._candidates
            is_wrong = not seen.right[0]
            outcome.wrong_of_candidates += is_wrong
            rolled_back = self._rolled_back[seen.served, seen.number]
            outcome.ended_after_rollback += seen.end > rolled_back
            if seen.begin >= rolled_back:
                outcome.from_candidate_after_rollback += 1
                outcome.wrong_after_rollback += is_wrong
