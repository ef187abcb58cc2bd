"""Real models on one GPU against ONNX Runtime's results: built on a machine without a GPU, run on one without Triton.

    python benchmarks/gpu_zoo.py build FOLDER [--zoo FOLDER] [--only NAME …]   # artifacts and expected outputs
    python benchmarks/gpu_zoo.py run FOLDER [--only NAME …]                    # on the GPU host: numpy is enough
    python benchmarks/gpu_zoo.py table FOLDER                                  # FOLDER/results.json as a page

`build` compiles every model that builds for CPUs, in fp32, and keeps what ONNX Runtime gives for every case; `run`
compares every output of every case (below 1: within 1e-4 + 1e-3 of the expected value) and takes the time of a call
from Python with arrays on the host: medians, copies included. A step that ran on the CPU is listed by its node.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.timing import difference, today
from tests.zoo.catalogue import ZooModel, buildable, make_inputs

TARGET = "cuda:sm_90a"
ROUNDS = 20


def build(model: ZooModel, source: Path, folder: Path, cache: Path | None) -> str:
    """Writes the artifact of one model and the outputs that ONNX Runtime gives; a line about it."""
    import onnxruntime

    import aot

    start = time.perf_counter()
    artifact = aot.compile(source, target=TARGET, cache_dir=cache, strip_debug=True)
    seconds = time.perf_counter() - start
    artifact.save(folder / f"{model.name}.aot")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    held: dict[str, Any] = {}
    for number, (_, specification) in enumerate(model.cases):
        for name, array in zip(names, session.run(names, make_inputs(specification)), strict=True):
            held[f"{number}:{name}"] = array
    np.savez_compressed(folder / f"{model.name}.npz", **held)
    images = [kernel.image for program in artifact.programs for kernel in program.distinct_kernels if kernel.image]
    spilled = sum(image.spilled_bytes > 0 for image in images)
    return f"{len(images)} kernels, {spilled} spill, {seconds:.0f} s"


def run(model: ZooModel, folder: Path) -> list[dict[str, Any]]:
    """Compares and times every case of one model."""
    import aot.runtime

    loaded = aot.runtime.load(folder / f"{model.name}.aot", target=TARGET)
    expected = np.load(folder / f"{model.name}.npz")
    rows = []
    for number, (label, specification) in enumerate(model.cases):
        inputs = make_inputs(specification)
        got = loaded.run(inputs)
        wanted = {key.partition(":")[2]: expected[key] for key in expected.files if key.startswith(f"{number}:")}
        worst = max(difference(got[name], array) for name, array in wanted.items())
        samples = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            loaded.run(inputs)
            samples.append(time.perf_counter() - start)
        rows.append({"case": label, "worst": worst, "us": round(statistics.median(samples) * 1e6, 1)})
    return rows


def device_name() -> str:
    """What the driver calls the first GPU."""
    import ctypes

    driver, name = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(100)
    driver.cuInit(0)
    driver.cuDeviceGetName(name, 100, 0)
    return name.value.decode()


def table(folder: Path) -> None:
    """Writes the results of a run as a page."""
    facts = json.loads((folder / "results.json").read_text())
    lines = ["# Real models on a GPU against ONNX Runtime's results", ""]
    lines += [f"- {name}: {facts[name]}" for name in ("date", "device", "aotc", "precision")]
    lines += ["", "Re-run: `benchmarks/gpu_zoo.py` says how, and what the columns are.", "",
              "| model | case | worst difference, in tolerances | us | |", "|---|---|---|---|---|"]  # fmt: skip
    for name, rows in facts["models"].items():
        if isinstance(rows, str):
            lines.append(f"| {name} | | | | {rows} |")
            continue
        for row in rows:
            word = "" if row["worst"] <= 1 else "**differs**"
            lines.append(f"| {name} | {row['case']} | {row['worst']:.3f} | {row['us']} | {word} |")
    target = Path(__file__).parent / "results" / "gpu_zoo.md"
    target.write_text("\n".join(lines) + "\n")
    target.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "run", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--zoo", type=Path, default=Path(os.environ.get("AOT_ZOO", "build/zoo")))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--cache", type=Path)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if chosen.what == "table":
        table(chosen.folder)
        return 0
    results: dict[str, Any] = {}
    path = chosen.folder / "results.json"
    failed = False
    for model in buildable():
        if chosen.only and model.name not in chosen.only:
            continue
        if chosen.what == "build" and not (chosen.zoo / model.file).exists():
            continue
        if chosen.what == "run" and not (chosen.folder / f"{model.name}.aot").exists():
            continue
        try:
            if chosen.what == "build":
                print(model.name, build(model, chosen.zoo / model.file, chosen.folder, chosen.cache), flush=True)
                continue
            results[model.name] = run(model, chosen.folder)
            failed |= any(row["worst"] > 1 for row in results[model.name])
        except Exception as error:
            results[model.name] = f"{type(error).__name__}: {error}"[:300]
            failed = True
        print(model.name, results[model.name], flush=True)
    if chosen.what == "run":
        before = json.loads(path.read_text())["models"] if path.exists() else {}
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
        facts = {"date": today(), "device": device_name(), "aotc": project["version"],
                 "precision": "fp32"}  # fmt: skip
        path.write_text(json.dumps({**facts, "models": {**before, **results}}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
