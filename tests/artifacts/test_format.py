"""Programs -> bytes -> programs: identity, determinism, sharing, the weights modes, saving."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot import dims, dtypes
from aot.artifacts import Artifact, dim_code, gen_header, layout, safetensors
from aot.artifacts.layout import Section
from aot.dims import Dim, Symbol
from aot.errors import ArtifactError, CompilerError, OptionError
from aot.ir import Array, TensorType
from aot.program import Port
from tests.runtime import handmade


def test_header_is_fresh() -> None:
    assert gen_header.main(["--check"]) == 0, "run: python -m aot.artifacts.gen_header"


def test_sections_are_aligned_and_weights_last() -> None:
    entries = sorted(handmade.artifact().reader.entries.values(), key=lambda entry: entry.offset)
    assert all(entry.offset % layout.SECTION_ALIGN_BYTES == 0 for entry in entries)
    assert entries[-1].kind == Section.WEIGHTS and entries[-1].offset % layout.WEIGHTS_ALIGN_BYTES == 0


def test_programs_come_back_equal() -> None:
    programs = (handmade.fixed_variant(8), handmade.program(), handmade.program("cpu:x86-64-v3"))
    artifact = handmade.artifact(*programs)
    assert artifact.programs == programs
    assert artifact.meta == {"compiler": "handmade"}
    assert artifact.debug == {"graph": "handmade"}
    w, b = handmade.weights()
    constants = artifact.constants()
    np.testing.assert_array_equal(constants["layer.bias"], b)
    packed = constants["layer.weight"].transpose(1, 0, 2).reshape(handmade.K, 32)
    np.testing.assert_array_equal(packed[:, : handmade.M], w)
    assert not packed[:, handmade.M :].any()


def test_same_input_same_bytes() -> None:
    assert handmade.artifact().data == handmade.artifact().data
    assert handmade.artifact().digest == handmade.artifact().digest


def test_programs_share_constants_and_code() -> None:
    one = handmade.artifact()
    two = handmade.artifact(handmade.program("cpu:x86-64-v4"), handmade.program("cpu:x86-64-v3"))
    assert two.sections["weights"] == one.sections["weights"]
    assert two.sections["code"] == one.sections["code"]


def test_debug_can_be_left_out() -> None:
    artifact = handmade.artifact(debug=None)
    assert "debug" not in artifact.sections
    assert artifact.debug == {} and artifact.programs[0].kernels[0].source == ""


def test_self_test_tensors() -> None:
    tensors = {"input:x": np.ones((2, 5), np.float32), "output:y": np.arange(4, dtype=np.int64)}
    found = handmade.artifact(self_test=tensors).self_test
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("mode", ["external", "none"])
def test_weights_outside(mode: str) -> None:
    bias = replace(handmade.program().constants[1], always_embedded=True)
    program = replace(handmade.program(), constants=(handmade.program().constants[0], bias))
    artifact = handmade.artifact(program, weights=mode)
    assert artifact.constants().keys() == {"layer.bias"}
    assert bool(artifact.external) == (mode == "external")
    assert artifact.weights_mode == mode and artifact.external_file == artifact.external_name
    if mode == "external":
        tensors, _ = safetensors.read(artifact.external)
        assert tensors.keys() == {"layer.weight"}
        np.testing.assert_array_equal(tensors["layer.weight"], handmade.weights()[0])


def test_unknown_weights_mode() -> None:
    with pytest.raises(OptionError, match="embedded, packed, external or none"):
        handmade.artifact(weights="inside")


def test_safetensors_agree_with_the_public_package() -> None:
    package = pytest.importorskip("safetensors.numpy")
    random = np.random.default_rng(1)
    tensors: dict[str, Array] = {
        "a": random.standard_normal((3, 4)).astype(np.float32),
        "b/ü": random.integers(0, 9, (5,), np.int64),
        "empty": np.zeros((0, 2), np.float64),
        "scalar": np.asarray(3, np.uint8),
    }
    data, offsets = safetensors.write(tensors, {"licence": "none"})
    for found in (package.load(data), safetensors.read(data)[0], safetensors.read(package.save(tensors))[0]):
        assert found.keys() == tensors.keys()
        for name, array in tensors.items():
            np.testing.assert_array_equal(found[name], array)
    assert data[offsets["a"] :][: tensors["a"].nbytes] == tensors["a"].tobytes()
    with pytest.raises(ArtifactError, match="damaged"):
        safetensors.read(data[:20])


def test_ports_must_be_row_major() -> None:
    program = handmade.program()
    port = Port("x", replace(program.inputs[0].type, layout=replace(program.inputs[0].type.layout, order=(1, 0))))
    with pytest.raises(CompilerError, match="row-major"):
        handmade.artifact(replace(program, inputs=(port,)))


def test_save_and_open(tmp_path: Path) -> None:
    artifact = handmade.artifact(weights="external")
    path = tmp_path / "model.aot"
    artifact.save(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["model.aot", artifact.external_name])
    opened = Artifact.open(path)
    assert opened.data == artifact.data and opened.size_bytes == path.stat().st_size
    with pytest.raises(ArtifactError, match="No such file"):
        Artifact.open(tmp_path / "missing.aot")


def test_unwritable_path(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot write") as caught:
        handmade.artifact().save(tmp_path / "missing" / "model.aot")
    assert caught.value.hint


def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "model.aot"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match="No space left") as caught:
        handmade.artifact().save(path)
    assert caught.value.hint
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


SYMBOLS = (Symbol("n", 1, None), Symbol("height", 1, 512, 2), Symbol("k", 0, 7))


def _dims() -> st.SearchStrategy[Dim]:
    leaves = st.one_of(st.integers(-9, 9), st.sampled_from([symbol.dim for symbol in SYMBOLS]))

    def grow(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda p: p[0] + p[1]),
            pairs.map(lambda p: p[0] * p[1]),
            pairs.map(lambda p: dims.minimum(*p)),
            pairs.map(lambda p: dims.maximum(*p)),
            st.tuples(inner, st.integers(1, 8)).map(lambda p: dims.floordiv(*p)),
            st.tuples(inner, st.integers(1, 8)).map(lambda p: dims.mod(*p)),
        )

    return st.recursive(leaves, grow, max_leaves=6)


@settings(max_examples=200, deadline=None)
@given(_dims(), st.integers(1, 40), st.integers(1, 20), st.integers(0, 7))
def test_dim_code_keeps_the_value(dim: Dim, n: int, height: int, k: int) -> None:
    numbers = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    found = dim_code.decode(dim_code.encode(dim, numbers), SYMBOLS, "here")
    values = {"n": n, "height": 2 * height, "k": k}
    assert dims.evaluate(found, values) == dims.evaluate(dim, values)


def test_dim_code_comes_back_equal() -> None:
    n, height = SYMBOLS[0].dim, SYMBOLS[1].dim
    port = Port("x", TensorType(dtypes.F32, (dims.ceildiv(n, 3) * height + 1, dims.maximum(n, height), dims.mod(n, 5))))
    numbers = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    for dim in port.type.shape:
        assert dim_code.decode(dim_code.encode(dim, numbers), SYMBOLS, "here") == dim
