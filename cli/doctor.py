"""Whether an artifact runs on a machine, whether it could run faster there, why, and what repairs it.

Works on what the header and the small tables of a file say; weights and code are not read. Which program a machine
takes is the runtime's answer (`aot.runtime.target_rank`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.artifacts.external import external_file, size_problem
from aot.artifacts.layout import Section, WeightsMode
from aot.artifacts.read import Reader
from aot.artifacts.table import FileView
from aot.cli.build_command import build_command
from aot.cli.driver_versions import cuda_text, driver_text
from aot.cli.machine import selection
from aot.errors import ArtifactError
from aot.file_kinds import not_an_artifact

if TYPE_CHECKING:
    from aot.runtime import Machine

RUNS, SLOWER, CANNOT = "runs", "runs slower", "cannot run"
_SECTIONS = frozenset({Section.STRINGS, Section.INTEGERS, Section.PROGRAMS, Section.SOURCES, Section.META})
_LOWEST_DRIVER = 12000  # of the runtime, for any GPU
_LOWEST_LEVEL = 3  # of x86-64 that the CPU backend has code for


@dataclass(frozen=True, slots=True)
class HeldProgram:
    """A program as the header has it; see `aot.cli.machine.Selectable`."""

    target: str
    variant: str
    driver: int
    blocks: tuple[HeldProgram, ...] = ()

    @property
    def parts(self) -> Sequence[HeldProgram]:
        return self.blocks or (self,)


@dataclass(frozen=True, slots=True)
class Held:
    """What is known of an artifact without its weights and code. `bytes_read`: of the file, to know it."""

    path: Path
    programs: tuple[HeldProgram, ...]
    meta: Mapping[str, Any]
    weights: str
    external_problem: str
    bytes_read: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an artifact does not run, or runs slower. `code` is a stable word for programs.

    `targets`: what a build would have to be for besides; `update`: what is to be updated, in words.
    """

    code: str
    text: str
    is_fatal: bool = False
    targets: tuple[str, ...] = ()
    update: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`target`: the code that runs, None where none does. `repair` is for people, `command` for a shell.

    Both are "" where nothing is wrong, or nothing helps; a driver is updated with no command of ours.
    """

    verdict: str
    target: str | None
    causes: tuple[Cause, ...]
    repair: str
    command: str
    notes: tuple[str, ...] = ()
    programs: list[dict[str, Any]] = field(default_factory=list)


def read_held(path: Path) -> Held:
    """Reads the header and the tables that say programs, targets and weights.

    Raises ArtifactError for what is damaged, truncated, of another version or no artifact.
    """
    with FileView(path) as view:
        try:
            reader = Reader(view, _SECTIONS)
            programs = _programs(reader)
            file = external_file(reader, path)
        except ArtifactError as error:
            said = not_an_artifact(path) or (error.message, error.hint)
            raise ArtifactError(said[0], where=str(path), hint=said[1]) from error
        mode = WeightsMode(reader.tables[Section.PROGRAMS][0]["weights"]).name.lower()
        problem = size_problem(file) if file is not None else ""
        return Held(path, programs, reader.meta, mode, problem, view.bytes_read, len(view))


def _programs(reader: Reader) -> tuple[HeldProgram, ...]:
    rows = reader.tables[Section.PROGRAMS]
    if not rows or rows[0]["is_block"]:
        reader.fail(Section.PROGRAMS, "there is no program")
    for row in rows:
        reader.choice(Section.PROGRAMS, WeightsMode, row["weights"])
    plain = [HeldProgram(reader.text(row["target"]), reader.text(row["variant"]), row["driver"]) for row in rows]
    found = []
    for number, row in enumerate(rows):
        if row["is_block"]:
            continue
        numbers = reader.values(row["blocks"])
        if any(not 0 <= block < len(rows) for block in numbers):
            reader.fail(Section.PROGRAMS, f"program {number} calls blocks that are not there: {numbers}")
        found.append(replace(plain[number], blocks=tuple(plain[block] for block in numbers)))
    return tuple(found)


def diagnose(held: Held, machine: Machine | None) -> Diagnosis:
    """What becomes of the artifact on a machine; None: this one."""
    from aot.runtime import this_machine

    known = this_machine() if machine is None else machine
    rows = selection(held.programs, machine)
    chosen = next((row["target"] for row in rows if row["selected"]), None)
    causes = []
    if held.external_problem:
        causes.append(Cause("weights", held.external_problem, is_fatal=True))
    if chosen is None:
        causes.append(_no_program(held, rows, known))
    else:
        causes += _slower(held, rows, chosen, known)
    verdict = CANNOT if any(cause.is_fatal for cause in causes) else SLOWER if causes else RUNS
    notes = tuple(_notes(held, chosen, rows, known))
    return Diagnosis(verdict, chosen, tuple(causes), *_repair(held, causes), notes, rows)


def _no_program(held: Held, rows: Sequence[Mapping[str, Any]], machine: Machine) -> Cause:
    """Why none of the programs runs."""
    reasons = dict.fromkeys(f"{row['target']}: {row['reason']}" for row in rows)
    text = f"no program runs on this machine: {'; '.join(reasons)}"
    if needed := _driver_needed(held, machine):
        return Cause("driver", text, is_fatal=True, update=_update(needed))
    wanted = _buildable(held, machine)
    if not wanted:
        lowest = f"x86-64-v{_LOWEST_LEVEL}"
        text += f"; aotc makes code for CPUs of {lowest} and above, and GPUs of compute capability 8.0 and above"
    return Cause("target", text, is_fatal=True, targets=wanted)


def _slower(held: Held, rows: Sequence[Mapping[str, Any]], chosen: str, machine: Machine) -> Iterable[Cause]:
    """Why the program that runs is not the fastest that could be built."""
    if chosen.startswith("cuda:"):
        yield from _slower_on_gpu(chosen, machine)
        return
    if machine.capability and (gpu := _gpu_target(machine, any_driver=True)):
        reasons = dict.fromkeys(f"{row['target']}: {row['reason']}" for row in rows if _is_gpu(row))
        why = f" ({'; '.join(reasons)})" if reasons else ": the artifact has no code for it"
        capability = f"{machine.capability // 10}.{machine.capability % 10}"
        text = f"the CPU's program {chosen} runs although a GPU of compute capability {capability} is there{why}"
        needed = _driver_needed(held, machine) or (0 if _gpu_target(machine) else _LOWEST_DRIVER)
        if needed:
            yield Cause("driver", text, update=_update(needed))
        else:
            yield Cause("gpu", text, targets=(gpu,))
        return  # what its CPU could do better does not matter where a GPU will run it
    best = _cpu_target(held, machine)
    if best is not None and _cpu_strength(best) > _cpu_strength(chosen):
        yield Cause("cpu", _cpu_text(chosen, best), targets=(best,))


def _is_gpu(row: Mapping[str, Any]) -> bool:
    return str(row["target"]).startswith("cuda:")


def _slower_on_gpu(chosen: str, machine: Machine) -> Iterable[Cause]:
    from aot.runtime import target_rank

    best = _gpu_target(machine)
    if best is None or target_rank(best, 0, machine)[0] <= target_rank(chosen, 0, machine)[0]:
        return
    capability = f"{machine.capability // 10}.{machine.capability % 10}"
    if best.startswith("cuda:compute_"):
        yield Cause("older", f"{chosen} is PTX for older GPUs than {best} is", targets=(best,))
    elif chosen.startswith("cuda:compute_"):
        text = f"{chosen} is PTX, which the driver compiles for the GPU ({capability}) when it is first loaded there"
        yield Cause("ptx", f"{text}; machine code of {best} is ready and tuned for it", targets=(best,))
    else:
        yield Cause("older", f"{chosen} is code for another GPU than this ({capability})", targets=(best,))


def _cpu_text(chosen: str, best: str) -> str:
    lacks = []
    if "v4" in best and "v4" not in chosen:
        lacks.append("AVX-512")
    if "+vnni" in best and "+vnni" not in chosen:
        lacks.append("VNNI (dot products of 8-bit integers)")
    if "+bf16" in best and "+bf16" not in chosen:
        lacks.append("products of bfloat16")
    return f"{chosen} runs without {' and '.join(lacks)}, which this CPU has"


def _architectures(backend: str) -> Sequence[Any]:
    """Rows of what a backend makes code for, the weakest first."""
    from aot.backend.cpu.isa import ISAS
    from aot.backend.cuda.architectures import ARCHITECTURES

    return tuple((ISAS if backend == "cpu" else ARCHITECTURES).values())


def _gpu_target(machine: Machine, any_driver: bool = False) -> str | None:
    """The best that could be built for the machine's GPU."""
    from aot.runtime import target_rank

    known = replace(machine, driver=0) if any_driver else machine
    ranks = {f"cuda:{a.name}": target_rank(f"cuda:{a.name}", a.driver, known)[0] for a in _architectures("cuda")}
    best = max(ranks, key=lambda name: ranks[name])
    return best if ranks[best] and machine.capability else None


