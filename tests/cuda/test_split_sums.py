"""Products of few rows in parts of their sums: which are split, what comes out, and that no kernel is added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import BF16, F16, F32, F64, DType
from aot.evaluate import evaluate
from aot.ir import Array, Graph, Value
from aot.kernel import ContractRoot
from aot.lower import lower
from aot.options import CompileOptions
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES, TARGET_PASSES
from aot.program import RecipeOp
from aot.transforms.split_sums import split_sums
from aot.verify import verify
from tests.cuda import interpreter
from tests.cuda.test_precision import ordered, run

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}


def context(**options: Any) -> Context:
    return Context(options=CompileOptions(**options), target=TARGET, backend=BACKEND)


def draw(*shape: int, dtype: DType = F32) -> Array:
    made: Array = (np.random.default_rng(list(shape)).standard_normal(shape) / shape[-1] ** 0.25).astype(dtype.numpy)
    return made


def step(
    rows: Any = 16, summed: int = 4096, columns: int = 96, dtype: DType = F16,
    then: Callable[[Builder, Value, Value], Any] | None = None,
) -> Graph:  # fmt: skip
    """A product with a weight, a residual behind it, and what follows: a norm, unless asked for something else."""
    b = Builder()
    x, residual = b.input("x", dtype, (rows, summed)), b.input("residual", dtype, (rows, columns))
    made = b.matmul(x, b.const(draw(summed, columns, dtype=dtype), "weight"))
    if then is not None:
        made = then(b, made, residual)
        return b.finish(made if isinstance(made, tuple) else (made,))
    total = b.add(residual, made)
    scale = b.const(draw(columns, dtype=dtype), "scale")
    return b.finish((b.op("rms_norm", total, scale, axis=1, epsilon=1e-6)[0], total))


def given(graph: Graph, rows: int = 16) -> list[Array]:
    shapes = [[e if isinstance(e, int) else rows for e in value.type.shape] for value in graph.inputs]
    return [draw(*shape, dtype=value.type.dtype) for shape, value in zip(shapes, graph.inputs, strict=True)]


def kernels(graph: Graph, **options: Any) -> tuple[Graph, list[Any]]:
    """The graph behind all passes, and its kernels."""
    done = PassManager((*CORE_PASSES, *TARGET_PASSES), context(**options)).run(graph)
    return done, [lower(n, lambda value: value in done.consts) for n in done.nodes if n.op == "kernel"]


def agree(got: Any, wanted: Any, dtype: DType) -> None:
    bound = TOLERANCE[dtype.name]
    for one, other in zip(got, wanted, strict=True):
        wide = other.astype("f8")
        np.testing.assert_allclose(one.astype("f8"), wide, rtol=bound, atol=bound * np.abs(wide).max(initial=1))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("rows", [5, 16, 64])
@pytest.mark.parametrize("summed", [1024, 3072, 8192])
def test_the_sum_of_the_parts_is_the_product(dtype: DType, rows: int, summed: int) -> None:
    graph = step(rows, summed, dtype=dtype)
    result = split_sums(graph, context())
    verify(result, has_halos=False)
    (product,) = (node for node in result.nodes if node.op == "matmul")
    assert product.output.type.shape[0] == {1024: 4, 3072: 4, 8192: 8}[summed]
    assert product.output.type.dtype is F32
    agree(evaluate(result, given(graph, rows)), evaluate(graph, given(graph, rows)), dtype)


def test_rows_that_are_only_bounded() -> None:
    rows = Symbol("s", lo=5, hi=64).dim
    graph = step(rows)
    result = split_sums(graph, context())
    assert result is not graph
    for count in (5, 33):
        symbols = {"s": count}
        agree(evaluate(result, given(graph, count), symbols), evaluate(graph, given(graph, count), symbols), F16)


def split_weight(b: Builder) -> Any:
    """A product of two activations."""
    x, w = b.input("x", F16, (16, 4096)), b.input("w", F16, (4096, 96))
    return b.add(b.matmul(x, w), b.scalar(1.0, F16))


def gate(b: Builder) -> Any:
    """Two products of one left operand."""
    x = b.input("x", F16, (16, 4096))
    one, other = (b.matmul(x, b.const(draw(4096, 96, dtype=F16), name)) for name in ("one", "other"))
    return b.mul(b.sigmoid(one), other)


def built(make: Callable[[Builder], Any]) -> Graph:
    b = Builder()
    return b.finish((make(b),))


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (step(rows=4), "few enough rows for a stream"),
        (step(rows=257), "more rows than need it"),
        (step(rows=Symbol("s", lo=5).dim), "rows without an end"),
        (step(rows=Symbol("s", hi=64).dim), "perhaps a single row"),
        (step(columns=64 * 132), "tiles enough"),
        (step(summed=1000), "no two parts of 256 elements"),
        (step(dtype=F64), "no tensor cores"),
        (step(then=lambda b, made, residual: made), "a result of the model"),
        (step(then=lambda b, made, residual: b.softmax(made, axis=1)), "a reader that makes rows of its own"),
        (step(then=lambda b, made, residual: b.reshape(made, shape=(16, 2, 48))), "moved"),
        (built(split_weight), "no weight"),
        (built(gate), "a gate, which is one kernel"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_products_that_stay_whole(graph: Graph, why: str) -> None:
    assert split_sums(graph, context()) is graph, why


def test_it_can_be_disabled_and_other_backends_do_not_ask() -> None:
    graph = step()
    assert split_sums(graph, context(disable=("split_sums",))) is graph
    assert split_sums(graph, Context()) is graph


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_the_norm_adds_up_the_parts(dtype: DType, precision: str) -> None:
    graph = step(dtype=dtype)
    done, (product, norm) = kernels(graph, precision=precision)
    assert isinstance(product.root, ContractRoot) and norm.root is None
    assert [str(operand.type.dtype) for operand in product.outputs] == ["f32"]
    operands = {str(operand.type.dtype) for operand in product.inputs}
    if dtype is not F32:
        assert operands == {dtype.name}
    elif precision != "fp32":
        assert {"fp16": "f16", "bf16": "bf16"}[precision] in operands
    values: dict[Value, Array] = dict(zip(graph.inputs, given(graph), strict=True))
    narrowest = BF16 if BF16 in (dtype, {"bf16": BF16}.get(precision)) else F16
    agree(evaluate(done, [*values.values()]), evaluate(graph, [*values.values()]), narrowest)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize(("rows", "summed", "columns"), [(5, 1024, 33), (16, 2048, 96), (64, 3072, 17)])
def test_the_kernel_of_parts(dtype: DType, rows: int, summed: int, columns: int) -> None:
    _, (product, _) = kernels(step(rows, summed, columns, dtype=dtype))
    emitted = BACKEND.emit(product, TARGET)
    parts = product.outputs[0].type.shape[0]
    ((number, packed),) = emitted.packed.items()
    assert packed.shape == (parts, columns, summed // parts)
    assert [entry.op for entry in packed.recipe] == [RecipeOp.PACK]
    x, weight = draw(rows, summed, dtype=dtype), draw(summed, columns, dtype=dtype)
    cut = x.reshape(rows, parts, -1).transpose(1, 0, 2), weight.reshape(parts, -1, columns)
    (got,) = interpreter.run(product, emitted, [cut[1], cut[0]] if number == 0 else [*cut])
    wanted = np.matmul(*(each.astype("f8") for each in cut))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize(("dtype", "precision"), [(F32, "fp32"), (F32, "fp16"), (F16, "fp32"), (BF16, "fp32")])
@pytest.mark.parametrize(("rows", "summed", "columns"), [(5, 1024, 33), (17, 2048, 70)])
def test_a_step_through_its_kernels(dtype: DType, precision: str, rows: int, summed: int, columns: int) -> None:
    graph = step(rows, summed, columns, dtype=dtype)
    done, given_context = ordered(graph, precision)
    got, sources = run(done, given_context, given(graph, rows))
    assert len(sources) == 2
    agree(got, evaluate(graph, given(graph, rows)), F16 if precision == "fp16" else dtype)


def test_cubins() -> None:
    _, (product, norm) = kernels(step(16, 8192, 2048))
    sources = [(f"k{n}", BACKEND.emit(kernel, TARGET).source) for n, kernel in enumerate((product, norm))]
    for symbol, image in BACKEND.build(sources, TARGET, None, jobs=1).images.items():
        assert image.spilled_bytes == 0, (symbol, image)
