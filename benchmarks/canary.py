"""The canary's judge on simulated rollouts, beside Kayenta's and Flagger's rules: `python benchmarks/canary.py`.

Every scenario has 2,000 rollouts (--rollouts), with shadow pairs and live requests, which all rules see. The
comparators are tuned twice, on as many faultless rollouts of the same traffic: to the false alarms that the judge was
seen to give (the upper end of the exact interval), and to all that the policy allows. Which targets are met is written
beside the figures. With --write, results go to benchmarks/results/canary.{json,md} after every case, beside those of
other cases with the same settings, so that a long run can be done in parts (--only). Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from aot.cli.canary_binomial import clopper_pearson
from aot.cli.canary_traffic import Fault, Traffic
from aot.cli.canary_trials import Comparators, Delays, Scenario, compare, is_false, simulate, tune
from aot.runtime.serving.policy import CanaryPolicy
from benchmarks.timing import processor, today

HERE = Path(__file__).parent
WITHIN = 600  # pairs, for numeric faults
SLOW = replace(Traffic(), pairs_per_second=0.5, requests_per_second=2.5)
"""Fewer requests a minute: a comparator's interval costs it fewer pairs."""


@dataclass(frozen=True)
class Case:
    """A scenario and what it must reach, of: "false" rollbacks, "missed" faults, "sooner" than the comparators,
    "within" 600 pairs, "held" throughout."""

    title: str
    fault: Fault
    targets: tuple[str, ...]
    traffic: Traffic = field(default_factory=Traffic)
    live: bool = True

    @property
    def scenario(self) -> Scenario:
        """As the simulation takes it."""
        return Scenario(self.fault, self.traffic, POLICY, MOST_PAIRS, self.live)


POLICY = CanaryPolicy(steps=(0.05, 0.25, 1.0))
"""The default but for its first step: 200 live requests of 1 % are 20,000 of all, most of the time of a simulation."""
MOST_PAIRS = 7200
CASES = (
    Case("no fault", Fault(), ("false",)),
    Case("no traffic", Fault("no-traffic"), ("held",)),
    Case("latency x 1.10", Fault("latency", POLICY.latency_ratio), ("missed", "sooner")),
    Case("latency x 1.25", Fault("latency", 1.25), ("missed", "sooner")),
    Case("latency x 2", Fault("latency", 2.0), ("missed", "sooner")),
    Case("latency x 1.10 in batch=8", Fault("latency", POLICY.latency_ratio, bucket="batch=8"), ("missed", "sooner")),
    Case("latency x 1.5 in batch=32", Fault("latency", 1.5, bucket="batch=32"), ("missed", "sooner")),
    Case("latency leak to x 1.5 in an hour", Fault("leak-latency", 1.5), ("sooner",)),
    Case("crashes in 0.5 %", Fault("crash", POLICY.failure_rate), ("missed", "sooner")),
    Case("crashes in 1 %", Fault("crash", 0.01), ("missed", "sooner")),
    Case("crashes in 5 %", Fault("crash", 0.05), ("missed", "sooner")),
    Case("guard failures in 2 %", Fault("guard", 0.02), ("missed", "sooner")),
    Case("error leak to 10 % in an hour", Fault("leak-errors", 0.1), ("sooner",)),
    Case("errors 3 x the recorded on 2 %", Fault("outlier", POLICY.error_factor, POLICY.exceedance_rate),
         ("missed", "within")),
    Case("latency x 1.10, 0.5 pairs/s", Fault("latency", POLICY.latency_ratio), ("missed", "sooner"), SLOW),
    Case("a bad client", Fault("bad-client", 0.05), ("false",)),
    Case("crashes in 0.5 %, 0.5 pairs/s", Fault("crash", POLICY.failure_rate), ("missed", "sooner"), SLOW),
    Case("errors 3 x their own on 2 %", Fault("numeric", 3.0, 0.02), ()),
)  # fmt: skip


def judge_case(
    case: Case, judged: Delays, tuned: Sequence[Comparators], rollouts: int, seed: int, jobs: int
) -> dict[str, Any]:
    """One scenario: the figures of all rules, and which targets the judge meets."""
    equal, stated = compare(case.scenario, tuned, rollouts, seed, jobs)
    rules = [("judge", judged)]
    rules += [(f"{each.rule}, as few false alarms", each) for each in equal]
    rules += [(f"{each.rule}, {POLICY.false_alarm:.0%}", each) for each in stated]
    return {
        "title": case.title,
        "fault": str(case.fault),
        "rollback_is_false": is_false(case.fault),
        "pairs_per_second": case.traffic.pairs_per_second,
        "live": case.live,
        "rules": [{**each.to_json(WITHIN), "rule": name} for name, each in rules],
        "targets": dict(check(case, [judged, *equal])),
    }


def check(case: Case, rows: list[Delays]) -> Iterator[tuple[str, bool]]:
    """Each target of a case, and whether the judge meets it, allowing the binomial interval of a count."""
    judged, *others = rows
    for target in case.targets:
        if target == "false":
            low, _ = clopper_pearson(judged.rolled_back, judged.rollouts)
            yield f"false rollbacks at most {POLICY.false_alarm:.0%}", low <= POLICY.false_alarm
        elif target == "missed":
            low, _ = clopper_pearson(judged.promoted, judged.rollouts)
            yield f"promoted in at most {POLICY.missed_fault:.0%}", low <= POLICY.missed_fault
        elif target == "held":
            yield "always held", judged.held == judged.rollouts
        elif target == "within":
            found = sum(each <= WITHIN for each in judged.pairs)
            _, high = clopper_pearson(found, judged.rollouts)
            yield f"found within {WITHIN} pairs in 95 %", high >= 0.95
        else:
            for other in others:
                yield f"median delay no longer than {other.rule}'s", judged.quantile(0.5) <= other.quantile(0.5)


