"""`aotc selftest`: runs the inputs that an artifact holds, and checks numbers and latency against the build's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aot.cli.common import (
    DIFFERS,
    common_options,
    note,
    print_facts,
    print_json,
    print_table,
    progress,
    seconds_text,
    wants,
)
from aot.cli.loading import load_model, load_options, open_artifact
from aot.errors import ArtifactError

SLOW = 4  # numbers are right, latency is not


@click.command("selftest")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--no-latency", is_flag=True, help="Check numbers only.")
@click.option("--all", "shows_all", is_flag=True, help="A row for every input, not only for the worst.")
@load_options(None)
@common_options
def command(
    artifact: Path, no_latency: bool, shows_all: bool, threads: int | None, target: str | None, weights: Path | None
) -> None:
    """Run the inputs in ARTIFACT and compare with the outputs and the errors that its build recorded.

    An output passes if its differences are at most three times the largest that the build saw, or what rounding
    explains. Latency passes if the median is at most 1.5 times the recorded 90th percentile; on another machine it is
    only told. Exit code 0: passed; 3: numbers differ; 4: it is slower; 1: it cannot run, or holds no self-test.
    """
    from aot.runtime.serving.selftest import self_test

    open_artifact(artifact)
    with progress() as tell:
        tell("self-test", str(artifact))
        model = load_model(artifact, threads, target, weights)
        found = self_test(model, artifact, threads=threads, time_it=not no_latency)
    if not found.inputs:
        raise ArtifactError(
            "it holds no inputs to test with",
            where=str(artifact),
            hint="Build it with --self-test, or compare it with its model: aotc verify.",
        )
    if wants("json"):
        print_json({"artifact": str(artifact)} | found.to_json())
    else:
        report(found, shows_all)
    code = SLOW if found.latency_problem else 0
    click.get_current_context().exit(code if found.numbers_passed else DIFFERS)


def report(found: Any, shows_all: bool) -> None:
    """Prints a row for each output and metric, the worst of all inputs, and the verdict."""
    for text in found.warnings:
        note(text)
    checks = list(found.checks)
    if not shows_all:
        worst: dict[tuple[str, str], Any] = {}
        for check in checks:
            key = (check.output, check.metric)
            if key not in worst or check.value > worst[key].value:
                worst[key] = check
        checks = list(worst.values())
    rows = [
        (
            check.output,
            check.metric,
            check.input,
            f"{check.value:.3g}",
            "not judged" if check.limit is None else f"{check.limit:.3g}",
            "ok" if check.passed else "FAILED",
        )
        for check in checks
    ]
    if rows:
        print_table(("output", "metric", "input", "found", "at most", ""), rows)
    for problem in found.problems:
        click.echo(problem)
    facts = []
    for name, latency in (("latency", found.latency), ("at the build", found.recorded)):
        if latency is not None:
            band = f"{seconds_text(latency.p10_seconds)}..{seconds_text(latency.p90_seconds)}"
            text = f"{seconds_text(latency.median_seconds)} ({band}), {latency.threads} threads, {latency.target}"
            facts.append((name, f"{text}, {latency.machine.get('cpu', '?')}"))
    if found.latency_problem:
        facts.append(("slower", found.latency_problem))
    print_facts(facts)
    verdict = click.style("passed", fg="green") if found.passed else click.style("failed", fg="red", bold=True)
    click.echo(f"{verdict}: {found.inputs} input{'s' if found.inputs > 1 else ''} on {found.target}")