def _cpu_strength(target: str) -> int:
    """How much of a CPU's instructions a target uses; -1 for one that this aotc does not know."""
    names = [f"cpu:{isa.name}" for isa in _architectures("cpu")]
    return names.index(target) if target in names else -1


def _cpu_target(held: Held, machine: Machine) -> str | None:
    """The best that `--target cpu` stands for in a build of this model, of what the machine's CPU runs."""
    from aot.backend import BACKENDS
    from aot.runtime import target_rank

    backend = BACKENDS["cpu"]
    is_quantized = bool(held.meta.get("quantization") or held.meta.get("products"))
    wanted = backend.quantized_architectures if is_quantized else backend.default_architectures
    wanted = backend.precision_architectures.get(held.meta.get("options", {}).get("precision", "fp32"), wanted)
    names = [f"cpu:{name}" for name in (*wanted, *backend.default_architectures)]
    return next((name for name in names if target_rank(name, 0, machine)[0]), None)


def _buildable(held: Held, machine: Machine) -> tuple[str, ...]:
    """What a build for the machine names as its target."""
    if gpu := _gpu_target(machine):
        return (gpu,)
    return ("cpu",) if _cpu_target(held, machine) else ()


def _driver_needed(held: Held, machine: Machine) -> int:
    """The oldest driver with which a program of the artifact would run on the machine's GPU, if this one is too old."""
    from aot.runtime import target_rank

    if not machine.capability or not machine.driver:
        return 0
    newer = replace(machine, driver=0)
    needed = [
        max(program.driver, _LOWEST_DRIVER)
        for program in held.programs
        if program.target.startswith("cuda:")
        and target_rank(program.target, program.driver, newer)[0]
        and not target_rank(program.target, program.driver, machine)[0]
    ]
    return min(needed, default=0)


