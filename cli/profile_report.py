"""What a profile says: times of kernels, joined with what the artifact knows of them, against the machine's ceilings.

Invariant: nothing here is measured; `aot.runtime` gives times, the artifact bytes, flops and shapes of launches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot import dims as dimension
from aot.dims import Dim
from aot.program import KernelCode, Program, Step

if TYPE_CHECKING:
    from aot.runtime._times import Times

LATENCY_SHARE = 0.25
"""A kernel that reaches less than this of either ceiling is bound by neither: by latency, or too few blocks."""

_PRODUCTS = ("contract", "window", "attend", "attend_parts")
METHODS = {
    "graph": "each kernel {repeats} times in a row in a CUDA graph of its own, between two events, with warm caches; "
    "medians of three rounds. A time has the step from one kernel to the next in it, and no launch",
    "events": "an event around each kernel, launched one by one: of a short kernel most of that is its launch",
    "barriers": "a barrier and a clock behind each step; medians",
}
IN_LOOPS = "; a kernel in a loop has the time of all iterations, and the bytes and flops of one"


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The most that the machine gives, per second; 0 or no entry: not known. The texts say where each is from."""

    memory_bytes: float
    memory_from: str
    flops: Mapping[str, float]
    flops_from: str


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel launch. None: not known. Shares are of the whole: of the kernels' time, and of ceilings."""

    number: int
    label: str
    kind: str
    nodes: tuple[str, ...]
    schedule: str
    symbol: str
    seconds: float
    share: float
    bytes: int | None
    bytes_per_s: float | None
    memory_share: float | None
    flops: int | None
    flops_per_s: float | None
    unit: str
    unit_share: float | None
    bound: str
    registers: int | None
    shared_bytes: int | None
    spilled_bytes: int | None
    blocks: int | None
    threads: int | None
    is_heavy: bool
    starts_early: bool


@dataclass(frozen=True, slots=True)
class Total:
    """Launches of one kind, or of one of the model's nodes; of a kernel that computes several, each has a part."""

    name: str
    launches: int
    seconds: float
    share: float
    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Profile:
    """All of it. `gap_seconds`: the run less the sum of its kernels; below 0 kernels overlap."""

    artifact: str
    target: str
    precision: str
    variant: str
    machine: str
    inputs: str
    dims: Mapping[str, int]
    method: str
    method_text: str
    repeats: int
    run_seconds: float
    kernel_seconds: float
    gap_seconds: float
    launches: int
    ceilings: Ceilings
    rows: tuple[Row, ...]
    kinds: tuple[Total, ...]
    nodes: tuple[Total, ...]


def unit_of(kernel: KernelCode, precision: str) -> str:
    """What does the arithmetic: tensor cores or dot products ("8-bit", "half", "tf32"), or plain units ("fp32")."""
    source = kernel.source
    if kernel.image is None:
        return "8-bit" if "vpdpbusd" in source else "half" if "vdpbf16ps" in source else "fp32"
    is_product = "tl.dot(" in source if source else kernel.kind.lower() in _PRODUCTS
    if not is_product:
        return "fp32"
    if "out_dtype=tl.int32" in source or "max_num_imprecise_acc=" in source:
        return "8-bit"
    first = source.split("\n", 1)[0]  # the types of its pointers are there
    if precision in ("fp16", "bf16") or re.search(r"\*(fp|bf)16", first):
        return "half"
    return "tf32" if precision == "tf32" else "fp32"


