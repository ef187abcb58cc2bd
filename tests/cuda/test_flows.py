"""Control flow, sizes from data and host steps on a simulated GPU: models of tests/control, and what a run costs.

The numbers are ONNX Runtime's. What the driver's simulation checks besides: that work on memory is ordered, that
handles live, and that nothing is left.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

from aot.builder import Builder
from aot.cli.machine import selection
from aot.control import add_alias, add_read
from aot.dims import Symbol
from aot.dtypes import F32, I64
from aot.errors import AotError, GuardError, RunError
from aot.frontend import load_variants
from aot.ir import Node
from aot.partition import partition, set_apart
from aot.program import FlowOp
from aot.runtime import Machine
from tests.control.models import check_steps, flat, model_of
from tests.control.test_if import *  # noqa: F403
from tests.control.test_loop import *  # noqa: F403
from tests.cuda.flows import LACKING, STEPS, DeviceChecker


def count(fake: ctypes.CDLL, what: str) -> int:
    return int(fake.fake_count(what.encode()))


def spent(fake: ctypes.CDLL, what: str, run: Any) -> int:
    """How often something happens in a second run."""
    run()
    before = count(fake, what)
    run()
    return count(fake, what) - before


SIZES = model_of("""g (int64[3] s, float[n] x) => (float[a,b,c] y, float[n] z) {
    t = Neg (s)
    u = Neg (t)
    y = ConstantOfShape (u)
    z = Exp (x)
}""")
GIVEN = model_of("g (int64[3] s) => (float[a,b,c] y) { y = ConstantOfShape (s) }")
COUNTED = model_of("""g (float[n] x, int64 M) => (float[n] y) <bool yes = {1}> {
    y = Loop (M, yes, x) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a1) {
        co = Constant <value = bool {1}> ()
        k = Cast <to = 1> (i)
        a1 = Add (a, k)
    }>
}""")
NONZERO = model_of("g (float[n] x) => (int64[1,m] y) { y = NonZero (x) }")


def test_sizes_of_one_tensor_are_read_at_once(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    """Three reads are one copy and one wait; results that are on the device need no other."""
    with check.build(SIZES).load() as loaded:
        given = {"s": loaded.to_device(np.array([2, 3, 4])), "x": loaded.to_device(np.ones(5, np.float32))}
        assert loaded.run(given)["y"].shape == (2, 3, 4)
        assert spent(fake, "wait", lambda: loaded.run(given)) == 1
        assert spent(fake, "copy_out", lambda: loaded.run(given)) == 24
        assert spent(fake, "copy_in", lambda: loaded.run(given)) == 0
        assert spent(fake, "graph_launch", lambda: loaded.run(given)) == 2


def test_what_the_host_knows_is_not_read_back(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    with check.build(GIVEN).load() as loaded:
        sizes = np.array([2, 3, 4])
        assert spent(fake, "copy_out", lambda: loaded.run({"s": sizes})) == 96  # the result
        assert spent(fake, "wait", lambda: loaded.run({"s": sizes})) == 1
    with check.build(COUNTED).load() as loaded:
        given = {"x": loaded.to_device(np.ones(4, np.float32)), "M": np.array(5)}
        np.testing.assert_array_equal(loaded.run(given)["y"].numpy(), np.full(4, 11, np.float32))
        # The counter goes to the device, and the condition that a block computes comes back.
        assert spent(fake, "copy_out", lambda: loaded.run(given)) == 0
        given["M"] = loaded.to_device(given["M"])
        np.testing.assert_array_equal(loaded.run(given)["y"].numpy(), np.full(4, 11, np.float32))


def test_a_large_tensor_is_not_copied_for_an_element(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    builder, sizes = Builder("large"), (Symbol("m", 0, origin="unbacked"), Symbol("k", 0, origin="unbacked"))
    x = builder.input("x", F32, (50,))
    held = builder.op("neg", builder.input("s", I64, (10_000,)))[0]
    for place, size in enumerate(sizes):
        add_read(builder, held, 9000 + place, size.dim)
    graph = builder.finish([add_alias(builder, x, tuple(size.dim for size in sizes), exact=False)])
    found = load_variants(NONZERO)[1]
    with mock.patch("aot.frontend.load_variants", lambda *rest, **more: ((("", graph),), found)):
        artifact = check.build(NONZERO)
    with artifact.load() as loaded:
        numbers = np.zeros(10_000, np.int64)
        numbers[9000:9002] = -7, -2
        given = {"s": loaded.to_device(numbers), "x": loaded.to_device(np.arange(50, dtype=np.float32))}
        (y,) = loaded.run(given).values()
        np.testing.assert_array_equal(y.numpy(), np.arange(14, dtype=np.float32).reshape(7, 2))
        assert spent(fake, "wait", lambda: loaded.run(given)) == 1
        assert spent(fake, "copy_out", lambda: loaded.run(given)) <= 4096


def test_memory_of_the_last_run_is_used_again(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    with check.build(COUNTED, LACKING | {"cast"}).load() as loaded:
        given = {"x": loaded.to_device(np.ones(4, np.float32)), "M": np.array(100)}
        for _ in range(6):
            loaded.run(given)
        live, held = fake.fake_live(), loaded.memory_bytes
        for _ in range(5):
            loaded.run(given)
        assert (fake.fake_live(), loaded.memory_bytes) == (live, held)
        assert held > 0


def test_a_capture_is_refused(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    with check.build(NONZERO).load() as loaded:
        x = loaded.to_device(np.ones(4, np.float32))
        context, stream, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        fake.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        fake.cuCtxPushCurrent_v2(context)
        fake.cuStreamCreate(ctypes.byref(stream), 1)
        assert loaded.run({"x": x}, stream=stream.value)["y"].shape == (1, 4)  # the caller's stream
        fake.cuStreamBeginCapture_v2(stream, 0)
        with pytest.raises(GuardError, match="looks at data while it runs") as caught:
            loaded.run({"x": x}, stream=stream.value)
        assert "outside of the capture" in caught.value.hint
        fake.cuStreamEndCapture(stream, ctypes.byref(graph))
        fake.cuGraphDestroy(graph)
        fake.cuStreamDestroy_v2(stream)
        fake.cuCtxPopCurrent_v2(ctypes.byref(context))
        fake.cuDevicePrimaryCtxRelease_v2(0)


def test_every_call_of_the_driver_may_fail(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    """At whatever call: an error, nothing left behind, and the next run is right."""
    x = np.random.default_rng(3).standard_normal((2, 3, 3)).astype(np.float32)
    given = {"x": x, "w": np.ones(2, np.float32)}
    told = 0
    artifact = check.build(STEPS, LACKING)
    for at in range(200):
        fake.fake_fail(at, 2)
        try:
            artifact.load().close()
        except AotError:
            told += 1
        if fake.fake_calls() <= at:
            break
    assert 5 < told < 200
    fake.fake_fail(0, 0)
    with artifact.load() as loaded:
        wanted = loaded.run(given)["y"]
        for fresh in (False, True):
            fake.fake_fail(0, 0)
            at = 0
            while True:
                one = artifact.load() if fresh and at % 7 == 0 else loaded
                fake.fake_fail(at, 2 if at % 2 else 700 - 1)
                try:
                    one.run(given, timeout_seconds=60)
                except AotError as error:
                    told += 1
                    assert error.message
                done = fake.fake_calls() <= at
                fake.fake_fail(0, 0)
                np.testing.assert_array_equal(one.run(given)["y"], wanted)
                if one is not loaded:
                    one.close()
                if done:
                    break
                at += 1 + 2 * fresh
    assert told > 10


def test_state(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    """A cache that a flow replaces: on the device or the host, it is where the caller has it."""
    model = model_of("""g (float[4] x, float[4] cache) => (float[4] new, float[m] found) {
        new = Add (x, cache)
        y = NonZero (new)
        t = Transpose <perm = [1, 0]> (y)
        found = GatherND (new, t)
    }""")
    x, cache = np.array([1, 0, -2, 5], np.float32), np.array([-1, 0, 2, 5], np.float32)
    with mock.patch("aot.driver._shared_state", lambda programs: [replace(p, state=((1, 0),)) for p in programs]):
        artifact = check.build(model)
    with artifact.load() as loaded:
        for on_device in (False, True):
            kept = loaded.to_device(cache) if on_device else cache.copy()
            total = cache
            for _ in range(3):
                total = total + x
                found = loaded.run({"x": x}, state={"cache": kept})["found"]
                assert type(found) is np.ndarray
                np.testing.assert_array_equal(found, total[total != 0])
                np.testing.assert_array_equal(np.asarray(kept), total)


def test_times_and_deadlines(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    given: Mapping[str, Any] = {"x": np.zeros((2, 3, 3), np.float32), "w": np.ones(2, np.float32)}
    with check.build(STEPS, LACKING).load() as loaded:
        rows = loaded.profile(given)
        assert len(rows) == sum(program.steps for program in loaded.programs)
        assert any("Det" in node for _, nodes, _ in rows for node in nodes)
        assert {seconds for _, _, seconds in rows} >= {5e-4}
        with pytest.raises(RunError, match="deadline"):
            loaded.run(given, timeout_seconds=0)
        loaded.reserve(b=7)


def test_faults_have_the_users_names(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    text = "g (float[n] x, int64[1] k) => (float[m] y, int64[m] i) { j = Neg (k) l = Neg (j) y, i = TopK (x, l) }"
    model = model_of(text)
    model.graph.node[2].name = "the_fault"
    with check.build(model).load() as loaded:
        host = {"x": np.arange(2, dtype=np.float32), "k": np.array([3])}
        for given in (host, {name: loaded.to_device(array) for name, array in host.items()}):
            with pytest.raises(GuardError, match=r"2.*3") as caught:
                loaded.run(given)
            assert "the_fault" in str(caught.value)


def is_op(op: str, node: Node) -> bool:
    return node.op == op


def test_pieces_are_whole_flows() -> None:
    """What is set apart leaves a flow in which everything has its value in time, and every slot is given up once."""
    model = model_of("""g (float[n] x, int64 M) => (float[n] y, float[m] v) <bool yes = {1}> {
        y = Loop (M, yes, x) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a1) {
            co = Identity (ci)
            t = Tanh (a)
            s = Sin (t)
            a1 = Exp (s)
        }>
        z = NonZero (y)
        p = Transpose <perm = [1, 0]> (z)
        v = GatherND (y, p)
    }""")
    graph = load_variants(model)[0][0][1]
    chart = partition(graph)
    for op in ("sin", "tanh", "exp", "gather_nd"):
        made = set_apart(chart, chart.blocks, partial(is_op, op))
        assert made.apart and all({n.op for n in made.blocks[b].nodes} == {op} for b in made.apart)
        live = set(range(len(graph.inputs)))
        given = {symbol for symbol in made.symbols[: len(made.symbols) - made.unbacked]}
        check_steps(made, made.steps, live, given)
        assert set(made.results) <= live
        calls = sorted(step.block for step in flat(made.steps) if step.op is FlowOp.CALL)
        assert calls == list(range(len(made.blocks)))
        ops = sorted(node.op for block in made.blocks for node in block.nodes if node.op != "copy")
        assert ops == sorted(node.op for block in chart.blocks for node in block.nodes if node.op != "copy")


def test_machines(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    """Host steps want a CPU of their level."""
    programs = check.build(STEPS, LACKING).programs
    (row,) = selection(programs, Machine(2, 90, 13000))
    assert not row["selected"] and row["reason"] == "its host steps do not run: this CPU supports x86-64-v2"
    (row,) = selection(programs, Machine(3, 90, 13000))
    assert row["selected"] and not row["reason"]
