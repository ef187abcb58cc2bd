"""What a deployment costs, and what it withstands: `python benchmarks/serving.py --zoo FOLDER [--write]`.

Cost: requests through a deployment beside `Model.run` on the same model and inputs, in turns, medians; with no
candidate, with one at share 0, and with shares of the requests shadowed. The hop to a worker process and back. Then
the large run of tests/serving/stress.py on real models: 50,000 requests from 8 threads while candidates compute wrong
numbers, crash, hang and refuse, and artifacts are swapped 20 times; p99 of stable beside that of a quiet run. With
--write, figures go to benchmarks/results/serving.json. Exit code 1 if a request was lost, answered twice or wrong.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aot
import aot.runtime
from aot.runtime.serving import Deployment, DeploymentPolicy, WorkerPolicy
from benchmarks.timing import processor, today, zoo_parser
from tests.serving.stress import Outcome, Served, Stress
from tests.zoo.catalogue import catalogue, make_inputs

ROOT = Path(__file__).resolve().parents[1]
MODELS = {"silero_vad_16k_op15": 98, "magika_v3_3": 1, "minilm_l3_fp32": 1}
"""And how many of the requests of the large run each has: the other two take hundreds of times as long."""
SHADOW_SHARES = (0.05, 0.2)
ROUNDS = 10
CHUNK = 40


def build(name: str, zoo: Path, folder: Path) -> tuple[list[Path], list[dict[str, Any]]]:
    """Two artifacts of a model, for two levels of x86-64 where this machine has them, and the inputs of its cases."""
    (row,) = [model for model in catalogue() if model.name == name]
    paths = []
    for target in ("cpu:x86-64-v3", "cpu:x86-64-v4"):
        if not aot.runtime.target_supported(target):
            continue
        path = folder / f"{name}-{target.rpartition('-')[2]}.aot"
        if not path.exists():
            aot.compile(str(zoo / row.file), target=target).save(path)
        paths.append(path)
    return paths, [make_inputs(specification) for _, specification in row.cases]


def in_turns(runs: list[Callable[[], Any]], seconds: float) -> list[float]:
    """Median seconds of each, in short turns of many calls: a call is too short to take turns with every one."""
    samples: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < 200:
        for run, taken in zip(runs, samples, strict=True):
            run()
            for _ in range(20):
                start = time.perf_counter()
                run()
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in samples]


def measure_costs(path: Path, given: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Seconds beside `Model.run`, of the short way and of requests with a key or a deadline; and of the hop."""
    quiet = DeploymentPolicy(shadow_share=0.0)
    options = {"threads": 1}
    model = aot.load(path, threads=1)
    with Deployment(model) as alone, Deployment(model, path, policy=quiet, load_options=options) as beside:
        runs = [
            lambda: model.run(given),
            lambda: alone.run(given),
            lambda: beside.run(given, key="k"),
            lambda: alone.run_detailed(given, key="k"),
        ]
        base, plain, share_zero, detailed = in_turns(runs, seconds)
        beside.set_share(1.0)
        hop, model_again = in_turns([lambda: beside.run(given, key="k"), lambda: model.run(given)], seconds / 2)
        reported = beside.statistics()["candidate"]["hop_median_seconds"]
    return {
        "model_seconds": base, "alone_extra_seconds": plain - base, "share_0_extra_seconds": share_zero - base,
        "run_detailed_extra_seconds": detailed - base, "candidate_extra_seconds": hop - model_again,
        "hop_median_seconds": reported,
    }  # fmt: skip