def profile(
    times: Times,
    program: Program,
    *,
    values: Mapping[str, int],
    ceilings: Ceilings,
    facts: Mapping[str, str],
) -> Profile:
    """Joins times with the program that ran; `values` are of its dimensions, `facts` the texts of the same names."""
    launches = program.launches
    kernel_seconds = sum(step.seconds for step in times.steps)
    rows = []
    for number, (taken, (kernel, step)) in enumerate(zip(times.steps, launches, strict=True)):
        bytes_, flops = _value(step.bytes_moved, values), _value(step.flops, values)
        unit = unit_of(kernel, facts["precision"])
        rate = _rate(bytes_, taken.seconds)
        flop_rate = _rate(flops, taken.seconds)
        memory_share = _share(rate, ceilings.memory_bytes)
        unit_share = _share(flop_rate, ceilings.flops.get(unit, 0))
        image = kernel.image
        rows.append(
            Row(
                number=number,
                label=taken.label,
                kind=kernel.kind.lower(),
                nodes=taken.nodes,
                schedule=kernel.schedule,
                symbol=kernel.symbol,
                seconds=taken.seconds,
                share=taken.seconds / kernel_seconds if kernel_seconds else 0.0,
                bytes=bytes_,
                bytes_per_s=rate,
                memory_share=memory_share,
                flops=flops,
                flops_per_s=flop_rate,
                unit=unit,
                unit_share=unit_share,
                bound=_bound(memory_share, unit_share, unit),
                registers=image.registers if image else None,
                shared_bytes=image.shared_bytes if image else None,
                spilled_bytes=image.spilled_bytes if image else None,
                blocks=_blocks(step, values) if image else None,
                threads=image.threads if image else None,
                is_heavy=bool(image and image.is_heavy),
                starts_early=taken.starts_early,
            )
        )
    return Profile(
        artifact=facts["artifact"],
        target=program.target,
        precision=facts["precision"],
        variant=program.variant,
        machine=facts["machine"],
        inputs=facts["inputs"],
        dims=dict(values),
        method=times.method,
        method_text=METHODS[times.method].format(repeats=times.repeats)
        + (IN_LOOPS if program.flow is not None else ""),
        repeats=times.repeats,
        run_seconds=times.run_seconds,
        kernel_seconds=kernel_seconds,
        gap_seconds=times.run_seconds - kernel_seconds,
        launches=sum(row.seconds > 0 for row in rows),
        ceilings=ceilings,
        rows=tuple(rows),
        kinds=_totals(rows, lambda row: (row.kind,)),
        nodes=_totals(rows, lambda row: row.nodes or (row.label,)),
    )


def _value(dim: Dim, values: Mapping[str, int]) -> int | None:
    """None where a dimension is known only while the program runs."""
    if any(symbol.name not in values for symbol in dimension.symbols_of(dim)):
        return None
    return dimension.evaluate(dim, values)


def _blocks(step: Step, values: Mapping[str, int]) -> int | None:
    count = 1
    for extent in step.grid:
        found = _value(extent, values)
        if found is None:
            return None
        count *= found
    return count


def _rate(amount: int | None, seconds: float) -> float | None:
    return None if amount is None or seconds <= 0 else amount / seconds


def _share(rate: float | None, ceiling: float) -> float | None:
    return None if rate is None or ceiling <= 0 else rate / ceiling


def _bound(memory: float | None, unit: float | None, name: str) -> str:
    if memory is None and unit is None:
        return "?"
    most = max(memory or 0.0, unit or 0.0)
    if most < LATENCY_SHARE:
        return "latency"
    return "memory" if (memory or 0.0) >= (unit or 0.0) else name


def _totals(rows: Sequence[Row], names_of: Callable[[Row], tuple[str, ...]]) -> tuple[Total, ...]:
    """The longest first. A row of several names gives each an equal part."""
    found: dict[str, list[float]] = {}
    for row in rows:
        names = names_of(row)
        for name in names:
            sums = found.setdefault(name, [0, 0.0, 0.0, 0.0, 0.0])
            parts = (row.seconds, row.share, row.bytes or 0, row.flops or 0)
            sums[0] += 1
            for position, part in enumerate(parts, 1):
                sums[position] += part / len(names)
    totals = [Total(name, int(s[0]), s[1], s[2], round(s[3]), round(s[4])) for name, s in found.items()]
    return tuple(sorted(totals, key=lambda total: -total.seconds))


# As text.


def us(seconds: float) -> str:
    """Microseconds, to a hundredth where they are few."""
    value = seconds * 1e6
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}" if abs(value) < 10_000 else f"{value:.0f}"


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def rate_text(rate: float | None, unit: str) -> str:
    """Such as 734 TFLOP/s; nothing where it is not known."""
    if rate is None:
        return ""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if rate >= factor:
            value = rate / factor
            return f"{value:.0f} {prefix}{unit}" if value >= 100 else f"{value:.3g} {prefix}{unit}"
    return f"{rate:.0f} {unit}"


def launch_text(row: Row) -> str:
    """Blocks, threads, and how the launch follows the one ahead of it."""
    if row.threads is None:
        return ""
    how = " heavy" if row.is_heavy else " early" if row.starts_early else ""
    return f"{'?' if row.blocks is None else row.blocks} x {row.threads}{how}"


def registers_text(row: Row) -> str:
    """Registers of a thread, shared bytes of a block, and what was spilled."""
    if row.registers is None:
        return ""
    spilled = f", {row.spilled_bytes} B spilled" if row.spilled_bytes else ""
    return f"{row.registers}, {row.shared_bytes} B{spilled}"


