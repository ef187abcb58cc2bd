"""What every node adds: bounds that follow from the network, cuts at known tensors, quantized products, measures."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot.builder import Builder
from aot.cli.local_errors import UNITS, Precision, Rounded, Steps, judge
from aot.cli.measures import decibels, distance, error_histogram, value_histogram, value_range
from aot.dtypes import F32, U8
from aot.ir import Array, Graph, Value

RNG = np.random.default_rng(3)
SIZE = 512


def floats(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


W1, W2 = floats(SIZE, SIZE) / 22, floats(SIZE, SIZE) / 22


def chain() -> tuple[Graph, dict[str, Value]]:
    """x → a = x @ w1 → b = relu(a) → c = b @ w2 → y = tanh(c)."""
    builder = Builder("g")
    x = builder.input("x", F32, (8, SIZE))
    a = builder.matmul(x, builder.const(W1, "w1"))
    b = builder.relu(a)
    c = builder.matmul(b, builder.const(W2, "w2"))
    y = builder.op("tanh", c)[0]
    graph = builder.finish([y])
    values = dict(zip("abcy", (node.outputs[0] for node in graph.nodes), strict=False))
    return graph, values


def run(x: Array, wide: Any = np.float32) -> dict[str, Array]:
    """What a program in some precision has for the values: products in f32 of rounded operands."""

    def rounded(array: Array) -> Array:
        return array.astype(wide).astype(np.float32)

    a = rounded(rounded(x) @ rounded(W1))
    b = np.maximum(a, 0)
    c = rounded(b @ rounded(W2))
    return {"a": a, "b": b, "c": c, "y": rounded(np.tanh(c))}


def by_value(values: dict[str, Value], arrays: dict[str, Array]) -> dict[Value, Array]:
    return {values[name]: array for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("precision", "wide"), [("fp32", np.float32), ("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)]
)
def test_honest_programs_stay_within_their_bounds(precision: str, wide: Any) -> None:
    graph, values = chain()
    x = floats(8, SIZE)
    found = run(x, wide)
    precise = Precision(UNITS[precision], precision != "fp32")
    judged, left_out = judge(graph, [x], by_value(values, found), precise)
    assert left_out == 0 and len(judged) == 4
    assert all(each.ratio < 0.7 for each in judged), [each.ratio for each in judged]
    if precision != "fp32":  # and would not in a finer one
        judged, _ = judge(graph, [x], by_value(values, found), Precision())
        assert judged[0].is_beyond and judged[0].ratio > 10


@pytest.mark.parametrize("name", ["a", "b", "c", "y"])
@pytest.mark.parametrize("known", ["abcy", "bcy", "acy", "by"])
def test_the_first_wrong_tensor_is_found(name: str, known: str) -> None:
    graph, values = chain()
    x = floats(8, SIZE)
    found = run(x)
    wrong = dict(found)
    wrong[name] = found[name] * np.float32(1.001) + np.float32(0.001)
    a = wrong["a"]
    b = wrong["b"] if name == "b" else np.maximum(a, 0)
    c = wrong["c"] if name == "c" else b @ W2
    wrong |= {"b": b, "c": c, "y": wrong["y"] if name == "y" else np.tanh(c)}
    judged, _ = judge(graph, [x], by_value(values, {each: wrong[each] for each in known}), Precision())
    first = next(each for each in judged if each.is_beyond)
    expected = next(each for each in known if each >= name)
    assert first.value is values[expected] and first.confirmed and not first.follows
    assert first.expected is not None


def test_another_value_under_the_name_is_not_confirmed() -> None:
    graph, values = chain()
    x = floats(8, SIZE)
    found = run(x) | {"b": floats(8, SIZE)}  # what follows has not been computed from it
    judged, _ = judge(graph, [x], by_value(values, found), Precision())
    assert [each.is_beyond for each in judged] == [False, True, False, False]
    assert not judged[1].confirmed


def test_drift_is_what_rounding_amounts_to() -> None:
    graph, values = chain()
    x = floats(8, SIZE)
    judged, _ = judge(graph, [x], by_value(values, run(x)), Precision(), with_drift=True)
    drifts = [each.drift for each in judged]
    assert all(drift is not None and 0 < drift < 1e-4 for drift in drifts)
    half = Precision(UNITS["fp16"], weights_too=True)
    judged, _ = judge(graph, [x], by_value(values, run(x, np.float16)), half, with_drift=True)
    assert all(each.drift is not None and each.drift > 1e-3 for each in judged)


def quantized_by(scale: float, zero: int, weight: Array) -> dict[str, Array]:
    """The chain with its second product in 8 bits."""
    found = run(X)
    numbers = np.clip(np.rint(found["b"] / scale) + zero, 0, 255)
    steps = np.abs(weight).max(axis=0) / 127
    c = ((numbers - zero) * scale).astype(np.float32) @ (np.rint(weight / steps) * steps).astype(np.float32)
    return found | {"c": c, "y": np.tanh(c)}


X = floats(8, SIZE)


def test_quantized_products_may_be_as_far_off_as_their_steps() -> None:
    graph, values = chain()
    nodes = tuple(node for node in graph.nodes if node.op == "matmul")
    assert len(nodes) == 2
    located = graph.with_(
        nodes=tuple(
            type(node)(node.op, node.inputs, node.outputs, node.attrs, (f"n{i}",)) for i, node in enumerate(graph.nodes)
        )
    )
    scale = float(np.maximum(X @ W1, 0).max() / 255)
    names = {node.outputs[0]: node.locs[0] for node in located.nodes}
    precise = Precision(quantized={names[values["c"]]: Rounded("int8", scale, 0)})
    found = by_value(values, quantized_by(scale, 0, W2))
    judged, _ = judge(located, [X], found, precise)
    assert not any(each.is_beyond for each in judged) and judged[2].ratio > 0.01
    assert judge(located, [X], found, Precision())[0][2].is_beyond
    clipped = by_value(values, quantized_by(scale / 8, 0, W2))  # most of it beyond the range
    assert judge(located, [X], clipped, precise)[0][2].is_beyond


def test_tensors_of_few_bits() -> None:
    graph, values = chain()
    found = run(X)
    scale = float(found["b"].max() / 200)
    held = np.clip(np.rint(found["b"] / scale), 0, 150) * np.float32(scale)  # its largest do not fit
    b = held.astype(np.float32)
    c = b @ W2
    arrays = by_value(values, {"a": found["a"], "b": b, "c": c, "y": np.tanh(c)})
    steps = {values["b"]: Steps(scale, 0.0, 150 * scale)}
    assert not any(each.is_beyond for each in judge(graph, [X], arrays, Precision(), steps=steps)[0])
    assert judge(graph, [X], arrays, Precision())[0][1].is_beyond


def test_integers_in_steps() -> None:
    builder = Builder("g")
    x = builder.input("x", F32, (SIZE,))
    q = builder.quantize(x, builder.const(np.array(0.1, np.float32)), builder.const(np.array(100, np.uint8)), to=U8)
    graph = builder.finish([q])
    array = floats(SIZE)
    right = np.clip(np.rint(array / np.float32(0.1)) + 100, 0, 255).astype(np.uint8)
    assert not judge(graph, [array], {graph.outputs[0]: right}, Precision())[0][0].is_beyond
    few = right.copy()
    few[:4] += 1
    assert not judge(graph, [array], {graph.outputs[0]: few}, Precision())[0][0].is_beyond
    many = right.copy()
    many[: SIZE // 2] += 1
    judged = judge(graph, [array], {graph.outputs[0]: many}, Precision())[0][0]
    assert judged.is_beyond and judged.counts and judged.error == SIZE // 2
    far = right.copy()
    far[7] += 9
    assert judge(graph, [array], {graph.outputs[0]: far}, Precision())[0][0].error == 9


def test_what_is_not_finite() -> None:
    graph, values = chain()
    found = run(X)
    found["a"][2, 3] = np.inf
    judged, _ = judge(graph, [X], by_value(values, {"a": found["a"]}), Precision())
    assert judged[0].error == math.inf and judged[0].is_beyond


# Figures.


def test_distance() -> None:
    same = distance(np.array([1, np.nan, np.inf], np.float32), np.array([1, np.nan, np.inf], np.float32))
    assert (same.max_error, same.snr_db, same.not_finite, same.wrong) == (0, math.inf, 0, 0)
    one = distance(np.array([1.0, 2.1]), np.array([1.0, 2.0]))
    assert one.max_error == pytest.approx(0.1) and one.relative_error == pytest.approx(0.05)
    assert one.snr_db == pytest.approx(10 * math.log10(5 / 0.01)) and one.share == pytest.approx(0.1 / 5**0.5)
    assert distance(np.array([np.inf]), np.array([1.0])).max_error == math.inf
    assert distance(np.zeros((0, 3)), np.zeros((0, 3))).snr_db == math.inf
    assert distance(np.array([2**53 + 1]), np.array([2**53])).wrong == 1
    assert distance(np.array([1e300, -1e300]), np.array([1e300, 1e300])).cosine == pytest.approx(0)
    assert distance(np.zeros(3), np.zeros(3)).cosine == 1
    assert [decibels(value) for value in (math.inf, -math.inf, 52.4)] == ["equal", "none", "52 dB"]


def test_histograms() -> None:
    found, expected = np.array([[1.0, 2.0], [3.5, np.nan]]), np.array([[1.0, 2.0015], [3.0, 1.0]])
    lines = error_histogram(found, expected)
    assert [line.split()[0] for line in lines] == ["equal", "1e-03", "1e-02", "1e-01", "not"]
    assert [line.split()[-2 if "█" in line else -1] for line in lines] == ["1", "1", "0", "1", "1"]
    low, high = value_range(found, expected)
    assert (low, high) == (1.0, 3.5) and len(value_histogram(found, low, high)) == 48
    assert value_range(np.array([np.nan])) == (0.0, 0.0) and value_histogram(np.array([np.nan]), 0, 0) == ""
    assert error_histogram(np.zeros((0,)), np.zeros((0,))) == []
