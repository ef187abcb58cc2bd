"""Tree ensembles for CUDA, under Triton's interpreter: every sample, shapes that give every split of the lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.backend.cuda import trees as emitter
from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import from_numpy
from aot.evaluate import evaluate_op
from aot.kernel import Kernel
from aot.ops import OPS
from aot.ops.opdef import Sample
from aot.ops.trees import _forest
from tests.backend.test_loops import compare, kernel_of
from tests.cuda import interpreter
from tests.ops.samples import samples_of

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
OP = OPS["tree_ensemble"]
ROWS = Symbol("rows", lo=0)


def kernel(sample: Sample, symbolic: bool = False) -> Kernel:
    builder = Builder()
    given = []
    for number, array in enumerate(sample.operands):
        if array is not None:
            shape: tuple[Any, ...] = (ROWS.dim, array.shape[1]) if symbolic and number == 0 else array.shape
            given.append(builder.input(f"x{number}", from_numpy(array.dtype), shape))
    return kernel_of(builder.finish(builder.op("tree_ensemble", *given, **sample.attrs)))


def check(sample: Sample, symbolic: bool = False) -> str:
    made = kernel(sample, symbolic)
    emitted = BACKEND.emit(made, TARGET)
    arrays = [a for a in sample.operands if a is not None]
    got = interpreter.run(made, emitted, arrays, {"rows": len(arrays[0])})
    want = evaluate_op(OP, OP.check_attrs(sample.attrs), sample.operands)
    compare(got[0], want[0], sample.relative, sample.absolute)
    return emitted.schedule


@pytest.mark.parametrize("number", range(len(samples_of("tree_ensemble"))))
def test_samples(number: int) -> None:
    check(samples_of("tree_ensemble")[number], symbolic=number % 4 > 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lanes_are_rows_or_trees(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    for rows, count, targets in ((1, 70, 1), (3, 5, 20), (300, 3, 1), (33, 40, 2)):
        monkeypatch.setattr(emitter, "LANES", 32 if count > 3 else 128)
        nodes, trees, inner, leaves = _forest(random, count, 4, 6, True, dtype)
        x = random.normal(0, 1, (rows, 6)).astype(dtype)
        x[random.random(x.shape) < 0.1] = np.nan
        x[0, :2] = np.inf, -np.inf
        weights = random.normal(0, 1, (leaves, targets)).astype(np.float32)
        attrs: dict[str, Any] = {"targets": targets, "inner": inner, "aggregate": "sum"}
        check(Sample((x, nodes, trees, weights), attrs, 1e-4, 1e-4))


def test_cubins() -> None:
    random = np.random.default_rng(5)
    texts: dict[str, str] = {}
    for dtype in (np.float32, np.float64):
        for rows, targets in ((1, 1), (100000, 1), (1000, 10)):
            nodes, trees, inner, leaves = _forest(random, 100, 6, 20, True, dtype)
            weights = np.zeros((leaves, targets), np.float32)
            sample = Sample((np.zeros((rows, 20), dtype), nodes, trees, weights), {"targets": targets, "inner": inner})
            emitted = BACKEND.emit(kernel(sample), TARGET)
            texts[f"k{len(texts)}"] = emitted.source
            if rows == 100000:
                assert "128 rows x 1 trees" in emitted.schedule
    listed = [sample for sample in samples_of("tree_ensemble") if len(sample.operands) == 6]
    assert listed  # what runs in the interpreter need not compile
    texts.update((f"listed{n}", BACKEND.emit(kernel(sample), TARGET).source) for n, sample in enumerate(listed))
    for symbol, image in BACKEND.build(list(texts.items()), TARGET, None).images.items():
        assert image.spilled_bytes == 0 and image.registers <= 128, (symbol, image)
