"""Elementwise recurrences for CUDA, under Triton's interpreter: every sample, axes, layouts, many steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import F32, F64
from aot.ops.steps import results_of
from tests.backend.test_loops import NHWC, kernel_of
from tests.cuda.test_loops import check
from tests.ops.samples import samples_of

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
FOLD = "h0 x0 max : ; h1 h0 $0 sub exp mul x1 add"
LINEAR = "x0 h0 mul x1 add"


def steps(**attrs: Any) -> Any:
    return lambda b, *values: b.op("recur_map", *values, **attrs)


@pytest.mark.parametrize("number", range(len(samples_of("recur_map"))))
def test_samples(number: int) -> None:
    sample = samples_of("recur_map")[number]
    arrays = [a for a in sample.operands if a is not None]
    check(steps(**sample.attrs), *arrays, relative=1e-4, absolute=1e-5)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 37])
def test_steps_that_are_read_ahead(count: int) -> None:
    random = np.random.default_rng(count)
    for axis in (0, 1, 2):
        shape = [3, 45]
        shape.insert(axis, count)
        given = random.normal(0, 0.6, shape).astype(np.float32)
        state = random.normal(0, 1, (3, 45)).astype(np.float32)
        attrs: dict[str, Any] = {"steps": count, "axis": axis}
        check(steps(states=1, step=LINEAR, **attrs), state, given, given, relative=1e-4, absolute=1e-4)
        check(steps(states=2, step=FOLD, **attrs), state, state, given, given, relative=1e-4, absolute=1e-4)
        many = "x0 h0 mul x1 add x2 x3 mul x4 mul add"
        check(steps(states=1, step=many, **attrs), state, *[given] * 5, relative=1e-4, absolute=1e-4)


def test_layouts_and_symbols() -> None:
    random = np.random.default_rng(0)
    n = Symbol("n", lo=0).dim
    state, given = (random.normal(0, 0.6, s).astype(np.float32) for s in ((2, 5, 7), (2, 5, 4, 7)))
    build = steps(states=1, step=LINEAR, steps=4, axis=2)
    check(build, state, given, given, layouts={1: NHWC}, out={0: NHWC}, absolute=1e-5)
    for count in (0, 1, 33):
        shape = (count, 5)
        arrays = [random.normal(0, 0.6, s).astype(np.float32) for s in (shape, (3, *shape), (3, *shape))]
        check(
            steps(states=1, step=LINEAR, steps=3), *arrays, shapes=[(n, 5), (3, n, 5), (3, n, 5)], symbols={"n": count},
            absolute=1e-5,
        )  # fmt: skip


def test_cubins() -> None:
    emitted: dict[str, str] = {}
    for dtype in (F32, F64):
        for text, states, given in ((LINEAR, 1, 2), (FOLD, 2, 2)):
            for shape in ((1536, 16), (64,)):
                builder = Builder()
                values = [builder.input(f"h{n}", dtype, shape) for n in range(states)]
                values += [builder.input(f"x{n}", dtype, (100, *shape)) for n in range(given)]
                made = builder.op("recur_map", *values, states=states, steps=100, step=text)
                assert len(made) == results_of(text) + states
                emitted[f"k{len(emitted)}"] = BACKEND.emit(kernel_of(builder.finish(made)), TARGET).source
    for symbol, image in BACKEND.build(list(emitted.items()), TARGET, None).images.items():
        assert image.spilled_bytes == 0 and image.registers <= 128, (symbol, image)
