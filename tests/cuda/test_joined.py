"""Joined products for CUDA, under Triton's interpreter: gated layers in one kernel, queries, keys and values in one.

Every element has the bits that a product of its own gives in tiles of the same shape.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

import onnx
from onnx import TensorProto, helper, numpy_helper

import aot
from aot import expr
from aot.backend.cuda import CudaBackend
from aot.backend.cuda.contract import Stream, Tile, emit_contract
from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import BF16, F16, F32, F64, I32, I64, DType
from aot.evaluate import evaluate
from aot.ir import Array, Graph, Layout, TensorType, Value
from aot.kernel import ContractRoot, Kernel, KernelOperand
from aot.lower import lower
from aot.program import RecipeOp
from tests.backend.kernels import matmul_kernel
from tests.cuda import interpreter
from tests.cuda.test_precision import ordered, run, vector, weight

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")


# Kernels.


def gated_kernel(batch: tuple[Dim, ...], m: Dim, k: Dim, n: Dim, *, bias: bool = False, **options: Any) -> Kernel:
    """sigmoid(a × b) × (a × c), with biases where asked for."""
    kernel = matmul_kernel(batch, m, k, n, **options)
    root = kernel.root
    assert isinstance(root, ContractRoot) and root.b.op == "load"
    dtype = kernel.outputs[0].type.dtype
    inputs = [*kernel.inputs, kernel.inputs[1]]
    values = [expr.root(0, dtype), expr.root(1, dtype)]
    if bias:
        for number in range(2):
            inputs.append(KernelOperand(TensorType(dtype, (n,)), True))
            values[number] = values[number] + expr.load(2 + number + 1, dtype, [expr.axis(root.n)])
    gate = expr.call("sigmoid", values[0]) if dtype.is_float else values[0]
    store = replace(kernel.stores[0], value=gate * values[1])
    other = expr.load(2, dtype, root.b.args)
    return replace(kernel, inputs=tuple(inputs), root=replace(root, others=(other,)), stores=(store,))


def arrays_of(kernel: Kernel, symbols: dict[str, int], seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    arrays: list[Array] = []
    for operand in kernel.inputs:
        shape = [e if isinstance(e, int) else symbols[str(e)] for e in operand.type.shape]
        made = random.standard_normal(shape) if operand.type.dtype.is_float else random.integers(-9, 9, shape)
        arrays.append(made.astype(operand.type.dtype.numpy))
    return arrays


def check(kernel: Kernel, symbols: dict[str, int] | None = None, transposed: bool = False) -> str:
    """Compares with numpy; the schedule."""
    symbols = symbols or {}
    arrays = arrays_of(kernel, symbols)
    emitted = BACKEND.emit(kernel, TARGET)
    (got,) = interpreter.run(kernel, emitted, arrays, symbols)
    wide = [array.astype(np.float64) if array.dtype.kind not in "iu" else array for array in arrays]
    rights = [np.swapaxes(b, -1, -2) if transposed else b for b in wide[1:3]]
    left, right = (wide[0] @ b for b in rights)
    if len(wide) > 3:
        left, right = left + wide[3], right + wide[4]
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, left * right)
        return emitted.schedule
    wanted = right / (1 + np.exp(-left))
    name = kernel.outputs[0].type.dtype.name
    epsilon = {"f32": 2.0**-23, "f64": 2.0**-52, "f16": 2.0**-11, "bf16": 2.0**-8}[name]
    sizes = [np.abs(wide[0]) @ np.abs(b) for b in rights]
    bound = (np.abs(right) + sizes[1] + sizes[0] * np.abs(right) + 1) * epsilon * (4 + wide[0].shape[-1] ** 0.5)
    assert (np.abs(got.astype(np.float64) - wanted) <= bound).all()
    return emitted.schedule


SHAPES = ((1, 20, 33), (2, 7, 5), (4, 130, 17), (5, 16, 16), (16, 33, 40), (19, 70, 80), (70, 20, 130), (1, 2100, 9))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_gated_layers(shape: tuple[int, int, int], dtype: DType) -> None:
    schedule = check(gated_kernel((), *shape, dtype=dtype))
    assert ("stream" in schedule) == (shape[0] <= 4)
    check(gated_kernel((), *shape, dtype=dtype, bias=True))


@pytest.mark.parametrize("shape", [(1, 20, 33), (17, 35, 20)])
def test_other_forms(shape: tuple[int, int, int]) -> None:
    for dtype in (F64, I32, I64):
        check(gated_kernel((), *shape, dtype=dtype))
    check(gated_kernel((), *shape, transposed=True), transposed=True)
    check(gated_kernel((), *shape, constant=False))
    check(gated_kernel((3,), *shape))
    check(gated_kernel((), *shape, out_layout=Layout(order=(1, 0))))
    check(gated_kernel((), *shape, a_layout=Layout(strides=(64, 1))))


def test_dynamic_rows() -> None:
    kernel = gated_kernel((), Symbol("s", lo=0).dim, 24, 40)
    for count in (0, 1, 3, 50):
        check(kernel, {"s": count})


def test_numbers_that_are_none() -> None:
    kernel = gated_kernel((), 18, 20, 24, dtype=F16)
    arrays = arrays_of(kernel, {})
    arrays[0][3, 4], arrays[1][2, 5], arrays[2][7, 6] = np.nan, np.inf, -np.inf
    (got,) = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), arrays)
    with np.errstate(all="ignore"):
        left, right = (arrays[0].astype(np.float32) @ b.astype(np.float32) for b in arrays[1:3])
        wanted = right / (1 + np.exp(-left))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))


def test_each_matrix_is_packed_for_itself() -> None:
    emitted = BACKEND.emit(gated_kernel((), 1, 20, 33), TARGET)
    assert {number: packed.shape for number, packed in emitted.packed.items()} == {1: (33, 20), 2: (33, 20)}
    squared = gated_kernel((), 1, 20, 20)
    root = squared.root
    assert isinstance(root, ContractRoot)
    turned = expr.load(1, F32, root.b.args[::-1])  # one weight, as it is and transposed: it has one form in memory
    both = replace(squared, inputs=squared.inputs[:2], root=replace(root, others=(turned,)))
    emitted = BACKEND.emit(both, TARGET)
    assert not emitted.packed
    x, w = arrays_of(both, {})
    (got,) = interpreter.run(both, emitted, [x, w])
    np.testing.assert_allclose(got, x @ w.T / (1 + np.exp(-(x @ w))), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schedule", [Tile(32, 32, 32, 4, 3), Stream(4, 64, 2)])
def test_joined_columns_have_the_bits_of_products_apart(schedule: Tile | Stream) -> None:
    rows = 40 if isinstance(schedule, Tile) else 2
    widths = (64, 32, 96)
    random = np.random.default_rng(3)
    x = random.standard_normal((rows, 100)).astype(np.float16)
    weights = [random.standard_normal((100, width)).astype(np.float16) for width in widths]
    apart = []
    for w in weights:
        kernel = matmul_kernel((), rows, 100, w.shape[1], dtype=F16)
        apart.extend(interpreter.run(kernel, emit_contract(kernel, TARGET, schedule), [x, w]))
    kernel = matmul_kernel((), rows, 100, sum(widths), dtype=F16)
    (whole,) = interpreter.run(kernel, emit_contract(kernel, TARGET, schedule), [x, np.concatenate(weights, 1)])
    np.testing.assert_array_equal(whole, np.concatenate(apart, 1))


@pytest.mark.parametrize("schedule", [Tile(32, 64, 32, 4, 3), Tile(16, 32, 64, 4, 3, sums=4), Stream(4, 64, 2)])
def test_gated_layers_have_the_bits_of_products_apart(schedule: Tile | Stream) -> None:
    rows = 40 if isinstance(schedule, Tile) else 2
    kernel = gated_kernel((), rows, 100, 64, dtype=F32)
    plain = replace(kernel, stores=(replace(kernel.stores[0], value=expr.root(1, F32)),))
    x, b, c = arrays_of(kernel, {})
    alone = matmul_kernel((), rows, 100, 64)
    half = replace(schedule, columns=schedule.columns // 2)
    (wanted,) = interpreter.run(alone, emit_contract(alone, TARGET, half), [x, c])
    (got,) = interpreter.run(plain, emit_contract(plain, TARGET, schedule), [x, b, c])
    np.testing.assert_array_equal(got, wanted)


def test_cubins() -> None:
    """Of the sizes of real layers: nothing spills, and shared memory is that of a product as wide as both."""
    sources = [
        (f"k{rows}", BACKEND.emit(gated_kernel((), rows, 2048, 8192, dtype=F16, bias=rows == 1), TARGET).source)
        for rows in (1, 4, 16, 256, 4096)
    ]
    for symbol, image in BACKEND.build(sources, TARGET, None).images.items():
        assert image.spilled_bytes == 0 and image.shared_bytes <= 227 << 10, (symbol, image)


# Graphs.


def block(
    tokens: int, heads: int = 4, key_heads: int = 4, size: int = 16, bias: bool = False, cached: int = 0
) -> Graph:
    """A layer: norm, attention (to a cache, where there is one), residual, norm, gated layer, residual."""
    b, width = Builder("block"), heads * size
    x = b.input("x", F32, (1, tokens, width))

    def linear(value: Value, name: str, columns: int) -> Any:
        depth = value.type.shape[-1]
        assert isinstance(depth, int)
        made = b.matmul(value, weight(b, name, depth, columns))
        return b.add(made, vector(b, f"{name}.bias", columns)) if bias else made

    def split(value: Value, count: int) -> Any:
        return b.transpose(b.reshape(value, shape=(1, tokens, count, size)), perm=(0, 2, 1, 3))

    h = b.layer_norm(x, vector(b, "scale", width), vector(b, "shift", width), axis=2, epsilon=1e-5)
    q = split(linear(h, "query", width), heads)
    k, v = (split(linear(h, name, key_heads * size), key_heads) for name in ("keys", "values"))
    state = []
    if cached:
        place = b.expand(b.input("place", I64, (1, 1, tokens, 1)), shape=(1, key_heads, tokens, size))
        caches = [b.input(name, F32, (1, key_heads, cached, size)) for name in ("kept.k", "kept.v")]
        k, v = (b.scatter_elements(cache, place, new, axis=2) for cache, new in zip(caches, (k, v), strict=True))
        state = list(zip(caches, (k, v), strict=True))
    mixed = b.reshape(
        b.transpose(b.attention(q, k, v, scale=size**-0.5, causal=not cached), perm=(0, 2, 1, 3)),
        shape=(1, tokens, width),
    )  # fmt: skip
    x = b.add(x, linear(mixed, "out", width))
    h = b.layer_norm(x, vector(b, "scale2", width), vector(b, "shift2", width), axis=2, epsilon=1e-5)
    gated = b.mul(b.silu(linear(h, "gate", 2 * width)), linear(h, "up", 2 * width))
    return b.finish((b.add(x, linear(gated, "down", width)), *(new for _, new in state)), state)


def given(graph: Graph) -> list[Array]:
    random = np.random.default_rng(5)
    found: list[Array] = []
    for value in graph.inputs:
        shape = [extent for extent in value.type.shape if isinstance(extent, int)]
        found.append(
            random.standard_normal(shape).astype(np.float32)
            if value.type.dtype.is_float
            else np.arange(np.prod(shape), dtype=np.int64).reshape(shape) + 3
        )
    return found


def launches(graph: Graph) -> list[str]:
    return [str(node.attrs["kind"]) for node in graph.nodes if node.op == "kernel"]


def agree(graph: Graph, precision: str, bound: float) -> Graph:
    """Runs the kernels of a graph under the interpreter and compares with the reference; the planned graph."""
    planned, context = ordered(graph, precision)
    arrays = given(graph)
    found, _ = run(planned, context, arrays)
    for got, wanted in zip(found, evaluate(graph, arrays), strict=True):
        assert np.abs(got - wanted).max() <= bound * max(np.abs(wanted).max(), 1)
    return planned


BOUNDS = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 4e-2}


@pytest.mark.parametrize(
    ("precision", "tokens", "bias"),
    [("fp32", 1, False), ("fp32", 18, True), ("fp16", 1, True), ("fp16", 18, False), ("bf16", 3, True)],
)
def test_a_layer(precision: str, tokens: int, bias: bool) -> None:
    heads = 4 if tokens == 18 else 2  # of few tokens, each column of a product is a program
    planned = agree(block(tokens, heads, heads // 2, bias=bias), precision, BOUNDS[precision])
    assert launches(planned) == ["row", "contract", "attend", "contract", "row", "contract", "contract"]
    attend = next(node for node in planned.nodes if node.op == "kernel" and node.attrs["kind"] == "attend")
    if tokens > 1:  # all three are read where the product wrote them
        assert [value.type.strides[2] for value in attend.operands] == [2 * heads * 16] * 3


@pytest.mark.parametrize(("precision", "tokens"), [("fp32", 4), ("fp16", 1), ("bf16", 1)])
def test_a_step_with_a_cache(precision: str, tokens: int) -> None:
    """The scatters read keys and values out of the joined result."""
    planned = agree(block(tokens, 2, 1, cached=40), precision, BOUNDS[precision])
    assert launches(planned).count("contract") == 4 and launches(planned).count("scatter") == 2
    assert len(launches(planned)) == 9


@pytest.mark.parametrize("tokens", [1, 18])
@pytest.mark.parametrize("key_heads", [1, 4])
def test_parts_are_read_in_runs_of_bytes(tokens: int, key_heads: int) -> None:
    """Also where a sample, a head or a query is the only one: a stride of 1 would say that any address may come."""
    planned, context = ordered(block(tokens, key_heads=key_heads), "fp16")
    (node,) = (n for n in planned.nodes if n.op == "kernel" and str(n.attrs["kind"]).startswith("attend"))
    source = BACKEND.emit(lower(node, lambda value: value in planned.consts), context.target).source
    loads = re.findall(r"tl\.load\((p[012] \+ [^\n]*)", source)
    assert len(loads) == 3
    for load in loads:
        for index in ("sample", "head", "group", "query"):
            for term in re.findall(rf"\b{index}\b( \* (\d+))?", load):
                assert term[1] and int(term[1]) % 8 == 0, load


# Artifacts.


def model(tokens: int = 6, width: int = 32) -> onnx.ModelProto:
    """Attention and a gated layer, as an exporter writes them."""
    random = np.random.default_rng(1)
    nodes, initializers = [], []

    def linear(source: str, name: str, inside: int, columns: int, bias: bool = True) -> str:
        for suffix, shape in ((".weight", (inside, columns)), (".bias", (columns,))):
            array = (random.standard_normal(shape) / inside**0.5).astype(np.float32)
            initializers.append(numpy_helper.from_array(array, name + suffix))
        nodes.append(helper.make_node("MatMul", [source, f"{name}.weight"], [f"{name}.product"]))
        nodes.append(helper.make_node("Add", [f"{name}.product", f"{name}.bias"], [name]))
        return name

    def op(kind: str, out: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    initializers.append(numpy_helper.from_array(np.asarray([0, 0, 4, -1]), "split"))
    initializers.append(numpy_helper.from_array(np.asarray([0, 0, -1]), "merge"))
    q, k, v = (
        op("Transpose", f"{name}.t", op("Reshape", f"{name}.r", linear("x", name, width, width), "split"), perm=perm)
        for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3)))
    )
    weights = op("Softmax", "weights", op("MatMul", "scores", q, k), axis=-1)
    mixed = op("Transpose", "mixed.t", op("MatMul", "mixed", weights, v), perm=(0, 2, 1, 3))
    mixed = op("Reshape", "mixed.r", mixed, "merge")
    gate, up = linear(mixed, "gate", width, 48), linear(mixed, "up", width, 48)
    hidden = op("Mul", "hidden", op("Mul", "silu", gate, op("Sigmoid", "s", gate)), up)
    linear(hidden, "y", 48, width)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, tokens, width)) for name in "xy"]
    graph = helper.make_graph(nodes, "layer", ports[:1], ports[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache: how weights are held does not change the kernels."""
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("weights", ["embedded", "external", "none"])
def test_no_weight_is_held_twice(weights: str, precision: str, kernels: Path) -> None:
    given = model()
    names = {initializer.name for initializer in given.graph.initializer} - {"split", "merge"}
    artifact = aot.compile(given, target="cuda:sm_90a", weights=weights, precision=precision, cache_dir=kernels)
    (program,) = artifact.programs
    assert sorted(step.op for constant in program.constants for step in constant.recipe).count(RecipeOp.CONCAT) == 2
    assert {source.name for source in program.sources} == names
    read = [step.operands for constant in program.constants for step in constant.recipe if step.op == RecipeOp.SOURCE]
    assert len(read) == len(set(read)) == len(names)
    elements = sum(int(np.prod(initializer.dims)) for initializer in given.graph.initializer) - 7
    held = sum(int(np.prod(constant.shape)) for constant in program.constants)
    assert held == elements
    assert len([kernel for kernel, _ in program.launches if kernel.kind == "contract"]) <= 5
    if weights == "embedded":
        found = artifact.constants()
        matrices = [constant for constant in program.constants if len(constant.shape) == 2]
        joined = next(c for c in matrices if RecipeOp.CONCAT in [step.op for step in c.recipe])
        tensors = {i.name: numpy_helper.to_array(i) for i in given.graph.initializer}
        wanted = np.concatenate([tensors[f"{name}.weight"] for name in "qkv"], 1)
        if found[joined.name].shape != wanted.shape:
            wanted = wanted.T
        np.testing.assert_array_equal(found[joined.name], wanted.astype(found[joined.name].dtype))


def test_the_cpu_in_the_same_file_is_as_without(kernels: Path) -> None:
    both = aot.compile(model(), target=("cuda:sm_90a", "cpu:x86-64-v3"), weights="none", cache_dir=kernels)
    alone = aot.compile(model(), target="cpu:x86-64-v3", weights="none", cache_dir=kernels)
    gpu, cpu = both.programs
    assert cpu.constants == alone.programs[0].constants and cpu.steps == alone.programs[0].steps
    assert {source.name for source in gpu.sources} == {source.name for source in cpu.sources}
