"""Artifacts under load on one GPU: shapes in turns, many threads, and kernels that are slowed down at random.

    python benchmarks/gpu_stress.py build FOLDER              # artifacts without weights; needs Triton, no GPU
    python benchmarks/gpu_stress.py run FOLDER [--runs N]     # on the GPU host; needs torch, no Triton

Three small models in float16 with open sizes: a perceptron, two layers of BERT, and a step of two layers of Llama that
keeps its caches. Each is built twice, once with kernels whose programs sleep up to eight microseconds, other ones in
every kernel, at their start and again behind their wait for the kernel before: what is right only because something is
usually fast comes out wrong then. Every round has new inputs, another shape, and outputs that are not numbers before
they are written. Results are compared with eager torch in float32 once, and from then on bit for bit: with the delayed
kernels, with a second run, and in threads that share one model, each with a stream of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parent))
import torch_definitions
from gpu_models import TARGET, facts_of_run, half
from torch_definitions import Definition, LlamaSizes, bert, mlp

BATCHES = (1, 2, 7, 16, 33, 64)
LONGEST_DELAY_NS = 8192
_WAIT = "    if PROGRAMMATIC:\n        tl.extra.cuda.gdc_wait()\n"
_SLEEP = (
    "    tl.inline_asm_elementwise('nanosleep.u32 $1; mov.u32 $0, $1;', '=r,r', "
    "[((tl.program_id(0) * 40503 + {seed}) % 61 * {step}).to(tl.uint32)], dtype=tl.uint32, is_pure=False, pack=1)\n"
)
ERROR = 1e-2  # of the largest output; half precision alone is at 1e-3 to 3e-3


def definitions() -> list[Definition]:
    """The models; a batch of Llama is fixed, as its caches are."""
    sizes = LlamaSizes(2, width=512, heads=8, kept_heads=2, hidden=1024, words=4000, positions=256)
    step = Definition(
        "llama_2_layers", partial(torch_definitions._llama, sizes, 4),
        partial(torch_definitions._llama_inputs, sizes, True), (None,) * 5, batch=4,
    )  # fmt: skip
    return [replace(mlp(7), name="mlp"), replace(bert(7, 64, layers=2), name="bert"), step]


def with_delays(source: str) -> str:
    """A kernel's text with sleeps at its start and behind its wait; the text decides how long."""
    seed = int(hashlib.sha256(source.encode()).hexdigest()[:6], 16)
    sleeps = [_SLEEP.format(seed=seed + number, step=LONGEST_DELAY_NS // 61) for number in range(2)]
    head, wait, body = source.partition(_WAIT)
    signature, colon, before = head.rpartition("):\n")
    if not wait or not colon:
        raise ValueError("a kernel without a wait")
    return f"{signature}{colon}{sleeps[0]}{before}{wait}{sleeps[1]}{body}"


def build(definition: Definition, folder: Path, cache: Path | None) -> None:
    """Writes both artifacts of a model, without weights."""
    import aot
    from aot.backend.cuda import CudaBackend

    with torch.no_grad():
        model = definition.make().half()
        inputs = half(definition.inputs(definition.batch, 1))
        batch = torch.export.Dim("batch", min=1, max=max(BATCHES))
        shapes = tuple({} if axis is None else {axis: batch} for axis in definition.batch_axes)
        program = torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False)
    plain = CudaBackend.build

    def delayed(self: Any, sources: Sequence[tuple[str, str]], *rest: Any, **more: Any) -> Any:
        return plain(self, [(symbol, with_delays(source)) for symbol, source in sources], *rest, **more)

    for name, make in (("plain", plain), ("delayed", delayed)):
        with mock.patch.object(CudaBackend, "build", make):
            artifact = aot.compile(program, target=TARGET, weights="none", cache_dir=cache)
        artifact.save(folder / f"{definition.name}.{name}.aot")
        print(f"{definition.name}, {name}: {len(artifact.data) / 1e6:.1f} MB", flush=True)


class Subject:
    """A model, loaded in both forms."""

    def __init__(self, definition: Definition, folder: Path) -> None:
        import aot.runtime

        self.definition = definition
        with torch.no_grad():
            half_model = definition.make().half()
            self.eager = definition.make()
        # Eager computes in float32 with the weights that the artifacts have.
        self.eager.load_state_dict({name: value.float() for name, value in half_model.state_dict().items()})
        self.eager = self.eager.cuda()
        tensors = {**dict(half_model.named_parameters()), **dict(half_model.named_buffers())}
        weights = {name: value.detach().contiguous().numpy() for name, value in tensors.items()}
        load = partial(aot.runtime.load, weights=weights, target=TARGET)
        self.plain, self.delayed = (load(folder / f"{definition.name}.{form}.aot") for form in ("plain", "delayed"))

    def inputs(self, seed: int) -> tuple[Any, ...]:
        fixed = bool(self.plain.state)
        batch = self.definition.batch if fixed else random.Random(seed).choice(BATCHES)
        given = self.definition.inputs(batch, seed % 100 if fixed else seed)
        return tuple(value.cuda() for value in half(given))

    def run(self, model: Any, inputs: Sequence[Any], state: Any = None, stream: Any = None) -> list[Any]:
        """The results as torch tensors; what they lie in held nothing but NaN."""
        names = [spec.name for spec in model.inputs if spec.name not in (state or {})]
        feeds = dict(zip(names, inputs, strict=True))
        stream = stream or torch.cuda.current_stream()
        first = {name: torch.from_dlpack(value) for name, value in model.run(feeds, state=state, stream=stream).items()}
        if state:
            return list(first.values())
        poisoned = {
            name: torch.full_like(value, float("nan") if value.is_floating_point() else 77)
            for name, value in first.items()
        }
        model.run(feeds, outputs=poisoned, stream=stream)
        same = all(torch.equal(poisoned[name], value) for name, value in first.items())
        if not same:
            raise AssertionError("a second run gives other bits")
        return list(poisoned.values())


def check_shapes(subject: Subject, rounds: int) -> dict[str, Any]:
    """New inputs in every round: near eager, and with delays the same bits."""
    worst = 0.0
    for seed in range(rounds):
        inputs = subject.inputs(seed)
        states = [model.new_state() if model.state else None for model in (subject.plain, subject.delayed)]
        mine = subject.run(subject.plain, inputs, states[0])
        slow = subject.run(subject.delayed, inputs, states[1])
        torch.cuda.synchronize()
        if not all(torch.equal(a, b) for a, b in zip(mine, slow, strict=True)):
            raise AssertionError(f"round {seed}: kernels with delays give other bits")
        with torch.no_grad():
            wide = [value.float() if value.is_floating_point() else value for value in inputs]
            theirs = subject.eager(*wide)
        if subject.plain.state:
            subject.eager.load_state_dict(subject.definition.make().half().float().state_dict())
        for a, b in zip(mine, theirs if isinstance(theirs, tuple) else (theirs,), strict=False):
            worst = max(worst, ((a.float() - b).abs().max() / b.abs().max()).item())
    if not worst <= ERROR:
        raise AssertionError(f"differs from eager by {worst:.2g} of the largest output")
    return {"rounds": rounds, "worst": worst}


def check_threads(subject: Subject, runs: int, threads: int = 8) -> dict[str, Any]:
    """Threads that share a model: every result has the bits of the same run alone."""
    cases = []
    for seed in range(24):
        inputs = subject.inputs(1000 + seed)
        cases.append((inputs, [value.clone() for value in subject.run(subject.plain, inputs)]))
    torch.cuda.synchronize()
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(threads)]
    failures: list[str] = []
    names = [spec.name for spec in subject.plain.inputs]

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        order = random.Random(number)
        try:
            with torch.cuda.stream(stream):
                for _ in range(runs):
                    inputs, wanted = order.choice(cases)
                    found = subject.plain.run(dict(zip(names, inputs, strict=True)), stream=stream)
                    for a, b in zip(found.values(), wanted, strict=True):
                        wrong[number] += (torch.from_dlpack(a) != b).any()
            stream.synchronize()
        except Exception as error:  # whatever it is, the others go on
            failures.append(f"{type(error).__name__}: {error}")

    started = time.perf_counter()
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    torch.cuda.synchronize()
    total = int(sum(each.item() for each in wrong))
    if failures or total:
        raise AssertionError(f"{total} wrong results; {failures[:3]}")
    return {"threads": threads, "runs": runs, "seconds": round(time.perf_counter() - started, 1)}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--runs", type=int, default=10_000, help="of each of eight threads")
    parser.add_argument("--write", action="store_true", help="results to benchmarks/results/gpu_stress.json")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for definition in definitions():
        if chosen.what == "build":
            build(definition, chosen.folder, chosen.cache)
            continue
        subject = Subject(definition, chosen.folder)
        checks: list[tuple[str, Callable[[], dict[str, Any]]]] = [
            ("shapes and delays", partial(check_shapes, subject, chosen.rounds))
        ]
        if not subject.plain.state:  # of one model's state, runs wait for each other
            checks.append(("threads", partial(check_threads, subject, chosen.runs)))
        for name, check in checks:
            try:
                results[f"{definition.name}: {name}"] = check()
            except Exception as error:
                results[f"{definition.name}: {name}"] = {"failed": f"{type(error).__name__}: {error}"[:500]}
            print(definition.name, name, results[f"{definition.name}: {name}"], flush=True)
    if chosen.what == "run":
        facts = {**facts_of_run(), "results": results}
        (chosen.folder / "stress.json").write_text(json.dumps(facts, indent=1) + "\n")
        if chosen.write:
            (Path(__file__).parent / "results" / "gpu_stress.json").write_text(json.dumps(facts, indent=1) + "\n")
    return int(any("failed" in each for each in results.values()))


if __name__ == "__main__":
    sys.exit(main())
