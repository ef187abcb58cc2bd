"""Constants that several models of a process have are in memory once, and every model keeps its own numbers."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import aot
from aot.artifacts import Artifact
from aot.artifacts.layout import Section
from aot.artifacts.table import read_table, replaced
from aot.runtime import Model, load
from aot.runtime import _library as native

WIDTH, LAYERS = 256, 20
LAYER_BYTES = WIDTH * WIDTH * 4
OWN = 4  # AOT_LOAD_OWN_WEIGHTS


def weights_of() -> list[np.ndarray[Any, Any]]:
    """The weights of all layers."""
    random = np.random.default_rng(0)
    return [(random.standard_normal((WIDTH, WIDTH)) / 16).astype(np.float32) for _ in range(LAYERS)]


def changed(data: bytes, layer: int, where: slice, factor: float) -> bytes:
    """The artifact with other numbers in a part of a packed weight."""
    artifact = Artifact(data)
    packed = artifact.constants(0)[f"w{layer}"]
    start = packed.__array_interface__["data"][0] - np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    copy = bytearray(data)
    values = np.frombuffer(copy, np.float32, packed.size, start)
    values[where] *= factor
    entry = next(entry for entry in read_table(memoryview(data)).entries if entry.kind == Section.WEIGHTS)
    return replaced(data, {Section.WEIGHTS: bytes(copy[entry.offset : entry.offset + entry.bytes])})


def built(arrays: list[np.ndarray[Any, Any]], **options: Any) -> Artifact:
    """x [batch, WIDTH] times every weight, with a relu between them."""
    nodes, name = [], "x"
    for layer in range(len(arrays)):
        nodes.append(helper.make_node("MatMul", [name, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]))
        name = f"r{layer}"
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", WIDTH])],
        [numpy_helper.from_array(array, f"w{layer}") for layer, array in enumerate(arrays)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return aot.compile(model.SerializeToString(), target="cpu:x86-64-v3", **options)


X = np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stable") / "stable.aot"
    built(weights_of()).save(path)
    return path


@pytest.fixture(scope="module")
def candidate(stable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of twenty has other numbers: 5 % of the weights."""
    path = tmp_path_factory.mktemp("candidate") / "candidate.aot"
    path.write_bytes(changed(stable.read_bytes(), 11, slice(None), 1.5))
    return path


MEMORY = """
import sys
from pathlib import Path
from aot.runtime import load
def anonymous_bytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))
for _ in range(2):
    load(sys.argv[1]).close()  # what the first loads alone bring in
before = anonymous_bytes()
models, found = [], []
for path in sys.argv[1:]:
    models.append(load(path, share_weights=SHARE))
    found.append(anonymous_bytes() - before)
print(models[0].weight_bytes, *found, *(model.shared_weight_bytes for model in models))
models.pop(0).close()
print(anonymous_bytes() - before, models[0].shared_weight_bytes)
"""


def measured(*paths: Path, share: bool) -> list[list[int]]:
    """What a fresh process says of its memory."""
    script = MEMORY.replace("SHARE", str(share))
    done = subprocess.run(
        [sys.executable, "-c", script, *paths], check=True, capture_output=True, text=True, timeout=120
    )
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="the system does not say")
def test_two_versions_with_equal_weights_take_the_memory_of_one(stable: Path, candidate: Path) -> None:
    (weight_bytes, one, two, *shared), (left, none_shared) = measured(stable, candidate, share=True)
    assert weight_bytes == pytest.approx(LAYERS * LAYER_BYTES, rel=0.02)
    assert shared == [(LAYERS - 1) * LAYER_BYTES] * 2
    assert one == pytest.approx(weight_bytes, rel=0.05)
    small = 0.06 * weight_bytes  # tables, code and plans of the second model, and pages that are not full
    assert LAYER_BYTES <= two - one < LAYER_BYTES + small
    # What only the first one had goes with it, though the rest of its block stays.
    assert none_shared == 0 and left < one + small
    (_, one, two, *shared), _ = measured(stable, candidate, share=False)
    assert shared == [0, 0] and two - one > 0.98 * weight_bytes


@pytest.mark.parametrize("first", [0, 1])
def test_either_may_go_first(stable: Path, candidate: Path, first: int) -> None:
    expected = [load(path, share_weights=False)(X) for path in (stable, candidate)]
    models = [load(stable), load(candidate)]
    assert models[0].weight_bytes == models[1].weight_bytes
    assert [model.shared_weight_bytes for model in models] == [(LAYERS - 1) * LAYER_BYTES] * 2
    models[first].close()
    other = models[1 - first]
    assert other.shared_weight_bytes == 0
    np.testing.assert_array_equal(other(X), expected[1 - first])
    with load((stable, candidate)[first]) as again:
        assert again.shared_weight_bytes == (LAYERS - 1) * LAYER_BYTES
        np.testing.assert_array_equal(again(X), expected[first])
    other.close()


