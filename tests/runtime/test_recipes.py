"""The two executors of recipes give the same bits: numpy at build time, C++ at load time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot import dtypes, recipe
from aot.artifacts import Artifact
from aot.dtypes import DType
from aot.errors import ArtifactError, CompilerError
from aot.ir import Array, TensorType, const_of
from aot.program import Argument, Buffer, Constant, KernelCode, Port, Program, RecipeOp, RecipeStep, Source, Space, Step
from tests.runtime import handmade

COPY_SOURCE = (
    handmade.PRELUDE
    + """
void copy(const struct args *a) {
    const char *from = a->buffers[0];
    char *to = a->buffers[1];
    if (a->thread == 0)
        for (i64 i = 0; i < a->dims[0]; ++i) to[i] = from[i];
}
"""
)


def made_at_load(steps: Sequence[RecipeStep], sources: Sequence[Array]) -> tuple[Array, Array]:
    """The recipe's result by numpy, and by the runtime: a program that copies the constant out."""
    named = tuple(Source(f"w{i}", const_of(array)) for i, array in enumerate(sources))
    expected = recipe.run(steps, named)
    dtype = dtypes.from_numpy(expected.dtype)
    size = expected.nbytes
    program = Program(
        target="cpu:x86-64",
        variant="",
        symbols=(),
        inputs=(),
        outputs=(Port("y", TensorType(dtype, expected.shape)),),
        state=(),
        guards=(),
        sources=named,
        constants=(Constant("c", dtype.number, expected.shape, tuple(steps)),),
        buffers=(Buffer(Space.CONST, 0, size), Buffer(Space.OUTPUT, 0, size)),
        kernels=(KernelCode("copy", "MAP", "copy", (), "", COPY_SOURCE),),
        steps=(Step(0, (Argument(0), Argument(1)), (size,)),),
        code=handmade.compiled(COPY_SOURCE),
    )
    embedded = handmade.artifact(program).load(threads=1)()
    assert embedded.tobytes() == expected.tobytes()
    model = handmade.artifact(program, weights="none").load(
        threads=1, weights={source.name: source.const.array() for source in named}
    )
    return expected, model()


def check(steps: Sequence[RecipeStep], *sources: Array) -> Array:
    expected, found = made_at_load(steps, sources)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()
    return expected