def gap_text(found: Profile) -> str:
    """What of a run is no kernel's, or how much kernels overlap."""
    each = f", {us(abs(found.gap_seconds) / found.launches)} us a launch" if found.launches else ""
    share = abs(found.gap_seconds) / found.run_seconds if found.run_seconds else 0.0
    if found.gap_seconds < 0 and found.method != "graph":
        return f"{us(-found.gap_seconds)} us more than the run ({share:.0%}), which the way of measuring costs"
    if found.gap_seconds < 0:
        return f"overlap -{us(-found.gap_seconds)} us ({share:.0%} of the run{each}): kernels begin before others end"
    return f"gaps {us(found.gap_seconds)} us ({share:.0%} of the run{each})"


def summary(found: Profile) -> list[tuple[str, Any]]:
    """The profile as facts."""
    ceilings = found.ceilings
    lines = [f"memory {rate_text(ceilings.memory_bytes, 'B/s')}: {ceilings.memory_from}"]
    if not ceilings.memory_bytes:
        lines = [f"memory: not known: {ceilings.memory_from}"]
    units = ", ".join(f"{name} {rate_text(rate, 'FLOP/s')}" for name, rate in ceilings.flops.items())
    lines.append(f"{units or 'arithmetic: not known'}: {ceilings.flops_from}")
    variant = f", variant {found.variant}" if found.variant else ""
    run = f"{us(found.run_seconds)} us; {found.launches} launches take {us(found.kernel_seconds)} us; {gap_text(found)}"
    return [
        ("profile", f"{found.artifact}, {found.target} in {found.precision}{variant}"),
        ("machine", found.machine),
        ("inputs", found.inputs),
        ("run", run),
        ("ceilings", "\n".join(lines)),
        ("measured", found.method_text),
    ]


HEADINGS = (
    "#", "kernel", "us", "share", "bytes", "rate", "of memory", "flops", "rate", "of unit", "bound by",
    "registers, shared", "blocks x threads", "nodes", "schedule",
)  # fmt: skip


def cells(row: Row) -> tuple[Any, ...]:
    """A row of the table, under HEADINGS."""
    return (
        row.number,
        f"{row.label} ({row.kind})" if not row.label.lower().startswith(row.kind) else row.label,
        us(row.seconds),
        f"{row.share:.1%}",
        "" if row.bytes is None else _amount(row.bytes),
        rate_text(row.bytes_per_s, "B/s"),
        percent(row.memory_share),
        "" if row.flops is None else _amount(row.flops),
        rate_text(row.flops_per_s, "FLOP/s"),
        f"{percent(row.unit_share)} {row.unit}" if row.unit_share is not None else "",
        row.bound,
        registers_text(row),
        launch_text(row),
        ", ".join(row.nodes),
        row.schedule,
    )


def _amount(value: int) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value}"


def trace(found: Profile) -> dict[str, Any]:
    """The profile as trace events (Chrome, Perfetto): a lane with the whole run, and one with its kernels.

    Kernels lie one behind the other, with the gap shared among them; where they overlap they are drawn shorter, so that
    they end with the run. `us` in their arguments is what was measured.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"{found.artifact}, {found.target}"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "whole run"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "kernels"}},
    ]
    run_us, kernel_us = found.run_seconds * 1e6, found.kernel_seconds * 1e6
    events.append(
        {
            "ph": "X", "pid": 1, "tid": 1, "name": "run", "ts": 0.0, "dur": run_us,
            "args": {"us": run_us, "kernels_us": kernel_us, "gap_us": found.gap_seconds * 1e6},
        }
    )  # fmt: skip
    gap = max(run_us - kernel_us, 0.0) / max(len(found.rows), 1)
    scale = min(run_us / kernel_us, 1.0) if kernel_us else 1.0
    at = 0.0
    for row in found.rows:
        length = row.seconds * 1e6 * scale
        arguments = {
            "us": row.seconds * 1e6,
            "nodes": ", ".join(row.nodes),
            "schedule": row.schedule,
            "bytes": row.bytes,
            "flops": row.flops,
            "of memory": percent(row.memory_share),
            "of unit": percent(row.unit_share),
            "bound by": row.bound,
            "registers, shared": registers_text(row),
            "blocks x threads": launch_text(row),
        }
        events.append(
            {
                "ph": "X", "pid": 1, "tid": 2, "name": row.label, "cat": row.kind, "ts": at, "dur": length,
                "args": {name: value for name, value in arguments.items() if value not in (None, "")},
            }
        )  # fmt: skip
        at += length + gap
    return {"traceEvents": events, "displayTimeUnit": "ns"}