def test_constants_that_begin_alike_are_told_apart(stable: Path) -> None:
    """Later bytes decide: what was equal until there is copied from the other model. There are more than are tried."""
    data = stable.read_bytes()
    size = WIDTH * WIDTH
    parts = [slice(first, first + 4096) for first in (*range(size // 2, size, 4096), 64)] + [slice(size - 16, size)]
    artifacts = [data, *(changed(data, 3, part, 2.0) for part in parts), data]
    expected = [load(data, share_weights=False)(X) for data in artifacts]
    assert len({array.tobytes() for array in expected}) > 9
    models = [load(data) for data in artifacts]
    for model, array in zip(models, expected, strict=True):
        np.testing.assert_array_equal(model(X), array)
        assert model.shared_weight_bytes >= (LAYERS - 1) * LAYER_BYTES
    for model in models[::2]:
        model.close()
    for model, array in list(zip(models, expected, strict=True))[1::2]:
        np.testing.assert_array_equal(model(X), array)
        model.close()


@pytest.mark.parametrize("mode", ["none", "external"])
def test_packings_that_are_made_at_load_are_shared(tmp_path: Path, mode: str) -> None:
    given = {f"w{layer}": array for layer, array in enumerate(weights_of())}
    built(weights_of(), weights=mode).save(tmp_path / "model.aot")
    options: dict[str, Any] = {"weights": given} if mode == "none" else {}
    first, second = load(tmp_path / "model.aot", **options), load(tmp_path / "model.aot", **options)
    assert first.shared_weight_bytes == second.shared_weight_bytes >= LAYERS * LAYER_BYTES
    expected = first(X)
    first.close()
    np.testing.assert_array_equal(second(X), expected)
    second.close()


def test_mapped_weights_are_the_systems_to_share(stable: Path) -> None:
    with load(stable, map_weights=True) as mapped, load(stable) as copied:
        assert mapped.shared_weight_bytes == copied.shared_weight_bytes == 0
        np.testing.assert_array_equal(mapped(X), copied(X))


class Allocator(ctypes.Structure):
    """aot_allocator"""

    _fields_ = (("struct_size", ctypes.c_size_t), ("user", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("release", ctypes.c_void_p))  # fmt: skip


class Counted:
    """An allocator of the caller, which knows what it gave."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        libc.aligned_alloc.restype, libc.aligned_alloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,) * 2
        libc.free.argtypes = (ctypes.c_void_p,)
        self.live: dict[int, int] = {}

        def allocate(_: int, size: int, alignment: int) -> int | None:
            unit = max(alignment, 64)
            pointer: int | None = libc.aligned_alloc(unit, -(-size // unit) * unit)
            if pointer:
                self.live[pointer] = size
            return pointer

        def release(_: int, pointer: int, size: int) -> None:
            assert self.live.pop(pointer) == size
            libc.free(pointer)

        pointer_type, size_type = ctypes.c_void_p, ctypes.c_size_t
        self.functions = (
            ctypes.CFUNCTYPE(pointer_type, pointer_type, size_type, size_type)(allocate),
            ctypes.CFUNCTYPE(None, pointer_type, pointer_type, size_type)(release),
        )
        addresses = (ctypes.cast(function, ctypes.c_void_p) for function in self.functions)
        self.struct = Allocator(ctypes.sizeof(Allocator), None, *addresses)

    @property
    def live_bytes(self) -> int:
        return sum(self.live.values())

    def load(self, data: bytes, flags: int = 0) -> int:
        options = native.info(native.LoadOptions)
        options.allocator, options.flags = ctypes.addressof(self.struct), flags
        handle, error = ctypes.c_void_p(), native.new_error()
        status = native.library().aot_model_load_memory(
            data, len(data), ctypes.byref(options), ctypes.byref(handle), ctypes.byref(error)
        )
        assert status == 0 and handle.value, error.message
        return handle.value


def test_a_callers_memory_is_shared_where_the_allocator_is_the_same(stable: Path, candidate: Path) -> None:
    lib = native.library()
    one, other = Counted(), Counted()
    data = stable.read_bytes(), candidate.read_bytes()
    first = one.load(data[0])
    alone = one.live_bytes
    assert alone > LAYERS * LAYER_BYTES
    ours, theirs = load(stable), other.load(data[0])
    assert lib.aot_model_shared_weight_bytes(first) == lib.aot_model_shared_weight_bytes(theirs) == 0
    assert ours.shared_weight_bytes == 0
    second = one.load(data[1])
    assert lib.aot_model_shared_weight_bytes(second) == (LAYERS - 1) * LAYER_BYTES
    assert one.live_bytes < alone + 2 * LAYER_BYTES
    lib.aot_model_unload(first)
    assert (LAYERS - 1) * LAYER_BYTES < one.live_bytes < alone + LAYER_BYTES // 2
    third = one.load(data[0], OWN)
    assert lib.aot_model_shared_weight_bytes(third) == lib.aot_model_shared_weight_bytes(second) == 0
    for handle in (third, second, theirs):
        lib.aot_model_unload(handle)
    assert one.live == other.live == {}
    ours.close()


def test_a_refused_file_leaves_no_constants_behind(stable: Path, candidate: Path) -> None:
    """Its weights are damaged at the end, when all others were already taken over or offered."""
    data = bytearray(candidate.read_bytes())
    data[-100] ^= 1
    with load(stable) as first:
        with pytest.raises(aot.errors.ArtifactError, match="do not match their SHA-256"):
            load(bytes(data))
        assert first.shared_weight_bytes == 0
        with load(stable) as second:
            assert first.shared_weight_bytes == second.shared_weight_bytes >= LAYERS * LAYER_BYTES
            np.testing.assert_array_equal(first(X), second(X))


def test_equal_constants_of_one_model_are_not_called_shared() -> None:
    same = [weights_of()[0]] * LAYERS
    given = {f"w{layer}": array for layer, array in enumerate(same)}
    model: Model = built(same, weights="none").load(weights=given)
    assert model.shared_weight_bytes == 0 and model.weight_bytes < 3 * LAYER_BYTES
    model.close()
