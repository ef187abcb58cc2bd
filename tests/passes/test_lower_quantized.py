"""Products of dequantized tensors become products in 8 bits, with the same numbers as the float arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aot import dtypes
from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import F16, F32, I8, I16, I64, U8, DType
from aot.evaluate import evaluate
from aot.ir import Array, Graph, Value
from aot.options import CompileOptions
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES
from aot.target import Target
from aot.transforms.dedupe import dedupe
from aot.transforms.fold import fold
from aot.transforms.lower_quantized import lower_quantized
from aot.verify import verify
from tests.passes.test_join import Joiner

CPU, CUDA = (U8, I8), (I8, I8)
N = Symbol("N").dim
Built = Value | list[Value]


def rng(seed: int = 0) -> Any:
    return np.random.default_rng(seed)


def words(*shape: int, dtype: DType = I8, seed: int = 0) -> Array:
    """Numbers over the whole range of a type."""
    low = 0 if dtype.family == "uint" else -(1 << (dtype.bits - 1))
    found: Array = rng(seed).integers(low, low + (1 << dtype.bits), shape).astype(np.int32).astype(dtype.numpy)
    return found


def scales(*shape: int, seed: int = 1) -> Array:
    found: Array = rng(seed).uniform(0.005, 0.02, shape).astype(np.float32)
    return found


def zero(value: int, dtype: DType) -> Array:
    return np.asarray(value, dtype.numpy)


def graph_of(build: Callable[[Builder], Built]) -> Graph:
    b = Builder()
    outputs = build(b)
    graph = b.finish([outputs] if isinstance(outputs, Value) else outputs)
    return graph.with_(nodes=tuple(replace(node, locs=(f"{node.op}_{i}",)) for i, node in enumerate(graph.nodes)))


def context(operands: tuple[DType, DType] = CPU, features: tuple[str, ...] = (), **options: Any) -> Context:
    target = Target("cpu", "x86-64-v4", frozenset(features))
    return Context(CompileOptions(**options), target, backend=Joiner(eight_bit_operands=operands))


def lowered(graph: Graph, given: Context) -> Graph:
    """The graph as the pass sees it, lowered."""
    prepared = PassManager(CORE_PASSES, given).run(graph)
    result = dedupe(fold(lower_quantized(prepared, given), given), given)
    verify(result, has_halos=False)
    return result


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def arrays(graph: Graph, seed: int = 5) -> list[Array]:
    found = []
    for number, value in enumerate(graph.inputs):
        shape = [extent if isinstance(extent, int) else 4 for extent in value.type.shape]
        dtype = value.type.dtype
        if dtype is I64:
            found.append(rng(seed).integers(0, 5, shape))
        elif dtype.is_float:
            found.append(rng(seed + number).normal(0, 1, shape).astype(dtype.numpy))
        else:
            found.append(words(*shape, dtype=dtype, seed=seed + number))
    return found


def check(
    build: Callable[[Builder], Built], *expected: str, operands: tuple[DType, DType] = CPU, tolerance: float = 2e-6,
    features: tuple[str, ...] = (), **options: Any,
) -> Graph:  # fmt: skip
    """Lowers a graph, compares both by the interpreter, and says that the ops named are there, or with "-" are not."""
    graph = graph_of(build)
    result = lowered(graph, context(operands, features, **options))
    feeds = arrays(graph)
    for before, after in zip(evaluate(graph, feeds), evaluate(result, feeds), strict=True):
        assert before.dtype == after.dtype and before.shape == after.shape
        if before.dtype.kind == "f":
            most = float(np.abs(before.astype(np.float64)).max(initial=1.0))
            np.testing.assert_allclose(after, before, rtol=tolerance, atol=tolerance * most)
        else:
            difference = np.abs(before.astype(np.int64) - after.astype(np.int64))
            assert difference.max(initial=0) <= 1 and (difference > 0).mean() < 0.01
    for name in expected:
        assert (name.lstrip("-") in ops(result)) != name.startswith("-"), ops(result)
    return result


def linear(
    b: Builder, a: DType, weight: DType, za: int | None, zb: int | Array | None, per_column: bool = True,
    rows: tuple[Any, ...] = (5,), summed: int = 24, columns: int = 7,
) -> Any:  # fmt: skip
    x = b.input("x", a, (*rows, summed))
    left = b.dequantize(x, b.scalar(0.02, F32), None if za is None else b.const(zero(za, a)))
    s = scales(columns) if per_column else np.asarray(0.013, np.float32)
    z = None if zb is None else b.const(np.broadcast_to(np.asarray(zb), s.shape).astype(weight.numpy))
    right = b.dequantize(b.const(words(summed, columns, dtype=weight)), b.const(s), z)
    return b.matmul(left, right)


@pytest.mark.parametrize("operands", [CPU, CUDA])
@pytest.mark.parametrize("per_column", [True, False])
@pytest.mark.parametrize(
    ("a", "weight", "za", "zb"),
    [
        (U8, I8, 121, 0), (U8, I8, 121, None), (U8, I8, 0, None), (I8, I8, None, None), (I8, I8, -7, 3),
        (U8, U8, 130, 128), (U8, U8, 130, 117), (I8, U8, 4, 0), (U8, U8, None, None),
    ],
)  # fmt: skip
def test_matmul_with_a_weight(
    operands: tuple[DType, DType], per_column: bool, a: DType, weight: DType, za: int | None, zb: int | None
) -> None:
    result = check(
        lambda b: linear(b, a, weight, za, zb, per_column), "matmul_8bit", "-matmul", "-dequantize", operands=operands
    )
    node = next(node for node in result.nodes if node.op == "matmul_8bit")
    assert tuple(value.type.dtype for value in node.operands) == operands


def test_zero_points_of_columns() -> None:
    check(lambda b: linear(b, U8, U8, 9, words(7, dtype=U8, seed=3)), "matmul_8bit", "-matmul")


@pytest.mark.parametrize("rows", [(1,), (3, 4), (2, 1, 5), (N, 3)])
def test_matmul_of_any_rank(rows: tuple[Any, ...]) -> None:
    check(lambda b: linear(b, U8, I8, 100, None, rows=rows), "matmul_8bit", "-matmul")


def test_symmetric_operands_need_no_correction() -> None:
    result = check(lambda b: linear(b, U8, I8, None, None), "matmul_8bit")
    assert ops(result) == ["matmul_8bit", "cast", "mul"]
    result = check(lambda b: linear(b, U8, I8, 7, None), "matmul_8bit")
    assert ops(result) == ["matmul_8bit", "sub", "cast", "mul"]


@pytest.mark.parametrize("dtype", [dtypes.I4, dtypes.U4])
def test_weights_of_4_bits(dtype: DType) -> None:
    result = check(lambda b: linear(b, U8, dtype, 3, 5), "matmul_8bit")
    assert ops(result) == ["matmul_8bit", "sub", "cast", "mul"]  # centred: its zero point is gone


def test_activations_of_16_bits_stay_floats() -> None:
    check(lambda b: linear(b, I16, I8, None, None), "-matmul_8bit", "dequantize", "matmul_packed")


def test_double_precision_and_long_sums_stay_floats() -> None:
    def double(b: Builder) -> Any:
        x = b.input("x", U8, (3, 8))
        left = b.dequantize(x, b.const(np.asarray(0.1, np.float64)), None)
        return b.matmul(left, b.dequantize(b.const(words(8, 4)), b.const(np.asarray(0.2, np.float64)), None))

    check(double, "matmul", "-matmul_8bit")
    result = lowered(graph_of(lambda b: linear(b, U8, I8, 1, None, rows=(1,), summed=140_000, columns=1)), context())
    assert "matmul_8bit" not in ops(result)


@pytest.mark.parametrize("operands", [CPU, CUDA])
def test_dynamic_quantization(operands: tuple[DType, DType]) -> None:
    """One scale and zero point for all, or one scale for each row, computed from the activations."""

    def whole(b: Builder) -> Any:
        x = b.input("x", F32, (5, 24))
        high = b.reduce_max(x, axes=(0, 1), keepdims=False)
        low = b.reduce_min(x, axes=(0, 1), keepdims=False)
        scale = b.mul(b.sub(high, low), b.scalar(1 / 255, F32))
        point = b.cast(b.round(b.neg(b.div(low, scale))), to=U8)
        q = b.quantize(x, scale, point, to=U8)
        weight = b.dequantize(b.const(words(24, 7)), b.const(scales(7)), None)
        return b.matmul(b.dequantize(q, scale, point), weight)

    check(whole, "matmul_8bit", "-matmul", operands=operands)

    def rows(b: Builder) -> Any:
        x = b.input("x", F32, (2, 5, 24))
        scale = b.mul(b.reduce_max(b.abs(x), axes=(2,), keepdims=True), b.scalar(1 / 127, F32))
        q = b.quantize(x, scale, None, to=I8)
        weight = b.dequantize(b.const(words(24, 7)), b.const(scales(7)), None)
        return b.matmul(b.dequantize(q, scale, None), weight)

    result = check(rows, "matmul_8bit", "-matmul", "-dequantize", operands=operands)
    made = [node.output.type.dtype for node in result.nodes if node.op == "quantize"]
    assert made == [operands[0]]  # quantized at once to what the product takes


def test_products_of_two_activations() -> None:
    def attention(b: Builder) -> Any:
        q, k = (b.input(name, dtype, (2, 3, 5, 8)) for name, dtype in (("q", U8), ("k", U8)))
        left = b.dequantize(q, b.scalar(0.03, F32), b.const(zero(120, U8)))
        right = b.dequantize(k, b.scalar(0.02, F32), b.const(zero(131, U8)))
        return b.matmul(left, b.transpose(right, perm=(0, 1, 3, 2)))

    for operands in (CPU, CUDA):
        check(attention, "matmul_8bit", "reduce_sum", "-matmul", operands=operands)


def test_views_of_a_weight() -> None:
    def transposed(b: Builder) -> Any:
        x = b.dequantize(b.input("x", U8, (3, 8)), b.scalar(0.1, F32), b.const(zero(128, U8)))
        w = b.dequantize(b.const(words(6, 8)), b.const(scales(6, 1)), None)
        return b.matmul(x, b.transpose(w, perm=(1, 0)))

    check(transposed, "matmul_8bit", "-transpose", "-dequantize")

    def reshaped(b: Builder) -> Any:
        x = b.dequantize(b.input("x", U8, (3, 2, 4)), b.scalar(0.1, F32), b.const(zero(128, U8)))
        w = b.dequantize(b.const(words(2, 4, 6)), b.const(scales(6)), None)
        return b.matmul(b.reshape(x, shape=(3, 8)), b.reshape(w, shape=(8, 6)))

    check(reshaped, "matmul_8bit", "-dequantize")


def test_scales_along_what_is_summed_stay_floats() -> None:
    def build(b: Builder) -> Any:
        x = b.dequantize(b.input("x", U8, (3, 8)), b.const(scales(8)), None)
        return b.matmul(x, b.dequantize(b.const(words(8, 5)), b.const(scales(5)), None))

    check(build, "-matmul_8bit")


# Convolutions.


def convolution(
    b: Builder, a: DType, weight: DType, za: Any, zw: Any, groups: int = 1, pads: tuple[int, ...] = (1, 0, 2, 1),
    bias: str = "", per_channel: bool = True, channels: int = 4, outputs: int = 6,
) -> Any:  # fmt: skip
    x = b.input("x", a, (2, channels, 7, 9))
    point = None if za is None else za(b) if callable(za) else b.const(zero(za, a))
    left = b.dequantize(x, b.scalar(0.02, F32), point)
    s = scales(outputs, 1, 1, 1) if per_channel else np.asarray(0.01, np.float32)
    z = None if zw is None else b.const(np.broadcast_to(np.asarray(zw), s.shape).astype(weight.numpy))
    w = b.dequantize(b.const(words(outputs, channels // groups, 3, 2, dtype=weight)), b.const(s), z)
    held = None
    if bias == "whole":
        unit = (np.float32(0.02) * s.reshape(-1)).astype(np.float32) * np.ones(outputs, np.float32)
        held = b.dequantize(b.const(np.arange(-3, outputs - 3, dtype=np.int32) * 1001), b.const(unit), None)
    elif bias:
        held = b.const(rng(9).normal(0, 1, outputs).astype(np.float32))
    attrs = {"strides": (2, 1), "pads": pads, "dilations": (1, 2), "groups": groups}
    result: Value = b.conv(left, w, held, **attrs)
    return result


@pytest.mark.parametrize("operands", [CPU, CUDA])
@pytest.mark.parametrize("bias", ["", "float", "whole"])
@pytest.mark.parametrize(
    ("a", "weight", "za", "zw", "groups"),
    [
        (U8, I8, 121, None, 1), (U8, I8, 0, None, 2), (I8, I8, -5, 0, 1), (U8, U8, 3, 128, 2), (U8, U8, 3, 99, 1),
        (U8, I8, 77, 5, 1),
    ],
)  # fmt: skip
def test_conv(
    operands: tuple[DType, DType], bias: str, a: DType, weight: DType, za: int, zw: int | None, groups: int
) -> None:
    result = check(
        lambda b: convolution(b, a, weight, za, zw, groups, bias=bias), "conv_8bit", "-conv", "-dequantize",
        operands=operands, tolerance=1e-5,
    )  # fmt: skip
    for node in result.nodes:
        if node.op == "conv_8bit":
            assert tuple(value.type.dtype for value in node.operands) == operands
    if bias == "whole" and zw is None:
        assert ops(result).count("add") + ops(result).count("sub") <= 1  # added to the correction


def test_depthwise_conv_with_zero_points() -> None:
    check(lambda b: convolution(b, U8, U8, 100, 90, groups=6, channels=6), "conv_8bit", "-conv", tolerance=1e-5)


def test_zero_points_of_groups_of_several_results() -> None:
    check(lambda b: convolution(b, U8, U8, 100, 90, groups=2), "conv_8bit", "-conv", tolerance=1e-5)


@pytest.mark.parametrize("operands", [CPU, CUDA])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1)])
def test_conv_whose_zero_point_is_computed(operands: tuple[DType, DType], pads: tuple[int, ...]) -> None:
    def point(b: Builder) -> Any:
        return b.reshape(b.input("z", U8, (1,)), shape=())

    result = check(
        lambda b: convolution(b, U8, I8, point, None, pads=pads), "conv_8bit", "-conv", operands=operands,
        tolerance=1e-5,
    )  # fmt: skip
    assert ("pad" in ops(result)) == any(pads)


def test_half_precision_scales() -> None:
    def build(b: Builder) -> Any:
        x = b.dequantize(b.input("x", U8, (3, 8)), b.const(np.asarray(0.1, np.float16)), b.const(zero(128, U8)))
        return b.matmul(x, b.dequantize(b.const(words(8, 5)), b.const(scales(5).astype(np.float16)), None))

    result = check(build, "matmul_8bit", tolerance=4e-3)
    assert result.outputs[0].type.dtype is F16


# 8-bit floats.


def test_floats_of_8_bits_where_the_target_has_them() -> None:
    def build(b: Builder) -> Any:
        x = b.input("x", F32, (5, 24))
        q = b.quantize(x, b.scalar(0.01, F32), None, to=dtypes.F8E4M3)
        w = b.const(rng().normal(0, 50, (24, 7)).astype(dtypes.F8E4M3.numpy))
        return b.matmul(b.dequantize(q, b.scalar(0.01, F32), None), b.dequantize(w, b.const(scales(7)), None))

    result = check(build, "matmul_8bit", "-dequantize", features=("float8",))
    assert all(value.type.dtype is dtypes.F8E4M3 for n in result.nodes if n.op == "matmul_8bit" for value in n.operands)
    result = check(build, "matmul", "-matmul_8bit")
    assert sum(name == "dequantize" for name in ops(result)) == 1  # of the activation: the weight became floats


# Products of integers that the model has itself.


@pytest.mark.parametrize("operands", [CPU, CUDA])
@pytest.mark.parametrize("types", [(U8, I8), (I8, I8), (U8, U8), (I8, U8)])
def test_integer_products_take_the_types_of_the_backend(
    operands: tuple[DType, DType], types: tuple[DType, DType]
) -> None:
    def matmul(b: Builder) -> Any:
        return b.matmul_8bit(b.input("x", types[0], (3, 10)), b.const(words(10, 6, dtype=types[1])))

    def conv(b: Builder) -> Any:
        attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1, "fill": 3}
        return b.conv_8bit(b.input("x", types[0], (1, 4, 6, 6)), b.const(words(5, 4, 3, 3, dtype=types[1])), **attrs)

    for build in (matmul, conv):
        graph = graph_of(build)
        result = lowered(graph, context(operands))
        feeds = arrays(graph)
        np.testing.assert_array_equal(evaluate(graph, feeds)[0], evaluate(result, feeds)[0])
        products = [node for node in result.nodes if node.op in ("matmul_8bit", "conv_8bit")]
        assert all(tuple(value.type.dtype for value in node.operands) == operands for node in products)


# Weights beside floats.


@pytest.mark.parametrize("dtype", [I8, U8, dtypes.I4, dtypes.U4])
@pytest.mark.parametrize("point", [None, 3])
@pytest.mark.parametrize("form", ["columns", "single", "blocks", "turned blocks"])
def test_weights_are_packed(dtype: DType, point: int | None, form: str) -> None:
    def build(b: Builder) -> Any:
        x = b.input("x", F32, (3, 48))
        shape, s = {
            "columns": ((48, 10), scales(10)),
            "single": ((48, 10), scales(1).reshape(())),
            "blocks": ((3, 16, 10), scales(3, 1, 10)),
            "turned blocks": ((10, 3, 16), scales(10, 3, 1)),
        }[form]
        z = None if point is None else b.const(np.full(s.shape, point).astype(dtype.numpy))
        w = b.dequantize(b.const(words(*shape, dtype=dtype)), b.const(s), z)
        if form == "blocks":
            w = b.reshape(w, shape=(48, 10))
        if form == "turned blocks":
            w = b.transpose(b.reshape(w, shape=(10, 48)), perm=(1, 0))
        return b.matmul(x, w)

    result = check(build, "matmul_packed", "-matmul", "-dequantize", "-reshape", "-transpose", tolerance=1e-5)
    (node,) = result.nodes
    assert node.attrs["bits"] == dtype.bits and node.attrs["block"] == (16 if "blocks" in form else 48)


def test_a_turned_weight_of_4_bits_stays_in_4_bits() -> None:
    def build(b: Builder) -> Any:
        w = b.dequantize(b.const(words(10, 32, dtype=dtypes.I4)), b.const(scales(10, 1)), None)
        return b.matmul(b.input("x", F32, (3, 32)), b.transpose(w, perm=(1, 0)))

    (node,) = check(build, "matmul_packed", tolerance=1e-5).nodes
    assert node.attrs["bits"] == 4


def test_a_table_of_4_bits_is_read_in_bytes() -> None:
    def build(b: Builder) -> Any:
        table = b.dequantize(
            b.const(words(50, 8, dtype=dtypes.U4)), b.const(scales(50, 1)), b.const(zero(7, dtypes.U4))
        )
        return b.gather(table, b.input("i", I64, (2, 3)), axis=0)

    result = check(build, "gather", "dequantize", tolerance=0)
    assert all(value.type.dtype.bits >= 8 for node in result.nodes for value in node.operands)


def test_an_odd_number_of_rows_in_4_bits() -> None:
    def build(b: Builder) -> Any:
        w = b.dequantize(b.const(words(15, 10, dtype=dtypes.I4)), b.const(scales(10)), None)
        return b.matmul(b.input("x", F32, (3, 15)), w)

    check(build, "matmul_packed", tolerance=1e-5)


def test_a_scale_for_every_row_is_no_packed_weight() -> None:
    def build(b: Builder) -> Any:
        w = b.dequantize(b.const(words(32, 10)), b.const(scales(32, 1)), None)
        return b.matmul(b.input("x", F32, (3, 32)), w)

    assert ops(check(build, "-matmul_packed")) == ["matmul"]


def test_other_readers_of_weights_get_floats_by_a_recipe() -> None:
    def build(b: Builder) -> Any:
        w = b.dequantize(
            b.const(words(6, 4, 3, 3), "weight"), b.const(scales(6, 1, 1, 1), "scale"), b.const(zero(3, I8), "zero")
        )
        x = b.input("x", F32, (1, 4, 6, 6))
        return b.conv(x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=1)

    result = check(build, "-dequantize", "conv")
    (const,) = result.consts.values()
    assert const.recipe is not None and {source.source for source in const.recipe_sources} >= {"weight", "scale"}


@pytest.mark.parametrize("form", ["single", "rows", "columns"])
def test_rows_of_a_table_are_dequantized_behind_the_gather(form: str) -> None:
    def build(b: Builder) -> Any:
        s = {"single": scales(1).reshape(()), "rows": scales(50, 1), "columns": scales(1, 8)}[form]
        z = b.const(np.full(s.shape, 5, np.int8))
        return b.gather(b.dequantize(b.const(words(50, 8)), b.const(s), z), b.input("i", I64, (2, 3)), axis=0)

    result = check(build, "gather", "dequantize", tolerance=0)
    first = next(node for node in result.nodes if node.op == "gather")
    assert first.operands[0].type.dtype is I8


# Moves.


def chain(middle: Callable[[Builder, Value], Value], second: tuple[float, int] = (0.02, 7)) -> Callable[..., Built]:
    def build(b: Builder) -> Any:
        x = b.dequantize(b.input("x", U8, (1, 4, 6, 6)), b.scalar(0.02, F32), b.const(zero(7, U8)))
        result: Value = b.quantize(
            middle(b, x), b.scalar(second[0], F32), b.const(zero(second[1], U8)), to=U8
        )  # fmt: skip
        return result

    return build


POOL = {"window": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "ceil": False}
MOVES: dict[str, tuple[Callable[[Builder, Value], Value], list[str]]] = {
    "nothing": (lambda b, x: x, ["copy"]),
    "pool": (lambda b, x: b.max_pool(x, **POOL), ["max_pool"]),
    "reshape": (lambda b, x: b.reshape(x, shape=(1, 144)), ["reshape"]),
    "transpose": (lambda b, x: b.transpose(x, perm=(0, 2, 3, 1)), ["transpose"]),
    "slice": (lambda b, x: b.slice(x, starts=(0, 1, 0, 5), sizes=(1, 2, 6, 6), steps=(1, 1, 1, -1)), ["slice"]),
    "concat": (lambda b, x: b.concat(x, b.transpose(x, perm=(0, 1, 3, 2)), axis=1), ["transpose", "concat"]),
    "pad": (lambda b, x: b.pad(x, before=(0, 0, 1, 2), after=(0, 0, 2, 0), mode="constant"), ["pad"]),
    "reflect": (lambda b, x: b.pad(x, before=(0, 0, 1, 2), after=(0, 0, 2, 0), mode="reflect"), ["pad"]),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_between_equal_scales_move_bytes(name: str) -> None:
    graph = graph_of(chain(MOVES[name][0]))
    given = context()
    result = lower_quantized(graph, given)
    feeds = arrays(graph)
    np.testing.assert_array_equal(evaluate(graph, feeds)[0], evaluate(result, feeds)[0])
    assert ops(result) == MOVES[name][1]


@pytest.mark.parametrize("name", MOVES)
def test_another_scale_is_honoured(name: str) -> None:
    graph = graph_of(chain(MOVES[name][0], (0.03, 7)))
    result = lower_quantized(graph, context())
    feeds = arrays(graph)
    np.testing.assert_array_equal(evaluate(graph, feeds)[0], evaluate(result, feeds)[0])
    assert ops(result)[-1] in ("quantize", MOVES[name][1][-1]) and "quantize" in ops(result)
    assert all(node.output.type.dtype is U8 for node in result.nodes if node.op in MOVES[name][1])


def test_quantize_rises_above_pools_of_products() -> None:
    def build(b: Builder) -> Any:
        y = b.relu(convolution(b, U8, I8, 3, None))
        s, z = b.scalar(0.5, F32), b.const(zero(0, U8))
        pooled = b.max_pool(y, window=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), ceil=False)
        joined = b.concat(pooled, pooled, axis=1)
        q = b.quantize(joined, s, z, to=U8)
        w = b.dequantize(b.const(words(3, 12, 1, 1)), b.const(scales(3, 1, 1, 1)), None)
        return b.conv(b.dequantize(q, s, z), w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=1)

    for operands in (CPU, CUDA):
        result = check(build, "conv_8bit", "-dequantize", operands=operands, tolerance=1e-5)
        moved = [node for node in result.nodes if node.op in ("max_pool", "concat")]
        assert moved and all(node.output.type.dtype is operands[0] for node in moved)
        assert ops(result).count("xor") == (operands is CUDA)  # of the input: the rest is quantized to the right type


def test_products_of_one_pool_convert_it_once() -> None:
    def build(b: Builder) -> Any:
        x = b.dequantize(b.input("x", I8, (1, 4, 6, 6)), b.scalar(0.02, F32), None)
        pooled = b.max_pool(x, **POOL)
        weights = [b.dequantize(b.const(words(3, 4, 1, 1, seed=i)), b.const(scales(3, 1, 1, 1)), None) for i in (1, 2)]
        attrs = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
        return [b.conv(pooled, weight, **attrs) for weight in weights]

    result = check(build, "conv_8bit")
    assert ops(result).count("max_pool") == 1 and ops(result).count("xor") == 1


def test_a_residual_is_read_in_the_type_of_the_products() -> None:
    """A tensor that products and an addition read is quantized once."""

    def build(b: Builder) -> Any:
        x = b.input("x", F32, (5, 16))
        s = b.scalar(0.02, F32)
        d = b.dequantize(b.quantize(x, s, b.const(zero(3, I8)), to=I8), s, b.const(zero(3, I8)))
        w = b.dequantize(b.const(words(16, 16)), b.const(scales(16)), None)
        return b.add(d, b.matmul(d, w))

    result = check(build, "matmul_8bit", "dequantize", operands=CPU)
    assert ops(result).count("quantize") == 1 and "xor" not in ops(result)
    q = next(node for node in result.nodes if node.op == "quantize")
    assert q.output.type.dtype is U8


def test_a_result_of_the_model_keeps_its_type() -> None:
    def build(b: Builder) -> Any:
        x = b.input("x", F32, (5, 16))
        s = b.scalar(0.02, F32)
        q = b.quantize(x, s, None, to=I8)
        w = b.dequantize(b.const(words(16, 16)), b.const(scales(16)), None)
        return [q, b.matmul(b.dequantize(q, s, None), w)]

    result = check(build, "matmul_8bit")
    assert result.outputs[0].type.dtype is I8


# Options.


def test_disabling_gives_the_float_arithmetic() -> None:
    graph = graph_of(lambda b: linear(b, U8, I8, 121, None))
    given = context(disable=("lower_quantized",))
    result = PassManager((lower_quantized,), given).run(graph)
    assert result is graph
    given = context(disable=("product_in_8_bits",))
    assert "matmul_8bit" not in ops(lower_quantized(graph, given))


def test_exact_arithmetic_stays_float() -> None:
    graph = graph_of(lambda b: linear(b, U8, I8, 121, None))
    given = context(exact=True)
    assert "matmul_8bit" not in ops(lower_quantized(graph, given))
    assert any("rounding" in refusal.reason for refusal in given.diagnostics.refusals)


def test_bisection_counts_products() -> None:
    def build(b: Builder) -> Any:
        x = b.dequantize(b.input("x", U8, (3, 8)), b.scalar(0.1, F32), None)
        parts = [b.dequantize(b.const(words(8, 4, seed=i)), b.const(scales(4)), None) for i in range(3)]
        return [b.matmul(x, part) for part in parts]

    for limit in range(4):
        result = lower_quantized(graph_of(build), context(bisect=limit))
        assert ops(result).count("matmul_8bit") == min(limit, 3)


def test_a_graph_without_quantized_numbers_is_left_alone() -> None:
    graph = graph_of(lambda b: b.matmul(b.input("x", F32, (3, 4)), b.input("y", F32, (4, 5))))
    assert lower_quantized(graph, context()) is graph


def test_moves_of_floats_of_8_bits() -> None:
    """These are quantized numbers: what moves them moves no floats."""

    def build(b: Builder) -> Value:
        x = b.slice(b.exp(b.input("x", F32, (4, 9, 16))), starts=(0, 0, 0), sizes=(4, 1, 16), steps=(1, 1, 1))
        q = b.quantize(x, b.const(np.asarray(0.02, np.float32)), None, to=dtypes.F8E4M3)
        row = b.dequantize(b.reshape(q, shape=(4, 16)), b.const(np.asarray(0.02, np.float32)), None)
        w = b.dequantize(b.const(scales(16, 8).astype(dtypes.F8E4M3.numpy)), b.const(np.asarray(0.5, np.float32)), None)
        made: Value = b.matmul(row, w)
        return made

    result = lowered(graph_of(build), context(CUDA, ("float8",)))
    assert "matmul_8bit" in ops(result) and ops(result).index("quantize") < ops(result).index("slice")
