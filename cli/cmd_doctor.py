"""`aotc doctor`: whether an artifact runs on a machine, why not or why slower, and the command that repairs it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from aot.cli.common import DIFFERS, bytes_text, check_file, common_options, print_facts, print_json, wants
from aot.cli.machine import HERE, MachineType, machine_text
from aot.errors import ArtifactError

_COLOURS = {"runs": "green", "runs slower": "yellow", "cannot run": "red"}


@click.command("doctor")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--machine",
    type=MachineType(),
    default=HERE,
    show_default=True,
    metavar="sm=N,driver=N,cpu=LEVEL",
    help="Another machine: sm=89,driver=550,cpu=x86-64-v3.",
)
@click.option("--strict", is_flag=True, help="Exit code 3 also where it runs slower than it could.")
@common_options
def command(artifact: Path, machine: Any, strict: bool) -> None:
    """Say whether ARTIFACT runs on this machine or another one, and how to repair it if not.

    Reads the header and the tables of programs, never weights or code. Exit code 0: it runs; 3: it cannot run there;
    1: the file is damaged, of another version, or no artifact.
    """
    from aot.cli.doctor import CANNOT, SLOWER, diagnose, read_held
    from aot.runtime import this_machine

    check_file(artifact, "an artifact")
    held = read_held(artifact)
    described = None if machine == HERE else machine
    try:
        found = diagnose(held, described)
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # meta is JSON of any form
        raise ArtifactError(
            f"the artifact's meta section is not as a build writes it: {type(error).__name__}: {error}",
            where=str(artifact), hint="Build it again, or get it again from who built it.",
        ) from error  # fmt: skip
    known = this_machine() if described is None else described
    if wants("json"):
        document = asdict(found) | {"artifact": str(artifact), "machine": asdict(known)}
        print_json(document | {"bytes_read": held.bytes_read, "file_bytes": held.file_bytes})
    else:
        label = click.style(found.verdict, fg=_COLOURS[found.verdict], bold=True)
        facts = [("artifact", f"{artifact}, {bytes_text(held.file_bytes)}")]
        facts.append(("machine", machine_text(known) + (" (this one)" if described is None else "")))
        facts.append(("verdict", label + (f": {found.target}" if found.target else "")))
        facts += [("cause", cause.text) for cause in found.causes]
        facts += [("repair", found.repair)] if found.repair else []
        facts += [("command", found.command)] if found.command else []
        facts += [("note", note) for note in found.notes]
        print_facts(facts)
    failed = found.verdict == CANNOT or (strict and found.verdict == SLOWER)
    click.get_current_context().exit(DIFFERS if failed else 0)
