"""Control flow under hostile use: outputs that overlap, sizes that no machine has, many threads, odd models."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from aot.errors import AotError, GuardError, ModelError, RunError
from aot.frontend import load, onnx_import
from aot.options import DimRange
from tests.control.models import Checker, arrays, model_of

F32, I64 = np.float32, np.int64

SWAP = """g (float[n] x, float[m] z, int64 M) => (float[a] p, float[b] q) <bool yes = {1}> {
    p, q = Loop (M, yes, x, z) <
        body = b (int64 i, bool ci, float[c] u, float[d] v) => (bool co, float[d] v1, float[c] u1) {
            co = Identity (ci) v1 = Identity (v) u1 = Identity (u) }>
}"""
PASSES = """g (float[n] x, float[n] z) => (float[n] y, float[n] w) <float zero = {0}> {
    s = ReduceSum <keepdims = 0> (x)
    c = Greater (s, zero)
    y, w = If (c) <
        then_branch = t () => (float[n] p, float[n] q) { p = Identity (x) q = Identity (z) },
        else_branch = e () => (float[n] r, float[n] o) { r = Identity (z) o = Neg (z) }>
}"""
GROWS = """g (float[n] x, int64 M) => (float[m] y, float[t] s) <bool yes = {1}> {
    y, s = Loop (M, yes, x) <body = b (int64 i, bool ci, float[a] v) => (bool co, float[a2] w, float r) {
        co = Identity (ci) w = Concat <axis = 0> (v, x) r = ReduceSum <keepdims = 0> (w) }>
}"""


def test_a_flow_that_computes_nothing(check: Checker) -> None:
    """No block at all: only moves."""
    check(
        model_of(SWAP), {"x": [1], "z": [2, 3], "M": 3}, {"x": [1], "z": [5], "M": 0}, {"x": [1, 2], "z": [5], "M": 1}
    )


def test_outputs_that_overlap(check: Checker) -> None:
    """As without control flow: memory of an output is its own."""
    x, z = np.array([1, 2, 3], F32), np.array([4, 5, 6], F32)
    with check.build(model_of(PASSES)).load() as loaded:
        both = np.zeros(3, F32)
        with pytest.raises(GuardError, match="overlaps that of output 'y'"):
            loaded.run({"x": x, "z": z}, outputs={"y": both, "w": both})
        room = np.zeros(5, F32)
        with pytest.raises(GuardError, match="overlaps that of output 'y'"):
            loaded.run({"x": x, "z": z}, outputs={"y": room[:3], "w": room[2:]})
        for name, array in (("y", x), ("w", x), ("y", z), ("w", z)):
            with pytest.raises(GuardError, match=f"output '{name}'.*overlaps that of input"):
                loaded.run({"x": x, "z": z}, outputs={name: array})
        np.testing.assert_array_equal(x, [1, 2, 3])
        np.testing.assert_array_equal(z, [4, 5, 6])
        loaded.run({"x": x, "z": z}, outputs={"y": room[:3], "w": both})
        np.testing.assert_array_equal(room[:3], x)
        np.testing.assert_array_equal(both, z)


def test_no_output_is_written_where_one_is_refused(check: Checker) -> None:
    x, z = np.array([1, 2, 3], F32), np.array([4, 5, 6], F32)
    with check.build(model_of(PASSES)).load() as loaded:
        y = np.full(3, 9, F32)
        with pytest.raises(GuardError, match="output 'w'"):
            loaded.run({"x": x, "z": z}, outputs={"y": y, "w": np.zeros(2, F32)})
        np.testing.assert_array_equal(y, [9, 9, 9])


def test_wrong_kinds_of_outputs(check: Checker) -> None:
    feed = {"x": np.array([1, 2, 3], F32), "z": np.array([4, 5, 6], F32)}
    frozen = np.zeros(3, F32)
    frozen.flags.writeable = False
    with check.build(model_of(PASSES)).load() as loaded:
        wrong: list[Any] = [
            np.zeros(6, F32)[::2],
            frozen,
            np.zeros(3),
            np.zeros((3, 1), F32),
            np.zeros(0, F32),
            [0, 0, 0],
        ]
        for array in wrong:
            with pytest.raises(GuardError):
                loaded.run(feed, outputs={"y": array})
        with pytest.raises(GuardError, match="unknown output"):
            loaded.run(feed, outputs={"nothing": np.zeros(3, F32)})
        np.testing.assert_array_equal(loaded.run(feed)["y"], [1, 2, 3])


HUGE: Mapping[str, tuple[str, dict[str, Any]]] = {
    "range": (
        "int64 n) => (int64[m] y) <int64 zero = {0}, int64 one = {1}> { y = Range (zero, n, one) }", {"n": 1 << 40}),
    "range of everything": (
        "int64 n) => (int64[m] y) <int64 low = {-9223372036854775808}, int64 one = {1}> { y = Range (low, n, one) }",
        {"n": (1 << 63) - 1}),
    "range of floats": (
        "float n) => (float[m] y) <float zero = {0}, float step = {1e-30}> { y = Range (zero, n, step) }", {"n": 1e30}),
    "tile": ("float[n] x, int64[1] r) => (float[m] y) { y = Tile (x, r) }", {"x": [0] * 4096, "r": [10**9]}),
    "tile that overflows": (
        "float[n] x, int64[2] r) => (float[m,k] y) <int64[2] s = {1,-1}> { a = Reshape (x, s) y = Tile (a, r) }",
        {"x": [1, 2], "r": [1 << 32, 1 << 31]}),
    "expand": ("float[n] x, int64[2] s) => (float[a,b] y) { y = Expand (x, s) }", {"x": [1], "s": [1 << 31, 1 << 31]}),
    "constant": ("int64[2] s) => (float[a,b] y) { y = ConstantOfShape (s) }", {"s": [1 << 62, 4]}),
    "pad": ("float[n] x, int64[2] p) => (float[m] y) { y = Pad (x, p) }", {"x": [1], "p": [1 << 62, 1 << 62]}),
    "one hot": (
        "int64[n] i, int64 d) => (float[n,m] y) <float[2] v = {0, 1}> { y = OneHot (i, d, v) }",
        {"i": [1], "d": 1 << 45}),
    "reshape": (
        "float[n] x, int64[2] s) => (float[a,b] y) { y = Reshape (x, s) }", {"x": [1], "s": [1 << 33, 1 << 33]}),
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_sizes_that_no_machine_has(check: Checker, name: str) -> None:
    """An error, not a crash: what cannot be allocated is refused before anything is written."""
    text, feed = HUGE[name]
    model = model_of("g (" + text)
    with check.build(model).load(threads=2) as loaded:
        for _ in range(2):
            with pytest.raises((GuardError, RunError)):
                loaded.run(arrays(feed, model))


def test_no_elements_anywhere(check: Checker) -> None:
    model = model_of(GROWS)
    artifact = check.build(model, dims=(DimRange("n", 0, None),))
    with artifact.load(threads=3) as loaded:
        got = loaded.run({"x": np.zeros(0, F32), "M": np.array(64, I64)})
        assert got["y"].shape == (0,) and got["s"].shape == (64,) and not got["s"].any()


def test_a_size_that_nothing_allows_any_more(check: Checker) -> None:
    """Bounds of a dimension hold for a model with control flow as for others."""
    artifact = check.build(model_of(GROWS), dims=(DimRange("n", 2, 3),))
    with artifact.load() as loaded:
        for n in (1, 4):
            with pytest.raises(GuardError, match="'x'"):
                loaded.run({"x": np.zeros(n, F32), "M": np.array(1, I64)})
        assert loaded.run({"x": np.ones(3, F32), "M": np.array(2, I64)})["y"].shape == (9,)


def grown(x: np.ndarray[Any, np.dtype[np.float32]], rounds: int) -> tuple[Any, Any]:
    return np.concatenate([x] * (rounds + 1)), np.array([x.sum() * (i + 2) for i in range(rounds)], F32)


@pytest.mark.parametrize("threads", [1, 3])
def test_many_callers_of_one_model(check: Checker, threads: int) -> None:
    """Plans for one size at a time: every iteration of every caller throws one away."""
    artifact = check.build(model_of(GROWS))
    with artifact.load(threads=threads, plan_cache_size=1) as loaded:

        def call(number: int) -> None:
            x = np.arange(1 + number % 5, dtype=F32)
            for rounds in (number % 7, 64 if number % 4 == 0 else 3, 0):
                got = loaded.run({"x": x, "M": np.array(rounds, I64)})
                y, s = grown(x, rounds)
                np.testing.assert_array_equal(got["y"], y)
                np.testing.assert_allclose(got["s"], s, rtol=1e-6)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(call, range(24)))
        assert loaded.memory_bytes < 1 << 24


def test_plans_kept_and_thrown_away_give_the_same(check: Checker) -> None:
    artifact = check.build(model_of(GROWS))
    x = np.arange(7, dtype=F32)
    y, s = grown(x, 40)
    for size in (0, 1, 2, 4096, (1 << 31) - 1):
        with artifact.load(plan_cache_size=size) as loaded:
            got = loaded.run({"x": x, "M": np.array(40, I64)})
            np.testing.assert_array_equal(got["y"], y)
            np.testing.assert_allclose(got["s"], s, rtol=1e-6)
            loaded.profile({"x": x, "M": np.array(3, I64)}, repeats=2)


ENDLESS = """g (float[n] x) => (float[n] y) <bool yes = {1}> {
    y = Loop (, yes, x) <
        body = b (int64 i, bool ci, float[n] a) => (bool co, float[n] a1) { co = Identity (ci) a1 = Neg (a) }>
}"""


def test_a_child_that_is_forked_while_a_loop_runs(check: Checker) -> None:
    """The child runs the model in a session of its own; the parent's run goes on until its deadline."""
    artifact = check.build(model_of(GROWS))
    endless = check.build(model_of(ENDLESS))
    feed = {"x": np.ones(3, F32), "M": np.array(5, I64)}
    with artifact.load(threads=2) as loaded, endless.load(threads=2) as busy:
        loaded.run(feed)
        ended: list[str] = []

        def forever() -> None:
            try:
                busy.run({"x": np.ones(100_000, F32)}, timeout_seconds=1.0)
            except RunError as error:
                ended.append(str(error))

        thread = threading.Thread(target=forever)
        thread.start()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                good = loaded.run(feed)["y"].shape == (18,)
                try:
                    busy.run({"x": np.ones(100_000, F32)}, timeout_seconds=0.05)
                except RunError:
                    code = 0 if good else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        thread.join()
        assert status == 0
        assert ended and "deadline" in ended[0]


