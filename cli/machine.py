"""Which program of an artifact a machine would run, this one or a described one, and why not the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import click

from aot.cli.driver_versions import cuda_text, cuda_version
from aot.errors import AotError, OptionError

if TYPE_CHECKING:
    from aot.runtime import Machine

HERE = "here"
NEWEST_LEVEL = 4
_CPU = re.compile(r"(?:cpu:)?x86-64(?:-v([234]))?((?:\+(?:vnni|bf16))*)|none")
_HINT = "Example: --machine sm=89,driver=550,cpu=x86-64-v3; or: --machine here."


class Selectable(Protocol):
    """What decides whether a program runs somewhere: a `Program`, or what a header says of one."""

    @property
    def target(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def driver(self) -> int: ...
    @property
    def parts(self) -> Sequence[Selectable]: ...


class MachineType(click.ParamType[Any]):
    """`sm=89,driver=550,cpu=x86-64-v3`, each part optional, or `here`."""

    name = "machine"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return parse(value) if isinstance(value, str) and value != HERE else value


def parse(text: str) -> Machine:
    """A described machine. Raises OptionError.

    `sm` is its GPU's compute capability, `driver` its driver's branch or version (550, 550.54.14) or the version of
    CUDA that it supports (12.4, 12040), `cpu` a level of x86-64 or `none`. What is not named: no GPU, a driver that is
    new enough, a CPU of the newest level.
    """
    from aot.runtime import Machine

    level, capability, driver, extras = NEWEST_LEVEL, 0, 0, sum(Machine.EXTRAS.values())
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name == "sm" and (found := re.fullmatch(r"(?:sm_)?(\d{1,2})\.?(\d)[af]?", value)):
            capability = 10 * int(found[1]) + int(found[2])
        elif name == "driver" and (version := cuda_version(value)) is not None:
            driver = version
        elif name == "cpu" and (found := _CPU.fullmatch(value)):
            level = 0 if value == "none" else int(found[1] or 1)
            extras = sum(Machine.EXTRAS[extra] for extra in {*(found[2] or "").split("+")} - {""})
        else:
            raise OptionError(f"--machine: {part.strip()!r} is not sm=, driver= or cpu= with a value of it", hint=_HINT)
    if driver and not capability:
        raise OptionError("--machine: a driver without a GPU", hint=_HINT)
    return Machine(level, capability, driver, extras)


def machine_text(machine: Machine) -> str:
    """A machine in words."""
    level = machine.cpu_level
    parts = ["another CPU than x86-64" if not level else "x86-64" if level == 1 else f"x86-64-v{level}"]
    parts[0] += "".join(f"+{name}" for name, number in machine.EXTRAS.items() if machine.cpu_extras & number)
    if machine.capability:
        parts.append(f"a GPU of compute capability {machine.capability // 10}.{machine.capability % 10}")
    else:
        parts.append("no GPU")
    if machine.driver:
        parts.append(f"driver for CUDA {cuda_text(machine.driver)}")
    return ", ".join(parts)


def selection(programs: Sequence[Selectable], machine: Machine | None) -> list[dict[str, Any]]:
    """For each program whether a machine (None: this one) would select it, and else why not, as the runtime decides."""
    from aot.runtime import target_rank

    ranks = []
    for program in programs:
        rank, reason = target_rank(program.target, program.driver, machine)
        others = dict.fromkeys(part.target for part in program.parts if rank and part.target != program.target)
        for problem in (target_rank(target, 0, machine)[1] for target in others):
            rank, reason = (0, f"its host steps do not run: {problem}") if problem else (rank, reason)
        ranks.append((rank, reason))
    best = max((rank for rank, _ in ranks), default=0)
    chosen = next((p.target for p, (rank, _) in zip(programs, ranks, strict=True) if rank and rank == best), None)
    return [
        {
            "program": number,
            "target": program.target,
            "variant": program.variant,
            "selected": program.target == chosen,
            "reason": reason or ("" if program.target == chosen else f"{chosen} comes first"),
        }
        for number, (program, (_, reason)) in enumerate(zip(programs, ranks, strict=True))
    ]


def selection_json(programs: Sequence[Selectable], machine: Machine | None) -> dict[str, Any]:
    """The machine and what it would run, as a document."""
    from aot.runtime import this_machine

    found = this_machine() if machine is None else machine
    rows = selection(programs, machine)
    return {
        "machine": {
            "cpu_level": found.cpu_level,
            "capability": found.capability,
            "driver": found.driver,
            "cpu_extras": found.cpu_extras,
        },
        "selected": next((row["target"] for row in rows if row["selected"]), None),
        "programs": rows,
    }


def here_facts(programs: Sequence[Selectable]) -> list[tuple[str, str]]:
    """What this machine would run, for the overview; nothing where there is no runtime library to ask."""
    try:
        rows = selection(programs, None)
    except (AotError, OSError):
        return []
    chosen = next((row["target"] for row in rows if row["selected"]), "no program")
    reasons = {row["target"]: row["reason"] for row in rows if not row["selected"]}
    lines = [f"{chosen} on this machine", *(f"not {target}: {reason}" for target, reason in reasons.items())]
    return [("selected", "\n".join(lines))]
