"""Sizes that data gives: operands that arrive at run time, and ops whose results are as large as the data says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from aot.errors import UnsupportedError
from aot.frontend import load
from tests.control.models import Array, Checker, Feed, model_of

RNG = np.random.default_rng(7)
X = RNG.integers(-2, 4, (4, 6)).astype(np.float32)

CASES: Mapping[str, tuple[str, list[Feed]]] = {
    "reshape": ("float[n,k] x, int64[2] to) => (float[a,b] y) { y = Reshape (x, to) }",
                [{"x": X, "to": to} for to in ([8, 3], [-1, 2], [0, -1], [0, 0], [2, 12], [24, 1])]),
    "reshape_to_known_and_computed": (
        """float[n,k] x, int64[1] m) => (float[b,c] y) <int64[1] rest = {-1}> {
            to = Concat <axis = 0> (m, rest)
            y = Reshape (x, to)
        }""", [{"x": X, "m": [m]} for m in (1, 3, 24)]),
    "expand": ("float[n,1] x, int64[2] to) => (float[a,b] y) { y = Expand (x, to) }",
               [{"x": X[:, :1], "to": to} for to in ([1, 3], [4, 1], [4, 5], [1, 1], [4, 0])]),
    "tile": ("float[n,k] x, int64[2] r) => (float[a,b] y) { y = Tile (x, r) }",
             [{"x": X, "r": r} for r in ([1, 1], [2, 3], [1, 0])]),
    "top_k": ("float[n,k] x, int64[1] j) => (float[n,j2] v, int64[n,j3] i) { v, i = TopK (x, j) }",
              [{"x": X, "j": [j]} for j in (1, 6, 0, 3)]),
    "one_hot": ("int64[n] x, int64 depth, float[2] values) => (float[n,d] y) { y = OneHot (x, depth, values) }",
                [{"x": [0, 2, -1, 5], "depth": d, "values": [-1, 1]} for d in (3, 1, 6)]),
    "pad": ("float[n,k] x, int64[4] p, float v) => (float[a,b] y) { y = Pad (x, p, v) }",
            [{"x": X, "p": p, "v": 0.5} for p in ([0, 0, 0, 0], [1, 2, 3, 0], [0, 0, 0, 5])]),
    "pad_edge": ('float[n,k] x, int64[4] p) => (float[a,b] y) { y = Pad <mode = "edge"> (x, p) }',
                 [{"x": X, "p": p} for p in ([0, 0, 0, 0], [1, 2, 3, 0])]),
    "constant_of_shape": ("int64[2] s) => (float[a,b] y) { y = ConstantOfShape <value = float[1] {1.5}> (s) }",
                          [{"s": s} for s in ([2, 3], [0, 4], [1, 1])]),
    "range": ("int64 a, int64 b, int64 d) => (int64[m] y) { y = Range (a, b, d) }",
              [{"a": a, "b": b, "d": d} for a, b, d in ((0, 5, 1), (5, 0, -2), (0, 0, 1), (3, 1, 1), (-3, 9, 5))]),
    "range_of_floats": ("float a, float b, float d) => (float[m] y) { y = Range (a, b, d) }",
                        [{"a": a, "b": b, "d": d} for a, b, d in ((0, 2.1, 0.5), (5, 0, -2.5), (1, 1, 1))]),
    "slice": ("float[n,k] x, int64[2] s, int64[2] e) => (float[a,b] y) { y = Slice (x, s, e) }",
              [{"x": X, "s": s, "e": e} for s, e in (
                  ([0, 0], [4, 6]), ([1, -3], [-1, 100]), ([3, 0], [1, 1]), ([-100, 2], [2, -1]), ([4, 6], [9, 9]))]),
    "slice_of_axes_and_steps": (
        "float[n,k] x, int64[2] s, int64[2] e, int64[2] axes, int64[2] st) => "
        "(float[a,b] y) { y = Slice (x, s, e, axes, st) }",
        [{"x": X, "s": s, "e": e, "axes": axes, "st": st} for s, e, axes, st in (
            ([0, 0], [4, 6], [0, 1], [1, 1]), ([5, 3], [-100, 0], [1, 0], [-2, -1]),
            ([1, 1], [3, 2], [-1, -2], [2, 1]))]),
    "split": ("float[n,k] x, int64[3] parts) => "
              "(float[n,a] p, float[n,b] q, float[n,c] r) { p, q, r = Split <axis = 1> (x, parts) }",
              [{"x": X, "parts": parts} for parts in ([2, 2, 2], [1, 5, 0], [6, 0, 0])]),
    "squeeze": ("float[n,1,1,k] x, int64[1] axes) => (float[a,b,c] y) { y = Squeeze (x, axes) }",
                [{"x": X[:, None, None], "axes": axes} for axes in ([1], [2], [-2])]),
    "unsqueeze": ("float[n,k] x, int64[2] axes) => (float[a,b,c,d] y) { y = Unsqueeze (x, axes) }",
                  [{"x": X, "axes": axes} for axes in ([0, 1], [-1, 0], [1, 2], [3, 1])]),
    "trilu": ("float[n,k] x, int64 d) => (float[n,k] y) { y = Trilu <upper = 0> (x, d) }",
              [{"x": X, "d": d} for d in (0, 1, -2, 9, -9)]),
    "non_zero": ("float[n,k] x) => (int64[2,m] y) { y = NonZero (x) }",
                 [{"x": X}, {"x": np.zeros((2, 3))}, {"x": np.ones((1, 1))}]),
    "non_zero_of_one_axis": ("bool[n] x) => (int64[1,m] y) { y = NonZero (x) }",
                             [{"x": [True, False, True]}, {"x": [False]}]),
    "compress": ("float[n,k] x, bool[m] c) => (float[a,k] y) { y = Compress <axis = 0> (x, c) }",
                 [{"x": X, "c": c} for c in ([True, False, True, True], [False] * 4, [True])]),
    "compress_flat": ("float[n,k] x, bool[m] c) => (float[a] y) { y = Compress (x, c) }",
                      [{"x": X, "c": c} for c in ([False, True, True], [True] * 24)]),
    "unique": ("float[n] x) => (float[m] y, int64[a] i, int64[n] j, int64[b] c) { y, i, j, c = Unique (x) }",
               [{"x": [3, 1, 3, 2, 1, 1]}, {"x": [5]}, {"x": np.arange(9)[::-1]}]),
    "unique_unsorted": ("int64[n] x) => "
                        "(int64[m] y, int64[a] i, int64[n] j, int64[b] c) { y, i, j, c = Unique <sorted = 0> (x) }",
                        [{"x": [3, 1, 3, 2, 1, 1]}, {"x": [5]}]),
    "unique_rows": ("float[n,k] x) => "
                    "(float[m,k] y, int64[a] i, int64[n] j, int64[b] c) { y, i, j, c = Unique <axis = 0> (x) }",
                    [{"x": RNG.integers(0, 2, (9, 2))}, {"x": X}, {"x": np.ones((5, 1))}]),
    "unique_columns_unsorted": (
        "int64[n,k] x) => "
        "(int64[n,m] y, int64[a] i, int64[k] j, int64[b] c) { y, i, j, c = Unique <axis = -1, sorted = 0> (x) }",
        [{"x": RNG.integers(0, 2, (2, 9))}, {"x": X}]),
    "unique_of_middle_axis": ("float[n,k,2] x) => (float[n,m,2] y) { y = Unique <axis = 1> (x) }",
                              [{"x": RNG.integers(0, 2, (1, 7, 2))}]),
    "resize_sizes": ('float[1,1,n,k] x, int64[4] s) => (float[a,b,c,d] y) { y = Resize <mode = "linear"> (x, , , s) }',
                     [{"x": X[None, None], "s": s} for s in ([1, 1, 4, 6], [1, 1, 9, 3], [1, 1, 2, 12])]),
    "resize_sizes_cubic": ('float[1,1,n,k] x, int64[4] s) => '
                           '(float[a,b,c,d] y) { y = Resize <mode = "cubic"> (x, , , s) }',
                           [{"x": X[None, None], "s": s} for s in ([1, 1, 4, 6], [1, 1, 9, 3])]),
    "gather_of_sizes": (  # arithmetic on sizes that data gives
        """float[n] x, int64 m) => (float[a,b] y, int64[2] s) <int64 zero = {0}, int64 one = {1},
                int64[1] first = {0}> {
            r = Range (zero, m, one)
            f = Cast <to = 1> (r)
            col = Unsqueeze (f, first)
            xs = Unsqueeze (x, ax)
            ax = Constant <value = int64[1] {1}> ()
            y = Add (xs, col)
            s = Shape (y)
        }""", [{"x": [1, 2, 3], "m": m} for m in (1, 4, 0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_run_time_operands(check: Checker, name: str) -> None:
    text, feeds = CASES[name]
    text = text.replace(
        """xs = Unsqueeze (x, ax)
            ax = Constant <value = int64[1] {1}> ()""",
        """ax = Constant <value = int64[1] {1}> ()
            xs = Unsqueeze (x, ax)""",
    )
    check(model_of(f"g ({text}", 18 if name.startswith("split") else 17), *feeds)


OPERANDS: Mapping[str, tuple[int, Any]] = {
    "most": (TensorProto.INT64, 3), "iou": (TensorProto.FLOAT, 0.5), "least": (TensorProto.FLOAT, 0.3),
}  # fmt: skip


@pytest.mark.parametrize("opset", [10, 11, 17])
@pytest.mark.parametrize("given", ["constants", "inputs", "absent", "only most"])
@pytest.mark.parametrize("center", [0, 1])
def test_non_max_suppression(check: Checker, opset: int, given: str, center: int) -> None:
    names = {"absent": ["", "iou"], "only most": ["most"]}.get(given, list(OPERANDS))
    used = [name for name in names if name]
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", *names], ["y"], center_point_box=center)
    inputs = [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["b", "n", 4]),
              helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["b", 3, "n"])]  # fmt: skip
    tensors = [helper.make_tensor(name, OPERANDS[name][0], [1], [OPERANDS[name][1]]) for name in used]
    fed: dict[str, Any] = {}
    if given == "inputs":
        inputs += [helper.make_tensor_value_info(name, OPERANDS[name][0], [1]) for name in used]
        tensors, fed = [], {name: [OPERANDS[name][1]] for name in used}
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, ["k", 3])]
    graph = helper.make_graph([node], "g", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    feeds = []
    for images, count in ((2, 40), (1, 1), (3, 7)):
        whole = RNG.integers(0, 6, (images, count, 4))  # overlaps that are exactly the limit, corners in any order
        ties = RNG.integers(0, 8, (images, 3, count)) / 10
        start = RNG.uniform(0, 9, (images, count, 2))
        real = np.concatenate([start, start + RNG.uniform(0, 5, start.shape)], 2)
        feeds += [
            {"boxes": whole, "scores": ties, **fed},
            {"boxes": real, "scores": ties + 0.01 * np.arange(count), **fed},
        ]
    check(model, *feeds)


def test_limits_that_only_the_run_knows(check: Checker) -> None:
    model = model_of("""g (float[1,n,4] b, float[1,c,n] s, int64 most, float iou, float least) => (int64[k,3] y) {
        y = NonMaxSuppression (b, s, most, iou, least)
    }""")
    boxes, scores = RNG.uniform(0, 5, (1, 30, 4)), RNG.uniform(0, 1, (1, 2, 30))
    check(model, *({"b": boxes, "s": scores, "most": most, "iou": iou, "least": least}
                   for most, iou, least in ((0, 0.5, 0), (-3, 0.5, 0), (5, 0, 0.5), (1000, 1, -1),
                                            (2, 0.1, 2))))  # fmt: skip


EMPTY_OPS = {
    "sum": "y = ReduceSum <keepdims = 0> (e)",
    "sum and use": "t = ReduceSum <keepdims = 1> (e) u = Add (e, t) y = Concat <axis = 0> (u, t)",
    "rows": "q = Unsqueeze (e, one) r = MatMul (q, w) y = Softmax <axis = -1> (r)",
    "inner": "q = Unsqueeze (e, zero_axis) r = Unsqueeze (e, one) y = MatMul (q, r)",
    "softmax": "q = Softmax <axis = 0> (e) y = Concat <axis = 0> (q, e, q)",
    "cumsum": "q = CumSum (e, zero_index) y = Neg (q)",
    "concat": "q = Concat <axis = 0> (e, x) y = Relu (q)",
    "transpose": "q = Unsqueeze (e, one) r = Tile (q, rep) y = Transpose (r)",
    "size": "y = Size (e)",
    "product": "y = ReduceProd <keepdims = 0> (e)",
    "scatter": "q = NonZero (e) y = Cast <to = 1> (q)",
    "gather": "i = Cast <to = 7> (e) y = Gather <axis = 0> (x, i)",
    "sort": "n = Shape (e) y, i = TopK (e, n)",
    "unique": "y, i = Unique (e)",
}


@pytest.mark.parametrize("name", EMPTY_OPS)
def test_ops_on_nothing(check: Checker, name: str) -> None:
    """What follows an empty selection."""
    model = model_of(f"""g (float[n] x) => (float[] y) <float zero = {{0}}, int64[1] one = {{1}},
            int64[1] zero_axis = {{0}},
            int64 zero_index = {{0}}, float[1,3] w = {{1,2,3}}, int64[2] rep = {{1,3}}> {{
        keep = Greater (x, zero)
        e = Compress <axis = 0> (x, keep)
        {EMPTY_OPS[name]}
    }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    if name == "size":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    check(model, {"x": [-1, -2, 0]}, {"x": [1, 2, -1, 0.5]}, {"x": [-1]})


def test_a_rank_that_data_decides_is_refused() -> None:
    model = model_of("g (float[n] x, int64[r] to) => (float[m] y) { y = Reshape (x, to) }")
    with pytest.raises(UnsupportedError, match="length that is only known when running"):
        load(model)


def test_bits_do_not_depend_on_what_ran_before(check: Checker) -> None:
    """Sizes that shrink and grow again use memory of larger ones; nothing of it may be seen."""
    model = model_of("""g (float[n] x) => (float[m] y, float s) <float zero = {0}> {
        keep = Greater (x, zero)
        y = Compress <axis = 0> (x, keep)
        s = ReduceSum <keepdims = 0> (y)
    }""")
    feeds: list[Mapping[str, Array]] = [{"x": RNG.normal(size=size).astype(np.float32)} for size in (50, 1, 300, 7, 50)]
    check(model, *feeds)
