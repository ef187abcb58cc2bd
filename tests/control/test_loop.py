"""Loop: how often it runs, what it carries and what it gives."""

from __future__ import annotations

import numpy as np
import pytest

from aot.errors import ModelError, UnsupportedError
from aot.frontend import load
from tests.control.models import Array, Checker, model_of


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


STEP = """(int64 i, bool ci, float[] a) => (bool co, float[] a3, float[] row) {
    co = Identity (ci)
    a1 = MatMul (a, w)
    a3 = Tanh (a1)
    row = ReduceSum <keepdims = 0> (a3, one)
}"""


@pytest.mark.parametrize("given", ["M, ", "M, yes", "M, on", "M, off"])
def test_trips(check: Checker, given: str) -> None:
    model = model_of(f"""g (float[n,4] x, int64 M, bool[1] on_off) => (float[n,4] y, float[t,n] rows)
        <float[4,4] w = {{1,0.5,0,0,0,1,0.5,0,0,0,1,0.5,0.5,0,0,1}}, int64[1] one = {{1}}, bool yes = {{1}}> {{
        shape = Constant <value = int64[0] {{}}> ()
        on = Reshape (on_off, shape)
        off = Not (on)
        y, rows = Loop ({given}, x) <body = b {STEP}>
    }}""")
    feeds = [
        {"x": floats(n, 4), "M": trips, "on_off": [on]}
        for n in (1, 3)
        for trips in (0, 1, 5, -2)
        for on in (True, False)
    ]
    check(model, *feeds)


def test_known_trips_and_a_constant_start(check: Checker) -> None:
    model = model_of("""g (float[n] x) => (float y, float[t,n] rows, int64[t] numbers)
        <int64 M = {4}, bool yes = {1}, float start = {0.5}> {
        y, rows, numbers = Loop (M, yes, start) <body = b (int64 i, bool ci, float a)
                => (bool co, float a1, float[] r, int64 k) {
            co = Identity (ci)
            fi = Cast <to = 1> (i)
            a1 = Add (a, fi)
            r = Mul (x, a1)
            k = Identity (i)
        }>
    }""")
    graph = check(model, {"x": floats(3)}, {"x": floats(1)})
    assert [str(value.type) for value in graph.outputs] == ["f32[]", "f32[4,n]", "i64[4]"]


def test_condition_only_with_growing_shape(check: Checker) -> None:
    model = model_of("""g (float[n] x, float lim) => (float[m] y, float[t] sums) <float[1] one = {1}, bool go = {1}> {
        y, sums = Loop (, go, x) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a1, float[] s) {
            a1 = Concat <axis = 0> (a, one)
            s = ReduceSum <keepdims = 0> (a1)
            co = Less (s, lim)
        }>
    }""")
    check(model, {"x": np.zeros(2), "lim": 4}, {"x": np.zeros(3), "lim": 40}, {"x": np.ones(3), "lim": -1})


def test_condition_that_does_not_hold_at_first(check: Checker) -> None:
    model = model_of("""g (float[n] x, float lim) => (float[m] y, float[t] sums) <float two = {2}> {
        s0 = ReduceSum <keepdims = 0> (x)
        go = Less (s0, lim)
        y, sums = Loop (, go, x) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a1, float[] s) {
            a1 = Mul (a, two)
            s = ReduceSum <keepdims = 0> (a1)
            co = Less (s, lim)
        }>
    }""")
    check(model, {"x": [1, 2], "lim": 0}, {"x": [1, 2], "lim": 100}, {"x": [1, 2], "lim": 5})


def test_swap_of_two(check: Checker) -> None:
    model = model_of("""g (float[n] x, float[m] y, int64 M) => (float[p] a, float[q] b, float[r] c) <bool yes = {1}> {
        a, b, c = Loop (M, yes, x, y, x) <body = b (int64 i, bool ci, float[] u, float[] v, float[] w)
                                           => (bool co, float[] v2, float[] u2, float[] w2) {
            co = Identity (ci)
            v2 = Identity (v)
            u2 = Identity (u)
            w2 = Add (w, w)
        }>
    }""")
    check(model, *({"x": floats(n), "y": floats(m), "M": trips} for n, m in ((2, 3), (4, 4)) for trips in (0, 1, 2, 7)))


