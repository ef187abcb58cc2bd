"""--precision on CUDA: whole programs, kernel by kernel under Triton's interpreter, against the float32 reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.assemble import assemble
from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.driver import resolve_targets
from aot.dtypes import BF16, F8E4M3, F16, F32, I8, I64, U8, DType
from aot.evaluate import evaluate, evaluate_node
from aot.ir import Array, Graph, Value
from aot.lower import lower
from aot.options import CompileOptions
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES, TARGET_PASSES
from aot.program import RecipeOp
from tests.cuda import interpreter

BACKEND = CudaBackend()
HALVES = ("fp16", "bf16")
EPSILON = {"fp32": 2.0**-23, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}  # of one rounding


def ordered(graph: Graph, precision: str, io_dtype: str = "model") -> tuple[Graph, Context]:
    """The graph after all passes, and what they had to say."""
    options = CompileOptions(targets=("cuda:sm_90a",), precision=precision, io_dtype=io_dtype)
    backend, target = resolve_targets(options)[0]
    context = Context(options=options, target=target, backend=backend)
    return PassManager((*CORE_PASSES, *TARGET_PASSES), context).run(graph), context


def run(graph: Graph, context: Context, arrays: Sequence[Array]) -> tuple[list[Array], list[str]]:
    """The outputs of an ordered graph, each kernel's text run by the interpreter; and the texts."""
    values = dict(zip(graph.inputs, arrays, strict=True)) | {v: const.array() for v, const in graph.consts.items()}
    sources = []
    for node in graph.nodes:
        operands = [values[value] for value in node.operands]
        if node.op == "kernel":
            kernel = lower(node, lambda value: value in graph.consts)
            emitted = BACKEND.emit(kernel, context.target)
            sources.append(emitted.source)
            results = interpreter.run(kernel, emitted, operands)
        else:
            results = evaluate_node(node, operands)
        values.update(zip(node.outputs, results, strict=True))
    return [np.asarray(values[value]) for value in graph.outputs], sources


def check(graph: Graph, arrays: Sequence[Array], precision: str, roundings: float = 8) -> list[str]:
    """Compares with the reference of the given graph: the error is a few roundings of the largest output."""
    narrowed, context = ordered(graph, precision)
    found, sources = run(narrowed, context, arrays)
    for got, wanted, same in zip(found, evaluate(graph, list(arrays)), evaluate(narrowed, list(arrays)), strict=True):
        largest = np.abs(wanted).max()
        assert got.dtype == wanted.dtype
        assert np.abs(got - wanted).max() <= roundings * EPSILON[precision] * largest
        # The graph says all roundings: its own reference is nearer, but for a rounding that fell the other way.
        assert np.abs(got - same).max() <= max(2 * EPSILON[precision], 1e-5) * largest
    return sources


def weight(b: Builder, name: str, *shape: int) -> Value:
    random = np.random.default_rng([len(name), *shape])
    fan_in = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
    return b.const((random.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32), name)


def vector(b: Builder, name: str, size: int) -> Value:
    return b.const(np.random.default_rng(len(name)).uniform(0.5, 1.5, size).astype(np.float32), name)


def normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def transformer(tokens: int = 9, width: int = 32, heads: int = 2) -> Graph:
    """Lookup, norm, attention with rotary positions, residual, GELU."""
    b, size = Builder("transformer"), width // heads
    ids, positions = b.input("ids", I64, (1, tokens)), b.input("positions", I64, (1, tokens))
    x = b.gather(weight(b, "table", 50, width), ids, axis=0)
    rates = b.const((10000.0 ** -(np.arange(size // 2) / (size // 2))).astype(np.float32).reshape(1, 1, -1), "rates")
    angles = b.matmul(b.reshape(b.cast(positions, to=F32), shape=(1, tokens, 1)), rates)
    angles = b.reshape(b.concat(angles, angles, axis=2), shape=(1, 1, tokens, size))
    cos, sin = b.cos(angles), b.sin(angles)
    h = b.layer_norm(x, vector(b, "scale", width), vector(b, "shift", width), axis=2, epsilon=1e-5)

    def split(name: str) -> Any:
        made = b.reshape(b.matmul(h, weight(b, name, width, width)), shape=(1, tokens, heads, size))
        return b.transpose(made, perm=(0, 2, 1, 3))

    def turned(v: Value) -> Any:
        shape = (1, heads, tokens, size // 2)
        low = b.slice(v, starts=(0, 0, 0, 0), sizes=shape, steps=(1, 1, 1, 1))
        high = b.slice(v, starts=(0, 0, 0, size // 2), sizes=shape, steps=(1, 1, 1, 1))
        return b.add(b.mul(v, cos), b.mul(b.concat(b.neg(high), low, axis=3), sin))

    mixed = b.attention(turned(split("q")), turned(split("key")), split("value"), scale=size**-0.5, causal=True)
    mixed = b.reshape(b.transpose(mixed, perm=(0, 2, 1, 3)), shape=(1, tokens, width))
    x = b.add(x, b.matmul(mixed, weight(b, "out", width, width)))
    h = b.layer_norm(x, vector(b, "scale2", width), vector(b, "shift2", width), axis=2, epsilon=1e-5)
    h = b.gelu(b.add(b.matmul(h, weight(b, "up", width, 4 * width)), vector(b, "bias", 4 * width)))
    return b.finish((b.add(x, b.matmul(h, weight(b, "down", 4 * width, width))), cos))


def tokens_of(graph: Graph, first: int = 0) -> list[Array]:
    count = graph.inputs[0].type.shape[1]
    assert isinstance(count, int)
    return [np.random.default_rng(1).integers(0, 50, (1, count)), np.arange(first, first + count).reshape(1, count)]


@pytest.mark.parametrize("precision", ["fp32", "tf32", *HALVES])
def test_transformer_block(precision: str) -> None:
    graph = transformer()
    sources = check(graph, tokens_of(graph), precision, 200 if precision == "fp32" else 8)
    products = [line for source in sources for line in source.splitlines() if "tl.dot(" in line]
    assert len(products) == 7  # queries, keys and values are one
    if precision in HALVES:
        halves = [line for line in products if f"({'tl.float16' if precision == 'fp16' else 'tl.bfloat16'})" in line]
        assert len([line for line in products if '"ieee"' in line]) == 1  # positions times rates
        assert len(halves) == 1  # weights of attention; all else is read in 16 bits
    else:
        wanted = {"fp32": '"ieee"', "tf32": '"tf32"'}[precision]
        assert all(f"input_precision={wanted}" in line for line in products)


@pytest.mark.parametrize("precision", HALVES)
def test_rotary_positions_are_exact_far_from_the_start(precision: str) -> None:
    graph = transformer()
    arrays = tokens_of(graph, 5000)  # 5001 is no f16, and 5000 no bf16
    check(graph, arrays, precision)
    narrowed, context = ordered(graph, precision)
    cosines = run(narrowed, context, arrays)[0][1]
    np.testing.assert_allclose(cosines, evaluate(graph, arrays)[1], atol=1e-6)


@pytest.mark.parametrize("precision", ["tf32", *HALVES])
@pytest.mark.parametrize("rows", [1, 4, 17])
def test_products_of_inputs_and_weights(precision: str, rows: int) -> None:
    b = Builder()
    width = 260 if rows > 4 else 70  # of few rows, each column is a program
    x = b.input("x", F32, (rows, 48))
    h = b.relu(b.add(b.matmul(x, weight(b, "one", 48, width)), vector(b, "bias", width)))
    sources = check(b.finish((b.matmul(h, weight(b, "two", width, 20)),)), [normal(rows, 48)], precision)
    assert len(sources) == 2


@pytest.mark.parametrize("precision", HALVES)
def test_products_of_activations(precision: str) -> None:
    b = Builder()
    x, y = b.input("x", F32, (2, 18, 20)), b.input("y", F32, (2, 20, 18))
    h = b.matmul(x, y)
    check(b.finish((b.matmul(b.tanh(h), h),)), [normal(2, 18, 20), normal(2, 20, 18)], precision)


@pytest.mark.parametrize("precision", ["tf32", *HALVES])
def test_attention_to_a_cache_of_f32(precision: str) -> None:
    """The cache is an input, and keeps its type: it is rounded in the kernel."""
    b = Builder()
    x = b.input("x", F32, (1, 2, 5, 32))
    k, v = (b.input(name, F32, (1, 2, 21, 16)) for name in "kv")
    q = b.matmul(x, weight(b, "q", 32, 16))
    graph = b.finish((b.attention(q, k, v, scale=0.25),))
    check(graph, [normal(1, 2, 5, 32), normal(1, 2, 21, 16), normal(1, 2, 21, 16)], precision)


@pytest.mark.parametrize("precision", HALVES)
def test_convolution_block(precision: str) -> None:
    def conv(x: Value, name: str, *shape: int, pad: int, groups: int = 1) -> Any:
        return b.conv(
            x, weight(b, name, *shape), vector(b, name, shape[0]), strides=(1, 1), pads=(pad,) * 4, dilations=(1, 1),
            groups=groups,
        )  # fmt: skip

    b = Builder()
    x = b.input("x", F32, (1, 3, 4, 5))
    first = b.relu(conv(x, "stem", 16, 3, 3, 3, pad=1))
    h = b.relu(conv(first, "depthwise", 16, 1, 3, 3, pad=1, groups=16))
    h = b.relu(b.add(conv(h, "pointwise", 16, 16, 1, 1, pad=0), first))
    h = b.max_pool(h, window=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1))
    mean = b.reduce_mean(h, axes=(2, 3), keepdims=False)
    check(b.finish((b.matmul(mean, weight(b, "head", 16, 10)),)), [normal(1, 3, 4, 5)], precision)


def test_sums_beyond_the_range_of_f16() -> None:
    """A sum of activations, and what is computed of it inside a kernel, have the range of f32."""
    b = Builder()
    x = b.input("x", F32, (3, 16))
    h = b.matmul(x, weight(b, "w", 16, 70))
    large = b.add(b.abs(h), b.scalar(4000.0, F32))
    total = b.reduce_sum(large, axes=(1,), keepdims=True)
    share = b.div(large, total)
    graph = b.finish((total, b.matmul(share, weight(b, "v", 70, 8))))
    arrays = [normal(3, 16)]
    assert evaluate(graph, arrays)[0].min() > 2e5
    check(graph, arrays, "fp16")
    check(graph, arrays, "bf16")


@pytest.mark.parametrize("build", ["softmax", "rms"])
def test_rows_of_large_activations(build: str) -> None:
    b = Builder()
    x = b.input("x", F32, (8, 16))
    h = b.mul(b.matmul(x, weight(b, "w", 16, 64)), b.scalar(300.0, F32))
    if build == "softmax":
        made = b.softmax(h, axis=1)
    else:
        made = b.rms_norm(h, vector(b, "scale", 64), axis=1, epsilon=1e-6)  # squares would overflow
    graph = b.finish((b.matmul(made, weight(b, "v", 64, 8)),))
    if build == "rms":
        check(graph, [normal(8, 16)], "fp16")
    else:  # a difference of large logits is a large relative error of a weight, as in any half precision
        check(graph, [normal(8, 16) * np.float32(0.01)], "fp16", 40)


@pytest.mark.parametrize("name", HALVES)
def test_state_in_half_is_updated_in_place(name: str) -> None:
    """With --io-dtype the cache is 16 bits wide everywhere: nothing widens all of it, and one row is written."""
    half = F16 if name == "fp16" else BF16
    b = Builder()
    x, place = b.input("x", F32, (1, 2, 1, 16)), b.input("place", I64, (1, 2, 1, 16))
    cache = b.input("cache", F32, (1, 2, 24, 16))
    key = b.matmul(x, weight(b, "k", 16, 16))
    updated = b.scatter_elements(cache, place, key, axis=2)
    mixed = b.attention(b.matmul(x, weight(b, "q", 16, 16)), updated, updated, scale=0.25)
    graph = b.finish((mixed, updated), ((cache, updated),))
    narrowed, context = ordered(graph, name, name)
    assert [value.type.dtype for value in (*narrowed.inputs, *narrowed.outputs)] == [half, I64, half, half, half]
    assert all(value.type.dtype != F32 for value in narrowed.values() if value.type.shape == (1, 2, 24, 16))
    assert len(narrowed.state) == 1
    arrays = [
        normal(1, 2, 1, 16).astype(half.numpy),
        np.full((1, 2, 1, 16), 7),
        normal(1, 2, 24, 16).astype(half.numpy),
    ]
    found, _ = run(narrowed, context, arrays)
    wide = [array.astype(np.float32) if array.dtype == half.numpy else array for array in arrays]
    for got, wanted in zip(found, evaluate(graph, wide), strict=True):
        assert got.dtype == half.numpy
        assert np.abs(got.astype(np.float32) - wanted).max() <= 8 * EPSILON[name] * np.abs(wanted).max()


def test_what_is_not_known_to_be_16_bits_wide_is_rounded_by_both_readers() -> None:
    """One input, read by a product (rounded) and by an addition (not)."""
    b = Builder()
    x = b.input("x", F32, (20, 20))
    graph = b.finish((b.add(b.matmul(x, weight(b, "w", 20, 20)), x),))
    x_values = np.full((20, 20), 1 + 2.0**-20, np.float32)
    (found,), _ = run(*ordered(graph, "fp16"), [x_values])
    product = np.ones((20, 20)) @ graph.consts[graph.nodes[0].operands[1]].array().astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(found - x_values, product, atol=3e-6)


def test_two_targets_in_one_artifact() -> None:
    """The GPU's program reads weights in 16 bits, made of the same sources; the CPU's is as without the option."""
    b = Builder("mlp")
    x = b.input("x", F32, (20, 32))
    h = b.relu(b.matmul(x, weight(b, "one", 32, 64)))
    made = b.finish((b.matmul(h, weight(b, "two", 64, 16)),))
    programs = {}
    for precision in ("fp32", "fp16"):
        for backend, target in resolve_targets(CompileOptions(targets=("cpu", "cuda"), precision=precision)):
            options = CompileOptions(precision=precision)
            context = Context(options=options, target=target, backend=backend)
            graph = PassManager((*CORE_PASSES, *TARGET_PASSES), context).run(made)
            programs[precision, target.backend] = assemble(graph, backend, target, variant="", node_budget=99).program
            is_refused = precision == "fp16" and target.backend == "cpu"
            assert any("are fp32, not fp16" in note for note in context.diagnostics.notes) == is_refused
    assert programs["fp16", "cpu"] == programs["fp32", "cpu"]
    halved = programs["fp16", "cuda"]
    assert {source.name for source in halved.sources} == {"one", "two"}
    assert {source.const.dtype for source in halved.sources} == {F32}  # so --weights none and external take the model's
    assert {constant.dtype for constant in halved.constants} == {F16.number}
    assert all(RecipeOp.CAST in [step.op for step in constant.recipe] for constant in halved.constants)
    assert [port.type.dtype for port in (*halved.inputs, *halved.outputs)] == [F32, F32]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("precision", HALVES)
def test_packed_weights_stay_as_they_are(precision: str, bits: int) -> None:
    """Their left operand and their scales have 16 bits, and so has what they make."""
    random, b = np.random.default_rng(bits), Builder("packed")
    x = b.input("x", F32, (9, 64))
    h = b.matmul(x, weight(b, "first", 64, 128))
    stored = random.integers(0, 256, (128 * bits // 8, 48)).astype(np.uint8 if bits == 4 else np.int8)
    block = 32 if bits == 4 else 128
    scale = b.const((random.uniform(0.5, 1.5, (128 // block, 48)) / (8 if bits == 4 else 128)).astype(np.float32), "s")
    h = b.relu(b.matmul_packed(b.relu(h), b.const(stored, "w"), scale, None, bits=bits, block=block))
    h = b.matmul(h, weight(b, "last", 48, 32))
    graph = b.finish((h,))
    narrowed, _ = ordered(graph, precision)
    half = F16 if precision == "fp16" else BF16
    types = {value.name: value.type.dtype for value in narrowed.consts}
    assert types["w"] == (U8 if bits == 4 else I8) and types["s"] == half
    made = [value.type.dtype for node in narrowed.nodes if node.op == "kernel" for value in node.outputs]
    assert made == [half, half, F32]
    check(graph, [normal(9, 64)], precision)


@pytest.mark.parametrize("kind", [I8, F8E4M3])
def test_what_products_in_8_bits_make_is_narrowed(kind: DType) -> None:
    """Also where their sums, zero points and all, are integers."""
    random, b = np.random.default_rng(0), Builder("quantized")
    x = b.input("x", F32, (9, 64))
    q = b.quantize(x, b.scalar(0.02, F32), None, to=kind)
    stored = random.integers(-9, 9, (64, 48)).astype(kind.numpy)
    total = b.matmul_8bit(q, b.const(stored, "w"))
    if kind is I8:
        sums = b.const(stored.sum(axis=0, keepdims=True, dtype=np.int32) * 3, "sums")
        total = b.cast(b.sub(total, sums), to=F32)
    h = b.mul(total, b.const((random.uniform(0.5, 1.5, 48) / 100).astype(np.float32), "scale"))
    graph = b.finish((b.matmul(h, weight(b, "last", 48, 32)),))
    narrowed, _ = ordered(graph, "fp16")
    made = [value.type.dtype for node in narrowed.nodes if node.op == "kernel" for value in node.outputs]
    assert made == [kind, F16, F32]
    check(graph, [normal(9, 64)], "fp16")
