"""Models in half precision on one GPU: built on a machine without one, then compared with eager torch and timed there.

    python benchmarks/gpu_models.py build FOLDER [--only PATTERN]    # artifacts without weights; needs Triton, no GPU
    python benchmarks/gpu_models.py run FOLDER [--only PATTERN]      # on the GPU host; needs torch, no Triton
    python benchmarks/gpu_models.py table FOLDER                     # FOLDER/results.json as benchmarks/results/gpu.md

The models are those of torch_definitions.py, with random weights from a seed: both halves make the same ones, and the
artifacts take them by name. Peers run convolutional models channels last, which is
faster for them. Outputs are compared before anything is timed: with eager torch in float32, and with what
eager torch in float16 makes of the same inputs, whose own error says how much half precision costs. Times are medians
of one call inside a stream, in turns with eager torch captured in a CUDA graph and, with --compile, with
torch.compile(mode="reduce-overhead"). Of a model whose weights would stay in the second-level cache there are several
with other weights, for all contestants, and every call takes the next one and other inputs.

Each model runs in a process of its own: PyTorch frees the workspace of cuBLAS that captured graphs of eager calls use
when torch.compile captures graphs of another model, and their products then read memory that is gone (PyTorch 2.11).
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import re
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from torch_definitions import Definition, bert, llama, mlp, timed

TARGET = "cuda:sm_90a"
CACHE_BYTES = 50e6
"""Of the second level, on an H200."""


def definitions() -> list[Definition]:
    """What is built and timed."""
    return [
        mlp(1), mlp(256), bert(1, 128), bert(32, 128), bert(8, 512), llama(16, 1, kept=True), llama(16, 16, kept=True),
        timed("vit_base_patch16_224", "vit_b16", 1), timed("vit_base_patch16_224", "vit_b16", 32),
        timed("resnet50", "resnet50", 1), timed("resnet50", "resnet50", 32),
        timed("mobilenetv3_large_100", "mobilenetv3", 1), timed("convnext_tiny", "convnext_tiny", 8),
        timed("swin_tiny_patch4_window7_224", "swin_tiny", 8),
    ]  # fmt: skip


def half(values: Any) -> Any:
    """Tensors of float32 as float16; others as they are."""
    return tuple(value.half() if value.dtype == torch.float32 else value for value in values)


def build(definition: Definition, folder: Path, cache: Path | None) -> None:
    """Writes the artifact of one model, without its weights."""
    import aot

    with torch.no_grad():
        model = definition.make().half()
        program = torch.export.export(model, half(definition.inputs(definition.batch, 1)), strict=False)
    start = time.time()
    artifact = aot.compile(program, target=TARGET, weights="none", cache_dir=cache)
    path = folder / f"{definition.name}.aot"
    artifact.save(path)
    kernels = [image for program in artifact.programs for kernel, _ in program.launches if (image := kernel.image)]
    spilled = sum(image.spilled_bytes > 0 for image in kernels)
    print(
        f"{definition.name}: {len(kernels)} kernels, {path.stat().st_size / 1e6:.1f} MB, {time.time() - start:.0f} s, "
        f"{spilled} spill",
        flush=True,
    )


def run(definition: Definition, folder: Path, seconds: float, compiled: bool = False) -> dict[str, Any]:
    """Compares and times one model; what was found."""
    import aot.runtime

    with torch.no_grad():
        single = definition.make()
        model = definition.make().half()
    weights = weights_of(model)
    start = time.perf_counter()
    loaded = aot.runtime.load(folder / f"{definition.name}.aot", weights=weights, target=TARGET)
    load_seconds = time.perf_counter() - start
    given = definition.inputs(definition.batch, 7)
    with torch.no_grad():
        wanted = single.cuda()(*(value.cuda() for value in given))
    wanted = [value.float().cpu() for value in (wanted if isinstance(wanted, tuple) else (wanted,))]
    del single
    torch.cuda.empty_cache()
    model = model.cuda()
    inputs = tuple(value.cuda() for value in half(given))
    with torch.no_grad():
        eager = model(*inputs)
    eager = [value.float().cpu() for value in (eager if isinstance(eager, tuple) else (eager,))]
    state = loaded.new_state() if loaded.state else None
    names = [spec.name for spec in loaded.inputs if spec.name not in (state or {})]
    feeds = dict(zip(names, inputs, strict=False))

    def ours() -> Any:
        stream = torch.cuda.current_stream()
        return loaded.run(feeds, state=state, stream=stream) if state else loaded.run(feeds, stream=stream)

    results = ours()
    torch.cuda.synchronize()
    got = [torch.from_dlpack(value).float().cpu() for value in results.values()]
    rows = []
    for mine, theirs, exact in zip(got, eager, wanted, strict=False):
        scale = exact.abs().max().item() or 1.0
        rows.append(((mine - exact).abs().max().item() / scale, (theirs - exact).abs().max().item() / scale))
    found: dict[str, Any] = {
        "load_s": round(load_seconds, 2),
        "error": max(row[0] for row in rows),
        "eager_error": max(row[1] for row in rows),
    }  # fmt: skip
    found["agrees"] = bool(found["error"] <= 2 * found["eager_error"] + 1e-3)
    if not found["agrees"]:
        return found
    found["host us"] = host_time(ours)
    total_bytes = sum(value.nbytes for value in model.state_dict().values())
    found["models in turns"] = count = min(max(round(1.25 * CACHE_BYTES / total_bytes), 1), 16) if not state else 1
    own: list[Callable[[], Any]] = [ours]
    best = torch.channels_last if definition.channels_last else torch.preserve_format  # the peers' own fastest form
    peers: list[tuple[Any, Sequence[Any]]] = [in_format(model, inputs, best)]
    for number in range(1, count):
        other = changed(model, number)
        fed = tuple(value.cuda() for value in half(definition.inputs(definition.batch, 7 + number)))
        path = folder / f"{definition.name}.aot"
        another = aot.runtime.load(path, weights=weights_of(other), target=TARGET, verify_weights=False)
        own.append(partial(run_on_stream, another, dict(zip(names, fed, strict=False))))
        peers.append(in_format(other, fed, best))
    runs: dict[str, Callable[[], Any]] = {
        "aotc": ours if state else in_turns([captured(call) for call in own]),
        "aotc from Python": in_turns(own),
        "eager graph": in_turns([graphed(*pair) for pair in peers]),
    }  # fmt: skip
    if compiled:
        runs["torch.compile"] = in_turns([compiled_call(*pair) for pair in peers])
    for name, values in timings(runs, seconds).items():
        found[f"{name} us"] = values
    return found


def in_format(model: Any, inputs: Sequence[Any], memory_format: torch.memory_format) -> tuple[Any, Sequence[Any]]:
    """A peer's copy of a model and of its inputs, with images in a memory format."""
    if memory_format is torch.preserve_format:
        return model, inputs
    images = tuple(value.to(memory_format=memory_format) if value.dim() == 4 else value for value in inputs)
    return copy.deepcopy(model).to(memory_format=memory_format), images


