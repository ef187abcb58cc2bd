"""`aotc canary simulate`: what a policy does with traffic of a known fault, beside Kayenta's and Flagger's rules."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from aot.cli.canary_traffic import FAULTS, Fault, Traffic
from aot.cli.canary_trials import Comparators, Delays, Scenario, compare, is_false, simulate, tune
from aot.cli.cmd_canary import read_policy
from aot.cli.common import common_options, print_facts, print_json, print_table, progress, wants
from aot.errors import OptionError

_HEADINGS = ("rule", "rolled back", "promoted", "held", "median delay", "95th percentile", "median time")


@click.command("simulate", epilog="Faults: " + "; ".join(f"{name}: {what}" for name, what in FAULTS.items()) + ".")
@click.option("--fault", default="none", type=click.Choice(list(FAULTS)), show_default=True, help="What is wrong.")
@click.option("--size", type=float, help="How wrong: a factor or a rate, by the fault; see below.")
@click.option("--share", type=float, default=1.0, show_default=True, help="Of inputs, that a numeric fault touches.")
@click.option("--bucket", default="", metavar="NAME", help="Slow only this shape bucket: batch=1, batch=8 or batch=32.")
@click.option("--policy", "policy_path", type=click.Path(path_type=Path), metavar="FILE", help="As JSON.")
@click.option("--rollouts", default=200, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--pairs", default=7200, show_default=True, type=click.IntRange(1), help="Shadow pairs, then it is held.")
@click.option("--rate", default=2.0, show_default=True, type=click.FloatRange(0.001), help="Shadow pairs a second.")
@click.option("--live/--no-live", default=False, show_default=True, help="Live requests beside the pairs: slower.")
@click.option("--recorded", default=1000, show_default=True, type=click.IntRange(1), help="Inputs the build measured.")
@click.option("--within", type=click.IntRange(1), metavar="PAIRS", help="Also say how many were found by then.")
@click.option("--compare/--no-compare", "comparing", default=True, show_default=True,
              help="Beside Kayenta's and Flagger's rules, tuned to the policy's false-alarm rate.")  # fmt: skip
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Processes.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Everything follows from it.")
@common_options
def command(
    fault: str, size: float | None, share: float, bucket: str, policy_path: Path | None, rollouts: int, pairs: int,
    rate: float, live: bool, recorded: int, within: int | None, comparing: bool, jobs: int, seed: int,
) -> None:  # fmt: skip
    """Simulate rollouts, and tell how soon a fault is found and how often a rollback is false.

    Traffic has a load and a slow drift that both versions share, shape buckets, heavy tails and failures of its own;
    the recorded error distribution is a finite sample. Delays count shadow pairs; a fault that was not found counts
    as an infinite delay. Intervals are exact (Clopper and Pearson), of 95 %.
    """
    if size is None and fault not in ("none", "no-traffic"):
        raise OptionError(f"a fault of kind {fault} has a size", hint=f"Give --size: {FAULTS[fault]}.")
    policy = read_policy(policy_path)
    traffic = replace(Traffic(), pairs_per_second=rate, requests_per_second=5 * rate, recorded=recorded)
    scenario = Scenario(Fault(fault, size or 0.0, share, bucket), traffic, policy, pairs, live)
    with progress() as tell:
        tell("judging", str(scenario.fault))
        judged, trials = simulate(
            scenario, rollouts, seed, jobs, lambda done: tell("judging", f"{done} of {rollouts} rollouts")
        )
        rows, rules = [judged], None
        if comparing:
            tell("tuning", "Kayenta's and Flagger's rules on faultless rollouts")
            (rules,) = tune(scenario, max(rollouts, 200), [policy.false_alarm], seed + 1, jobs)
            tell("comparing", str(scenario.fault))
            rows += compare(scenario, [rules], rollouts, seed, jobs)[0]
    report(scenario, rows, rules, sorted({trial.reason for trial in trials if trial.reason})[:3], seed, within)


def report(
    scenario: Scenario, rows: list[Delays], rules: Comparators | None, reasons: list[str], seed: int, within: int | None
) -> None:
    """Prints the rules side by side."""
    documents = [row.to_json(within) for row in rows]
    false = is_false(scenario.fault)
    if wants("json"):
        print_json(
            {"fault": str(scenario.fault), "rollback_is_false": false, "seed": seed, "most_pairs": scenario.most_pairs,
             "policy": scenario.policy.to_json(), "rules": documents, "tuned": rules.to_json() if rules else None,
             "reasons": reasons}
        )  # fmt: skip
        return
    print_facts(
        [
            ("fault", f"{scenario.fault}: {FAULTS[scenario.fault.kind]}"),
            ("rollouts", f"{rows[0].rollouts:,}, of at most {scenario.most_pairs:,} pairs, seed {seed}"),
            ("a rollback is", "false" if false else "right"),
        ]
    )
    print_table(_HEADINGS, [_cells(row) for row in rows])
    if within is not None:
        for document in documents:
            low, high = document["within"]["interval_95"]
            found = f"{document['within']['rate']:.2%} ({low:.2%} to {high:.2%})"
            print_facts([(f"{document['rule']} within {within}", found)])
    if rules is not None:
        print_facts(
            [
                ("Kayenta", f"confidence {rules.kayenta.confidence:.6f}, a point a minute, a look every "
                            f"{rules.kayenta.look_every} minutes"),
                ("Flagger", f"success at least {rules.flagger.least_success:.4%}, p99 at most "
                            f"{rules.flagger.most_seconds:.4g} s, {rules.flagger.threshold} failed checks"),
                ("tuned to", f"{rules.false_alarm:.2%} of {rules.rollouts:,} faultless rollouts"),
            ]
        )  # fmt: skip
    for reason in reasons:
        print_facts([("for example", reason)])


def _cells(row: Delays) -> tuple[Any, ...]:
    document = row.to_json()

    def rate(name: str) -> str:
        low, high = document[name]["interval_95"]
        return f"{document[name]['rate']:.2%} ({low:.2%} to {high:.2%})"

    def delay(probability: float, unit: str) -> str:
        value = row.quantile(probability, unit)
        return "never" if math.isinf(value) else f"{value:,.0f} {'pairs' if unit == 'pairs' else 's'}"

    return (row.rule, rate("rolled_back"), rate("promoted"), rate("held"),
            delay(0.5, "pairs"), delay(0.95, "pairs"), delay(0.5, "seconds"))  # fmt: skip
