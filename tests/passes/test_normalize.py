"""Every normalization rule in a graph where it fires and in one where it declines."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aot.builder import Builder
from aot.dtypes import BOOL, F16, F32, F64, I8, I32, I64, U8
from aot.evaluate import evaluate
from aot.ir import Graph, Value
from aot.passes import Context
from aot.text import parse_graph, print_graph
from aot.transforms.normalize import NORMALIZE_RULES, holds, normalize
from tests.passes.cases import Case, N, built, check, declines, f, f32, fires, full, ints, n, named, uncovered, w

RULES = {rule.name: rule for rule in NORMALIZE_RULES}
M = N.dim


def halves(b: Builder) -> tuple[Value, Value]:
    """The first two columns of a tensor, and the other two."""
    x = f(b, "x", M, 4)
    low, high = (b.slice_(x, starts=(0, start), sizes=(M, 2), steps=(1, 1)) for start in (0, 2))
    return low, high


CASES: list[Case] = [
    fires("constant_second", lambda b: b.add(w(b, 3), f(b, "x", M, 3)), "add"),
    fires("constant_second", lambda b: b.lt(w(b, 3), f(b, "x", M, 3)), "gt"),
    declines("constant_second", lambda b: b.sub(w(b, 3), f(b, "x", M, 3))),
    declines("constant_second", lambda b: b.add(f(b, "x", M, 3), w(b, 3))),
    fires("splat_to_number", lambda b: b.mul(f(b, "x", M, 3), full(b, 2.5, 1, 3)), "mul"),
    fires("splat_to_number", lambda b: b.where(f(b, "c", M, 3, dtype=BOOL), full(b, 0.0, 1, 3), f(b, "x", M, 3))),
    declines("splat_to_number", lambda b: b.mul(f(b, "x", M, 1), full(b, 2.5, 1, 3))),
    declines("splat_to_number", lambda b: b.mul(f(b, "x", M, 3), w(b, 3))),
    fires("drop_copy", lambda b: b.relu(b.copy(f(b, "x", M, 3))), "relu"),
    fires("drop_copy", lambda b: b.copy(b.relu(f(b, "x", M, 3))), "relu"),
    declines("drop_copy", lambda b: b.copy(f(b, "x", M, 3)), "an output of the model"),
    fires("drop_cast", lambda b: b.relu(b.cast(f(b, "x", M), to=F32)), "relu"),
    declines("drop_cast", lambda b: b.relu(b.cast(f(b, "x", M), to=F64))),
    fires("cast_of_cast", lambda b: b.cast(b.cast(f(b, "x", M), to=F64), to=F16), "cast"),
    fires("cast_of_cast", lambda b: b.relu(b.cast(b.cast(f(b, "x", M), to=F64), to=F32)), "relu"),
    fires("cast_of_cast", lambda b: b.cast(b.cast(b.cast(f(b, "x", M, dtype=I8), to=I32), to=F32), to=F64), "cast"),
    declines("cast_of_cast", lambda b: b.cast(b.cast(f(b, "x", M), to=F16), to=F32), "f16 does not hold every f32"),
    declines("cast_of_cast", lambda b: b.cast(b.cast(f(b, "x", M, dtype=I32), to=F32), to=F64), "f32 does not hold"),
    fires("times_one", lambda b: b.relu(b.mul(f(b, "x", M, 3), n(b, 1.0))), "relu"),
    fires("times_one", lambda b: b.relu(b.div(f(b, "x", M, 3), full(b, 1.0, 3))), "relu"),
    declines("times_one", lambda b: b.relu(b.mul(f(b, "x", M, 1), full(b, 1.0, 3))), "widens"),
    declines("times_one", lambda b: b.relu(b.mul(f(b, "x", M, 1), n(b, 1.0000001)))),
    fires("minus_zero", lambda b: b.relu(b.sub(f(b, "x", M, 3), n(b, 0.0))), "relu"),
    fires("minus_zero", lambda b: b.neg(b.add(f(b, "x", M, dtype=I64), n(b, 0, I64))), "neg"),
    declines("minus_zero", lambda b: b.relu(b.sub(n(b, 0.0), f(b, "x", M, 3)))),
    fires("plus_zero", lambda b: b.relu(b.add(f(b, "x", M, 3), full(b, 0.0, 3))), "relu"),
    declines("plus_zero", lambda b: b.relu(b.add(f(b, "x", M, 3), n(b, 0.0))), "rounding", exact=True),
    fires("above_all", lambda b: b.relu(b.max(f(b, "x", M, 3), n(b, -math.inf))), "relu"),
    declines("above_all", lambda b: b.relu(b.max(f(b, "x", M, 3), n(b, -1e30)))),
    fires("below_all", lambda b: b.relu(b.min(f(b, "x", M, 3), n(b, math.inf))), "relu"),
    declines("below_all", lambda b: b.relu(b.min(f(b, "x", M, 3), n(b, 1e30)))),
    fires("neutral_logic", lambda b: b.not_(b.and_(f(b, "x", M, dtype=BOOL), n(b, True, BOOL))), "not"),
    fires("neutral_logic", lambda b: b.not_(b.or_(f(b, "x", M, dtype=BOOL), n(b, False, BOOL))), "not"),
    declines("neutral_logic", lambda b: b.not_(b.or_(f(b, "x", M, dtype=BOOL), n(b, True, BOOL)))),
    declines("neutral_logic", lambda b: b.and_(f(b, "x", M, dtype=I32), n(b, 1, I32))),
    fires("with_itself", lambda b: (lambda x: b.relu(b.max(x, x)))(f(b, "x", M)), "relu"),
    declines("with_itself", lambda b: b.relu(b.max(f(b, "x", M), f(b, "y", M)))),
    fires("twice_is_nothing", lambda b: b.relu(b.neg(b.neg(f(b, "x", M)))), "relu"),
    declines("twice_is_nothing", lambda b: b.not_(b.neg(f(b, "x", M, dtype=I32)))),
    fires("once_is_enough", lambda b: b.relu(b.relu(f(b, "x", M))), "relu"),
    declines("once_is_enough", lambda b: b.floor(b.abs(f(b, "x", M)))),
    fires("decided_where", lambda b: b.relu(b.where(n(b, True, BOOL), f(b, "x", M, 3), w(b, 3))), "relu"),
    fires("decided_where", lambda b: b.where(n(b, False, BOOL), f(b, "x", M, 3), f(b, "y", 3)), "expand"),
    declines("decided_where", lambda b: b.where(ints(b, 1, 0, 1, dtype=BOOL), f(b, "x", M, 3), w(b, 3))),
    fires(
        "where_of_equals", lambda b: (lambda x: b.relu(b.where(f(b, "c", M, dtype=BOOL), x, x)))(f(b, "x", M)), "relu"
    ),
    declines("where_of_equals", lambda b: b.where(f(b, "c", M, dtype=BOOL), f(b, "x", M), f(b, "y", M))),
    fires("power_to_op", lambda b: b.pow(f(b, "x", M, 3), n(b, 2.0)), "mul"),
    fires("power_to_op", lambda b: b.pow(b.abs(f(b, "x", M, 3)), full(b, 0.5, 1)), "abs sqrt"),
    fires("power_to_op", lambda b: b.pow(f(b, "x", M, 3), n(b, -1.0)), "reciprocal"),
    fires("power_to_op", lambda b: b.pow(f(b, "x", M, 3, dtype=I64), n(b, 2, I64)), "mul"),
    declines("power_to_op", lambda b: b.pow(f(b, "x", M, 3), n(b, 2.5))),
    declines("power_to_op", lambda b: b.pow(n(b, 2.0), f(b, "x", M, 3))),
    declines("power_to_op", lambda b: b.pow(f(b, "x", M, 1), full(b, 2.0, 1, 3)), "widens"),
    fires("power_to_ops", lambda b: b.pow(f(b, "x", M, 3), n(b, 3.0)), "mul mul"),
    fires("power_to_ops", lambda b: b.pow(b.exp(f(b, "x", M, 3)), n(b, -0.5)), "exp rsqrt"),
    declines("power_to_ops", lambda b: b.pow(f(b, "x", M, 3), n(b, 3.0)), "rounding", exact=True),
    fires("divide_by_power_of_two", lambda b: b.div(f(b, "x", M, 3), n(b, 8.0)), "mul"),
    fires("divide_by_power_of_two", lambda b: b.div(f(b, "x", M, 3), b.const(f32([2, -4, 0.5]))), "mul"),
    declines("divide_by_power_of_two", lambda b: b.div(f(b, "x", M, 3), n(b, 3.0))),
    declines("divide_by_power_of_two", lambda b: b.div(f(b, "x", M, 3), n(b, 0.0)), "reciprocal is zero, infinite"),
    fires("divide_by_constant", lambda b: b.div(f(b, "x", M, 3), n(b, 3.0)), "mul"),
    declines("divide_by_constant", lambda b: b.div(f(b, "x", M, 3), n(b, 1e-39)), "denormal"),
    declines("divide_by_constant", lambda b: b.div(f(b, "x", M, 3), n(b, 3.0)), "rounding", exact=True),
    declines("divide_by_constant", lambda b: b.div(f(b, "x", M, dtype=I64), n(b, 3, I64))),
    fires("divide_by_root", lambda b: b.div(f(b, "x", M, 3), b.sqrt(b.exp(f(b, "y", M, 1)))), "exp rsqrt mul"),
    declines(
        "divide_by_root",
        lambda b: (lambda r: (b.div(f(b, "x", M, 3), r), b.neg(r)))(b.sqrt(f(b, "y", M, 1))),
        "also read by neg",
    ),
    fires("reciprocal_of_root", lambda b: b.reciprocal(b.sqrt(b.exp(f(b, "x", M)))), "exp rsqrt"),
    declines("reciprocal_of_root", lambda b: b.reciprocal(b.sqrt(f(b, "x", M))), "rounding", exact=True),
    fires("one_over", lambda b: b.div(n(b, 1.0), f(b, "x", M)), "reciprocal"),
    declines("one_over", lambda b: b.div(n(b, 2.0), f(b, "x", M))),
    fires("times_reciprocal", lambda b: b.mul(f(b, "x", M), b.reciprocal(f(b, "y", M))), "div"),
    declines("times_reciprocal", lambda b: b.mul(f(b, "x", M, 3), b.reciprocal(f(b, "y", M, 1))), "serves many"),
    fires("square_of_root", lambda b: (lambda r: b.mul(r, r))(b.sqrt(b.exp(f(b, "x", M)))), "exp"),
    declines("square_of_root", lambda b: (lambda r: b.mul(r, r))(b.sqrt(f(b, "x", M))), "may be negative"),
    fires("relu_of_nonnegative", lambda b: b.relu(b.add(b.abs(f(b, "x", M)), n(b, 2.0))), "abs add"),
    declines("relu_of_nonnegative", lambda b: b.relu(b.sub(b.abs(f(b, "x", M)), n(b, 2.0)))),
    fires("open_clip", lambda b: b.relu(b.clip(f(b, "x", M), n(b, -math.inf), n(b, math.inf))), "relu"),
    fires("open_clip", lambda b: b.clip(f(b, "x", M), n(b, 0.0)), "relu"),
    fires("open_clip", lambda b: b.neg(b.clip(f(b, "x", M))), "neg"),
    declines("open_clip", lambda b: b.clip(f(b, "x", M), n(b, 0.0), n(b, 6.0))),
    declines("open_clip", lambda b: b.clip(f(b, "x", M), f(b, "lo"))),
    fires("max_with_zero", lambda b: b.max(f(b, "x", M), n(b, 0.0)), "relu"),
    declines("max_with_zero", lambda b: b.max(f(b, "x", M), n(b, 0.1))),
    fires("identity_transpose", lambda b: b.relu(b.transpose(f(b, "x", M, 3), perm=(0, 1))), "relu"),
    declines("identity_transpose", lambda b: b.relu(b.transpose(f(b, "x", M, 3), perm=(1, 0)))),
    fires(
        "transpose_of_transpose",
        lambda b: b.transpose(b.transpose(f(b, "x", M, 3, 4), perm=(1, 2, 0)), perm=(0, 2, 1)),
        "transpose",
    ),
    fires(
        "transpose_of_transpose",
        lambda b: b.relu(b.transpose(b.transpose(f(b, "x", M, 3, 4), perm=(1, 2, 0)), perm=(2, 0, 1))),
        "relu",
    ),
    declines("transpose_of_transpose", lambda b: b.transpose(b.relu(f(b, "x", M, 3)), perm=(1, 0))),
    fires("transpose_of_units", lambda b: b.transpose(f(b, "x", M, 1, 4), perm=(1, 0, 2)), "reshape"),
    declines("transpose_of_units", lambda b: b.transpose(f(b, "x", M, 1, 4), perm=(2, 1, 0))),
    fires("identity_reshape", lambda b: b.relu(b.reshape(f(b, "x", M, 4), shape=(M, 4))), "relu"),
    declines("identity_reshape", lambda b: b.relu(b.reshape(f(b, "x", M, 4), shape=(M * 4,)))),
    fires(
        "reshape_of_reshape",
        lambda b: b.reshape(b.reshape(f(b, "x", M, 4), shape=(M * 4,)), shape=(M, 2, 2)),
        "reshape",
    ),
    fires(
        "reshape_of_reshape",
        lambda b: b.relu(b.reshape(b.reshape(f(b, "x", M, 4), shape=(M * 4,)), shape=(M, 4))),
        "relu",
    ),
    declines("reshape_of_reshape", lambda b: b.reshape(b.relu(f(b, "x", M, 4)), shape=(M * 4,))),
    fires("identity_expand", lambda b: b.relu(b.expand(f(b, "x", M, 4), shape=(M, 4))), "relu"),
    declines("identity_expand", lambda b: b.relu(b.expand(f(b, "x", M, 1), shape=(M, 4)))),
    fires("expand_of_expand", lambda b: b.expand(b.expand(f(b, "x", M, 1), shape=(M, 4)), shape=(2, M, 4)), "expand"),
    declines("expand_of_expand", lambda b: b.expand(b.relu(f(b, "x", M, 1)), shape=(M, 4))),
    fires("expand_of_operand", lambda b: b.add(f(b, "x", M, 4), b.expand(f(b, "y", 1, 4), shape=(M, 4))), "add"),
    fires(
        "expand_of_operand",
        lambda b: (lambda e: b.add(b.add(f(b, "x", M, 4), e), e))(b.expand(f(b, "y", 1, 4), shape=(M, 4))),
        "add add",
    ),
    declines("expand_of_operand", lambda b: b.relu(b.expand(f(b, "y", 1, 4), shape=(3, 4)))),
    fires("expand_below_map", lambda b: b.tanh(b.expand(f(b, "x", M, 1), shape=(M, 4))), "tanh expand"),
    fires("expand_below_map", lambda b: b.sub(n(b, 1.0), b.expand(f(b, "x", M), shape=(2, M))), "sub expand"),
    fires("expand_below_map", lambda b: (lambda e: b.mul(e, e))(b.expand(f(b, "x", M), shape=(2, M))), "mul expand"),
    declines("expand_below_map", lambda b: b.mul(b.expand(f(b, "x", M, 1), shape=(M, 4)), f(b, "y", 1, 4))),
    fires(
        "expand_below_reduce",
        lambda b: b.reduce_sum(b.expand(f(b, "x", M, 5, 1), shape=(2, M, 5, 4)), axes=(2,)),
        "reduce_sum expand",
    ),
    declines(
        "expand_below_reduce",
        lambda b: b.reduce_sum(b.expand(f(b, "x", M, 1), shape=(M, 4)), axes=(1,)),
        "over an expanded axis",
    ),
    fires("full_slice", lambda b: b.relu(b.slice_(f(b, "x", M, 4), starts=(0, 0), sizes=(M, 4), steps=(1, 1))), "relu"),
    declines("full_slice", lambda b: b.relu(b.slice_(f(b, "x", M, 4), starts=(0, 3), sizes=(M, 4), steps=(1, -1)))),
    declines("full_slice", lambda b: b.relu(b.slice_(f(b, "x", M, 4), starts=(0, 0), sizes=(M, 3), steps=(1, 1)))),
    fires(
        "slice_of_slice",
        lambda b: b.slice_(
            b.slice_(f(b, "x", M, 20), starts=(0, 3), sizes=(M, 8), steps=(1, 2)),
            starts=(0, 6),
            sizes=(M, 3),
            steps=(1, -2),
        ),
        "slice",
    ),
    declines("slice_of_slice", lambda b: b.slice_(b.relu(f(b, "x", M, 4)), starts=(0, 0), sizes=(M, 3), steps=(1, 1))),
    fires(
        "slice_of_concat",
        lambda b: b.slice_(
            b.concat(f(b, "x", M, 4), f(b, "y", M, 5), axis=1), starts=(0, 8), sizes=(M, 3), steps=(1, -2)
        ),
        "slice",
    ),
    declines(
        "slice_of_concat",
        lambda b: b.slice_(
            b.concat(f(b, "x", M, 4), f(b, "y", M, 5), axis=1), starts=(0, 3), sizes=(M, 2), steps=(1, 1)
        ),
        "spans several",
    ),
    declines(
        "slice_of_concat",
        lambda b: b.slice_(
            b.concat(f(b, "x", M, 4), f(b, "y", 5, 4), axis=0), starts=(M, 0), sizes=(5, 4), steps=(1, 1)
        ),
        "not known",
    ),
    fires("concat_of_one", lambda b: b.relu(b.concat(f(b, "x", M, 4), axis=0)), "relu"),
    fires("concat_of_one", lambda b: b.relu(b.concat(f(b, "z", M, 0), f(b, "x", M, 4), axis=1)), "relu"),
    declines("concat_of_one", lambda b: b.relu(b.concat(f(b, "x", M, 4), f(b, "y", M, 4), axis=0))),
    fires("concat_of_nothing", lambda b: b.concat(f(b, "x", M, 4), f(b, "z", M, 0), f(b, "y", M, 2), axis=1), "concat"),
    declines("concat_of_nothing", lambda b: b.concat(f(b, "x", M, 4), f(b, "y", M, 2), axis=1)),
    fires(
        "concat_of_concat",
        lambda b: b.concat(f(b, "x", M, 4), b.concat(f(b, "y", M, 1), f(b, "z", M, 2), axis=1), axis=1),
        "concat",
    ),
    declines(
        "concat_of_concat",
        lambda b: b.concat(f(b, "x", 2, 3), b.concat(f(b, "y", 2, 1), f(b, "z", 2, 2), axis=1), axis=0),
    ),
    fires(
        "concat_of_slices",
        lambda b: (
            lambda x: b.relu(
                b.concat(
                    b.slice_(x, starts=(0, 0), sizes=(M, 2), steps=(1, 1)),
                    b.slice_(x, starts=(0, 2), sizes=(M, 5), steps=(1, 1)),
                    f(b, "y", M, 1),
                    axis=1,
                )
            )
        )(f(b, "x", M, 9)),
        "slice concat relu",
    ),
    declines(
        "concat_of_slices",
        lambda b: (
            lambda x: b.concat(
                b.slice_(x, starts=(0, 2), sizes=(M, 5), steps=(1, 1)),
                b.slice_(x, starts=(0, 0), sizes=(M, 2), steps=(1, 1)),
                axis=1,
            )
        )(f(b, "x", M, 9)),
    ),
    fires(
        "concat_of_slices",  # of slices that others read too
        lambda b: (
            lambda parts: (
                b.concat(parts[1], parts[0], parts[1], parts[0], axis=-1),
                b.concat(parts[0], parts[1], axis=0),
            )
        )(halves(b)),
        "slice slice slice concat concat",
    ),
    fires("concat_of_slices", lambda b: b.relu(b.concat(*halves(b), axis=-1)), "slice relu"),
    fires(
        "slice_of_concat",
        lambda b: b.slice_(
            b.concat(f(b, "x", M, 4, 2), f(b, "y", M, 5, 2), axis=-2),
            starts=(0, 5, 0),
            sizes=(M, 3, 2),
            steps=(1, 1, 1),
        ),
        "slice",
    ),
    fires("concat_of_copies", lambda b: (lambda x: b.concat(x, x, axis=-2))(f(b, "x", M, 1, 4)), "expand"),
    fires("pad_of_nothing", lambda b: b.relu(b.pad(f(b, "x", M, 4), before=(0, 0), after=(0, 0))), "relu"),
    declines("pad_of_nothing", lambda b: b.relu(b.pad(f(b, "x", M, 4), before=(0, 0), after=(0, 1)))),
    fires(
        "pad_of_pad",
        lambda b: b.pad(b.pad(f(b, "x", M, 4), before=(0, 1), after=(0, 0)), before=(2, 0), after=(0, 3)),
        "pad",
    ),
    declines(
        "pad_of_pad",
        lambda b: b.pad(b.pad(f(b, "x", M, 4), before=(0, 1), after=(0, 0)), n(b, 1.0), before=(2, 0), after=(0, 3)),
        "different values",
    ),
    declines(
        "pad_of_pad",
        lambda b: b.pad(b.pad(f(b, "x", M, 4), before=(0, 1), after=(0, 0), mode="edge"), before=(2, 0), after=(0, 3)),
    ),
    fires("tile_of_one", lambda b: b.relu(b.tile(f(b, "x", M, 4), repeats=(1, 1))), "relu"),
    declines("tile_of_one", lambda b: b.relu(b.tile(f(b, "x", M, 4), repeats=(1, 2)))),
    fires("tile_of_units", lambda b: b.tile(f(b, "x", M, 1), repeats=(1, 3)), "expand"),
    declines("tile_of_units", lambda b: b.tile(f(b, "x", M, 4), repeats=(1, 2))),
    fires("concat_of_copies", lambda b: b.concat(*[f(b, "x", M, 1)] * 3, axis=1), "expand"),
    fires(
        "concat_of_copies",
        lambda b: b.relu(b.reshape(b.concat(*[f(b, "x", 3, 4)] * 2, axis=0), shape=(2, 3, 4))),
        "reshape expand reshape reshape relu",
    ),
    declines("concat_of_copies", lambda b: b.concat(*[f(b, "x", M, 4)] * 2, axis=1)),
    declines("concat_of_copies", lambda b: b.concat(f(b, "x", M, 1), f(b, "y", M, 1), axis=1)),
    fires(
        "reduce_keeps_axes", lambda b: b.reduce_sum(f(b, "x", M, 4), axes=(1,), keepdims=False), "reduce_sum reshape"
    ),
    declines("reduce_keeps_axes", lambda b: b.reduce_sum(f(b, "x", M, 4), axes=(1,), keepdims=True)),
    fires("reduce_of_units", lambda b: b.relu(b.reduce_max(f(b, "x", M, 1, 4), axes=(1,))), "relu"),
    fires("reduce_of_units", lambda b: b.reduce_mean(f(b, "x", M, 1, 4), axes=(1, 2)), "reduce_mean"),
    declines("reduce_of_units", lambda b: b.reduce_max(f(b, "x", M, 1, 4), axes=(2,))),
    fires("gather_at_known_places", lambda b: b.gather(f(b, "x", M, 6), n(b, -2, I64), axis=1), "slice reshape"),
    fires("gather_at_known_places", lambda b: b.gather(f(b, "x", M, 6), ints(b, 5, 3, 1), axis=1), "slice"),
    fires("gather_at_known_places", lambda b: b.gather(f(b, "x", M, 6, 4), ints(b, 1, 2), axis=-2), "slice"),
    declines("gather_at_known_places", lambda b: b.gather(f(b, "x", M, 6), ints(b, 0, 1, 3), axis=1), "no even step"),
    declines("gather_at_known_places", lambda b: b.gather(f(b, "x", M, 6), n(b, 6, I64), axis=1), "lie inside"),
    declines("gather_at_known_places", lambda b: b.gather(f(b, "x", M, 6), n(b, 0, I64), axis=0), "lie inside"),
]


@pytest.mark.parametrize("case", named(CASES))
def test_rule(case: Case) -> None:
    check(case, RULES)


def test_every_rule_has_both_cases() -> None:
    assert uncovered(CASES, NORMALIZE_RULES) == []


def test_holds() -> None:
    assert holds(F64, F32) and holds(F32, F16) and holds(I64, U8) and holds(F16, I8) and holds(F32, BOOL)
    assert (
        not holds(F16, F32)
        and not holds(U8, I8)
        and not holds(F32, I32)
        and not holds(BOOL, U8)
        and not holds(I64, F32)
    )


def normalized(graph: Graph) -> Graph:
    return normalize(graph, Context())


def test_normal_graph_is_returned_unchanged() -> None:
    graph = normalized(built(lambda b: b.div(b.add(w(b, 3), f(b, "x", M, 3)), n(b, 3.0))))
    assert normalized(graph) is graph


def test_an_output_keeps_its_value_when_the_node_behind_it_goes() -> None:
    b = Builder()
    y = b.copy(b.relu(b.input("x", F32, (3,))))
    graph = b.finish([y])
    result = normalized(graph)
    assert result.outputs == (y,) and [node.op for node in result.nodes] == ["relu"]


def test_outputs_that_would_coincide_stay_apart() -> None:
    b = Builder()
    x = b.relu(b.input("x", F32, (3,)))
    graph = b.finish([x, b.copy(x), b.copy(x)])
    result = normalized(graph)
    assert len(set(result.outputs)) == 3
    for output in evaluate(result, [f32([-1, 0, 2])]):
        np.testing.assert_array_equal(output, [0, 0, 2])


TEXT_IN = """
aot ir 1
graph small level=core {
  where N in 1..
  %0 x: f32[N,4] = input
  %1: f32[] = const = 2.0
  %2: f32[N,4] = copy(%0) ; "a"
  %3: f32[N,4] = add(%1, %2) ; "b"
  %4: f32[4,N] = transpose(%3) {perm=[1, 0]} ; "c"
  %5 y: f32[N,4] = transpose(%4) {perm=[1, 0]} ; "d"
  output %5
}
"""
TEXT_OUT = """
aot ir 1
graph small level=core {
  where N in 1..
  %0 x: f32[N,4] = input
  %1: f32[] = const = 2.0
  %2 y: f32[N,4] = add(%0, %1) ; b
  output %2
}
"""


def test_text_in_text_out() -> None:
    assert print_graph(normalized(parse_graph(TEXT_IN))) == print_graph(parse_graph(TEXT_OUT))
