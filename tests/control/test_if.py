"""If on what only the run knows."""

from __future__ import annotations

import numpy as np
import pytest

from aot.errors import ModelError, UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load, load_variants
from tests.control.models import Array, Checker, arrays, assert_same, by_onnxruntime, fits, model_of


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


CONDITION = "zero = Constant <value = float {0}> () s = ReduceSum <keepdims = 0> (x) c = Greater (s, zero)"
UP, DOWN = np.abs(floats(3, 4)), -np.abs(floats(3, 4))


def test_branches_of_different_shapes(check: Checker) -> None:
    model = model_of(f"""g (float[n,4] x) => (float[m,4] z, int64[2] sh) <float[2,4] w = {{1,2,3,4,5,6,7,8}}> {{
        {CONDITION}
        y = If (c) <then_branch = th () => (float[] t) {{ t = Relu (x) }},
                    else_branch = el () => (float[] e) {{ e = Concat <axis = 0> (x, w) }}>
        z = Mul (y, y)
        sh = Shape (z)
    }}""")
    check(model, {"x": UP}, {"x": DOWN}, {"x": -np.abs(floats(5, 4))})


def test_what_a_branch_may_return(check: Checker) -> None:
    """An input, a constant, an outer value, a known size, one value twice."""
    model = model_of(f"""g (float[n,4] x) => (float[a,b] p, int64[k] q, float[e,f] r, float[g,h] v, float[] t)
        <float[1,2] w = {{1,2}}, int64[2] k = {{7,9}}> {{
        {CONDITION}
        d = Exp (x)
        size = Shape (x)
        p, q, r, v, t = If (c) <
            then_branch = th () => (float[] p1, int64[] q1, float[] r1, float[] g1, float[] t1) {{
                p1 = Identity (x) q1 = Identity (size) r1 = Identity (d) g1 = Identity (r1)
                t1 = ReduceSum <keepdims = 0> (d)
            }},
            else_branch = el () => (float[] p2, int64[] q2, float[] r2, float[] g2, float[] t2) {{
                p2 = Identity (w) q2 = Identity (k) r2 = Neg (d) g2 = Neg (d)
                t2 = Constant <value = float {{3}}> ()
            }}>
    }}""")
    check(model, {"x": UP}, {"x": DOWN})


def test_outer_names_as_results_of_branches(check: Checker) -> None:
    """The outputs of a branch may be tensors from outside, and one of them twice."""
    model = model_of(f"""g (float[n,4] x) => (float[a,b] p, float[c,d] q)
        <float[1,4] w = {{1,2,3,4}}> {{
        {CONDITION}
        u = Add (x, w)
        p, q = If (c) <then_branch = th () => (float[] a1, float[] a2) {{ a1 = Identity (u) a2 = Identity (u) }},
                       else_branch = el () => (float[] b1, float[] b2) {{ b1 = Identity (w) b2 = Identity (x) }}>
    }}""")
    check(model, {"x": UP}, {"x": DOWN})


def test_nested_with_captures(check: Checker) -> None:
    model = model_of(f"""g (float[n,4] x, float lim) => (float[m] y) <float[3] w = {{1,2,3}}> {{
        {CONDITION}
        flat_shape = Constant <value = int64[1] {{-1}}> ()
        flat = Reshape (x, flat_shape)
        y = If (c) <
            then_branch = th () => (float[] y1) {{
                big = Greater (s, lim)
                y1 = If (big) <
                    then_branch = th2 () => (float[] y11) {{ y11 = Concat <axis = 0> (flat, w, flat) }},
                    else_branch = el2 () => (float[] y12) {{ y12 = Mul (w, lim) }}>
            }},
            else_branch = el () => (float[] y2) {{
                small = Less (s, lim)
                y2 = If (small) <
                    then_branch = th3 () => (float[] y21) {{ y21 = Identity (flat) }},
                    else_branch = el3 () => (float[] y22) {{ y22 = Identity (w) }}>
            }}>
    }}""")
    check(model, *({"x": x, "lim": lim} for x in (UP, DOWN) for lim in (-1e3, 0.5, 1e3)))


def test_sizes_from_data_inside(check: Checker) -> None:
    model = model_of(f"""g (float[n,4] x) => (int64[r,k] y, float[t] z) {{
        {CONDITION}
        y, z = If (c) <
            then_branch = th () => (int64[] y1, float[] z1) {{
                y1 = NonZero (x)
                n = Shape (y1)
                one = Constant <value = int64 {{1}}> ()
                k = Gather <axis = 0> (n, one)
                zero_i = Constant <value = int64 {{0}}> ()
                r = Range (zero_i, k, one)
                z1 = Cast <to = 1> (r)
            }},
            else_branch = el () => (int64[] y2, float[] z2) {{
                y2 = Constant <value = int64[1,2] {{5,6}}> ()
                m1 = Constant <value = int64[1] {{-1}}> ()
                z2 = Reshape (x, m1)
            }}>
    }}""")
    sparse = np.where(np.arange(12).reshape(3, 4) % 3, 0, 1).astype(np.float32)
    check(model, {"x": sparse}, {"x": DOWN}, {"x": UP}, {"x": np.zeros((2, 4))})


