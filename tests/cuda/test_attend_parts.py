"""Attention in parts of the keys: the kernel under Triton's interpreter, and the pass that asks for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import BF16, BOOL, F16, F32, DType
from aot.evaluate import evaluate, evaluate_op
from aot.ir import Graph
from aot.kernel import AttendRoot, OwnedRoot
from aot.lower import lower
from aot.ops import OPS
from aot.options import CompileOptions
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES, TARGET_PASSES
from aot.transforms.split_keys import split_keys
from aot.verify import verify
from tests.backend.test_loops import kernel_of
from tests.cuda import interpreter
from tests.cuda.test_loops import check
from tests.ops.samples import samples_of

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
CASES = [*range(len(samples_of("attention_parts")))]
TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "f16": 3e-3}


def parts(chunk: int, causal: bool = False) -> Any:
    """A builder function of both results."""
    return lambda b, *given: tuple(b.op("attention_parts", *given, scale=0.25, causal=causal, chunk=chunk))


def draw(*shape: Any, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("number", CASES)
def test_samples(number: int) -> None:
    sample = samples_of("attention_parts")[number]
    given: list[Any] = [*sample.operands]
    check(lambda b, *operands: tuple(b.op("attention_parts", *operands, **sample.attrs)), *given)


@pytest.mark.parametrize("keep", [slice(0, 1), slice(1, 2)])
def test_one_result_alone(keep: slice) -> None:
    made = parts(64)
    check(lambda b, *given: made(b, *given)[keep], draw(1, 4, 1, 16), draw(1, 2, 130, 16), draw(1, 2, 130, 16))


@pytest.mark.parametrize(("keys", "chunk"), [(1, 64), (64, 64), (192, 64), (200, 64), (300, 128), (130, 100)])
@pytest.mark.parametrize("causal", [False, True])
def test_sizes(keys: int, chunk: int, causal: bool) -> None:
    check(parts(chunk, causal), draw(2, 6, 3, 24), draw(2, 2, keys, 24), draw(2, 2, keys, 40))


def test_masks() -> None:
    q, k, v = draw(2, 4, 1, 16), draw(2, 2, 130, 16), draw(2, 2, 130, 16)
    seen = draw(2, 1, 1, 130) > 0
    seen[1, :, :, :64] = False  # a part that has no key
    for mask in (seen, seen[1:], np.zeros((1, 130), bool), draw(4, 1, 130), draw(2, 4, 1, 130), draw(1, 1, 1, 1)):
        check(parts(64), q, k, v, mask)


def test_numbers_that_are_none() -> None:
    q, k, v = draw(1, 2, 1, 16), draw(1, 2, 130, 16), draw(1, 2, 130, 16)
    k[0, 0, 3], v[0, 1, 100, 2], k[0, 1, 5, 0] = np.nan, np.inf, -np.inf
    check(parts(64), q, k, v)


def test_symbolic_keys() -> None:
    keys = Symbol("T", lo=1)
    builder = Builder()
    extents: dict[str, Any] = {"q": 1, "k": keys.dim, "v": keys.dim}
    given = [builder.input(name, F32, (1, 2, extent, 16)) for name, extent in extents.items()]
    kernel = kernel_of(builder.finish(builder.op("attention_parts", *given, scale=0.25, causal=False, chunk=64)))
    for count in (1, 64, 65, 200):
        arrays = [draw(1, 2, 1, 16), draw(1, 2, count, 16), draw(1, 2, count, 16)]
        got = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), arrays, {"T": count})
        wanted = evaluate_op(OPS["attention_parts"], {"scale": 0.25, "causal": False, "chunk": 64}, arrays)
        for mine, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


# The pass


def context(**options: Any) -> Context:
    return Context(options=CompileOptions(**options), target=TARGET, backend=BACKEND)


def decoding(
    keys: Any = 1024, *, queries: int = 1, dtype: DType = F16, mask: DType | None = None, **attrs: Any
) -> Graph:
    b = Builder()
    shapes = {"q": (1, 8, queries, 64), "k": (1, 2, keys, 64), "v": (1, 2, keys, 64)}
    given = [b.input(name, dtype, shape) for name, shape in shapes.items()]
    if mask is not None:
        given.append(b.input("mask", mask, (1, 1, queries, keys)))
    (made,) = b.op("attention", *given, scale=0.125, **attrs)
    rows = b.reshape(b.transpose(made, perm=(0, 2, 1, 3)), shape=(queries, 8 * 64))
    return b.finish([b.matmul(rows, b.const(draw(8 * 64, 8).astype(dtype.numpy), "w"))])


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("mask", [None, BOOL])
@pytest.mark.parametrize("zero_empty", [False, True])
def test_split_attention_is_attention(dtype: DType, mask: DType | None, zero_empty: bool) -> None:
    graph = decoding(dtype=dtype, mask=mask, zero_empty=zero_empty)
    result = split_keys(graph, context())
    verify(result, has_halos=False)
    assert "attention_parts" in [node.op for node in result.nodes]
    arrays = [draw(*value.type.shape).astype(value.type.dtype.numpy) for value in graph.inputs[:3]]
    masks: list[Any] = [[]]
    if mask is not None:
        some = draw(1, 1, 1, 1024) > 0
        some[..., :700] = False
        masks = [[some], [np.zeros_like(some)]]
    for more in masks:
        (got,), (wanted,) = evaluate(result, [*arrays, *more]), evaluate(graph, [*arrays, *more])
        bound = 20 * TOLERANCE[dtype.name]
        np.testing.assert_allclose(got.astype("f8"), wanted.astype("f8"), rtol=bound, atol=bound)


def test_a_split_step_has_one_kernel_more() -> None:
    graph = PassManager((*CORE_PASSES, *TARGET_PASSES), context()).run(decoding())
    assert [node.attrs["kind"] for node in graph.nodes if node.op == "kernel"] == ["attend_parts", "reduce", "contract"]


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (decoding(keys=100), "few keys"),
        (decoding(queries=512), "many queries"),
    ],
)
def test_attention_stays_whole(graph: Graph, why: str) -> None:
    assert split_keys(graph, context()) is graph, why


def test_the_pass_can_be_disabled_and_other_backends_do_not_ask() -> None:
    graph = decoding()
    assert split_keys(graph, context(disable=("split_keys",))) is graph
    assert split_keys(graph, Context()) is graph


def test_every_part_is_a_program() -> None:
    result = PassManager((*CORE_PASSES, *TARGET_PASSES), context()).run(decoding(keys=1024))
    kernels = [lower(node, lambda value: False) for node in result.nodes if node.op == "kernel"]
    owned = [kernel for kernel in kernels if isinstance(kernel.root, OwnedRoot)]
    assert len(owned) == 1 and not any(isinstance(kernel.root, AttendRoot) for kernel in kernels)
    emitted = BACKEND.emit(owned[0], TARGET)
    assert emitted.grid[0] == 2 * 1024 // int(str(owned[0].root.attrs["chunk"]))  # type: ignore[union-attr]