def random(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape) * 10
    return values.astype(dtypes.BY_NAME[dtype].numpy if dtype in dtypes.BY_NAME else dtype)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.sampled_from([8, 16]), st.sampled_from(["float32", "int8", "float64"])
)
def test_pack_matrix(k: int, n: int, panel: int, dtype: str) -> None:
    w = random(k, n, dtype=dtype)
    packed = check((recipe.source(0), recipe.pack_matrix(k, n, panel)), w)
    assert packed.shape == (-(-n // panel), k, panel)
    flat = packed.transpose(1, 0, 2).reshape(k, -1)
    np.testing.assert_array_equal(flat[:, :n], w)
    assert not flat[:, n:].any()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_pack_convolution(groups: int, per_group: int, c: int, kh: int, kw: int) -> None:
    w = random(groups * per_group, c, kh, kw)
    packed = check((recipe.source(0), *recipe.pack_convolution(groups * per_group, c, kh, kw, groups)), w)
    panels = -(-per_group // 16)
    expected = np.zeros((groups, panels * 16, c, kh, kw), np.float32)
    expected[:, :per_group] = w.reshape(groups, per_group, c, kh, kw)
    expected = expected.reshape(groups, panels, 16, c, kh, kw).transpose(0, 1, 4, 5, 3, 2)
    np.testing.assert_array_equal(packed, expected)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_strided_copy(data: st.DataObject) -> None:
    """Every affine map, with holes, overlaps and reversals, against the definition."""
    source_shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    shape = data.draw(st.lists(st.integers(1, 4), min_size=0, max_size=3))
    rows = [tuple(data.draw(st.integers(-2, 3)) for _ in shape) for _ in source_shape]
    w = np.arange(1, np.prod(source_shape) + 1, dtype=np.int32).reshape(source_shape)
    step = RecipeStep(RecipeOp.PACK, shape=tuple(shape), coefficients=tuple(rows))
    found = check((recipe.source(0), step), w)
    for index in np.ndindex(*shape):
        at = tuple(sum(c * i for c, i in zip(row, index, strict=True)) for row in rows)
        inside = all(0 <= a < n for a, n in zip(at, source_shape, strict=True))
        assert found[index] == (w[at] if inside else 0)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_simplified_recipes_give_the_same_bits(data: st.DataObject) -> None:
    """Copies, reshapes, casts and joins in any order."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    steps: list[RecipeStep] = []
    sources = data.draw(st.integers(1, 3))
    for number in range(sources):
        steps.append(recipe.source(number))
        if data.draw(st.booleans()):
            steps.append(recipe.transpose(shape, range(len(shape))))
    w = [random(*shape, seed=number) for number in range(sources)]
    if sources > 1:
        axis = data.draw(st.integers(0, len(shape) - 1))
        steps.append(recipe.concat(axis, sources))
        shape = (*shape[:axis], shape[axis] * sources, *shape[axis + 1 :])
    for _ in range(data.draw(st.integers(1, 5))):
        what = data.draw(st.sampled_from(["transpose", "reshape", "split", "cast", "pack", "negate"]))
        if what == "transpose":
            order = data.draw(st.permutations(range(len(shape))))
            steps.append(recipe.transpose(shape, order))
            shape = tuple(shape[axis] for axis in order)
        elif what == "reshape":
            shape = (int(np.prod(shape)),)
            steps.append(recipe.reshape(*shape))
        elif what == "split":
            parts = [(2, n // 2) if n % 2 == 0 and data.draw(st.booleans()) else (n,) for n in shape]
            shape = tuple(n for part in parts for n in part)
            steps.append(recipe.reshape(*shape))
        elif what == "cast":
            steps.append(recipe.cast(data.draw(st.sampled_from([dtypes.F32, dtypes.F16]))))
        elif what == "negate":
            steps.append(RecipeStep(RecipeOp.NEG))
        else:
            wanted = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
            rows = tuple(tuple(data.draw(st.integers(-1, 2)) for _ in wanted) for _ in shape)
            steps.append(RecipeStep(RecipeOp.PACK, shape=wanted, coefficients=rows))
            shape = wanted
    named = [Source(f"w{number}", const_of(array)) for number, array in enumerate(w)]
    short = recipe.simplified(steps, [array.shape for array in w])
    assert len(short) <= len(steps) + 2 * sources
    assert recipe.run(short, named).tobytes() == recipe.run(steps, named).tobytes()
    assert recipe.run(short, named).shape == recipe.run(steps, named).shape


def test_what_is_moved_and_moved_back_stays() -> None:
    there, back = recipe.transpose((30, 20), (1, 0)), recipe.transpose((20, 30), (1, 0))
    source = (recipe.source(0),)
    assert recipe.simplified((*source, there, back), [(30, 20)]) == source
    half = recipe.cast(dtypes.F16)
    assert recipe.simplified((*source, there, half, back), [(30, 20)]) == (*source, half)
    joined = (*source, there, recipe.source(1), there, recipe.concat(1, 2), recipe.transpose((20, 60), (1, 0)))
    assert recipe.simplified(joined, [(30, 20)] * 2) == (*source, recipe.source(1), recipe.concat(0, 2))
    parts = (*source, there, recipe.reshape(4, 5, 30), recipe.transpose((4, 5, 30), (0, 2, 1)))
    (_, only) = recipe.simplified(parts, [(30, 20)])
    assert only == RecipeStep(RecipeOp.PACK, shape=(4, 30, 5), coefficients=((0, 1, 0), (5, 0, 1)))


def test_transpose() -> None:
    w = random(3, 4, 5)
    np.testing.assert_array_equal(
        check((recipe.source(0), recipe.transpose((3, 4, 5), (2, 0, 1))), w), w.transpose(2, 0, 1)
    )


@pytest.mark.parametrize("dtype", ["i8", "f16", "f32", "f64"])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((300, 270), (1, 0)),
        ((3, 130, 257), (2, 0, 1)),
        ((129, 2, 150), (2, 1, 0)),
        ((1, 300), (1, 0)),
        ((5, 1, 600), (2, 1, 0)),
    ],
)
def test_large_transposes(shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> None:
    """Beyond one square of those that the runtime copies at a time, and with rests."""
    w = random(*shape, dtype=dtype)
    np.testing.assert_array_equal(check((recipe.source(0), recipe.transpose(shape, order)), w), w.transpose(order))


def test_a_part_of_a_transpose() -> None:
    """Strides in the source, and an axis that is read again and again."""
    w = random(300, 290)
    step = RecipeStep(RecipeOp.PACK, shape=(140, 3, 150), coefficients=((0, 0, 2), (1, 0, 0)))
    found = check((recipe.source(0), step), w)
    np.testing.assert_array_equal(found, np.repeat(w[::2, :140].T[:, None], 3, axis=1))


def test_batch_norm_folded_into_a_convolution() -> None:
    """w * (scale / sqrt(variance + epsilon)), as the folding pass writes it."""
    w, scale, variance = random(6, 3, 3, 3), random(6, seed=1), np.abs(random(6, seed=2))
    steps = (
        recipe.source(0),
        recipe.source(1),
        recipe.source(2),
        recipe.scalar(1e-5, dtypes.F32),
        RecipeStep(RecipeOp.ADD),
        RecipeStep(RecipeOp.SQRT),
        RecipeStep(RecipeOp.DIV),
        recipe.reshape(6, 1, 1, 1),
        RecipeStep(RecipeOp.MUL),
        RecipeStep(RecipeOp.NEG),
        *recipe.pack_convolution(6, 3, 3, 3),
    )
    check(steps, w, scale, variance)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_winograd(dtype: str) -> None:
    w = random(5, 7, 3, 3, dtype=dtype)
    packed = check((recipe.source(0), recipe.winograd()), w)
    assert packed.shape == (16, 7, 5)
    g = np.asarray([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    expected = np.einsum("ik,ockl,jl->ijco", g, w.astype(np.float64), g).reshape(16, 7, 5)
    tolerance = {"f32": 1e-6, "f64": 1e-14, "f16": 2e-3, "bf16": 1e-2}[dtype]
    np.testing.assert_allclose(packed.astype(np.float64), expected, rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("op", [RecipeOp.ADD, RecipeOp.SUB, RecipeOp.MUL, RecipeOp.DIV])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8", "u16"])
def test_arithmetic_broadcasts(op: RecipeOp, dtype: str) -> None:
    a, b = random(4, 1, 3, dtype=dtype), random(5, 1, dtype=dtype, seed=1)
    steps = (recipe.source(0), recipe.source(1), RecipeStep(op))
    if op == RecipeOp.DIV and not dtypes.BY_NAME[dtype].is_float:
        with pytest.raises(CompilerError, match="division"):
            recipe.run(steps, (Source("a", const_of(a)), Source("b", const_of(b))))
        return
    assert check(steps, a, b).shape == (4, 5, 3)


def special(dtype: DType) -> Array:
    """Values where conversions go wrong: ties, denormals, the largest, infinities, NaN, signed zeros."""
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        values = [info.min, info.max, 0, 1, info.max // 2, 97, info.max // 3]
        return np.asarray(values, dtype.numpy)
    rng = np.random.default_rng(5)
    near = (1 + np.arange(200) / 4096) * 2.0 ** rng.integers(-27, 17, 200)
    small = np.arange(64) * 2.0**-26
    extra = [0.0, -0.0, np.inf, -np.inf, 65504, 65519.9, 65520, 6.1e-5, 5.96e-8, 2.98e-8, 1e-46, 3.4e38, 1.0000001]
    with np.errstate(all="ignore"):
        bits = rng.integers(0, 1 << 32, 4000, np.uint64).astype(np.uint32).view(np.float32).astype(np.float64)
        result = np.concatenate([bits, near, -near, small, extra]).astype(dtype.numpy)
    return result[~np.isnan(result.astype(np.float64))]


FLOATS = [dtypes.F16, dtypes.BF16, dtypes.F32, dtypes.F64]
INTEGERS = [dtypes.I8, dtypes.U8, dtypes.I16, dtypes.U16, dtypes.I32, dtypes.U32, dtypes.I64, dtypes.U64]


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS], ids=str)
def test_casts(source: DType) -> None:
    values = special(source)
    for target in (*FLOATS, *INTEGERS, dtypes.BOOL):
        given_values = values
        if source.is_float and target.is_integer:
            # Out-of-range conversions are undefined in C and in numpy alike.
            info = np.iinfo(target.numpy)
            wide = values.astype(np.float64)
            given_values = values[np.isfinite(wide) & (wide > info.min) & (wide < info.max / 2)]
        check((recipe.source(0), recipe.cast(target)), given_values)


def test_scalars_and_booleans() -> None:
    for dtype in (dtypes.F32, dtypes.F16, dtypes.I32, dtypes.BOOL):
        check((recipe.scalar(3.7, dtype),))
    flags = np.asarray([True, False, True])
    check((recipe.source(0), recipe.cast(dtypes.F32)), flags)
    check((recipe.source(0), recipe.reshape(3, 1)), flags)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_parts_are_joined(data: st.DataObject) -> None:
    """Any axis, parts of any extent along it, empty ones too; what lies below on the stack stays."""
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    extents = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    dtype = data.draw(st.sampled_from(["f16", "bf16", "f32", "i8", "i64"]))
    parts = [random(*shape[:axis], n, *shape[axis + 1 :], dtype=dtype, seed=i) for i, n in enumerate(extents)]
    pushed = [recipe.source(i) for i in range(len(parts))]
    found = check((*pushed, recipe.concat(axis, len(parts))), *parts)
    assert found.tobytes() == np.concatenate(parts, axis).tobytes()
    left = (recipe.source(0), *pushed, recipe.concat(axis, len(parts)), recipe.concat(axis, 2))  # one stays below
    assert check(left, *parts).tobytes() == np.concatenate([parts[0], *parts], axis).tobytes()


def test_halves_are_interleaved() -> None:
    """Reshapes around a join put columns of one matrix between those of another."""
    a, b = random(5, 8), random(5, 8, seed=1)
    steps = (
        recipe.source(0), recipe.reshape(5, 2, 1, 4), recipe.source(1), recipe.reshape(5, 2, 1, 4),
        recipe.concat(2, 2), recipe.reshape(5, 16),
    )  # fmt: skip
    expected = np.concatenate([a[:, :4], b[:, :4], a[:, 4:], b[:, 4:]], axis=1)
    np.testing.assert_array_equal(check(steps, a, b), expected)


def test_empty_and_rank_0() -> None:
    check((recipe.source(0), recipe.pack_matrix(0, 5)), np.zeros((0, 5), np.float32))
    check((recipe.source(0), recipe.reshape()), np.ones(1, np.float32))
    check((recipe.source(0), recipe.source(1), RecipeStep(RecipeOp.ADD)), random(3, 0), random(1, 1))


BAD_RECIPES = [
    (RecipeStep(RecipeOp.ADD),),
    (),
    (recipe.source(0), recipe.source(0)),
    (recipe.source(0), recipe.reshape(7)),
    (recipe.source(0), recipe.winograd()),
    (recipe.source(0), RecipeStep(RecipeOp.PACK, shape=(2,), coefficients=((1,),))),
    (recipe.source(0), recipe.scalar(1, dtypes.F64), RecipeStep(RecipeOp.ADD)),
    (recipe.source(0), recipe.reshape(6), recipe.source(0), RecipeStep(RecipeOp.ADD)),
    (recipe.source(0), recipe.transpose((2, 3), (1, 0))),
    (recipe.source(0), RecipeStep(RecipeOp.PACK, shape=(1 << 40,), coefficients=((1,), (0,)))),
    (recipe.source(0), RecipeStep(RecipeOp.PACK, shape=(1 << 40, 1 << 40), coefficients=((1, 1), (0, 1)))),
    (recipe.source(0), recipe.concat(0, 2)),
    (recipe.source(0), recipe.concat(0, 1 << 40)),
    (recipe.source(0), recipe.concat(0, 0)),
    (recipe.source(0), recipe.concat(0, -1)),
    (recipe.source(0), recipe.concat(2, 1)),
    (recipe.source(0), recipe.concat(-1, 1)),
    (recipe.source(0), recipe.concat(1 << 40, 1)),
    (recipe.source(0), RecipeStep(RecipeOp.CONCAT)),
    (recipe.source(0), RecipeStep(RecipeOp.CONCAT, operands=(0,))),
    (recipe.source(0), RecipeStep(RecipeOp.CONCAT, operands=(0, 1, 1))),
    (recipe.source(0), recipe.source(1), recipe.concat(0, 2)),
    (recipe.source(0), recipe.source(0), recipe.reshape(3, 2), recipe.concat(0, 2)),
    (recipe.source(0), recipe.source(0), recipe.cast(dtypes.F16), recipe.concat(0, 2)),
    (
        recipe.source(0), RecipeStep(RecipeOp.PACK, shape=(1 << 19, 0), coefficients=((0, 0), (0, 0))),
        recipe.reshape(0, (1 << 62) + 1), recipe.source(0), recipe.reshape(0, 1 << 62), recipe.concat(1, 2),
    ),
]  # fmt: skip


@pytest.mark.parametrize("steps", BAD_RECIPES, ids=range(len(BAD_RECIPES)))
def test_malformed_recipes(steps: tuple[RecipeStep, ...]) -> None:
    """The runtime refuses what the compiler would refuse, and what would need far more memory than the weights."""
    w = random(2, 3)
    base = handmade.program()
    sources = (Source("layer.weight", const_of(w)), base.sources[1])
    constant = replace(base.constants[0], recipe=steps)
    program = replace(base, sources=sources, constants=(constant, base.constants[1]))
    artifact = handmade.artifact(program, weights="none")
    with pytest.raises(ArtifactError, match="damaged"):
        artifact.load(weights={"layer.weight": w, "layer.bias": handmade.weights()[1]})


@pytest.mark.parametrize("operands", [(), (0,), (0, 0), (0, -1), (-1, 2), (0, 1, 2)])
def test_the_reader_refuses_a_concat_without_axis_and_count(operands: tuple[int, ...]) -> None:
    base = handmade.program()
    steps = (recipe.source(0), RecipeStep(RecipeOp.CONCAT, operands=operands))
    constant = replace(base.constants[0], recipe=steps)
    data = handmade.artifact(replace(base, constants=(constant, base.constants[1])), weights="none").data
    with pytest.raises(ArtifactError, match="an axis and a number of tensors"):
        _ = Artifact(data).programs
