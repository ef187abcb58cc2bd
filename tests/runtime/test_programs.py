"""Other kinds of programs: state, many ports, every element type, rank 0, shared buffers between steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot import dims, dtypes
from aot.dims import Symbol
from aot.dtypes import DType
from aot.errors import ArtifactError, GuardError, RunError
from aot.ir import TensorType
from aot.program import Argument, Buffer, Guard, GuardKind, KernelCode, Port, Program, Space, Step
from tests.runtime import handmade

SOURCE = (
    handmade.PRELUDE
    + """
void add_one(const struct args *a) {
    const float *x = a->buffers[0];
    float *y = a->buffers[1];
    for (i64 i = a->thread; i < a->dims[0]; i += a->thread_count) y[i] = x[i] + 1;
}
void count_threads(const struct args *a) {
    for (i64 i = 0; i < a->dims[0]; ++i) ((float *)a->buffers[1])[i] = a->thread_count;
}
void copy(const struct args *a) {
    const char *from = a->buffers[0];
    char *to = a->buffers[1];
    for (i64 i = a->thread; i < a->dims[0]; i += a->thread_count) to[i] = from[i];
}
void reverse(const struct args *a) {
    const float *x = a->buffers[0];
    float *y = a->buffers[1];
    const i64 n = a->dims[0];
    for (i64 i = a->thread; i < n; i += a->thread_count) y[i] = x[n - 1 - i];
}
"""
)
ALL_THREADS = 2  # AOT_SESSION_ALL_THREADS
N = Symbol("n", 0, None)
NAMES = ("add_one", "copy", "reverse", "count_threads")
KERNELS = tuple(KernelCode(name, "MAP", name, (name,), "", SOURCE) for name in NAMES)


def base(**changes: object) -> Program:
    """y = x + 1, over n elements, with x and y paired as state."""
    n = N.dim
    port = TensorType(dtypes.F32, (n,))
    program = Program(
        target="cpu:x86-64",
        variant="",
        symbols=(N,),
        inputs=(Port("x", port),),
        outputs=(Port("y", port),),
        state=((0, 0),),
        guards=(Guard(GuardKind.BIND, 0, 0, symbol=0),),
        sources=(),
        constants=(),
        buffers=(Buffer(Space.INPUT, 0, n * 4), Buffer(Space.OUTPUT, 0, n * 4)),
        kernels=KERNELS,
        steps=(Step(0, (Argument(0), Argument(1)), (n,)),),
        code=handmade.compiled(SOURCE),
    )
    return replace(program, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [1, 3])
def test_state_is_updated_in_place(threads: int) -> None:
    model = handmade.artifact(base()).load(threads=threads)
    x = np.zeros(1000, np.float32)
    for _ in range(5):
        model.run({"x": x}, outputs={"y": x})
    assert (x == 5).all()
    with pytest.raises(GuardError, match="overlaps that of input 'x'"):
        model.run({"x": x[:500]}, outputs={"y": x[1:501]})
    without_state = handmade.artifact(base(state=())).load(threads=threads)
    with pytest.raises(GuardError, match="overlaps that of input 'x'"):
        without_state.run({"x": x}, outputs={"y": x})


def test_no_elements() -> None:
    model = handmade.artifact(base()).load(threads=2)
    assert model(np.zeros(0, np.float32)).shape == (0,)
    y = np.zeros(0, np.float32)
    assert model.run({"x": np.zeros(0, np.float32)}, outputs={"y": y})["y"] is y


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_barriers_between_dependent_steps(threads: int) -> None:
    """Forty reversals through the arena: each element crosses threads at every step."""
    n = N.dim
    buffers = [*base().buffers, Buffer(Space.ARENA, 0, n * 4), Buffer(Space.ARENA, 0, n * 4, below=(2,))]
    steps = [Step(2, (Argument(0), Argument(2)), (n,))]
    for number in range(38):
        steps.append(Step(2, (Argument(2 + number % 2), Argument(3 - number % 2)), (n,)))
    steps.append(Step(2, (Argument(2), Argument(1)), (n,)))
    model = handmade.artifact(base(buffers=tuple(buffers), steps=tuple(steps))).load(threads=threads)
    for size in (1, 17, 1000, 2, 5000):
        x = np.arange(size, dtype=np.float32)
        for _ in range(5):
            np.testing.assert_array_equal(model(x), x)


def test_symbolic_offsets_never_overlap() -> None:
    """Buffers stacked by `below`: their offsets follow the sizes of each shape."""
    n = N.dim
    buffers = (
        *base().buffers,
        Buffer(Space.ARENA, 0, n * 4),
        Buffer(Space.ARENA, 0, dims.maximum(n * 4 - 100, 4), below=(2,)),
        Buffer(Space.ARENA, 0, n * 4, below=(2, 3)),
    )
    steps = (
        Step(1, (Argument(0), Argument(2)), (n * 4,)),
        Step(0, (Argument(0), Argument(4)), (n,)),
        Step(0, (Argument(0), Argument(3)), (1,)),
        Step(0, (Argument(2), Argument(1)), (n,)),
    )
    model = handmade.artifact(base(buffers=buffers, steps=steps)).load(threads=2)
    for size in (1, 15, 16, 17, 40, 1000):
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(model(x), x + 1)


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.bits >= 8], ids=str)
def test_every_element_type(dtype: DType) -> None:
    n = N.dim
    port = TensorType(dtype, (n,))
    size = n * dtype.itemsize_bytes
    program = base(
        inputs=(Port("x", port),),
        outputs=(Port("y", port),),
        state=(),
        buffers=(Buffer(Space.INPUT, 0, size), Buffer(Space.OUTPUT, 0, size)),
        steps=(Step(1, (Argument(0), Argument(1)), (size,)),),
    )
    model = handmade.artifact(program).load(threads=1)
    x = np.asarray([0, 1, 1, 0, 1]).astype(dtype.numpy)
    y = model(x)
    assert y.dtype == dtype.numpy and y.tobytes() == x.tobytes()
    wrong = np.zeros(5, np.float64 if dtype.name != "f64" else np.float32)
    with pytest.raises(GuardError, match=f"expected element type {dtype.name}, got"):
        model(wrong)


def test_rank_0_and_several_ports() -> None:
    scalar, row = TensorType(dtypes.F32, ()), TensorType(dtypes.F32, (N.dim,))
    program = base(
        inputs=(Port("a", scalar), Port("b", row)),
        outputs=(Port("c", row), Port("d", scalar)),
        state=(),
        guards=(Guard(GuardKind.BIND, 1, 0, symbol=0, lo=0),),
        buffers=(
            Buffer(Space.INPUT, 0, 4),
            Buffer(Space.INPUT, 1, N.dim * 4),
            Buffer(Space.OUTPUT, 0, N.dim * 4),
            Buffer(Space.OUTPUT, 1, 4),
        ),
        steps=(Step(0, (Argument(0), Argument(3)), (1,)), Step(0, (Argument(1), Argument(2)), (N.dim,))),
    )
    model = handmade.artifact(program).load(threads=2)
    c, d = model(np.float32(4), np.arange(3, dtype=np.float32))
    assert d.shape == () and d == 5
    np.testing.assert_array_equal(c, [1, 2, 3])
    found = model.run({"b": np.zeros(2, np.float32), "a": np.asarray(1, np.float32)})
    assert found.keys() == {"c", "d"} and found["d"] == 2
    with pytest.raises(GuardError, match="missing input 'a'"):
        model.run({"b": np.zeros(2, np.float32)})
    with pytest.raises(GuardError, match="overlaps that of output 'c'"):
        y = np.zeros(4, np.float32)
        model.run({"a": np.float32(1), "b": np.zeros(4, np.float32)}, outputs={"c": y, "d": y[:1].reshape(())})


def test_sizes_that_overflow() -> None:
    n = N.dim
    huge = (n * 4, n * (1 << 40), n * n * (1 << 60), n * -4)
    for size in huge[1:]:
        buffers = (*base().buffers, Buffer(Space.ARENA, 0, size))
        with pytest.raises((GuardError, RunError), match=r"impossibly large|overflows|out of memory") as caught:
            handmade.artifact(base(buffers=buffers)).load(threads=1)(np.zeros(1000, np.float32))
        assert caught.value.hint
    model = handmade.artifact(base(buffers=(*base().buffers, Buffer(Space.ARENA, 0, 1 << 45)))).load(threads=1)
    with pytest.raises(RunError, match="out of memory"):
        model(np.zeros(1, np.float32))


def test_hostile_dimension_code() -> None:
    n = N.dim
    division = base(steps=(Step(0, (Argument(0), Argument(1)), (dims.floordiv(100, n),)),))
    model = handmade.artifact(division).load(threads=1)
    assert model(np.zeros(100, np.float32))[0] == 1
    with pytest.raises(GuardError, match="overflows"):
        model(np.zeros(0, np.float32))


def test_argument_outside_its_buffer() -> None:
    for offset in (N.dim * 4 + 4, N.dim * 4 - 40):
        program = base(steps=(Step(0, (Argument(0, offset), Argument(1)), (0,)),))
        with pytest.raises(RunError, match="outside its buffer"):
            handmade.artifact(program).load(threads=1)(np.zeros(2, np.float32))


def test_variants_must_agree() -> None:
    other = base(inputs=(Port("z", TensorType(dtypes.F32, (N.dim,))),))
    with pytest.raises(ArtifactError, match="variants have different"):
        handmade.artifact(base(), other).load()


def test_small_runs_use_one_thread() -> None:
    n = N.dim
    step = Step(3, (Argument(0), Argument(1)), (n,), flops=n * 10, bytes_moved=n * 8)
    model = handmade.artifact(base(state=(), steps=(step,))).load(threads=3)
    for count, threads in ((1, 1), (1000, 1), (10_000, 3), (5, 1)):
        assert (model(np.zeros(count, np.float32)) == threads).all(), count
    eager = handmade.artifact(base(state=(), steps=(step,))).load(threads=3)
    eager._options.flags = ALL_THREADS
    assert (eager(np.zeros(2, np.float32)) == 3).all()
    huge = replace(step, flops=n * (1 << 62) * n, bytes_moved=n - 5)  # neither says that there is little to do
    model = handmade.artifact(base(state=(), steps=(huge,))).load(threads=2)
    assert (model(np.zeros(2, np.float32)) == 2).all()
    silent = handmade.artifact(base(state=(), steps=(replace(step, flops=0, bytes_moved=0),))).load(threads=2)
    assert (silent(np.zeros(2, np.float32)) == 2).all()