def weights_of(model: Any) -> dict[str, Any]:
    """What an artifact without weights is given: every tensor of the model, by name."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: value.detach().cpu().contiguous().numpy() for name, value in tensors.items()}


def run_on_stream(loaded: Any, feeds: dict[str, Any]) -> Any:
    """A run in the current stream."""
    return loaded.run(feeds, stream=torch.cuda.current_stream())


def changed(model: Any, seed: int) -> Any:
    """A copy with other weights of about the same size."""
    generator = torch.Generator("cuda").manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for value in other.parameters():
            value.mul_(torch.rand(value.shape, generator=generator, device="cuda").mul_(0.1).add_(0.95).to(value.dtype))
    return other


def in_turns(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """A call of the next one each time."""
    following = itertools.cycle(calls)
    return lambda: next(following)()


def compiled_call(model: Any, inputs: Sequence[Any]) -> Callable[[], Any]:
    """torch.compile with CUDA graphs."""
    torch._dynamo.config.recompile_limit = 64  # the models in turns share their code
    fast = torch.compile(model, mode="reduce-overhead")

    def run() -> Any:
        with torch.no_grad():
            torch.compiler.cudagraph_mark_step_begin()
            return fast(*inputs)

    return run


def table(folder: Path) -> None:
    """Writes the results of a run as a page."""
    facts = json.loads((folder / "results.json").read_text())
    columns = ("aotc", "eager graph", "torch.compile")
    lines = [
        "# Models in half precision on a GPU",
        "",
        *(f"- {name}: {facts[name]}" for name in ("date", "device", "torch", "aotc")),
        "",
        "Re-run: `benchmarks/gpu_models.py` says how. Microseconds of one call inside a stream, medians, in turns;",
        "of the perceptrons, several models with other weights take turns, so that no cache holds them.",
        "Ratio: to the fastest peer. Error: largest difference to eager torch in float32, of the largest output;",
        "beside it that of eager in float16. Host: microseconds that a call from Python takes the host.",
        "",
        "| model | aotc | eager in a CUDA graph | torch.compile | ratio | error | eager's | host |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in facts["models"].items():
        if "aotc us" not in row:
            lines.append(f"| {name} | {row.get('failed', 'does not agree')} | | | | | | |")
            continue
        times = [row.get(f"{column} us") for column in columns]
        best = min(value for value in times[1:] if value is not None)
        cells = [f"{value:.0f}" if value is not None else "" for value in times]
        errors = f"{row['error']:.1e} | {row['eager_error']:.1e}"
        lines.append(f"| {name} | {' | '.join(cells)} | {times[0] / best:.2f} | {errors} | {row['host us']:.0f} |")
    ratios: dict[str, list[float]] = {"batch 1": [], "larger batches": []}
    for name, row in facts["models"].items():
        if "aotc us" in row:
            peer = min(row[f"{column} us"] for column in columns[1:] if f"{column} us" in row)
            ratios["batch 1" if re.search(r"_b1(_|$)", name) else "larger batches"].append(row["aotc us"] / peer)
    for what, found in ratios.items():
        if found:
            mean = statistics.geometric_mean(found)
            lines.append(f"| **geometric mean, {what}** | | | | **{mean:.2f}**: {1 / mean:.2f} times as fast | | | |")
    target = Path(__file__).parent / "results" / "gpu.md"
    target.write_text("\n".join(lines) + "\n")
    target.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")


def host_time(call: Callable[[], Any]) -> float:
    """Microseconds that a call takes the host, without waiting for the GPU."""
    torch.cuda.synchronize()
    samples = []
    for _ in range(50):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    return round(statistics.median(samples) * 1e6, 1)


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """A call's kernels as a graph of the caller's: what the GPU does, without Python."""
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side), torch.no_grad():
        kept = call()
    return lambda kept=kept: graph.replay()  # type: ignore[misc]  # results live as long as the graph


def graphed(model: Any, inputs: Sequence[Any]) -> Callable[[], Any]:
    """Eager torch, captured once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        kept = model(*inputs)
    return lambda kept=kept: graph.replay()  # type: ignore[misc]  # results live as long as the graph


