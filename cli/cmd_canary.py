"""`aotc canary`: judge records of two versions offline; see and steer a rollout; simulate one; a page about one.

Exit codes of `judge`: 0 promote, 3 roll back, 4 hold, 1 the records or the expected errors cannot be read, 2 usage.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli.common import OK, check_file, common_options, note, print_facts, print_json, print_table, wants
from aot.errors import OptionError, RunError

if TYPE_CHECKING:
    from aot.runtime.serving import CanaryPolicy, Expected, Verdict

ROLL_BACK = 3
HOLD = 4
EXIT_CODES = {"promote": OK, "roll back": ROLL_BACK, "hold": HOLD}

LAZY = {
    "simulate": "Simulate rollouts with faults, and count delays and false alarms.",
    "report": "Write a page about a rollout: both versions side by side over time.",
}
"""In modules of their own (aot.cli.canary_NAME), imported when used."""


class CanaryGroup(click.Group):
    """The commands of this module, and those of LAZY."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *LAZY]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LAZY:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module(f"aot.cli.canary_{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [(name, each.get_short_help_str(90)) for name, each in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*own, *LAZY.items()])


@click.group("canary", cls=CanaryGroup)
@common_options
def command() -> None:
    """Two versions of a model beside each other: promote, hold or roll back, with a stated budget of errors."""


@command.command("judge")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--policy", type=click.Path(path_type=Path), metavar="FILE", help="JSON; default: the default policy.")
@click.option(
    "--expected",
    type=click.Path(path_type=Path),
    metavar="ARTIFACT",
    help="The candidate, whose build recorded its errors; or a JSON file with them.",
)
@common_options
def judge_command(file: Path, policy: Path | None, expected: Path | None) -> None:
    """Judge the records in FILE, a JSON object a line, in their order.

    Exit codes: 0 promote, 3 roll back, 4 hold, 1 something cannot be read, 2 usage.
    """
    from aot.runtime.serving import Judge, read_records

    check_file(file, "a file of records")
    judge = Judge(read_policy(policy), read_expected(expected))
    judge.add_many(read_records(file))
    verdict = judge.verdict()
    if wants("json"):
        print_json({**verdict.to_json(), "pairs": judge.pairs, "requests": judge.requests})
    else:
        print_verdict(verdict)
    click.get_current_context().exit(EXIT_CODES[verdict.decision])


def read_policy(path: Path | None) -> CanaryPolicy:
    """The policy of a JSON file; the default one without. Raises RunError that names file and field."""
    from aot.runtime.serving import CanaryPolicy

    if path is None:
        return CanaryPolicy()
    document = _read_json(path, "a policy")
    try:
        return CanaryPolicy.from_json(document)
    except RunError as error:
        raise RunError(error.message, where=f"{path}: {error.where}", hint=error.hint) from error


def read_expected(path: Path | None) -> Expected:
    """What an artifact or a JSON file says of the candidate's errors; nothing without. Raises RunError."""
    from aot.cli.loading import open_artifact
    from aot.runtime.serving import expected_of

    if path is None:
        return {}
    check_file(path, "an artifact, or a file of errors")
    if path.suffix != ".json":
        expected = expected_of(open_artifact(path).meta)
        if not expected:
            note(f"{path}: its build recorded no errors of its outputs; aotc build --self-test does")
        return expected
    document = _read_json(path, "a file of errors")
    try:
        return expected_of(document if "errors" in document else {"errors": document})
    except RunError as error:
        raise RunError(error.message, where=f"{path}: {error.where}", hint=error.hint) from error


def _read_json(path: Path, wanted: str) -> dict[str, Any]:
    check_file(path, wanted)
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RunError(f"the file is no JSON: {error}", where=str(path)) from error
    if not isinstance(document, dict):
        raise RunError(f"{wanted} is a JSON object", where=str(path))
    return document


