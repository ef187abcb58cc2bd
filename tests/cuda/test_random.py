"""Random numbers for CUDA, under Triton's interpreter: the same bits as the reference where it promises them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.dtypes import F16, F32, F64
from aot.evaluate import evaluate_op
from aot.ops import OPS
from tests.backend.test_loops import compare, kernel_of
from tests.cuda import interpreter
from tests.ops.samples import samples_of

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")


@pytest.mark.parametrize("op", ["random_uniform", "random_normal"])
def test_samples(op: str) -> None:
    for sample in samples_of(op):
        builder = Builder()
        kernel = kernel_of(builder.finish(builder.op(op, **sample.attrs)))
        (got,) = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), [])
        want = evaluate_op(OPS[op], OPS[op].check_attrs(sample.attrs), [])[0]
        compare(got, want, sample.relative, sample.absolute)


@pytest.mark.parametrize("dtype", [F32, F64, F16])
@pytest.mark.parametrize("seed", [0, 12345678901234567, (1 << 63) - 1])
def test_uniform_numbers_are_those_of_every_backend(dtype: Any, seed: int) -> None:
    builder = Builder()
    attrs: dict[str, Any] = {"shape": (3, 700), "dtype": dtype, "seed": seed}
    kernel = kernel_of(builder.finish(builder.op("random_uniform", **attrs)))
    (got,) = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), [])
    want = evaluate_op(OPS["random_uniform"], OPS["random_uniform"].check_attrs(attrs), [])[0]
    assert np.array_equal(got, want) and 0 <= got.min() and got.max() <= 1


def test_they_join_what_follows() -> None:
    builder = Builder()
    x = builder.input("x", F32, (4, 50))
    (noise,) = builder.op("random_normal", shape=(4, 50), dtype=F32, seed=3)
    kernel = kernel_of(builder.finish((builder.add(x, noise),)))
    given = np.ones((4, 50), np.float32)
    (got,) = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), [given])
    attrs = OPS["random_normal"].check_attrs({"shape": (4, 50), "dtype": F32, "seed": 3})
    compare(got, given + evaluate_op(OPS["random_normal"], attrs, [])[0], 1e-4, 1e-5)


def test_cubins() -> None:
    texts: dict[str, str] = {}
    for op in ("random_uniform", "random_normal"):
        for dtype in (F32, F64, F16):
            builder = Builder()
            made = builder.op(op, shape=(100, 1000), dtype=dtype, seed=1)
            texts[f"k{len(texts)}"] = BACKEND.emit(kernel_of(builder.finish(made)), TARGET).source
    for symbol, image in BACKEND.build(list(texts.items()), TARGET, None).images.items():
        # The cosine of a double has a path for huge angles with an array of its own.
        assert image.spilled_bytes <= 40 and image.registers <= 128, (symbol, image)