@pytest.mark.parametrize("weights", ["external", "none"])
def test_weights_outside_of_the_file(check: Checker, weights: str, tmp_path: Any) -> None:
    """Blocks take their constants from wherever the programs do."""
    model = model_of("""g (float[n,4] x) => (float[n,4] y) <float zero = {0},
        float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, float[4] v = {1,2,3,4}> {
        s = ReduceSum <keepdims = 0> (x)
        c = Greater (s, zero)
        y = If (c) <then_branch = t () => (float[n,4] p) { p = MatMul (x, w) },
                    else_branch = e () => (float[n,4] q) { k = Add (v, v) m = MatMul (x, w) q = Add (m, k) }>
    }""")
    x = np.arange(8, dtype=F32).reshape(2, 4)
    w = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7], F32).reshape(4, 4)
    v = np.array([1, 2, 3, 4], F32)
    artifact = check.build(model, weights=weights)
    path = tmp_path / "model.aot"
    artifact.save(path)
    import aot

    given = {"w": w, "v": v} if weights == "none" else None
    with aot.load(path, weights=given, threads=2) as loaded:
        for sign in (1, -1):
            got = loaded.run({"x": sign * x})["y"]
            np.testing.assert_allclose(got, sign * x @ w + (0 if sign > 0 else 2 * v), rtol=1e-6)
    if weights == "none":
        with pytest.raises(AotError):
            aot.load(path, weights={"w": w[:2], "v": v})