def measure_shadowing(path: Path, given: dict[str, Any], seconds: float) -> dict[str, Any]:
    """For each shadow share, the time of a request's way over that without shadowing.

    In turns, with nothing left to shadow while the other has its turn. Requests are timed CHUNK at a time, since a
    median of single ones would not see the few that are copied; of the chunks the medians are compared, so that what
    else the machine does is left out.
    """
    options = {"threads": 1}
    model = aot.load(path, threads=1)
    found = {}
    for share in SHADOW_SHARES:
        policy = DeploymentPolicy(shadow_share=share)
        with Deployment(model) as plain, Deployment(model, path, policy=policy, load_options=options) as shadowing:
            chunks: tuple[list[float], list[float]] = ([], [])
            for _ in range(ROUNDS):
                for deployment, taken in zip((plain, shadowing), chunks, strict=True):
                    end = time.perf_counter() + seconds / ROUNDS / 2 / len(SHADOW_SHARES)
                    while time.perf_counter() < end:
                        start = time.perf_counter()
                        for _ in range(CHUNK):
                            deployment.run(given)
                        taken.append(time.perf_counter() - start)
                shadowing.wait_for_shadow(5)
            medians = [statistics.median(taken) for taken in chunks]
            counted = shadowing.statistics()["shadow"]
            found[f"{share:g}"] = {
                "ratio": medians[1] / medians[0], "compared": counted["compared"], "dropped": counted["dropped"]
            }  # fmt: skip
    return found


def describe(outcome: Outcome) -> dict[str, Any]:
    """The figures of a run of requests."""
    return {
        "requests": outcome.requests, "lost": outcome.lost, "answered_twice": outcome.changed_later,
        "wrong_of_stable": outcome.wrong_of_stable, "wrong_of_candidates": outcome.wrong_of_candidates,
        "wrong_after_rollback": outcome.wrong_after_rollback,
        "from_candidate_after_rollback": outcome.from_candidate_after_rollback,
        "ended_after_rollback": outcome.ended_after_rollback,
        "swaps": outcome.swaps, "worker_restarts": outcome.restarts, "links": dict(outcome.links),
        "causes": dict(sorted(outcome.causes.items())), "stable_p50_seconds": outcome.percentile(50),
        "stable_p99_seconds": outcome.percentile(99),
    }  # fmt: skip


def main() -> None:
    """Runs it all."""
    parser = zoo_parser(__doc__)
    parser.set_defaults(seconds=10.0, only=list(MODELS))
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--skip-costs", action="store_true")
    options = parser.parse_args()
    logging.disable()  # hundreds of faults on purpose
    report: dict[str, Any] = {
        "date": today(), "processor": processor(), "cpus": os.cpu_count(), "costs": {}, "shadowing": {}
    }  # fmt: skip
    options.folder.mkdir(parents=True, exist_ok=True)
    built = {name: build(name, options.zoo, options.folder) for name in options.only}
    for name, (paths, inputs) in built.items():
        if options.skip_costs:
            break
        report["costs"][name] = costs = measure_costs(paths[0], inputs[0], options.seconds)
        report["shadowing"][name] = shadowing = measure_shadowing(paths[0], inputs[0], options.seconds)
        print(f"{name}: " + ", ".join(f"{what} {value * 1e6:.2f} us" for what, value in costs.items()))
        print(f"{name}: request's way while shadowed, over not: {shadowing}", flush=True)
    policy = DeploymentPolicy(
        candidate_share=0.3, worker=WorkerPolicy(hang_seconds=0.5, backoff_seconds=0.02, restarts=1000)
    )
    served = [Served(name, paths, inputs, MODELS.get(name, 1)) for name, (paths, inputs) in built.items()]
    for label, swaps, count in (
        ("quiet", 0, options.requests // 4), ("faulty", options.swaps, options.requests),
        ("quiet again", 0, options.requests // 4),
    ):  # fmt: skip
        outcome = Stress(served, count, options.threads, swaps, policy).run()
        report[label] = describe(outcome)
        print(label, json.dumps(report[label], indent=1), *outcome.errors[:5], flush=True)
    report["p99_ratio"] = {
        name: seconds / statistics.mean(report[label]["stable_p99_seconds"][name] for label in ("quiet", "quiet again"))
        for name, seconds in report["faulty"]["stable_p99_seconds"].items()
    }
    print("p99 of stable over the quiet runs':", report["p99_ratio"])
    if options.write:
        (ROOT / "benchmarks/results/serving.json").write_text(json.dumps(report, indent=1) + "\n")
    bad = ("lost", "answered_twice", "wrong_of_stable", "wrong_after_rollback", "from_candidate_after_rollback")
    sys.exit(any(report["faulty"][what] for what in bad))


if __name__ == "__main__":
    main()