def _update(needed: int) -> str:
    return f"update the NVIDIA driver to {driver_text(needed)} or newer"


def _repair(held: Held, causes: Sequence[Cause]) -> tuple[str, str]:
    """What repairs all of it: words, and one command where a command does."""
    if not causes:
        return "", ""
    updates = list(dict.fromkeys(cause.update for cause in causes if cause.update))
    targets = tuple(dict.fromkeys(target for cause in causes for target in cause.targets))
    is_external = any(cause.code == "weights" for cause in causes)
    if not targets and not is_external:
        return "; ".join(updates) or "use another machine", ""
    command = build_command(held.meta, held.path, targets)
    words = []
    if is_external:
        words.append("copy the weights file from where the artifact was built, or build again")
    elif targets:
        words.append(f"build it also for {' and '.join(targets)}")
    return "; ".join([*updates, *words]), command


def _notes(held: Held, chosen: str | None, rows: Sequence[Mapping[str, Any]], machine: Machine) -> Iterable[str]:
    """What is good to know, and no fault."""
    if chosen is None:
        return
    steps = [step for step in held.meta.get("host_steps", ()) if step.get("target") == chosen]
    if steps:
        ops = ", ".join(str(step["op"]) for step in steps)
        yield f"{len(steps)} node{'s' if len(steps) > 1 else ''} of {chosen} on the CPU, as host steps: {ops}"
    if chosen.startswith("cuda:compute_"):
        yield "PTX: the first load on a machine waits until the driver has compiled it"
    if not machine.capability:
        yield from dict.fromkeys(f"{row['target']} does not run: {row['reason']}" for row in rows if _is_gpu(row))
    if held.weights == "none":
        yield "the weights are not in the artifact: whoever loads it gives them"
    drivers = [program.driver for program in held.programs if program.target == chosen and program.driver]
    if drivers:
        yield f"it needs a driver for CUDA {cuda_text(max(drivers))}: {driver_text(max(drivers))} or newer"