def test_stacked_results_of_several_ranks(check: Checker) -> None:
    model = model_of("""g (float[n,2] x, int64 M)
            => (float[t] p, float[t,n,2] q, bool[t,n] r, int64[t,1] s, float[t,2,n] u)
        <bool yes = {1}, int64[1] one = {1}, float zero = {0}> {
        p, q, r, s, u = Loop (M, yes) <body = b (int64 i, bool ci)
                => (bool co, float p1, float[] q1, bool[] r1, int64[] s1, float[] u1) {
            co = Identity (ci)
            fi = Cast <to = 1> (i)
            q1 = Mul (x, fi)
            p1 = ReduceMax <keepdims = 0> (q1)
            sums = ReduceSum <keepdims = 0> (q1, one)
            r1 = Greater (sums, zero)
            zero_i = Constant <value = int64[1] {0}> ()
            s1 = Unsqueeze (i, zero_i)
            u1 = Transpose (q1)
        }>
    }""")
    check(model, {"x": floats(3, 2), "M": 4}, {"x": floats(1, 2), "M": 0}, {"x": floats(5, 2), "M": 1})


def test_nested_loops_and_captures_at_every_level(check: Checker) -> None:
    model = model_of("""g (float[n] x, int64 M, float k) => (float[n] y, float[a,b] trace)
            <bool yes = {1}, int64 one = {1}> {
        twice = Add (x, x)
        y, trace = Loop (M, yes, x) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a1, float[] t) {
            co = Identity (ci)
            three = Constant <value = int64 {3}> ()
            inner_trips = Add (three, one)
            scaled = Mul (a, k)
            a1, t = Loop (inner_trips, yes, scaled) <body = c (int64 j, bool cj, float[] q)
                    => (bool dj, float[] q2, float q3) {
                dj = Identity (cj)
                both = Add (i, j)
                fb = Cast <to = 1> (both)
                q1 = Add (q, fb)
                q2 = Add (q1, twice)
                q3 = ReduceSum <keepdims = 0> (q2)
            }>
        }>
    }""")
    check(
        model, {"x": floats(3), "M": 3, "k": 0.5}, {"x": floats(2), "M": 0, "k": 0.5}, {"x": floats(1), "M": 1, "k": 2}
    )


def test_inner_trips_that_depend_on_the_iteration(check: Checker) -> None:
    model = model_of("""g (float x, int64 M) => (float y, float[t] trace) <bool yes = {1}, float one = {1}> {
        y, trace = Loop (M, yes, x) <body = b (int64 i, bool ci, float a) => (bool co, float a1, float t) {
            co = Identity (ci)
            a1 = Loop (i, yes, a) <body = c (int64 j, bool cj, float q) => (bool dj, float q1) {
                dj = Identity (cj)
                q1 = Add (q, one)
            }>
            t = Identity (a1)
        }>
    }""")
    check(model, {"x": 0.5, "M": 5}, {"x": 0.5, "M": 0})


def test_loop_in_if_in_loop(check: Checker) -> None:
    model = model_of("""g (float[n] x, int64 M) => (float[m] y) <bool yes = {1}, int64 two = {2},
            int64 zero = {0}, float[2] w = {1,2}> {
        y = Loop (M, yes, x) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a1) {
            co = Identity (ci)
            odd = Mod (i, two)
            even = Equal (odd, zero)
            a1 = If (even) <
                then_branch = th () => (float[] t) {
                    t = Loop (i, yes, a) <body = c (int64 j, bool cj, float[] q) => (bool dj, float[] q1) {
                        dj = Identity (cj)
                        q1 = Concat <axis = 0> (q, w)
                    }>
                },
                else_branch = el () => (float[] e) { e = Add (a, a) }>
        }>
    }""")
    check(model, *({"x": floats(2), "M": trips} for trips in (0, 1, 2, 5)))


def test_break_in_the_middle(check: Checker) -> None:
    """The condition is found in a branch; what the last iteration computes still counts."""
    model = model_of("""g (int64[n] x, int64 stop) => (int64 sum, int64[t] seen) <bool yes = {1}, int64 zero = {0}> {
        shape = Shape (x)
        M = ReduceMax <keepdims = 0> (shape)
        sum, seen = Loop (M, yes, zero) <body = b (int64 i, bool ci, int64 a) => (bool co, int64 a1, int64 e) {
            e = Gather <axis = 0> (x, i)
            a1 = Add (a, e)
            is_stop = Equal (e, stop)
            co = Not (is_stop)
        }>
    }""")
    check(model, {"x": [1, 2, 3, 4], "stop": 3}, {"x": [1, 2, 3, 4], "stop": 9}, {"x": [5], "stop": 5})


