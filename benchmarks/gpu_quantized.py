"""Quantized products and models on one GPU, against the same in float16: built without a GPU, measured on one.

    python benchmarks/gpu_quantized.py prepare FOLDER [--only PATTERN] [--cache DIRECTORY]    # needs Triton, no GPU
    python benchmarks/gpu_quantized.py run FOLDER [--only PATTERN] [--seconds S]    # on the GPU, without Triton
    python benchmarks/gpu_quantized.py table FOLDER    # FOLDER/quantized.json as benchmarks/results/gpu_quantized.md

`chains`: products one behind the other, each with a weight of its own, together more than the second-level cache holds.
Weights in 4 and 8 bits at one row and at sixteen have the shapes of a Llama of 1B parameters; products of 8-bit
integers and floats those of BERT and ViT at a batch of 32, with scale, bias, activation and the next layer's
quantization in their epilogues. Weights are random, made from seeds on both machines, so artifacts hold none.
Results are compared with numpy first. Times are medians of a call in a captured graph, in turns.

`models`: BERT and ViT at batch 32, as float16 and quantized from random inputs. Both halves make the same float32
model; the run finds the quantized weights by the compiler's passes, which need no Triton. Outputs are compared with the
float16 artifact's, and the relative error is told: random weights say nothing about accuracy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

TARGET = "cuda:sm_90a"
BLOCK = 32
"""Rows that share a scale in weights of 4 bits."""

SPREAD = {4: 4.32, 8: 73.6}
"""The standard deviations of uniform integers of so many bits without the least, whose mean is 0."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Chain:
    """Products of `rows` rows whose weights have the `shapes`, over and over, `repeats` times.

    form: "f16"; "int4" or "int8", weights beside float16; "i8" or "f8", both operands. `choice`: another schedule than
    the compiler's, by a name.
    """

    label: str
    rows: int
    shapes: tuple[tuple[int, int], ...]
    repeats: int
    form: str
    choice: str = ""

    @property
    def group(self) -> str:
        return f"{self.label}_m{self.rows}"

    @property
    def name(self) -> str:
        return f"chain_{self.group}_{self.form}{'_' if self.choice else ''}{self.choice}"

    @property
    def layers(self) -> list[tuple[int, int]]:
        return [shape for _ in range(self.repeats) for shape in self.shapes]


DECODE = (
    ("2048x2048", ((2048, 2048),), 32),
    ("2048x8192_8192x2048", ((2048, 8192), (8192, 2048)), 4),
    ("2048x16384_16384x2048", ((2048, 16384), (16384, 2048)), 2),
)
WIDE = (
    ("768x768", ((768, 768),), 12),
    ("768x3072_3072x768", ((768, 3072), (3072, 768)), 6),
    ("768x2304_2304x768", ((768, 2304), (2304, 768)), 6),
)
ROWS_TILES = (
    "n16384-8x32x1024x8x1x8", "n16384-8x32x256x2x1x2", "n16384-8x32x1024x4x1x4", "n16384-8x16x1024x4x1x4",
    "n2048-8x16x2048x16x1x16", "n2048-8x16x2048x8x1x8", "n8192-8x32x512x4x1x4",
)  # fmt: skip
I8_TILES = (
    "128x128x128x4x3", "128x128x128x8x3", "128x128x64x4x4", "128x256x128x8x3", "128x256x128x8x4", "256x128x128x8x3",
    "128x256x64x8x4", "described-128x128x64x4x4", "described-128x256x64x8x3",
)  # fmt: skip
F8_TILES = ("128x128x128x4x3", "fast-128x128x128x4x3", "fast-128x128x128x8x3", "fast-described-128x128x64x4x4")
CHOICES = {
    (1, "int4"): ("stream", *ROWS_TILES), (1, "int8"): ("stream",),
    (16, "int4"): ("16x16x1024x8x1x8",), (4096, "i8"): I8_TILES,
    (6304, "i8"): ("128x128x128x4x3", "128x256x128x8x3", "256x128x128x8x3", "described-128x128x64x4x4"),
    (4096, "f8"): F8_TILES,
}  # fmt: skip
"""Other schedules: tiles of rows, columns, summed, warps, stages and sums; `described`: by descriptors (there what is
summed is of 16 bits); `fast`: sums of 8-bit floats stay in the tensor cores' own precision; `n768`: of products with so
many columns only; `stream`: columns in registers, for few rows beside a weight in few bits."""