def timings(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median microseconds of a call inside a stream, taken in turns, 20 calls at a time."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for call in runs.values():
        for _ in range(5):
            call()
    torch.cuda.synchronize()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in runs.items():
            begin, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(20):
                call()
            stop.record()
            torch.cuda.synchronize()
            samples[name].append(begin.elapsed_time(stop) / 20 * 1e3)
    return {name: round(statistics.median(values), 1) for name, values in samples.items()}


def facts_of_run() -> dict[str, Any]:
    """When, where and with what a run was made."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "aotc": project["version"],
    }


def keep(results: dict[str, Any], folder: Path) -> None:
    """Writes what there is so far, beside what earlier runs on the same day found of other models."""
    facts = facts_of_run()
    path = folder / "results.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    if all(before.get(name) == value for name, value in facts.items()):
        results = {**before["models"], **results}
    path.write_text(json.dumps({**facts, "models": results}, indent=1))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "run", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names that contain this, or one of several separated by commas")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--compile", action="store_true", help="time torch.compile too")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if chosen.what == "table":
        table(chosen.folder)
        return
    results = {}
    wanted = [d for d in definitions() if any(part in d.name for part in chosen.only.split(","))]
    if chosen.what == "run" and len(wanted) > 1:
        rest = ["--seconds", str(chosen.seconds), *(["--compile"] if chosen.compile else [])]
        for definition in wanted:
            command = [sys.executable, __file__, "run", str(chosen.folder), "--only", definition.name, *rest]
            subprocess.run(command, check=False)
        return
    for definition in wanted:
        if not definition.available:
            print(f"{definition.name}: {definition.needs} is not installed")
            continue
        try:
            if chosen.what == "build":
                build(definition, chosen.folder, chosen.cache)
                continue
            results[definition.name] = run(definition, chosen.folder, chosen.seconds, chosen.compile)
        except Exception as error:
            results[definition.name] = {"failed": f"{type(error).__name__}: {error}"[:600]}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(definition.name, results[definition.name], flush=True)
        if chosen.what == "run":
            keep(results, chosen.folder)


if __name__ == "__main__":
    main()
