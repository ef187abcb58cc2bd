"""What quantization to 8 bits costs and gains on real models with labelled data, beside ONNX Runtime's.

    python benchmarks/quantization.py --zoo DIR [--only ID …] [--vary] [--write]

For each pair of labelled_data.py: our float, our int8 with default settings, ONNX Runtime's float, its static int8 in
several settings, calibrated on the same samples, and its dynamic int8. Scores come with paired bootstrap intervals of
what is lost. Times are of one thread, taken in turns after the outputs were checked. `--unlabelled` does the same for
the other models of the zoo, with the distance from the float outputs in place of a score. `--vary` tells what other
observers and budgets would give. With --write, results are added to the files in benchmarks/results/, pair by pair,
and the tables are written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import aot
from aot.calibrate import calibrate
from aot.options import CompileOptions
from aot.quantization import FLOAT, Method, Quantization
from aot.quantize import quantize
from benchmarks.labelled_data import Array, Outputs, Pair, Run, Sample, Store, interval, pairs
from benchmarks.onnxruntime_int8 import SETTINGS, quantized_dynamic, quantized_static, session, sources
from benchmarks.quantization_tables import FILES, write_tables
from benchmarks.timing import difference, interleave, prefer_realtime, processor, today
from tests.zoo.catalogue import buildable, make_inputs

RESULTS = Path(__file__).parent / "results"
KERNELS = Path("build/kernels")
OURS, PLAIN, THEIRS = "aotc int8", "aotc float", "onnxruntime float"


def opened(artifact: Any, folder: Path, name: str) -> tuple[Run, Any]:
    """A built model that runs in one thread, and the model."""
    path = folder / f"{name}.aot"
    artifact.save(path)
    model = aot.load(path, threads=1)
    wanted = {spec.name for spec in model.inputs}

    def run(sample: Sample) -> Outputs:
        return model.run({key: np.ascontiguousarray(array) for key, array in sample.items() if key in wanted})

    return run, model


def of_session(made: Any) -> Run:
    """An ONNX Runtime session as a run."""
    names = [port.name for port in made.get_outputs()]
    wanted = {port.name for port in made.get_inputs()}

    def run(sample: Sample) -> Outputs:
        given = {key: array for key, array in sample.items() if key in wanted}
        return dict(zip(names, made.run(names, given), strict=True))

    return run


def tried(make: Callable[[], Run]) -> Run | str:
    """The run, or what went wrong on the way to it."""
    try:
        return make()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


def record_facts(record: Quantization) -> dict[str, Any]:
    """What the record says of itself: how much is quantized, what was kept in float and why."""
    kept = [entry for entry in record.ledger if entry.form == FLOAT]
    return {
        "products": len(record.nodes), "quantized": sum(node.form != FLOAT for node in record.nodes),
        "error": record.final, "all": max((p.error for p in record.points if p.quantized), default=None),
        "slower": sum("no faster" in entry.reason for entry in kept),
        "beyond the budget": sum("the budget" in entry.reason for entry in kept),
    }  # fmt: skip


def options_of(values: Mapping[str, Any], record: Quantization | None = None) -> CompileOptions:
    """Options of every build here: kernels are compiled once."""
    return CompileOptions(values=values, quantization=record, cache_dir=KERNELS)  # type: ignore[arg-type]


def without(samples: Sequence[Sample], values: Mapping[str, Any]) -> list[Sample]:
    """The samples without the inputs that the build fixes."""
    return [{name: array for name, array in sample.items() if name not in values} for sample in samples]


def contestants(
    name: str, model: Path, values: Mapping[str, Any], calibration: Sequence[Sample], folder: Path
) -> Iterator[tuple[str, Run | str, dict[str, Any]]]:
    """(label, run or what went wrong, facts) of each way to run a model; the float ones come first."""
    plain, ready = sources(model, folder)
    yield THEIRS, of_session(session(plain)), {}
    options = options_of(values)
    yield PLAIN, opened(aot.compile(model, target="cpu", options=options), folder, f"{name}.float")[0], {}
    started = time.perf_counter()
    record = quantize(model, data=without(calibration, values), options=options)
    facts = record_facts(record) | {"seconds": round(time.perf_counter() - started, 1)}
    record.save(folder / f"{name}.quantization")
    changed = options_of(values, record)
    yield OURS, opened(aot.compile(model, target="cpu", options=changed), folder, f"{name}.int8")[0], facts
    for label, setting in SETTINGS.items():
        yield label, tried(lambda s=setting: of_session(quantized_static(ready, s, calibration, folder))), {}  # type: ignore[misc]
    yield "dynamic", tried(lambda: of_session(quantized_dynamic(ready, folder))), {}


def judge(pair: Pair, folder: Path, seconds: float) -> dict[str, Any]:
    """Scores, losses, agreement and times of one pair, as JSON values."""
    runs: dict[str, Run] = {}
    rows: dict[str, Array] = {}
    found: dict[str, dict[str, Any]] = {}
    for label, run, facts in contestants(pair.name, pair.model, pair.values, pair.calibration, folder):
        if isinstance(run, str):
            found[label] = {"failed": run}
            continue
        try:
            rows[label] = pair.predict(run)
        except Exception as error:
            found[label] = {"failed": f"{type(error).__name__}: {error}"[:160]}
            continue
        runs[label] = run
        reference = rows[THEIRS]
        entry = {"score": pair.score(rows[label]), **facts}
        if label != THEIRS:
            low, high = interval(pair.score, rows[label], reference)
            entry |= {"gain": entry["score"] - pair.score(reference), "low": low, "high": high}
            if label.startswith("static") and OURS in rows:
                entry["ours ahead"] = interval(pair.score, rows[OURS], rows[label])
            entry["agreement"] = dict(pair.agreement(rows[label], reference))
        found[label] = entry
        print(f"{pair.name:24} {label:28} {_short(entry)}", flush=True)
    for label, taken in timed(runs, pair.timed, seconds).items():
        found[label]["ms"] = taken
    margin = 0.005 * abs(found[THEIRS]["score"]) if pair.margin is None else pair.margin
    return {
        "pair": pair.name, "metric": pair.metric, "items": len(rows[THEIRS]), "margin": margin,
        "expected": pair.expected, "calibration": len(pair.calibration), "found": found,
    }  # fmt: skip


def timed(runs: Mapping[str, Run], sample: Sample, seconds: float) -> dict[str, float]:
    """Median milliseconds of each, taken in turns; the float ones must agree, and all have outputs of one shape."""
    outputs = {label: run(sample) for label, run in runs.items()}
    for name, want in outputs[THEIRS].items():
        apart = difference(np.asarray(outputs[PLAIN][name]), np.asarray(want)) if PLAIN in outputs else 0.0
        if apart > 1:
            print(f"float output {name!r} differs: {apart:.2f} of the tolerance", flush=True)
        for label, got in outputs.items():
            if np.asarray(got[name]).shape != np.asarray(want).shape:
                raise AssertionError(f"{label}: output {name!r} has shape {got[name].shape}, not {want.shape}")
    realtime = prefer_realtime()
    calls = [lambda run=run: run(sample) for run in runs.values()]  # type: ignore[misc]
    taken = interleave(calls, seconds)
    if realtime:
        prefer_realtime(False)
    return {label: round(each * 1e3, 4) for label, each in zip(runs, taken, strict=True)}


def _short(entry: Mapping[str, Any]) -> str:
    parts = [f"{entry['score']:.4f}"]
    if "gain" in entry:
        parts.append(f"{entry['gain']:+.4f} [{entry['low']:+.4f}, {entry['high']:+.4f}]")
    parts += [f"{name} {value:.4f}" for name, value in entry.get("agreement", {}).items()]
    if "products" in entry:
        parts.append(f"{entry['quantized']}/{entry['products']} error {entry['error']:.3g}, {entry['seconds']} s")
    return "  ".join(parts)


# Other methods and budgets.

_METHODS = {
    "mse": Method(), "mse, no balance": Method(balance=False),
    "minmax": Method(observer="minmax"), "minmax, no balance": Method(observer="minmax", balance=False),
    "percentile, no balance": Method(observer="percentile", balance=False),
    "entropy, no balance": Method(observer="entropy", balance=False),
}  # fmt: skip
_BUDGETS = ("relative=0.02", "relative=0.05")


def vary(pair: Pair, folder: Path) -> list[dict[str, Any]]:
    """What each method gives with everything quantized, and what each budget gives with the default method."""
    options = options_of(pair.values)
    reference = pair.predict(of_session(session(sources(pair.model, folder)[0])))
    samples = without(pair.calibration, pair.values)
    seen = calibrate(pair.model, samples, options)
    found = []
    for label, method, budget in [
        *((name, method, None) for name, method in _METHODS.items()),
        *((budget, Method(), budget) for budget in _BUDGETS),
    ]:
        data = samples if budget else None
        record = quantize(
            pair.model,
            method,
            data=data,
            calibration=seen,
            accuracy_budget=budget,
            measured_samples=16,
            options=options,
        )
        changed = options_of(pair.values, record)
        run, _ = opened(aot.compile(pair.model, target="cpu", options=changed), folder, f"{pair.name}.varied")
        rows = pair.predict(run)
        entry = {
            "method": label, "score": pair.score(rows), "gain": pair.score(rows) - pair.score(reference),
            "quantized": sum(node.form != FLOAT for node in record.nodes), "products": len(record.nodes),
            "error": record.final, "agreement": dict(pair.agreement(rows, reference)),
        }  # fmt: skip
        found.append(entry)
        figures = "  ".join(f"{name} {value:.4f}" for name, value in entry["agreement"].items())
        print(
            f"{pair.name:24} {label:26} {entry['score']:.4f} {entry['gain']:+.4f} "
            f"{entry['quantized']}/{entry['products']}  {figures}",
            flush=True,
        )
    return found


# Models without labels.


def unlabelled(zoo: Path, known: Sequence[str]) -> Iterator[tuple[str, Path, list[Sample]]]:
    """(name, file, cases) of the zoo's other models."""
    for model in buildable():
        path = zoo / model.file
        if model.name not in known and path.suffix == ".onnx" and path.exists():
            yield model.name, path, [make_inputs(spec) for _, spec in model.cases]


