"""What `aotc build --self-test` adds: inputs with the reference's outputs, recorded errors, and a latency band.

The reference is what `aotc verify` compares with: ONNX Runtime for an ONNX model, PyTorch for a .pt2 program; aotc's
reference interpreter where that is not installed, or does not know the model's operators. The metadata says which.
Errors are those of the program that runs here, on the general program's shapes; where none of the targets runs here,
those of the first target's kernels as the reference interpreter gives them their meaning, with the rounding of their
precision. The metadata says which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.artifacts import Artifact
from aot.cli.feeds import extents, generic, random_feed
from aot.cli.operators import open_reference
from aot.cli.reference import widened
from aot.cli.self_test_options import SelfTestChoice
from aot.cli.traced import interpreted_run
from aot.errors import OptionError, TargetError
from aot.file_kinds import PROGRAM, kind_of
from aot.ir import Array, Value
from aot.options import CompileOptions
from aot.program import Program
from aot.samples import open_samples

if TYPE_CHECKING:
    from aot.driver import Lowered

DEFAULT_ERROR_SAMPLES = 128
DEFAULT_INTERPRETED_SAMPLES = 16
"""Of a target that is not here: the interpreter takes seconds where a program takes milliseconds."""
PROBABILITIES = (0.5, 0.9, 0.95, 0.99, 0.999)
"""Quantiles that are recorded, as far as the samples tell them apart from the largest; the largest always is."""

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def with_self_test(
    artifact: Artifact,
    model: Path,
    choice: SelfTestChoice,
    options: CompileOptions,
    operators: tuple[str, ...] = (),
    tell: Callable[[str, str], None] = lambda stage, detail: None,
) -> Artifact:
    """The artifact with a self-test, and with what it measured in its metadata.

    Raises OptionError for data that do not fit or are too few, ModelError where the reference does not run on them.
    """
    program = generic(artifact.programs)
    reference = open_reference(
        model, 1, artifact, operators, runs_it=_runs_it(model), trust_pickle=options.trust_pickle
    )
    run, how, target, loaded = _runner(artifact, model, options)
    wanted = choice.error_samples or (DEFAULT_ERROR_SAMPLES if how == "compiled" else DEFAULT_INTERPRETED_SAMPLES)
    samples = islice(_samples(program, choice, reference.defaults), max(wanted, choice.inputs))
    from aot.runtime.serving.selftest import differences, measure_latency, precision_of
    from aot.runtime.serving.stored_tests import StoredTest, to_tensors

    tests: list[StoredTest] = []
    values: dict[str, dict[str, list[float]]] = {}
    count = 0
    names = [port.name for port in program.inputs]
    for count, sample in enumerate(samples, 1):
        tell("self-test", f"sample {count}")
        feed = {name: np.array(sample[name], order="C") for name in names}
        expected = reference.run({name: sample[name] for name in reference.inputs if name in sample} | feed)
        if count <= wanted:
            found = {name: np.array(value) for name, value in run(feed).items()}
            for name, output in expected.items():
                for metric, value in differences(output, _comparable(found, name, output)).items():
                    values.setdefault(name, {}).setdefault(metric, []).append(value)
        if len(tests) < choice.inputs:
            tests.append(StoredTest(feed, {name: np.array(output) for name, output in expected.items()}))
    if len(tests) < choice.inputs:
        raise OptionError(
            f"--self-test wants {choice.inputs} inputs, and the data has {count}",
            where=choice.data or "",
            hint="Give more data, or ask for fewer.",
        )
    meta = dict(artifact.meta)
    meta["errors"] = {name: {m: distribution(v) for m, v in metrics.items()} for name, metrics in values.items()}
    meta["self_test"] = {
        "inputs": len(tests),
        "error_samples": min(count, wanted),
        "data": f"random, seed {choice.seed}" if choice.data is None else Path(choice.data).name,
        "reference": reference.name,
        "measured": how,
        "target": target,
        "precision": precision_of(meta, target),
    }
    if loaded is not None and choice.latency:
        tell("self-test", "latency")
        meta["latency"] = measure_latency(loaded, tests[0], None).to_json()
    if loaded is not None:
        loaded.close()
    return artifact.with_parts(meta=meta, self_test=to_tensors(tuple(tests)))


def distribution(values: list[float]) -> dict[str, Any]:
    """Quantiles of errors, as the metadata has them: each the smallest value that is at least that share's largest."""
    ordered = sorted(values)
    count = len(ordered)
    kept = [p for p in PROBABILITIES if count * (1 - p) >= 1 - 1e-9]
    rows = [[p, ordered[math.ceil(p * count - 1e-9) - 1]] for p in kept]
    return {"samples": count, "quantiles": [*rows, [1.0, ordered[-1]]]}


def _comparable(found: Mapping[str, Array], name: str, expected: Array) -> Array:
    """An output beside the reference's: 16-bit floats that stand for float32 as these."""
    if name not in found:
        raise OptionError(f"the artifact has no output {name!r}, which the reference gives")
    return widened(found[name]) if expected.dtype == np.float32 else found[name]


def _runs_it(model: Path) -> str | None:
    """ "interpreter" where what runs such models is not installed."""
    kind = kind_of(model)
    needed = "torch" if kind is not None and kind.name == PROGRAM else "onnxruntime"
    return None if find_spec(needed) is not None else "interpreter"


def _samples(program: Program, choice: SelfTestChoice, defaults: Mapping[str, Array]) -> Iterator[Mapping[str, Array]]:
    """Inputs of one run each: from the data, or made up without end."""
    if choice.data is not None:
        inputs = [Value(port.type, port.name) for port in program.inputs]
        yield from open_samples(choice.data, inputs, defaults={k: v for k, v in defaults.items() if _has(program, k)})()
        return
    values = extents(program, ())
    number = 0
    while True:
        yield {**random_feed(program, values, choice.seed + number), **defaults}
        number += 1


def _has(program: Program, name: str) -> bool:
    return any(port.name == name for port in program.inputs)


def _runner(artifact: Artifact, model: Path, options: CompileOptions) -> tuple[Run, str, str, Any]:
    """What runs the artifact: (a function, "compiled" or "interpreted", the target, the loaded model or None)."""
    with suppress(TargetError):  # none of its programs runs here
        loaded = artifact.load()
        return loaded.run, "compiled", loaded.target, loaded
    lowered = _general(model, options, artifact.programs[0].target)
    return (lambda feed: interpreted_run(0, lowered.ordered, feed).outputs), "interpreted", lowered.target.name, None


def _general(model: Path, options: CompileOptions, target: str) -> Lowered:
    """The general program for the first target as kernels, without code. Raises OptionError for control flow."""
    from aot import driver

    lowered = next(each for each in driver.lower(model, options) if not each.variant and each.target.name == target)
    if len(lowered.ordered) != 1:
        raise OptionError(
            f"errors of {target} cannot be measured here: the program has control flow, and its code does not run on "
            "this machine",
            hint="Build with --self-test where it runs, or add --target cpu.",
        )
    return lowered