def test_variants_and_exact(check: Checker) -> None:
    model = model_of(GROWS)
    artifact = check.build(model, variants=((("n", 2),), (("n", 5),)), exact=True)
    with artifact.load(threads=2) as loaded:
        for n in (5, 1, 2, 2, 7, 5):
            x = np.arange(n, dtype=F32)
            got = loaded.run({"x": x, "M": np.array(6, I64)})
            y, s = grown(x, 6)
            np.testing.assert_array_equal(got["y"], y)
            np.testing.assert_array_equal(got["s"], s)


def test_slices_with_the_longest_steps(check: Checker) -> None:
    """Steps and positions at the ends of 64 bits, where adding them would overflow."""
    most = np.iinfo(I64).max
    model = model_of("""g (float[n] x, int64[1] s, int64[1] e, int64[1] t) => (float[m] y) <int64[1] axis = {0}> {
        y = Slice (x, s, e, axis, t)
    }""")
    x = np.arange(5, dtype=F32)
    feeds = [(0, most, most), (-1, -most - 1, -most - 1), (4, -most - 1, -most), (most, -most - 1, -2), (1, most, 3)]
    want = [[x[:1]], [x[4:]], [x[4:]], [x[::-2]], [x[1::3]]]
    check(model, *[{"x": x, "s": [s], "e": [e], "t": [t]} for s, e, t in feeds], want=want)


