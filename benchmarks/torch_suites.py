"""Which of PyTorch's own test samples build and agree: `python benchmarks/torch_suites.py [--write]`.

OpInfo, ModuleInfo and exportdb, exported, saved as .pt2 files, read back, built for the CPU, run and compared with
eager (tests/torch/suites.py says how). `--through memory` leaves the files out; `--through compare` builds nothing, and
says whether the graphs are the same through a file and in memory, which takes an hour instead of many.

Outcomes go to a file in --folder as they come; a run with --resume goes on from there, and one with --retry repeats
what failed or was refused, and no more. With --write, the counts go to benchmarks/results/torch_suites.json and the
page to docs/torch_ops.md. Exit code 1 if any sample fails where it is not refused.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

Record = dict[str, Any]
CHUNK = 48
LARGEST_SHARE_LISTED = 0.99  # ops below are listed with their reasons
# How samples pass that do not equal eager.
NOTES = {
    "float64": "differ from eager, but are as near to eager's computation in float64 as eager itself, or nearer",
    "statistics": "random numbers: types, shapes, that they are finite, and the mean of many",
    "shapes": "memory that nothing writes: types and shapes",
    "equal elements in another order": "indices of equal elements, whose order PyTorch leaves open",
}


THROUGH = {"file": ".pt2 files", "memory": "memory, without a file between"}


# Running


@cache
def cases_of(suite: str, limit: int) -> list[Any]:
    """The cases of a suite, in order."""
    import torch

    from tests.torch import moduleinfo, opinfo

    torch.set_num_threads(1)
    return list(moduleinfo.cases() if suite == "ModuleInfo" else opinfo.cases(limit=limit))


@dataclass(frozen=True)
class Manner:
    """How cases are run: at most `limit` of an op and type, for a target, with a folder of kernels, through what."""

    limit: int
    target: str
    kernels: Path
    through: str


def run_chunk(suite: str, numbers: Sequence[int], manner: Manner) -> list[Record]:
    """The records of some cases of a suite, as one batch."""
    from tests.torch.compare_files import Comparer
    from tests.torch.suites import COMPARE, Runner

    cases, core = cases_of(suite, manner.limit), suite == "OpInfo, core"
    runner: Comparer | Runner = Comparer(CHUNK, core=core)
    if manner.through != COMPARE:
        runner = Runner(manner.kernels, manner.target, CHUNK, core=core, through=manner.through)
    return [
        record(suite, number, o) for number, o in zip(numbers, runner.run([cases[n] for n in numbers]), strict=True)
    ]


def run_examples(numbers: Sequence[int], manner: Manner) -> Iterator[Record]:
    """The records of some examples of exportdb."""
    from tests.torch import exportdb

    examples = list(exportdb.examples())
    for number in numbers:
        yield record("exportdb", number, exportdb.run(examples[number], manner.kernels, manner.target, manner.through))


def record(suite: str, number: int, outcome: Any) -> Record:
    """An outcome as data."""
    case = outcome.case
    return {
        "suite": suite, "at": number, "name": case.name, "dtype": case.dtype, "number": case.number,
        "verdict": outcome.verdict, "reason": outcome.reason, "note": outcome.note,
        "overloads": outcome.overloads, "refused": outcome.refused,
    }  # fmt: skip


def lost(suite: str, number: int, manner: Manner) -> Record:
    """The record of a case with which the process died."""
    case = cases_of(suite, manner.limit)[number]
    return {
        "suite": suite, "at": number, "name": case.name, "dtype": case.dtype, "number": case.number,
        "verdict": "fail", "reason": "the process died", "note": "", "overloads": [], "refused": [],
    }  # fmt: skip


def run_suite(suite: str, numbers: Sequence[int], jobs: int, manner: Manner) -> Iterator[Record]:
    """The records of some cases of a suite as they come, in processes of their own."""
    chunks = [list(numbers[start : start + CHUNK]) for start in range(0, len(numbers), CHUNK)]
    while chunks:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            running = [(chunk, pool.submit(run_chunk, suite, chunk, manner)) for chunk in chunks]
            chunks = []
            for chunk, future in running:
                try:
                    yield from future.result()
                except BrokenProcessPool:
                    if len(chunk) == 1 and len(running) == 1:
                        yield lost(suite, chunk[0], manner)
                    else:
                        chunks.append(chunk)
        if len(chunks) == 1 and len(chunks[0]) > 1:
            half = len(chunks[0]) // 2
            chunks = [chunks[0][:half], chunks[0][half:]]
        jobs = 1  # after a death one process and one chunk at a time, so that the one at fault shows
        if len(chunks) > 1:
            first, *others = chunks
            yield from run_suite(suite, first, 1, manner)
            chunks = others


def read_records(path: Path) -> dict[tuple[str, int], Record]:
    """The records of a file, by suite and number; none where there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(each["suite"], each["at"]): each for each in map(json.loads, lines)}