def compare(name: str, path: Path, cases: Sequence[Sample], folder: Path, seconds: float) -> dict[str, Any]:
    """Times of a model without labels, and the relative error of its outputs against the float ones."""
    runs: dict[str, Run] = {}
    found: dict[str, dict[str, Any]] = {}
    for label, run, facts in contestants(name, path, {}, cases, folder):
        if isinstance(run, str):
            found[label] = {"failed": run}
            continue
        try:
            apart = max(relative(run(sample), runs[THEIRS](sample)) for sample in cases) if runs else 0.0
        except Exception as error:
            found[label] = {"failed": f"{type(error).__name__}: {error}"[:160]}
            continue
        runs[label] = run
        found[label] = {"relative": apart, **facts}
    for label, taken in timed(runs, cases[0], seconds).items():
        found[label]["ms"] = taken
        print(f"{name:24} {label:28} {found[label]['relative']:.4f} {taken:.3f} ms", flush=True)
    return {"model": name, "found": found}


def relative(found: Outputs, expected: Outputs) -> float:
    """The largest relative error of all float outputs."""
    errors = [0.0]
    for name, want in expected.items():
        if np.asarray(want).dtype.kind == "f":
            plain = np.asarray(want, np.float64)
            kept = np.isfinite(plain)
            apart = np.linalg.norm((np.asarray(found[name], np.float64) - plain)[kept])
            errors.append(float(apart / max(np.linalg.norm(plain[kept]), 1e-30)))
    return max(errors)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, default=Path(os.environ.get("AOT_ZOO", "build/zoo")))
    parser.add_argument("--wheels", type=Path, default=Path("build/wheels"))
    parser.add_argument("--made", type=Path, default=Path("build/bench"))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--vary", action="store_true")
    parser.add_argument("--unlabelled", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    store = Store(arguments.zoo, arguments.wheels, arguments.made)
    import onnxruntime

    facts = {"date": today(), "cpu": processor(), "aotc": aot.__version__, "onnxruntime": onnxruntime.__version__,
             "threads": 1}  # fmt: skip
    part = "unlabelled" if arguments.unlabelled else "varied" if arguments.vary else "pairs"
    makers = pairs()
    work: list[tuple[str, Callable[[Path], Any]]] = []
    if arguments.unlabelled:
        for name, path, cases in unlabelled(arguments.zoo, list(makers)):
            work.append((name, lambda f, n=name, p=path, c=cases: compare(n, p, c, f, arguments.seconds)))  # type: ignore[misc]
    for name, make in makers.items():
        if arguments.vary:
            work.append((name, lambda f, m=make: vary(m(store), f)))  # type: ignore[misc]
        elif not arguments.unlabelled:
            work.append((name, lambda f, m=make: judge(m(store), f, arguments.seconds)))  # type: ignore[misc]
    failed = False
    for name, do in work:
        if arguments.only and name not in arguments.only:
            continue
        with tempfile.TemporaryDirectory(prefix="aotc-quantization-") as folder:
            try:
                row = do(Path(folder))
            except aot.AotError as error:
                print(f"{name}: {error}", flush=True)
                failed = True
                continue
        if arguments.write:
            keep(part, name, row, facts)
    if arguments.write:
        write_tables(RESULTS)
    return 1 if failed else 0


def keep(part: str, name: str, row: Any, facts: Mapping[str, Any]) -> None:
    """Adds a row to the file of results."""
    path = RESULTS / FILES[part]
    held = json.loads(path.read_text()) if path.exists() else {}
    held = {**held, **facts}
    held.setdefault(part, {})[name] = row
    held[part] = dict(sorted(held[part].items()))
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(held, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