LOOPS = {
    "iterations as floats": ("float M, bool c", "Identity (ci)", "number of iterations must be one integer"),
    "iterations as a bool": ("bool M, bool c", "Identity (ci)", "number of iterations must be one integer"),
    "two numbers of iterations": ("int64[2] M, bool c", "Identity (ci)", "number of iterations must be one integer"),
    "any number of iterations": ("int64[k] M, bool c", "Identity (ci)", "number of iterations must be one integer"),
    "a condition of integers": ("int64 M, int64 c", "Identity (ci)", "condition must be one bool"),
    "two conditions": ("int64 M, bool[2] c", "Identity (ci)", "condition must be one bool"),
    "a float that goes on": ("int64 M, bool c", "Neg (a)", "condition must be one bool"),
    "as many bools as elements": ("int64 M, bool c", "Greater (a, a)", "condition must be one bool"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_what_a_loop_runs_for(name: str) -> None:
    """The model is at fault, and told so."""
    inputs, going_on, words = LOOPS[name]
    model = model_of(f"""g (float[n] x, {inputs}) => (float[n] y) {{
        y = Loop (M, c, x) <body = b (int64 i, bool ci, float[n] a) => (bool co, float[n] a1) {{
            co = {going_on} a1 = Neg (a) }}>
    }}""")
    with pytest.raises(ModelError, match=words):
        load(model)


def test_functions_that_double_at_every_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file of 2**30 nodes is refused before it fills the memory."""
    levels = "\n".join(
        f"""<domain: "local", opset_import: ["" : 17, "local" : 1]> f{i} (a) => (b) {{
            t = local.f{i + 1} (a) b = local.f{i + 1} (t) }}"""
        for i in range(30)
    )
    last = '<domain: "local", opset_import: ["" : 17]> f30 (a) => (b) { b = Neg (a) }'
    model = model_of("g (float[n] x) => (float[n] y) { y = local.f0 (x) }", functions=f"{levels}\n{last}")
    monkeypatch.setattr(onnx_import, "MOST_NODES", 5000)
    with pytest.raises(ModelError, match="over 5000 nodes"):
        load(model)


def test_sizes_with_numbers_beyond_64_bits(check: Checker) -> None:
    """Told when building, in the words of the model: before the file format finds out."""
    text = "g (float[n] x) => (float[m] y) <int64[2] p = {9223372036854775807, 9223372036854775807}> { y = Pad (x, p) }"
    with pytest.raises(ModelError, match="more than any machine"):
        check.build(model_of(text))
    text = """g (float[n,k] x) => (float[m,l] y) <int64[4] p = {0, 9223372036854775807, 0, 9223372036854775807}> {
        y = Pad (x, p) }"""
    with pytest.raises(ModelError, match="does not fit 64 bits"):
        check.build(model_of(text), dims=(DimRange("n", 0, None),))


def test_memory_that_runs_out_anywhere_in_a_flow(check: Checker) -> None:
    """Every allocation of a session fails once: an error, and the next run is right."""
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    left, live = [1 << 30], set[int]()

    def allocate(_: Any, size: int, alignment: int) -> int | None:
        left[0] -= 1
        pointer = ctypes.c_void_p()
        if left[0] == 0 or libc.posix_memalign(ctypes.byref(pointer), max(alignment, 8), ctypes.c_size_t(size)):
            return None
        live.add(pointer.value or 0)
        return pointer.value

    def release(_: Any, pointer: int, size: int) -> None:
        live.remove(pointer)
        libc.free(pointer)

    class Allocator(ctypes.Structure):
        _fields_ = (
            ("struct_size", ctypes.c_size_t), ("user", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
            ("release", ctypes.c_void_p),
        )  # fmt: skip

    kept = (
        ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)(allocate),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(release),
    )
    functions = (ctypes.cast(function, ctypes.c_void_p).value for function in kept)
    allocator = Allocator(ctypes.sizeof(Allocator), None, *functions)
    x = np.arange(5, dtype=F32)
    feed = {"x": x, "M": np.array(6, I64)}
    y, _ = grown(x, 6)
    failures = 0
    for plans in (1, 8):
        artifact = check.build(model_of(GROWS))
        for number in range(1, 400):
            with artifact.load(threads=1, plan_cache_size=plans) as loaded:
                loaded._options.allocator = ctypes.addressof(allocator)
                left[0] = number
                try:
                    loaded.run(feed)
                except RunError:
                    failures += 1
                done = left[0] > 0
                left[0] = 1 << 30
                for _ in range(2):
                    np.testing.assert_array_equal(loaded.run(feed)["y"], y)
            assert not live
            if done:
                break
        assert done
    assert failures > 20
