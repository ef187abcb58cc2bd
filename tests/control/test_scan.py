"""Scan: axes, directions, states, nested bodies, and the operator sets that define it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aot.errors import ModelError
from aot.frontend import load
from tests.control.models import Array, Checker, model_of


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


SUM = """(float[] st, float[] xi) => (float[] st1, float[] o) {
    st1 = Add (st, xi)
    o = Mul (st1, k)
}"""


@pytest.mark.parametrize("opset", [9, 11, 16, 21])
@pytest.mark.parametrize("backwards", [0, 1])
def test_running_sum(check: Checker, opset: int, backwards: int) -> None:
    model = model_of(
        f"""g (float[b,3] s0, float[t,b,3] x) => (float[b,3] sf, float[t,b,3] ys) <float[3] k = {{1,2,3}}> {{
        sf, ys = Scan <num_scan_inputs = 1, scan_input_directions = [{backwards}], body = c {SUM}> (s0, x)
    }}""",
        opset,
    )
    check(model, *({"s0": floats(b, 3), "x": floats(t, b, 3)} for b, t in ((2, 5), (1, 1), (3, 2))))


@pytest.mark.parametrize(
    ("axis", "out_axis", "backwards", "out_backwards"),
    [*[*itertools.product((0, 1, 2), (0, 2), (0, 1), (0, 1))][::3], (-1, -1, 1, 0), (-2, -3, 0, 1)],
)
def test_axes_and_directions(check: Checker, axis: int, out_axis: int, backwards: int, out_backwards: int) -> None:
    rest = ["p", "q"]
    place = axis % 3
    shape = ",".join([*rest[:place], "t", *rest[place:]])
    model = model_of(f"""g (float[{shape}] x, float[p,q] s0) => (float[p,q] sf, float[a,b,c] ys) <float k = {{2}}> {{
        sf, ys = Scan <num_scan_inputs = 1, scan_input_axes = [{axis}], scan_input_directions = [{backwards}],
                       scan_output_axes = [{out_axis}], scan_output_directions = [{out_backwards}],
                       body = c {SUM}> (s0, x)
    }}""")
    for t, p, q in ((4, 2, 3), (1, 1, 2)):
        extents = [p, q]
        extents.insert(place, t)
        check(model, {"x": floats(*extents), "s0": floats(p, q)})


def test_several_states_and_scans(check: Checker) -> None:
    """Two states of different shapes, three operands along different axes, three results; one body result twice."""
    model = model_of("""g (float[n] a0, float[2] b0, float[t,n] x, float[n,t] y, int64[t] z, float w)
            => (float[n] af, float[2] bf, float[t,n] r, float[2,t] s, int64[t] u) {
        af, bf, r, s, u = Scan <num_scan_inputs = 3, scan_input_axes = [0, 1, 0], scan_input_directions = [0, 1, 0],
                                scan_output_axes = [0, 1, 0], scan_output_directions = [1, 0, 1],
            body = c (float[] a, float[] b, float[] xi, float[] yi, int64 zi)
                  => (float[] a1, float[] b1, float[] r1, float[] s1, int64 u1) {
                p = Mul (xi, yi)
                a1 = Add (a, p)
                zf = Cast <to = 1> (zi)
                bz = Mul (b, zf)
                b1 = Sub (bz, w)
                r1 = Identity (a1)
                s1 = Identity (b1)
                u1 = Neg (zi)
            }> (a0, b0, x, y, z)
    }""")
    check(model, *(
        {"a0": floats(n), "b0": [1, 2], "x": floats(t, n), "y": floats(n, t), "z": np.arange(t), "w": 0.5}
        for n, t in ((3, 4), (1, 1), (2, 7))
    ))  # fmt: skip


def test_without_states(check: Checker) -> None:
    model = model_of("""g (float[t,n] x) => (float[t] s, float[t,n] sorted) <int64 k = {1}> {
        s, sorted = Scan <num_scan_inputs = 1, body = c (float[n] xi) => (float s1, float[] v) {
            s1 = ReduceMax <keepdims = 0> (xi)
            size = Shape (xi)
            v, i = TopK <largest = 0> (xi, size)
        }> (x)
    }""")
    check(model, {"x": floats(4, 3)}, {"x": floats(1, 1)})


def test_scan_in_loop_in_scan_with_an_if(check: Checker) -> None:
    model = model_of("""g (float[n] s0, float[t,n] x, int64 M) => (float[n] sf, float[t,n] ys)
            <bool yes = {1}, float zero = {0}> {
        sf, ys = Scan <num_scan_inputs = 1, body = c (float[] st, float[] xi) => (float[] st2, float[] o) {
            st1 = Loop (M, yes, st) <body = l (int64 i, bool ci, float[] a) => (bool co, float[] a1) {
                co = Identity (ci)
                total, rows = Scan <num_scan_inputs = 1, body = d (float q, float e) => (float q1, float e1) {
                    q1 = Add (q, e)
                    e1 = Mul (q1, e)
                }> (zero, a)
                a1 = Tanh (rows)
            }>
            m = ReduceSum <keepdims = 0> (xi)
            up = Greater (m, zero)
            o = If (up) <then_branch = th () => (float[] p1) { p1 = Add (st1, xi) },
                         else_branch = el () => (float[] p2) { p2 = Neg (xi) }>
            st2 = Identity (o)
        }> (s0, x)
    }""")
    for n, t, trips in ((3, 4, 2), (1, 2, 0), (2, 1, 1)):
        state, x = floats(n), floats(t, n, seed=t)
        feed, results = {"s0": state, "x": x, "M": trips}, []
        for row in x:
            for _ in range(trips):
                state = np.tanh(np.cumsum(state) * state)
            state = state + row if row.sum() > 0 else -row
            results.append(state)
        check(model, feed, want=[[state, np.array(results)]])  # ONNX Runtime wants fixed shapes here


def test_operator_set_8(check: Checker) -> None:
    """The first form of Scan: a batch axis before the others, and lengths of sequences, which must be absent."""
    model = model_of(
        """g (float[b,2] s0, float[b,t,2] x) => (float[b,2] sf, float[b,t,2] ys) {
        sf, ys = Scan <num_scan_inputs = 1, body = c (float[2] st, float[2] xi) => (float[2] st1, float[2] o) {
            st1 = Add (st, xi)
            o = Identity (st1)
        }> (, s0, x)
    }""",
        8,
        ir=4,
    )
    for b, t in ((1, 3), (2, 4), (3, 1)):
        start, x = floats(b, 2), floats(b, t, 2)
        sums = start[:, None] + np.cumsum(x, axis=1)
        check(model, {"s0": start, "x": x}, want=[[sums[:, -1], sums]])


def test_operator_set_8_backwards_with_two_operands(check: Checker) -> None:
    model = model_of(
        """g (float[b] s0, float[b,t] x, float[b,t,2] y) => (float[b] sf, float[b,t,2] ys) {
        sf, ys = Scan <num_scan_inputs = 2, directions = [1, 0], body = c (float st, float xi, float[2] yi)
                => (float st1, float[2] o) {
            st1 = Add (st, xi)
            o = Mul (yi, st1)
        }> (, s0, x, y)
    }""",
        8,
        ir=4,
    )
    start, x, y = floats(2), floats(2, 3), floats(2, 3, 2)
    sums = start[:, None] + np.cumsum(x[:, ::-1], axis=1)
    check(model, {"s0": start, "x": x, "y": y}, want=[[sums[:, -1], y * sums[:, :, None]]])


def test_lengths_that_differ() -> None:
    model = model_of("""g (float[4,2] x, float[5,2] y) => (float[t,2] ys) {
        ys = Scan <num_scan_inputs = 2, body = c (float[2] a, float[2] b) => (float[2] o) { o = Add (a, b) }> (x, y)
    }""")
    model.graph.node[0].name = "the_scan"
    with pytest.raises(ModelError, match="the_scan"):
        load(model)