def table(document: dict[str, Any]) -> Iterator[str]:
    """The page."""
    yield "# The canary's judge in simulation\n"
    for name in ("date", "cpu", "aotc", "numpy", "rollouts", "seed"):
        yield f"- {name}: {document[name]}"
    if "note" in document:
        yield f"- note: {document['note']}"
    yield "- comparators:"
    for traffic, both in document["tuned"].items():
        for rules in both:
            kayenta, flagger = rules["kayenta"], rules["flagger"]
            yield (
                f"  - at {traffic} pairs a second, for {rules['false_alarm']:.2%} false alarms: Kayenta's interval of "
                f"confidence {kayenta['confidence']:.7f} (a point a minute, a look every "
                f"{kayenta['look_every_intervals']} minutes); Flagger: success at least "
                f"{flagger['least_success']:.3%}, p99 at most {flagger['most_seconds'] * 1e3:.1f} ms, "
                f"{flagger['failed_checks']} failed checks of a minute each"
            )
    yield ""
    yield (
        f"Traffic: {Traffic().pairs_per_second:g} shadow pairs among {Traffic().requests_per_second:g} requests a "
        f"second; a rollout that is undecided after {MOST_PAIRS:,} pairs is held. Delays are medians and 95th "
        "percentiles over all rollouts, in shadow pairs; one that is not rolled back counts as infinite (–). Rates "
        "have exact 95 % intervals. Comparators know no promotion before the end: what they have not rolled back "
        "by then, they promote. They are tuned on faultless rollouts: to as few false alarms as the judge was seen "
        "to give at most (the upper end of the interval in the first row), and to the policy's stated rate, "
        "which is more than the judge uses.\n"
    )
    yield "Re-run: `python benchmarks/canary.py --write`\n"
    yield "| scenario | rule | rolled back | promoted | held | median delay | 95th percentile | within 600 |"
    yield "|---|---|---|---|---|---|---|---|"
    for case in document["cases"]:
        for number, rule in enumerate(case["rules"]):
            delay = rule["delay_pairs"]
            cells = [case["title"] if number == 0 else "", rule["rule"], *(_rate(rule[name]) for name in _COUNTS)]
            cells += [_pairs(delay["median"]), _pairs(delay["p95"]), f"{rule['within']['rate']:.1%}"]
            yield "| " + " | ".join(cells) + " |"
    yield "\n## Targets\n"
    yield "| scenario | target | met |"
    yield "|---|---|---|"
    for case in document["cases"]:
        for target, met in case["targets"].items():
            yield f"| {case['title']} | {target} | {'yes' if met else '**no**'} |"


_COUNTS = ("rolled_back", "promoted", "held")


def _rate(entry: dict[str, Any]) -> str:
    low, high = entry["interval_95"]
    return f"{entry['rate']:.2%} ({low:.2%} – {high:.2%})"


def _pairs(value: float | None) -> str:
    return "–" if value is None or math.isinf(value) else f"{value:,.0f}"


_SETTINGS = ("rollouts", "seed", "policy", "most_pairs", "aotc", "numpy")


def earlier(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Cases of the results file, if it has the same settings."""
    path = HERE / "results" / "canary.json"
    if not path.is_file():
        return []
    document = json.loads(path.read_text())
    same = all(document.get(name) == settings[name] for name in _SETTINGS)
    cases: list[dict[str, Any]] = document["cases"] if same else []
    return cases


def main() -> int:
    """Runs the cases, prints the page, and says whether all targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=20261201)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", metavar="TITLE", help="cases whose title contains one of these")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rollouts, seed, jobs = options.rollouts, options.seed, options.jobs
    document: dict[str, Any] = {
        "date": today(), "cpu": processor(), "aotc": version("aotc"), "numpy": np.__version__,
        "rollouts": rollouts, "seed": seed, "most_pairs": MOST_PAIRS, "policy": POLICY.to_json(),
        "tuned": {}, "cases": [],
    }  # fmt: skip
    known = {case["title"]: case for case in earlier(document)} if options.write else {}
    faultless, _ = simulate(CASES[0].scenario, rollouts, seed, jobs)
    measured = min(clopper_pearson(faultless.rolled_back, rollouts)[1], POLICY.false_alarm)
    print(f"{faultless.rolled_back} of {rollouts} faultless rollouts rolled back", file=sys.stderr, flush=True)
    tuned: dict[float, list[Comparators]] = {}
    for case in CASES:
        if options.only and not any(word in case.title for word in options.only):
            continue
        started = time.perf_counter()
        rate = case.traffic.pairs_per_second
        if rate not in tuned:
            tuned[rate] = tune(case.scenario, rollouts, (measured, POLICY.false_alarm), seed + 1, jobs)
            document["tuned"][f"{rate:g}"] = [each.to_json() for each in tuned[rate]]
        judged = faultless if case is CASES[0] else simulate(case.scenario, rollouts, seed, jobs)[0]
        known[case.title] = judge_case(case, judged, tuned[rate], rollouts, seed, jobs)
        seconds = time.perf_counter() - started
        print(f"{case.title}: {seconds:.0f} s, {known[case.title]['targets']}", file=sys.stderr, flush=True)
        document["cases"] = [known[each.title] for each in CASES if each.title in known]
        if options.write:
            (HERE / "results" / "canary.json").write_text(json.dumps(document, indent=1) + "\n")
            (HERE / "results" / "canary.md").write_text("\n".join(table(document)) + "\n")
    print("\n".join(table(document)))
    return 0 if all(met for case in document["cases"] for met in case["targets"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