def run_all(arguments: argparse.Namespace, known: Mapping[tuple[str, int], Record]) -> Iterator[Record]:
    """The records that are not known yet; of a retry, those of samples that failed or were refused."""
    found = dict(known)
    if arguments.through == "compare":  # which says nothing of ops: what a run has told
        found = read_records(arguments.folder / "outcomes-file.jsonl") or read_records(
            arguments.folder / "outcomes-memory.jsonl"
        )
    manner = Manner(arguments.limit, arguments.target, arguments.cache, arguments.through)
    again = {key for key, each in known.items() if each["verdict"] in ("fail", "unsupported")}
    kept = _kept_whole()
    for suite in arguments.suites:
        total = total_of(suite, arguments.limit)
        wanted: Sequence[int] = range(0, total, 1 if suite == "exportdb" else arguments.every)
        if suite == "OpInfo, core":  # those that keep an op whole otherwise
            whole = {at for (name, at), r in found.items() if name == "OpInfo" and any(map(kept, r["overloads"]))}
            wanted = [number for number in wanted if number in whole]
        rest = [n for n in wanted if ((suite, n) in again if arguments.retry else (suite, n) not in known)]
        print(f"{suite}: {len(rest)} of {total} samples", flush=True)
        if suite == "exportdb":
            yield from run_examples(rest, manner)
            continue
        for each in run_suite(suite, rest, arguments.jobs, manner):
            found[suite, each["at"]] = each
            yield each


def total_of(suite: str, limit: int) -> int:
    """How many samples a suite has."""
    if suite != "exportdb":
        return len(cases_of(suite, limit))
    from tests.torch import exportdb

    return len(list(exportdb.examples()))


def _kept_whole() -> Any:
    from aot.frontend.torch_program import KEPT_WHOLE

    def is_kept(name: str) -> bool:
        return f"aten.{name}" in KEPT_WHOLE or f"aten.{name.rpartition('.')[0]}" in KEPT_WHOLE

    return is_kept


# Counting


def counted(records: Sequence[Record]) -> dict[str, Any]:
    """The counts that the page shows. A refused sample counts for the ops that are refused, not for the others."""
    suites: dict[str, Counter[str]] = {}
    overloads: dict[str, Counter[str]] = {}
    names: dict[str, dict[str, Counter[str]]] = {}
    notes: Counter[str] = Counter()
    for each in records:
        suites.setdefault(each["suite"], Counter())[each["verdict"]] += 1
        names.setdefault(each["suite"], {}).setdefault(each["name"], Counter())[each["verdict"]] += 1
        if each["note"]:
            notes[each["note"]] += 1
        for name in each["overloads"]:
            verdict = each["verdict"]
            if verdict == "unsupported" and name not in each["refused"]:
                verdict = "elsewhere"
            overloads.setdefault(name, Counter())[verdict] += 1
    problems = [
        [each["suite"], each["name"], each["dtype"], each["number"], each["verdict"], _without_folders(each["reason"])]
        for each in records
        if each["verdict"] in ("fail", "unsupported")
    ]
    return {
        "suites": suites,
        "names": {suite: dict(sorted(found.items())) for suite, found in names.items()},
        "overloads": dict(sorted(overloads.items())),
        "notes": notes,
        "problems": problems,
    }