def print_verdict(verdict: Verdict) -> None:
    """The decision, its reasons, and a table of the streams."""
    colour = {"promote": "green", "roll back": "red"}.get(verdict.decision, "yellow")
    click.echo(click.style(verdict.decision, fg=colour, bold=True))
    for reason in verdict.reasons:
        click.echo(f"  {reason}")
    if not verdict.evidence:
        return

    def shown(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    rows = [
        (
            row.name, row.state, row.count, shown(row.estimate),
            "" if row.interval is None else f"{shown(row.interval[0])} to {shown(row.interval[1])}",
            shown(row.limit), shown(row.evidence_ratio),
        )
        for row in verdict.evidence
    ]  # fmt: skip
    print_table(("stream", "state", "records", "estimate", "interval", "must be below", "evidence"), rows)


@command.command("status")
@click.argument("directory", type=click.Path(path_type=Path))
@common_options
def status_command(directory: Path) -> None:
    """Show where the rollout in DIRECTORY is, also while a controller works on it."""
    from aot.runtime.serving import canary_status

    _check_directory(directory)
    status = canary_status(directory)
    if wants("json"):
        print_json(status)
        return
    steps = ", ".join(f"{step:.4g}" for step in status["steps"])
    print_facts(
        [
            ("state", status["state"]),
            ("share", f"{status['share']:.4g} of the traffic; steps: {steps}"),
            ("records", f"{status['pairs']} pairs, {status['requests']} live requests"),
            ("judge", status["verdict"]["decision"]),
            ("reasons", "\n".join(status["reasons"] or status["verdict"]["reasons"])),
            ("decisions", f"{status['decisions']} in {directory / 'audit.jsonl'}"),
            *([("orders", f"{status['orders']} wait for the controller")] if status["orders"] else []),
        ]
    )


def _operator_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        common_options,
        click.option("--reason", "why", required=True, metavar="TEXT", help="Why; kept in the audit log."),
        click.option("--name", "who", required=True, envvar="USER", help="Whose decision it is.  [default: $USER]"),
        click.argument("directory", type=click.Path(path_type=Path)),
    ):
        function = option(function)
    return function


@command.command("pause")
@_operator_options
def pause_command(directory: Path, who: str, why: str) -> None:
    """Stay at this share until resumed; a fault still rolls back."""
    _give_order(directory, "pause", who, why)


@command.command("resume")
@_operator_options
def resume_command(directory: Path, who: str, why: str) -> None:
    """End a pause."""
    _give_order(directory, "resume", who, why)


@command.command("force")
@_operator_options
def force_command(directory: Path, who: str, why: str) -> None:
    """Promote to all of the traffic, at once, whatever the judge says."""
    _give_order(directory, "promote", who, why)


@command.command("rollback")
@_operator_options
def rollback_command(directory: Path, who: str, why: str) -> None:
    """Roll back, at once, whatever the judge says."""
    _give_order(directory, "roll back", who, why)


def _give_order(directory: Path, what: str, who: str, why: str) -> None:
    """Follows an order in a directory that no one controls; else leaves it for the controller."""
    from aot.runtime.serving import Canary, Order, leave_order
    from aot.runtime.serving.journal import LockedError

    _check_directory(directory)
    # Arguments of another encoding than UTF-8 would be text that no terminal and no page can show.
    who, why = (os.fsencode(text).decode(errors="replace") for text in (who, why))
    order = Order(what, who, why)
    try:
        with Canary(directory) as canary:
            if what in ("pause", "resume"):
                getattr(canary, what)(who, why)
            else:
                canary.force(what, who, why)
            told: dict[str, Any] = {"done": True, "state": canary.state, "share": canary.share}
    except LockedError:
        told = {"done": False, "order": leave_order(directory, order)}
    if wants("json"):
        print_json(told)
    elif told["done"]:
        click.echo(f"{told['state']}, {told['share']:.4g} of the traffic")
    else:
        click.echo("left for the controller of this directory, which follows it when it decides next")


def _check_directory(directory: Path) -> None:
    """Raises OptionError where there is no canary: commands look at rollouts and steer them, and begin none."""
    if not any(directory.glob("snapshot-*")):
        raise OptionError("there is no canary in this directory", where=str(directory))