def test_in_a_function(check: Checker) -> None:
    model = model_of(
        f"""g (float[n,4] x, float[4] b) => (float[m,4] y, float[k,4] z) {{
            {CONDITION}
            y = local.choose (c, x, b)
            not_c = Not (c)
            z = local.choose (not_c, y, b)
        }}""",
        functions="""<opset_import: ["" : 17], domain: "local"> choose (c, a, b) => (r) {
            r = If (c) <then_branch = th () => (float[] t) { t = Add (a, b) },
                        else_branch = el () => (float[] e) { e = Concat <axis = 0> (a, a) }>
        }""",
    )
    check(model, {"x": UP, "b": floats(4)}, {"x": DOWN, "b": floats(4)})


def test_a_condition_of_shape_one_and_integer_results(check: Checker) -> None:
    model = model_of("""g (bool[1] c, int32[n] x, bool[n] f) => (int32[m] y, bool[k] z) {
        y, z = If (c) <then_branch = th () => (int32[] t, bool[] tf) { t = Add (x, x) tf = Not (f) },
                       else_branch = el () => (int32[] e, bool[] ef) { e = Concat <axis = 0> (x, x) ef = Identity (f) }>
    }""")
    feed = {"x": [1, -2, 3], "f": [True, False, True]}
    check(model, {"c": [True], **feed}, {"c": [False], **feed})


def test_one_branch_that_does_nothing_and_one_that_never_ends_well(check: Checker) -> None:
    """What a branch computes is not computed where it is not taken: this one would divide by zero."""
    model = model_of("""g (int64 a, int64 b) => (int64 y) <int64 zero = {0}> {
        same = Equal (b, zero)
        c = Not (same)
        y = If (c) <then_branch = th () => (int64 t) { t = Div (a, b) },
                    else_branch = el () => (int64 e) { e = Neg (a) }>
    }""")
    check(model, {"a": 7, "b": 2}, {"a": 7, "b": 0})


def test_results_that_nobody_reads(check: Checker) -> None:
    model = model_of("""g (bool c, float[n] x) => (float[m] y) {
        y, unused = If (c) <then_branch = th () => (float[] t, float[] u) { t = Neg (x) u = Concat <axis=0> (x, x) },
                            else_branch = el () => (float[] e, float[] v) { e = Concat <axis=0> (x, x) v = Exp (x) }>
    }""")
    check(model, {"c": True, "x": floats(3)}, {"c": False, "x": floats(3)})


@pytest.mark.parametrize(
    ("then", "other", "error", "reason"),
    [
        ("t = Relu (x)", "e = Reshape (x, k)", UnsupportedError, "rank 1 in one branch and rank 2"),
        ("t = Relu (x)", "e = Cast <to = 7> (x)", ModelError, "f32 in one branch and i64 in the other"),
    ],
)
def test_results_that_have_no_common_type(then: str, other: str, error: type[Exception], reason: str) -> None:
    model = model_of(f"""g (float s, float[n] x) => (float[m] y) <int64[2] k = {{1,-1}}> {{
        c = IsNaN (s)
        y = If (c) <then_branch = th () => (float[] t) {{ {then} }},
                    else_branch = el () => (float[] e) {{ {other} }}>
    }}""")
    model.graph.node[1].name = "the_choice"
    with pytest.raises(error, match=reason) as caught:
        load(model)
    assert "the_choice" in str(caught.value)


def test_more_conditions_on_inputs_than_there_are_programs(check: Checker) -> None:
    """Each flag of the first ones doubles the programs; the others are decided when running."""
    count = 9
    flags = ", ".join(f"bool c{i}" for i in range(count))
    steps = "\n".join(
        f"""x{i + 1} = If (c{i}) <then_branch = t{i} () => (float[] a{i}) {{ a{i} = Neg (x{i}) }},
                                  else_branch = e{i} () => (float[] b{i}) {{ b{i} = Add (x{i}, x0) }}>"""
        for i in range(count)
    )
    model = model_of(f"g (float[n] x0, {flags}) => (float[n] y) {{ {steps} y = Exp (x{count}) }}")
    graphs = [graph for _, graph in load_variants(model)[0]]
    assert 1 < len(graphs) <= 8
    for graph in graphs:
        for number in (0, 300, 511):
            feed = arrays({"x0": [0.5, -1]} | {f"c{i}": number >> i & 1 for i in range(count)}, model)
            if fits(graph, feed):
                assert_same(evaluate(graph, feed), by_onnxruntime(model, [feed])[0], f"flags {number}")
