"""`aotc profile`: the time of every kernel, against the machine's ceilings, in the names of the user's nodes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import wrap
from typing import Any

import click
import numpy as np

from aot.cli.common import (
    check_writable,
    common_options,
    note,
    plain,
    print_facts,
    print_json,
    print_table,
    progress,
    wants,
    write_text,
)
from aot.cli.feeds import FeedChoice, extents, feed_options, feeds, generic
from aot.cli.loading import load_model, load_options, open_artifact
from aot.cli.machine import machine_text
from aot.cli.profile_page import page
from aot.cli.profile_report import HEADINGS, Ceilings, Profile, Total, cells, profile, summary, trace, us
from aot.errors import OptionError

_COPIED_BYTES = 128 << 20  # of CPU memory, more than caches hold
_COPIES = 5
_PRODUCT = 768  # rows, columns and sums of a product that fits into caches
_WIDE_COLUMNS = 150
_LEFT = ("kernel", "bound by", "registers, shared", "blocks x threads")


@click.command("profile")
@click.argument("artifact", type=click.Path(path_type=Path))
@feed_options
@click.option("--order", type=click.Choice(("time", "run")), default="time", show_default=True, help="Of the table.")
@click.option("--top", type=click.IntRange(1), metavar="N", help="Only so many rows of each table.")
@click.option(
    "--repeats",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Launches of a kernel in a row, or runs on a CPU. Default: as fits a quarter of a second; 10.",
)
@click.option("--html", "html_path", type=click.Path(path_type=Path), metavar="FILE", help="A page with the roofline.")
@click.option("--trace", "trace_path", type=click.Path(path_type=Path), metavar="FILE", help="For Perfetto or Chrome.")
@load_options(1)
@common_options
def command(
    artifact: Path,
    choice: FeedChoice,
    order: str,
    top: int | None,
    repeats: int | None,
    html_path: Path | None,
    trace_path: Path | None,
    threads: int,
    target: str | None,
    weights: Path | None,
) -> None:
    """Tell where the time of a run of ARTIFACT goes: each kernel, by the model's nodes, against the machine's ceilings.

    FILES: an .npz file with arrays by input name, or an .npy file for a model of one input; without any the inputs are
    random. On a GPU each kernel runs many times in a row, so that neither its launch nor the clock is in its time.
    """
    for path in (html_path, trace_path):
        if path is not None:
            check_writable(path)
    opened = open_artifact(artifact)
    model = load_model(artifact, threads, target, weights)
    initial = {name: np.asarray(array) for name, array in model.new_state().items()}
    cases = feeds(generic(opened.programs), choice, (), initial)
    if len(cases) > 1:
        raise OptionError(f"a profile is of one run, and {len(cases)} files were given", hint="Give one file.")
    what, feed = cases[0]
    with progress() as tell:
        tell("profile", what)
        times = model.time_steps(feed, repeats)
        program = opened.programs[times.program]
        tell("profile", "the memory's ceiling")
        ceilings = ceilings_of(model, threads)
    precision = opened.meta.get("precisions", {}).get(program.target, "fp32")
    machine = machine_of(model, threads)
    facts = {"artifact": artifact.name, "precision": precision, "machine": machine, "inputs": what or "given inputs"}
    known = extents(program, choice.dims, feed)
    values = {symbol.name: known[symbol.name] for symbol in program.input_symbols}
    found = profile(times, program, values=values, ceilings=ceilings, facts=facts)
    if html_path is not None:
        write_text(html_path, page(found))
    if trace_path is not None:
        write_text(trace_path, json.dumps(plain(trace(found)), indent=1, ensure_ascii=False) + "\n")
    if wants("json"):
        print_json(found)
        return
    report(found, order, top)


def report(found: Profile, order: str, top: int | None) -> None:
    """The profile as text."""
    print_facts(summary(found))
    rows = sorted(found.rows, key=lambda row: -row.seconds) if order == "time" else list(found.rows)
    _print_rows([cells(row) for row in rows[:top]])
    if top is not None and top < len(rows):
        left = rows[top:]
        note(f"{len(left)} more launches, {us(sum(row.seconds for row in left))} us")
    for title, totals in (("by kind", found.kinds), ("by node", found.nodes)):
        print_table((title, "launches", "us", "share", "bytes", "flops"), [_total(total) for total in totals[:top]])
    if any((row.memory_share or 0) > 1.05 for row in rows):
        note("more than 100% of memory: operands are in caches")
    if any(row.spilled_bytes for row in found.rows):
        note("some kernels spill registers to memory")


def _print_rows(rows: Sequence[Sequence[Any]]) -> None:
    """Two lines for each: the numbers, aligned, and below them the model's nodes and the schedule."""
    used = [n for n, column in enumerate(zip(*rows, strict=True)) if any(cell != "" for cell in column)]
    used = [number for number in used if number < len(HEADINGS) - 2]
    texts = [[str(row[number]) for number in used] for row in rows]
    headings = [HEADINGS[number] for number in used]
    widths = [max(map(len, column)) for column in zip(headings, *texts, strict=True)]

    def line(cells: Sequence[str]) -> str:
        pairs = zip(cells, widths, headings, strict=True)
        return "  ".join(c.ljust(w) if heading in _LEFT else c.rjust(w) for c, w, heading in pairs).rstrip()

    click.echo(click.style(line(headings), bold=True))
    for row, text in zip(rows, texts, strict=True):
        click.echo(line(text))
        below = "; ".join(filter(None, row[-2:]))
        indent = " " * (widths[0] + 2)
        for part in wrap(
            below, _WIDE_COLUMNS, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
        ):
            click.echo(click.style(part, dim=True))