FORMS = {"bert_base_b32_s128": ("int8", "fp8"), "vit_b16_b32": ("int8", "fp8")}


def chains() -> list[Chain]:
    """All that are measured; those of one group in turns."""
    found = []
    for label, shapes, repeats in DECODE:
        for rows in (1, 16):
            found += [Chain(label, rows, shapes, repeats, form) for form in ("f16", "int4", "int8")]
    for label, shapes, repeats in WIDE:
        for rows in (4096, 6304):
            found += [Chain(label, rows, shapes, repeats, form) for form in ("f16", "i8", "f8")]
    others = []
    for chain in found:
        for choice in CHOICES.get((chain.rows, chain.form), ()):
            sides = sorted({columns for _, columns in chain.shapes})
            alone = chain.form in STEP and len(sides) > 1
            if choice[0] == "n" and int(choice[1:].partition("-")[0]) not in sides:
                continue
            others += [
                replace(chain, choice=f"n{n}-{choice}" if alone else choice) for n in sides[: None if alone else 1]
            ]
    return found + others


# Weights and what a chain computes; the same on both machines.


def weights_of(chain: Chain) -> dict[str, Array]:
    """Every constant of a chain by name."""
    import ml_dtypes

    found: dict[str, Array] = {}
    for number, (summed, columns) in enumerate(chain.layers):
        random = np.random.default_rng([number, summed, columns])
        gain = 2**0.5 if chain.rows > 16 else 1.0  # what an activation takes away
        if chain.form == "int4":
            low, high = random.integers(1, 16, (2, summed // 2, columns), np.uint8)
            found[f"w{number}"] = low | high << 4
            scale = random.uniform(0.9, 1.1, (summed // BLOCK, columns)) / (SPREAD[4] * summed**0.5)
            found[f"s{number}"] = scale.astype(np.float16)
        elif chain.form == "int8":
            found[f"w{number}"] = random.integers(-127, 128, (summed, columns), np.int8)
            found[f"s{number}"] = (random.uniform(0.9, 1.1, (1, columns)) / (SPREAD[8] * summed**0.5)).astype(
                np.float16
            )
        elif chain.form == "f16":
            found[f"w{number}"] = (random.standard_normal((summed, columns), np.float32) * gain * summed**-0.5).astype(
                np.float16
            )
        elif chain.form == "i8":
            found[f"w{number}"] = random.integers(-127, 128, (summed, columns), np.int8)
        else:
            wide = random.standard_normal((summed, columns), np.float32)
            found[f"w{number}"] = wide.astype(ml_dtypes.float8_e4m3fn)
        if chain.form in ("i8", "f8"):
            spread = SPREAD[8] if chain.form == "i8" else 1.0
            scale = random.uniform(0.9, 1.1, columns) * gain / (spread * summed**0.5)
            found[f"s{number}"] = (scale * STEP[chain.form]).astype(np.float32)
        if chain.rows > 16:
            kind = np.float16 if chain.form == "f16" else np.float32
            found[f"b{number}"] = random.uniform(-0.1, 0.1, columns).astype(kind)
    return found


STEP = {"i8": 0.7 / 40, "f8": 0.7}
"""What activations in 8 bits are multiples of, where they are of size 1 to 3 (of f8e4m3 a scale)."""


def graph_of(chain: Chain, weights: dict[str, Array]) -> Any:
    """The chain as a graph of the compiler."""
    from aot.builder import Builder
    from aot.dtypes import F8E4M3, F16, F32, I8

    b = Builder(chain.name)
    kind = {"i8": I8, "f8": F8E4M3}.get(chain.form, F16)
    h = b.input("x", kind, (chain.rows, chain.shapes[0][0]))
    for number in range(len(chain.layers)):
        w, s, bias = (b.const(weights[n], n) if (n := f"{k}{number}") in weights else None for k in "wsb")
        if chain.form == "f16":
            h = b.matmul(h, w)
            h = h if bias is None else b.relu(b.add(h, bias))
        elif chain.form in ("int4", "int8"):
            bits = int(chain.form[-1])
            h = b.matmul_packed(h, w, s, None, bits=bits, block=BLOCK if bits == 4 else chain.layers[number][0])
        else:
            step = b.scalar(STEP[chain.form], F32)
            total = b.cast(b.matmul_8bit(h, w), to=F32)
            h = b.relu(b.add(b.mul(total, s), bias))
            h = b.quantize(h, step, None, to=kind)
    return b.finish((h,))


def input_of(chain: Chain) -> Array:
    """The chain's input."""
    import ml_dtypes

    x = np.random.default_rng(99).standard_normal((chain.rows, chain.shapes[0][0]), np.float32)
    if chain.form == "i8":
        return np.clip(np.rint(x * 40), -127, 127).astype(np.int8)
    return x.astype(ml_dtypes.float8_e4m3fn if chain.form == "f8" else np.float16)


def product(chain: Chain, weights: dict[str, Array], x: Array, number: int) -> Array:
    """One product of the chain by numpy, in float32."""
    w, s = weights[f"w{number}"], weights.get(f"s{number}")
    if chain.form == "int4":
        both = np.stack([w & 15, w >> 4], axis=1).reshape(-1, w.shape[1]).astype(np.float32) - 8
        assert s is not None
        return x.astype(np.float32) @ (both * np.repeat(s.astype(np.float32), BLOCK, axis=0))
    made: Array = x.astype(np.float32) @ w.astype(np.float32)
    return made if s is None else made * s.astype(np.float32)


def expected(chain: Chain, weights: dict[str, Array]) -> Array:
    """What a chain gives, by numpy: f32."""
    import ml_dtypes

    h = input_of(chain)
    for number in range(len(chain.layers)):
        made = product(chain, weights, h, number)
        bias = weights.get(f"b{number}")
        if chain.form in STEP:
            assert bias is not None
            step = np.float32(STEP[chain.form])
            made = np.maximum(made + bias, 0) / step
            if chain.form == "i8":
                h = np.clip(np.rint(made), -128, 127).astype(np.int8)
            else:
                h = np.clip(made, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        else:
            h = (made if bias is None else np.maximum(made + bias.astype(np.float32), 0)).astype(np.float16)
    return h.astype(np.float32)


def error_of(found: Array, wanted: Array) -> float:
    """The norm of the difference over that of what is wanted."""
    return float(np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted.astype(np.float64)))


LIMIT = {"f16": 5e-3, "int4": 5e-3, "int8": 5e-3, "i8": 2e-2, "f8": 0.15}
"""Of that: roundings of 16 bits, or of 8 bits where a rounding fell to the other side, layer after layer."""


# Without a GPU.


def compiled(graph: Any, **options: Any) -> Any:
    """An artifact of a graph of the compiler's."""
    import aot
    from aot import frontend
    from aot.frontend.imported import ImportInfo

    info = ImportInfo("0" * 64, 0, "gpu_quantized", {}, len(graph.nodes), {}, ())
    with mock.patch.object(frontend, "load_variants", lambda *_, **__: ((("", graph),), info)):
        return aot.compile("chain", target=TARGET, weights="none", **options)


@contextmanager
def chosen(choice: str) -> Iterator[None]:
    """The compiler with another schedule than its own."""
    from aot.backend.cuda import contract, packed

    *words, tile = choice.split("-") if choice else ("",)
    columns = next((int(word[1:]) for word in words if word[0] == "n"), None)
    wanted = contract.Tile(*map(int, tile.split("x"))) if "x" in tile else None
    described = "described" in words
    suits = contract._Contract._suits_descriptors
    choose = contract._Contract._choose

    def is_meant(kernel: Any) -> bool:
        return wanted is not None and columns in (None, kernel.columns)

    def suits_descriptors(kernel: Any, operand: Any) -> bool:
        if is_meant(kernel):
            return described and bool(kernel._are_matrices(operand))
        return suits(kernel, operand)

    def chosen_tile(kernel: Any, operand: Any) -> Any:
        return wanted if is_meant(kernel) else choose(kernel, operand)

    few_rows = packed._Packed._choose_rows

    def chosen_rows(kernel: Any) -> Any:
        return wanted if is_meant(kernel) else few_rows(kernel)

    with ExitStack() as stack:
        patch = partial(mock.patch.object, contract)
        stack.enter_context(mock.patch.object(contract._Contract, "_suits_descriptors", suits_descriptors))
        stack.enter_context(mock.patch.object(contract._Contract, "_choose", chosen_tile))
        if wanted is not None and wanted.sums > 1:
            stack.enter_context(mock.patch.object(packed._Packed, "_choose_rows", chosen_rows))
        if tile == "stream":
            stack.enter_context(mock.patch.object(packed._Packed, "_suits_rows", lambda _: False))
        if described:
            stack.enter_context(patch("DESCRIBED", wanted))
        if "fast" in words:
            stack.enter_context(patch("PROMOTED", 1 << 30))
        yield


def prepare_chain(chain: Chain, folder: Path, cache: Path | None) -> None:
    """Writes a chain's artifact, without weights."""
    with chosen(chain.choice):
        artifact = compiled(graph_of(chain, weights_of(chain)), cache_dir=cache)
    artifact.save(folder / f"{chain.name}.aot")
    launches = [kernel for program in artifact.programs for kernel, _ in program.launches]
    images = [image for kernel in launches if (image := kernel.image)]
    forms = sorted({kernel.schedule for kernel in launches})
    spilled = sum(image.spilled_bytes > 0 for image in images)
    print(f"{chain.name}: {len(launches)} kernels, {spilled} spill; {'; '.join(forms)}", flush=True)


def models() -> dict[str, Any]:
    """The definitions by name."""
    from torch_definitions import bert, timed

    found = [bert(32, 128), timed("vit_base_patch16_224", "vit_b16", 32)]
    return {each.name: each for each in found if each.available}


def program_of(definition: Any) -> Any:
    """The model in float32, as torch.export has it."""
    import torch

    with torch.no_grad():
        model = definition.make()
        return torch.export.export(model, definition.inputs(definition.batch, 1), strict=False)


def options_of(record: Any) -> Any:
    """The options of a model's build, with a record of what is quantized or None."""
    from aot.options import CompileOptions

    return CompileOptions(targets=(TARGET,), precision="fp16", weights="external", quantization=record)


def prepare_model(definition: Any, folder: Path, cache: Path | None) -> None:
    """Writes a model's artifacts and, of the quantized ones, the records."""
    import aot
    from aot import driver
    from aot.artifacts import Artifact
    from aot.calibrate import calibrate_graph
    from aot.options import CompileOptions
    from aot.product_times import modelled_times
    from aot.quantization import FLOAT, Method
    from aot.quantizer import planned
    from aot.transforms.products import products

    def without_weights(*given: Any, **named: Any) -> Artifact:
        """As options would not have it: callers usually have no quantized weights."""
        return plain(*given, **{**named, "weights": "none", "external_name": ""})

    plain = Artifact.build
    program, options = program_of(definition), CompileOptions()
    (graph,) = driver.core_graphs(program, options).graphs
    found = products(graph)
    given = [value.numpy() for value in definition.inputs(definition.batch, 5)]
    sample = dict(zip([value.name for value in graph.inputs], given, strict=True))
    seen = calibrate_graph(graph, found, [sample], options, lambda stage, detail: None)
    for form in ("f16", *FORMS[definition.name]):
        record = None if form == "f16" else planned(found, Method(form=form), seen)
        if record is not None:  # as `aotc quantize` has it
            ((_, target),) = driver.resolve_targets(options_of(None))
            times = modelled_times(found, record, target, "fp16")
            kept = {node.node: node.form if times.is_faster(node.node) else FLOAT for node in record.nodes}
            record = record.with_forms(kept)
        if record is not None:
            record.save(folder / f"{definition.name}.{form}.record")
        with mock.patch.object(Artifact, "build", without_weights):
            artifact = aot.compile(program, options=options_of(record), external_name="weights", cache_dir=cache)
        artifact.save(folder / f"{definition.name}.{form}.aot")
        launches = [kernel for program in artifact.programs for kernel, _ in program.launches]
        spilled = sum(bool(kernel.image and kernel.image.spilled_bytes) for kernel in launches)
        print(f"{definition.name} {form}: {len(launches)} kernels, {spilled} spill", flush=True)


# On the GPU.


def on_stream(loaded: Any, feeds: dict[str, Any], outputs: dict[str, Any] | None = None) -> Any:
    """A run in the current stream."""
    import torch

    return loaded.run(feeds, outputs=outputs, stream=torch.cuda.current_stream())


def device_array(array: Array) -> Any:
    """An array on the GPU, in the type that an artifact takes."""
    import torch

    if array.dtype.name == "float8_e4m3fn":
        return torch.from_numpy(array.view(np.uint8)).cuda().view(torch.float8_e4m3fn)
    return torch.from_numpy(array).cuda()


def host_array(value: Any) -> Array:
    """A result as float32."""
    import torch

    found: Array = torch.from_dlpack(value).float().cpu().numpy()
    return found


def run_chains(group: list[Chain], folder: Path, seconds: float) -> dict[str, Any]:
    """Compares the chains of a group and times those that are right, in turns."""
    import torch
    from gpu_models import captured, timings

    import aot.runtime

    found: dict[str, Any] = {}
    calls: dict[str, Callable[[], Any]] = {}
    kept, right, constants = [], {}, {}
    for chain in group:
        key = chain.form + (f" {chain.choice}" if chain.choice else "")
        if chain.form not in constants:
            constants[chain.form] = weights_of(chain)
        weights = constants[chain.form]
        try:
            loaded = aot.runtime.load(
                folder / f"{chain.name}.aot", weights=weights, target=TARGET, verify_weights=False
            )
            x = device_array(input_of(chain))
            result = torch.empty((chain.rows, chain.shapes[-1][1]), dtype=x.dtype, device="cuda")
            call = partial(on_stream, loaded, {"x": x}, {loaded.outputs[0].name: result})
            call()
            torch.cuda.synchronize()
            if chain.form not in right:
                right[chain.form] = expected(chain, weights)
            error = error_of(host_array(result), right[chain.form])
            found[key] = {"error": error, "agrees": bool(error <= LIMIT[chain.form])}
            if found[key]["agrees"]:
                calls[key] = captured(call)
                kept.append((loaded, call))
        except Exception as problem:  # the others are measured all the same
            found[key] = {"failed": f"{type(problem).__name__}: {problem}"[:500]}
    for key, value in timings(calls, seconds).items() if calls else ():
        found[key]["us"] = value
        found[key]["us_per_product"] = round(value / len(group[0].layers), 2)
    return found


def quantized_weights(definition: Any, form: str, folder: Path) -> dict[str, Array]:
    """The constants of a quantized model, by the names that its artifact asks for, from the passes that made them."""
    from aot import driver
    from aot.options import CompileOptions
    from aot.quantization import Quantization
    from aot.transforms.products import products, products_digest

    program = program_of(definition)
    (graph,) = driver.core_graphs(program, CompileOptions()).graphs
    # Random weights may differ in their last bits between machines; here both forms have those of this one.
    record = Quantization.open(folder / f"{definition.name}.{form}.record")
    options = options_of(replace(record, graph=products_digest(products(graph))))
    consts = [
        source
        for lowered in driver.lower(program, options)
        for graph in lowered.ordered
        for const in graph.consts.values()
        for source in (const.recipe_sources if const.recipe is not None else (const,))
    ]
    return {const.source: const.array() for const in consts if const.source and const.dtype.itemsize_bytes == 1}


def run_model(definition: Any, folder: Path, seconds: float) -> dict[str, Any]:
    """Compares a model's forms with its float16 artifact and times them in turns."""
    import torch
    from gpu_models import captured, timings

    import aot.runtime

    given = definition.inputs(definition.batch, 7)
    with torch.no_grad():
        model = definition.make()
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    plain = {name: value.detach().contiguous().numpy() for name, value in tensors.items()}
    found: dict[str, Any] = {}
    calls: dict[str, Callable[[], Any]] = {}
    kept = []
    wanted: Array | None = None
    for form in ("f16", *FORMS[definition.name]):
        try:
            weights = plain if form == "f16" else plain | quantized_weights(definition, form, folder)
            path = folder / f"{definition.name}.{form}.aot"
            loaded = aot.runtime.load(path, weights=weights, target=TARGET, verify_weights=False)
            feeds = dict(zip([spec.name for spec in loaded.inputs], (value.cuda() for value in given), strict=True))
            call = partial(on_stream, loaded, feeds)
            result = host_array(next(iter(call().values())))
            wanted = result if wanted is None else wanted
            found[form] = {"error": error_of(result, wanted), "finite": bool(np.isfinite(result).all())}
            calls[form] = captured(call)
            kept.append((loaded, call))  # a captured graph does not hold the model and the inputs that it reads
        except Exception as problem:
            found[form] = {"failed": f"{type(problem).__name__}: {problem}"[:500]}
    for form, value in timings(calls, seconds).items() if calls else ():
        found[form]["us"] = value
    return found


def keep(folder: Path, name: str, row: dict[str, Any]) -> None:
    """Adds a result to FOLDER/quantized.json."""
    from gpu_models import facts_of_run

    path = folder / "quantized.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    results = {**before.get("results", {}), name: row}
    path.write_text(json.dumps({**facts_of_run(), "results": results}, indent=1) + "\n")


def lines_of(results: dict[str, Any]) -> Iterator[str]:
    """The rows of the table."""
    for name, forms in results.items():
        base = forms.get("f16", {}).get("us")
        for form, row in forms.items():
            if "us" not in row:
                yield f"| {name} | {form} | {row.get('failed', 'does not agree')} | | | {row.get('error', '')} |"
                continue
            cells = (f"{row['us']:.1f}", row.get("us_per_product", ""), f"{base / row['us']:.2f}" if base else "")
            yield f"| {name} | {form} | {' | '.join(map(str, cells))} | {row['error']:.1e} |"


def table(folder: Path) -> None:
    """Writes the results of a run as a page."""
    facts = json.loads((folder / "quantized.json").read_text())
    lines = [
        "# Quantized products and models on a GPU",
        "",
        *(f"- {name}: {facts[name]}" for name in ("date", "device", "torch", "aotc", "note") if name in facts),
        "",
        "Re-run: `benchmarks/gpu_quantized.py` says how. Medians of one call in a captured graph, in turns; ratio: how",
        "many times as fast as float16 beside it. Error: the norm of the difference to numpy, or to the float16 model,",
        "over the norm of what is wanted. Names of chains: summed x columns of each product, in order, and rows. A",
        "tile behind a form: that schedule, for the product of so many columns (n), not what was the default then.",
        "",
        "| chain or model | form | us | us a product | times as fast as f16 | error |",
        "|---|---|---|---|---|---|",
        *lines_of(facts["results"]),
    ]
    target = Path(__file__).parent / "results" / "gpu_quantized.md"
    target.write_text("\n".join(lines) + "\n")
    target.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names that contain this, or one of several separated by commas")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--seconds", type=float, default=1.5)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if chosen.what == "table":
        table(chosen.folder)
        return 0
    parts = chosen.only.split(",")
    groups: dict[str, list[Chain]] = {}
    for chain in chains():
        if any(part in chain.name for part in parts):
            groups.setdefault(chain.group, []).append(chain)
    wanted = [name for name in FORMS if any(part in name for part in parts)]
    failed = 0
    for name, group in groups.items():
        if chosen.what == "prepare":
            for chain in group:
                prepare_chain(chain, chosen.folder, chosen.cache)
            continue
        row = run_chains(group, chosen.folder, chosen.seconds)
        failed += any("us" not in each for each in row.values())
        print(name, json.dumps(row), flush=True)
        keep(chosen.folder, f"chain {name}", row)
    known = models() if wanted else {}
    for name in wanted:
        if name not in known:
            print(f"{name}: its package is not installed")
        elif chosen.what == "prepare":
            prepare_model(known[name], chosen.folder, chosen.cache)
        else:
            row = run_model(known[name], chosen.folder, chosen.seconds)
            failed += any("us" not in each for each in row.values())
            print(name, json.dumps(row), flush=True)
            keep(chosen.folder, name, row)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