def share(counts: Mapping[str, int]) -> float:
    """Which part passes of what this compiler could be asked."""
    total = sum(counts.get(verdict, 0) for verdict in ("pass", "fail", "unsupported"))
    return counts.get("pass", 0) / total if total else 1.0


# The page


def _without_folders(reason: str) -> str:
    """A reason without the folders of this machine."""
    return re.sub(r"/[^\s:()]*/(?=(?:torch|tests)/)", "", reason)


def page(result: Mapping[str, Any]) -> str:
    """docs/torch_ops.md."""
    facts, overloads, names = result["facts"], result["overloads"], result["names"]
    core = result["core"]
    reached = [name for name in core if name in overloads]
    bad = {name: counts for name, counts in overloads.items() if share(counts) < LARGEST_SHARE_LISTED}
    lines = [
        "# PyTorch's own samples",
        "",
        "The samples of OpInfo, ModuleInfo and exportdb (`torch.testing._internal`, `torch._export.db`), exported,",
        "built for the CPU, run, and compared with eager. OpInfo in float32, float16, int64 and bool, as each op takes",
        f"them, at most {facts['limit']} samples of an op and type; those whose programs keep an op whole are also",
        "built from core ops alone (core).",
        "",
        *(f"- {key}: {value}" for key, value in facts.items()),
        "",
        "Re-run: `python benchmarks/torch_suites.py --write`.",
        "",
        "| suite | samples | run | pass | fail | not supported | share | PyTorch does not export |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for suite, counts in result["suites"].items():
        lines.append(
            f"| {suite} | {result['totals'].get(suite, '')} | {sum(counts.values())} | {counts.get('pass', 0)} "
            f"| {counts.get('fail', 0)} | {counts.get('unsupported', 0)} | {_percent(counts)} "
            f"| {counts.get('no export', 0)} |"
        )
    lines += [
        "",
        *_compared_lines(result.get("compared", {})),
        "Tolerances: float32 2e-4 relative and 2e-5 absolute, float16 4e-3, integers and truth values exact. Samples",
        "that pass otherwise:",
        "",
        *(f"- {count}: {NOTES.get(note, note)}" for note, count in sorted(result["notes"].items())),
        "",
        "## Core ATen",
        "",
        f"{len(reached)} of the {len(core)} core overloads are in decomposed samples; "
        f"{sum(share(overloads[name]) >= LARGEST_SHARE_LISTED for name in reached)} of them pass "
        "at least 99 % of their samples. A sample counts for each op",
        "in it; where another op is not supported, it counts for that one (elsewhere).",
        "",
        *_table(core, overloads),
        "",
        f"In no sample: {', '.join(f'`{name}`' for name in core if name not in overloads)}.",
        "",
        "## Ops beyond core",
        "",
        "What decomposition leaves, or keeps whole.",
        "",
        *_table([name for name in overloads if name not in core and name not in bad], overloads),
        "",
        "## Below 99 %",
        "",
        "| suite | entry | pass | of | why |",
        "|---|---|---|---|---|",
    ]
    why: dict[tuple[str, str], Counter[str]] = {}
    for suite, name, _, _, _, reason in result["problems"]:
        why.setdefault((suite, name), Counter())[reason] += 1
    for suite, entries in names.items():
        for name, counts in entries.items():
            if share(counts) < LARGEST_SHARE_LISTED:
                total = sum(counts.get(verdict, 0) for verdict in ("pass", "fail", "unsupported"))
                (reason, _), *_ = why[suite, name].most_common(1)
                lines.append(f"| {suite} | {name} | {counts.get('pass', 0)} | {total} | {_cell(reason)} |")
    return "\n".join(lines) + "\n"


def _compared_lines(compared: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What is known of files beside memory."""
    if not compared:
        return []
    said = []
    for suite, counts in compared.items():
        total = counts.get("pass", 0) + counts.get("fail", 0)
        said.append(f"{counts.get('pass', 0)} of {total} samples of {suite}")
    return [
        "Saved as a .pt2 file and read back, programs give the same graph as in memory, weights included",
        f"(`--through compare`): {'; '.join(said)}.",
        "The others PyTorch does not export, save, read, or take to core ops.",
        "",
    ]


def _table(names: Sequence[str], overloads: Mapping[str, Mapping[str, int]]) -> list[str]:
    lines = ["| op | samples | pass | share | elsewhere |", "|---|---|---|---|---|"]
    for name in names:
        if name in overloads:
            counts = overloads[name]
            total = sum(counts.get(verdict, 0) for verdict in ("pass", "fail", "unsupported"))
            elsewhere = counts.get("elsewhere", 0)
            lines.append(f"| `{name}` | {total} | {counts.get('pass', 0)} | {_percent(counts)} | {elsewhere or ''} |")
    return lines


def _percent(counts: Mapping[str, int]) -> str:
    found = 100 * share(counts)
    return f"{found:.1f} %" if found < 100 else "100 %"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:160]


def processor() -> str:
    """This machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    suites = ["OpInfo", "OpInfo, core", "ModuleInfo", "exportdb"]
    parser.add_argument("--suites", nargs="*", default=suites, choices=suites)
    parser.add_argument("--limit", type=int, default=12, help="samples of an op and type (%(default)s)")
    parser.add_argument("--every", type=int, default=1, help="take one in so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--target", default="cpu:x86-64-v3")
    parser.add_argument("--through", default="file", choices=["file", "memory", "compare"])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "torch_suites")
    parser.add_argument("--cache", type=Path, help="compiled kernels of earlier builds (default: in the folder)")
    parser.add_argument("--resume", action="store_true", help="go on from the outcomes in the folder")
    parser.add_argument("--retry", action="store_true", help="repeat what failed or was refused, and no more")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    arguments.cache = arguments.cache or arguments.folder / "kernels"
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / f"outcomes-{arguments.through}.jsonl"
    known = read_records(path) if arguments.resume or arguments.retry else {}
    records = dict(known)
    with path.open("a" if known else "w") as file:
        for each in run_all(arguments, known):
            records[each["suite"], each["at"]] = each
            file.write(json.dumps(each) + "\n")
            file.flush()
            if each["verdict"] == "fail":
                print(f"{each['suite']}: {each['name']} {each['dtype']} {each['number']}: {each['reason']}", flush=True)
    if arguments.through == "compare":
        return print_compared(records)
    found = counted([each for key, each in sorted(records.items())])
    found["compared"] = compared_counts(read_records(arguments.folder / "outcomes-compare.jsonl"))
    for suite, counts in found["suites"].items():
        print(f"{suite}: {dict(counts)}, {_percent(counts)}", flush=True)
    if arguments.write:
        write(found, arguments)
    return 1 if any(counts.get("fail") for counts in found["suites"].values()) else 0


def compared_counts(records: Mapping[tuple[str, int], Record]) -> dict[str, Counter[str]]:
    """The verdicts of a comparison by suite."""
    found: dict[str, Counter[str]] = {}
    for each in records.values():
        found.setdefault(each["suite"], Counter())[each["verdict"]] += 1
    return found


def print_compared(records: Mapping[tuple[str, int], Record]) -> int:
    """Says how many graphs are the same through a file; the exit code."""
    found = compared_counts(records)
    for suite, counts in found.items():
        print(f"{suite}: {dict(counts)}", flush=True)
    return 1 if any(counts["fail"] for counts in found.values()) else 0


def write(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    """The results, and the page of them."""
    import torch

    import aot
    from aot.frontend.torch_support import core_overloads

    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "aotc": aot.__version__,
        "PyTorch": torch.__version__,
        "target": arguments.target,
        "processor": processor(),
        "limit": arguments.limit,
        "through": THROUGH[arguments.through],
    }
    totals = {suite: total_of(suite, arguments.limit) for suite in found["suites"] if suite != "OpInfo, core"}
    result = {"facts": facts, "totals": totals, "core": core_overloads(), **found}
    text = json.dumps(result, indent=1, ensure_ascii=False)
    (ROOT / "benchmarks" / "results" / "torch_suites.json").write_text(text + "\n")
    (ROOT / "docs" / "torch_ops.md").write_text(page(json.loads(text)))


if __name__ == "__main__":
    sys.exit(main())