def _total(total: Total) -> tuple[Any, ...]:
    return total.name, total.launches, us(total.seconds), f"{total.share:.1%}", total.bytes, total.flops


# Ceilings.


def ceilings_of(model: Any, threads: int) -> Ceilings:
    """The memory's rate as a copy reaches it now; the arithmetic's measured too, or of a GPU from aotc's data."""
    if model.device is not None:
        from aot.backend.cuda.architectures import ARCHITECTURES
        from aot.runtime import this_machine

        capability = this_machine(model.device).capability
        memory = model.copy_rate()
        memory_from = "a copy by the driver, measured now" if memory else "no memory is left to copy"
        for each in ARCHITECTURES.values():
            if each.capability == capability and not each.ptx:
                half, single = each.numbers["half_flops_per_us"] * 1e6, each.numbers["fp32_flops_per_us"] * 1e6
                flops = {"8-bit": 2 * half, "half": half, "tf32": half / 2, "fp32": single}
                return Ceilings(memory, memory_from, flops, f"aotc's data of {each.name} ({each.device}), not measured")
        unknown = f"aotc has no data of compute capability {capability // 10}.{capability % 10}"
        return Ceilings(memory, memory_from, {}, unknown)
    memory = cpu_copy_rate(threads)
    copied = f"a copy of {_COPIED_BYTES >> 20} MB by {threads} thread{'s' if threads > 1 else ''}, measured now"
    single = cpu_flops() * threads
    # A dot product adds four products of 8 bits, or two of bf16, where a plain one adds one.
    flops = {"8-bit": 4 * single, "half": 2 * single, "fp32": single}
    measured = f"a product by numpy, per core x {threads}, measured now; 8-bit and half are 4 and 2 times fp32"
    return Ceilings(memory, copied, flops, measured)


def cpu_copy_rate(threads: int) -> float:
    """Bytes per second, read and written, of a copy of memory that is larger than caches, shared among threads."""
    source = np.ones(_COPIED_BYTES // 8)
    to = np.zeros_like(source)
    parts = list(zip(np.array_split(to, threads), np.array_split(source, threads), strict=True))
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_COPIES):
            start = time.perf_counter()
            list(pool.map(lambda part: np.copyto(*part), parts))
            best = min(best, time.perf_counter() - start)
    return 2 * _COPIED_BYTES / best


def cpu_flops() -> float:
    """Flops per second of one core in a product of f32, by the library that numpy has.

    That may use several threads: time is what all of them took together.
    """
    left = np.ones((_PRODUCT, _PRODUCT), np.float32)
    best = float("inf")
    for _ in range(_COPIES):
        start = time.process_time()
        np.matmul(left, left)
        best = min(best, time.process_time() - start)
    return 2.0 * _PRODUCT**3 / max(best, 1e-9)


def machine_of(model: Any, threads: int) -> str:
    """The machine in words."""
    if model.device is not None:
        from aot.runtime import this_machine

        return f"{machine_text(this_machine(model.device))}, device {model.device}"
    name = next((line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")), "a CPU")
    return f"{name}, {threads} of {os.cpu_count() or 1} threads"


def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
