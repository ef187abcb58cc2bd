"""Larger models with sizes from data: what stands behind a selection, and loops with weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from tests.control.models import Array, Checker, model_of

RNG = np.random.default_rng(11)


def with_weights(text: str, weights: Mapping[str, Array], opset: int = 17) -> ModelProto:
    model = model_of(text, opset)
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    )
    return model


def test_detection(check: Checker) -> None:
    """Suppression, then gathers, the best of them, and a head on what was chosen."""
    model = with_weights(
        """g (float[1,n,4] boxes, float[1,c,n] scores, float[1,n,8] feats)
            => (float[k,4] b, float[k] s, int64[k] cls, float[q] top, float[k,3] head)
            <int64[1] most = {20}, float[1] iou = {0.5}, float[1] least = {0.3}, int64 one = {1}, int64 two = {2},
             int64[1] ten = {10}> {
            sel = NonMaxSuppression (boxes, scores, most, iou, least)
            cls = Gather <axis = 1> (sel, one)
            at = Gather <axis = 1> (sel, two)
            bx = Squeeze <axes = [0]> (boxes)
            b = Gather <axis = 0> (bx, at)
            sc = Squeeze <axes = [0]> (scores)
            cu = Unsqueeze <axes = [1]> (cls)
            bu = Unsqueeze <axes = [1]> (at)
            places = Concat <axis = 1> (cu, bu)
            s = GatherND (sc, places)
            fs = Squeeze <axes = [0]> (feats)
            f = Gather <axis = 0> (fs, at)
            number = Shape (s)
            both = Concat <axis = 0> (number, ten)
            kept = ReduceMin <keepdims = 1> (both)
            top, top_at = TopK (s, kept)
            h = MatMul (f, w)
            head = Softmax <axis = -1> (h)
        }""",
        {"w": RNG.normal(size=(8, 3))},
        11,
    )
    feeds = []
    for count, classes, highest in ((30, 3, 1), (1, 1, 1), (50, 2, 0.2), (200, 4, 1)):
        start = RNG.uniform(0, 10, (1, count, 2))
        boxes = np.concatenate([start, start + RNG.uniform(0.5, 4, start.shape)], 2)
        scores = RNG.uniform(0, highest, (1, classes, count))
        feeds.append({"boxes": boxes, "scores": scores, "feats": RNG.normal(size=(1, count, 8))})
    check(model, *feeds)


def test_convolutions_of_sizes_from_data(check: Checker) -> None:
    model = with_weights(
        """g (float[1,2,h,w] x, int64[2] hw, float[n] v) => (float[a,b,c,d] y, float[p,q,r,t] z)
            <int64[2] lead = {1,2}, float zero = {0}, int64[1] rest = {-1}, int64[1] one = {1}> {
            full = Concat <axis = 0> (lead, hw)
            x2 = Resize <mode = "nearest"> (x, , , full)
            y = Conv <pads = [1,1,1,1]> (x2, k)
            keep = Greater (v, zero)
            e = Compress <axis = 0> (v, keep)
            shape = Concat <axis = 0> (one, one, one, rest)
            e4 = Reshape (e, shape)
            z0 = Conv <pads = [1,1,1,1]> (e4, k1)
            z = MaxPool <kernel_shape = [1,3], pads = [0,1,0,1]> (z0)
        }""",
        {"k": RNG.normal(size=(4, 2, 3, 3)), "k1": RNG.normal(size=(2, 1, 3, 3))},
        13,
    )
    sizes = (([5, 6], [1, 2, -1]), ([9, 3], [1.0]), ([1, 1], RNG.normal(size=40)))
    check(model, *({"x": RNG.normal(size=(1, 2, 5, 6)), "hw": hw, "v": v} for hw, v in sizes))


def test_recurrence_over_the_longest_sequence(check: Checker) -> None:
    model = with_weights(
        """g (float[t,b,3] x, int64[b] lengths) => (float[t2,1,b,4] y, float[1,b,4] h, float[q,3] flat)
            <int64[1] axis = {0}, int64[1] start = {0}, int64[2] shape = {-1,3}> {
            most = ReduceMax <keepdims = 1> (lengths)
            xs = Slice (x, start, most, axis)
            y, h, c = LSTM <hidden_size = 4> (xs, W, R)
            flat = Reshape (xs, shape)
        }""",
        {"W": RNG.normal(size=(1, 16, 3)), "R": RNG.normal(size=(1, 16, 4))},
        13,
    )
    check(
        model, {"x": RNG.normal(size=(6, 2, 3)), "lengths": [3, 5]}, {"x": RNG.normal(size=(6, 1, 3)), "lengths": [1]}
    )


def test_attention_over_what_is_kept(check: Checker) -> None:
    model = with_weights(
        """g (float[n,8] x, float[n] m) => (float[k,8] y) <float zero = {0}> {
            keep = Greater (m, zero)
            e = Compress <axis = 0> (x, keep)
            q = MatMul (e, wq)
            k = MatMul (e, wk)
            kt = Transpose (k)
            s = MatMul (q, kt)
            p = Softmax <axis = -1> (s)
            a = MatMul (p, e)
            r = Add (a, e)
            y = LayerNormalization <axis = -1> (r, scale, bias)
        }""",
        {
            "wq": RNG.normal(size=(8, 8)) / 3,
            "wk": RNG.normal(size=(8, 8)) / 3,
            "scale": np.ones(8),
            "bias": np.zeros(8),
        },
    )
    feeds = [{"x": RNG.normal(size=(len(m), 8)), "m": m} for m in ([1, -1, 1, 1], [1, -1], RNG.normal(size=40))]
    check(model, *feeds)
    with check.build(model).load() as loaded:
        nothing = loaded.run({"x": np.ones((2, 8), np.float32), "m": -np.ones(2, np.float32)})["y"]
        assert nothing.shape == (0, 8)


def test_weights_of_a_loop_and_of_branches_are_stored_once(check: Checker) -> None:
    weight = RNG.normal(size=(256, 256)) / 16
    model = with_weights(
        """g (float[n,256] x, int64 M) => (float[n,256] y) <bool yes = {1}, float zero = {0}> {
            h = MatMul (x, w)
            y = Loop (M, yes, h) <body = b (int64 i, bool c, float[] a) => (bool d, float[] a2) {
                d = Identity (c)
                s = ReduceSum <keepdims = 0> (a)
                up = Greater (s, zero)
                a1 = If (up) <then_branch = th () => (float[] t) { t = MatMul (a, w) },
                              else_branch = el () => (float[] e) { f = MatMul (a, w) e = Abs (f) }>
                a2 = Tanh (a1)
            }>
        }""",
        {"w": weight},
    )
    check(model, *({"x": RNG.normal(size=(rows, 256)), "M": trips} for rows, trips in ((3, 3), (1, 0))))
    assert len(check.build(model).data) < 1.5 * weight.size * 4


def test_a_loop_around_a_selection(check: Checker) -> None:
    """Carried and stacked tensors whose sizes follow from data outside; the loop ends by a size."""
    model = model_of("""g (float[n] x, float lim) => (float[m] y, float[p] z) <float zero = {0}, bool go = {1}> {
        keep = Greater (x, zero)
        e = Compress <axis = 0> (x, keep)
        y, z0 = Loop (, go, e) <body = b (int64 i, bool c, float[] a) => (bool d, float[] a2, float[] w) {
            a2 = Concat <axis = 0> (a, e)
            w = Neg (e)
            s = Size (a2)
            f = Cast <to = 1> (s)
            d0 = Less (f, lim)
            fi = Cast <to = 1> (i)
            d1 = Less (fi, lim)
            d = And (d0, d1)
        }>
        rest = Constant <value = int64[1] {-1}> ()
        z = Reshape (z0, rest)
    }""")
    check(model, {"x": [1, -1, 2], "lim": 9}, {"x": [-1], "lim": 3}, {"x": [1, 2, 3, 4], "lim": 4})


@pytest.mark.parametrize("dtype", ["double", "float16", "int32", "uint8", "int64", "bool"])
def test_element_types(check: Checker, dtype: str) -> None:
    step = "Not (a)" if dtype == "bool" else "Add (a, a)"
    model = model_of(f"""g ({dtype}[n] x, int64 M, bool[n] keep) 
            => ({dtype}[m] y, {dtype}[k] z, {dtype}[p,n] w, {dtype}[q] v)
            <bool yes = {{1}}, int64 many = {{3}}> {{
        y, w = Loop (M, yes, x) <body = b (int64 i, bool c, {dtype}[] a) => (bool d, {dtype}[] a2, {dtype}[] w1) {{
            d = Identity (c)
            a2 = {step}
            w1 = Identity (a)
        }}>
        z = Compress <axis = 0> (y, keep)
        none = Greater (M, many)
        v = If (none) <then_branch = th () => ({dtype}[] t) {{ t = Identity (z) }},
                       else_branch = el () => ({dtype}[] e) {{ e = Concat <axis = 0> (z, x) }}>
    }}""")
    feeds = [([1, 0, 3], 3, [1, 0, 1]), ([1], 0, [0]), ([2, 1], 4, [1, 1])]
    check(model, *({"x": x, "M": trips, "keep": keep} for x, trips, keep in feeds))