def test_iteration_and_condition_of_shape_one(check: Checker) -> None:
    model = model_of("""g (int64[1] M, bool[1] go, float[n] x) => (float[n] y, int64[t] k) <int64[1] minus = {-1}> {
        y, k = Loop (M, go, x) <body = b (int64 i, bool[1] ci, float[] a) => (bool[1] co, float[] a1, int64 i1) {
            co = Identity (ci)
            a1 = Neg (a)
            i1 = Identity (i)
        }>
    }""")
    check(model, {"M": [3], "go": [True], "x": floats(2)}, {"M": [3], "go": [False], "x": floats(2)})


def test_sizes_from_data_in_every_iteration(check: Checker) -> None:
    model = model_of("""g (float[n] x, int64 M) => (float[m] y, int64[t] counts) <bool yes = {1},
            float half = {0.5}, float zero = {0}> {
        y, counts = Loop (M, yes, x) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a2, int64 count) {
            co = Identity (ci)
            a1 = Sub (a, half)
            keep = Greater (a1, zero)
            a2 = Compress <axis = 0> (a1, keep)
            size = Shape (a2)
            count = ReduceSum <keepdims = 0> (size)
        }>
    }""")
    check(model, *({"x": [3.0, 0.2, 1.4, 2.6], "M": trips} for trips in (0, 1, 2, 3, 9)))


def test_greedy_decoder(check: Checker) -> None:
    """Sequence to sequence: attention over encoder states, tokens appended until the end token or the limit."""
    rng = np.random.default_rng(3)
    model = model_of("""g (float[s,8] enc, int64 limit, int64 end) => (int64[t] tokens, float[k,6] logits)
        <bool yes = {1}, int64[1] first = {1}, int64[1] minus = {-1}, int64 last = {-1}> {
        keys = MatMul (enc, wk)
        kt = Transpose (keys)
        tokens, state, logits = Loop (limit, yes, first, h0) <body = b (int64 i, bool ci, int64[] seq, float[] h)
                => (bool co, int64[] seq1, float[] h1, float[] logit) {
            token = Gather <axis = 0> (seq, last)
            e = Gather <axis = 0> (emb, token)
            hin = Add (h, e)
            q = MatMul (hin, kt)
            p = Softmax <axis = -1> (q)
            ctx = MatMul (p, enc)
            hsum = Add (hin, ctx)
            h1 = Tanh (hsum)
            logit = MatMul (h1, wo)
            next = ArgMax <axis = 0, keepdims = 1> (logit)
            seq1 = Concat <axis = 0> (seq, next)
            one_next = ReduceMax <keepdims = 0> (next)
            is_end = Equal (one_next, end)
            co = Not (is_end)
        }>
    }""")
    from onnx import numpy_helper

    weights = {"wk": (8, 8), "emb": (6, 8), "wo": (8, 6), "h0": (8,)}
    for name, shape in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    for length in (1, 5):
        enc = rng.normal(size=(length, 8))
        check(model, *({"enc": enc, "limit": limit, "end": end} for limit, end in ((1, 0), (9, 99), (9, 2), (9, 4))))


def test_carried_values_that_cannot_be(check: Checker) -> None:
    for body, error, reason in (
        ("a1 = Unsqueeze (a, axis)", UnsupportedError, "rank 1 at first and rank 2 later"),
        ("a1 = Cast <to = 7> (a)", ModelError, "is f32; the body makes it i64"),
    ):
        model = model_of(f"""g (float[n] x, int64 M) => (float[m] y) <bool yes = {{1}}, int64[1] axis = {{0}}> {{
            y = Loop (M, yes, x) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a1) {{
                co = Identity (ci) {body}
            }}>
        }}""")
        model.graph.node[0].name = "the_loop"
        with pytest.raises(error, match=reason) as caught:
            load(model)
        assert "the_loop" in str(caught.value)


def test_carried_constant_that_stays(check: Checker) -> None:
    """What is carried and never changed, and a carried value that only later differs from the first."""
    model = model_of("""g (float[n] x, int64 M) => (float[n] y, float[2] z, float[k] u)
            <bool yes = {1}, float[2] c = {1,2}, float[1] d = {3}> {
        y, z, u = Loop (M, yes, x, c, d) <body = b (int64 i, bool ci, float[] a, float[] p, float[] q)
                => (bool co, float[] a1, float[] p1, float[] q1) {
            co = Identity (ci)
            s = ReduceSum <keepdims = 1> (q)
            a1 = Add (a, s)
            p1 = Identity (p)
            q1 = Identity (c)
        }>
    }""")
    check(model, *({"x": floats(3), "M": trips} for trips in (0, 1, 3)))
