"""Host steps: where they come from, who is told, what a file holds of them, and what a damaged file may say."""

from __future__ import annotations

import ctypes
import json
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import aot
from aot.artifacts import Artifact, layout
from aot.artifacts.layout import Section, SectionFlag
from aot.artifacts.write import assemble, header_digest
from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.cli.main import cli
from aot.dims import Symbol
from aot.dtypes import F32, F64, I4
from aot.errors import ArtifactError, TargetError, UnsupportedError
from aot.program import HostStep
from aot.program_text import program_text
from aot.runtime import load
from tests.artifacts.conftest import flow_model
from tests.artifacts.test_damaged import open_native, open_python, sections_of
from tests.artifacts.test_hostile_flow import survive
from tests.control.models import model_of
from tests.cuda.flows import LACKING, STEPS, DeviceChecker
from tests.e2e.test_custom_operators import model, node, opaque
from tests.simulated import TARGET, WHY, simulated_backend

X = np.random.default_rng(5).standard_normal((2, 3, 3)).astype(np.float32)
SCALE = np.array([1, 2, 3, 4, 5, 6, 7, 8, 10], np.float32).reshape(3, 3)
FEED = {"x": X, "w": np.array([1, -2], np.float32)}


def wanted() -> Any:
    scaled = np.tanh(X) * SCALE
    return np.linalg.det(scaled.astype(np.float64)) + FEED["w"]


def test_a_host_step_is_named_and_counted(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    artifact = check.build(STEPS, LACKING)
    (program,) = artifact.programs
    assert program.host_steps == (HostStep(1, "determinant", WHY, ("Det_2",)),)
    assert [part.target for part in program.parts] == [TARGET, "cpu:x86-64-v3", TARGET]
    assert artifact.meta["host_steps"] == [{"target": TARGET, "node": "Det_2", "op": "determinant", "why": WHY}]
    assert artifact.report.host_steps == ((TARGET, program.host_steps[0]),)
    assert "c_compiler" in artifact.meta["tools"]
    assert 'block 1 on "cpu:x86-64-v3" {' in program_text(program) and "block 2 {" in program_text(program)
    with artifact.load() as loaded:
        assert [p.host_steps for p in loaded.programs] == [1]
        assert loaded.host_steps == 0
        for number in range(1, 4):
            np.testing.assert_allclose(loaded.run(FEED)["y"], wanted(), rtol=1e-4)
            assert loaded.host_steps == number
    plain = check.build(STEPS)
    assert plain.programs[0].flow is None and "host_steps" not in plain.meta
    assert Section.HOST not in sections_of(plain.data)


def test_threads(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    """Sessions have their own memory between blocks, and share the pool of the process for host steps."""
    wrong: list[str] = []
    with check.build(STEPS, LACKING).load(threads=2) as loaded:

        def work(number: int) -> None:
            for i in range(12):
                x = np.full((1 + (number + i) % 3, 3, 3), i, np.float32) + X[:1]
                feed: dict[str, Any] = {"x": x, "w": np.full(len(x), number, np.float32)}
                scaled = np.tanh(x).astype(np.float64) * SCALE
                given = feed if i % 2 else {name: loaded.to_device(array) for name, array in feed.items()}
                found = np.asarray(loaded.run(given)["y"])
                if not np.allclose(found, np.linalg.det(scaled) + feed["w"], rtol=1e-3, atol=1e-3):
                    wrong.append(f"{number}, {i}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert loaded.host_steps == 72


def test_none_may_be_forbidden(check: DeviceChecker) -> None:
    with pytest.raises(UnsupportedError, match=r"--no-host-steps") as caught:
        check.build(STEPS, LACKING | {"tanh"}, host_steps=False)
    assert f"determinant: Det_2 ({WHY})" in str(caught.value) and "tanh: Tanh_0" in str(caught.value)
    assert check.build(STEPS, host_steps=False).programs[0].flow is None


def test_consecutive_nodes_are_one_step(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    artifact = check.build(STEPS, LACKING | {"mul"})
    (program,) = artifact.programs
    assert [(step.block, step.op) for step in program.host_steps] == [(1, "mul"), (1, "determinant")]
    with artifact.load() as loaded:
        np.testing.assert_allclose(loaded.run(FEED)["y"], wanted(), rtol=1e-4)
        assert loaded.host_steps == 1


@pytest.mark.parametrize("weights", ["embedded", "external", "none"])
def test_weights_of_host_steps(
    check: DeviceChecker,
    fake: ctypes.CDLL,
    tmp_path: Path,
    weights: str,
) -> None:
    """The device has its own weights and the CPU its own, wherever they come from."""
    artifact = check.build(STEPS, LACKING | {"mul"}, weights=weights)
    path = tmp_path / "model.aot"
    artifact.save(path)
    given = {"scale": SCALE} if weights == "none" else None
    for again in range(2):
        with load(path, weights=given, map_weights=weights == "embedded" and again == 1) as loaded:
            np.testing.assert_allclose(loaded.run(FEED)["y"], wanted(), rtol=1e-4)


def test_a_program_of_host_steps_alone(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    artifact = check.build(model_of("g (float[b,3,3] x) => (float[b] y) { y = Det (x) }"), LACKING)
    with artifact.load() as loaded:
        for x in (X, loaded.to_device(X)):
            found = loaded.run({"x": x})["y"]
            np.testing.assert_allclose(np.asarray(found), np.linalg.det(X.astype(np.float64)), rtol=1e-4)


def test_an_operator_with_c_source_only() -> None:
    source = "static void run(const float *x, float *y, long long n) { for (long long i = 0; i < n; i++) y[i] = x[i]; }"
    made = opaque("Held", source, reference=lambda attrs, x: x)
    proto = model([node("Held", ["x"], ["y"])], {"x": (1, [4])}, {"y": 1})
    with pytest.raises(UnsupportedError, match=r"test\.held: .* \(the operator has source for cpu only\)"):
        aot.compile(proto, target=TARGET, operators=[made], host_steps=False)


def test_what_the_cuda_backend_lacks() -> None:
    backend = CudaBackend()

    def why(op: str, *operands: Any, **attrs: Any) -> str:
        builder = Builder()
        values = [builder.input(f"x{number}", dtype, shape) for number, (dtype, shape) in enumerate(operands)]
        builder.op(op, *values, **attrs)
        return backend.lacks(builder.nodes[-1])

    square, heads = (F32, (3, 3)), (F32, (1, 2, 8, 16))
    assert not why("matmul", square, square) and not why("softmax", square, axis=1) and not why("running_max", square)
    assert not why("attention", heads, heads, heads, scale=1.0)
    assert why("eigh", square) == WHY
    assert not why("determinant", square) and "65" in why("determinant", (F32, (65, 65)))
    double, d = (F64, (1, 2, 8, 16)), Symbol("d").dim
    assert "f64" in why("attention", double, double, double, scale=1.0)
    assert "head sizes" in why("attention", *[(F32, (1, 2, 8, d))] * 3, scale=1.0)
    assert why("reshape", (I4, (4,)), shape=(2, 2)) == "a GPU has no code for elements of type i4"


def test_the_commands_tell(check: DeviceChecker, tmp_path: Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "m.aot"
    source.write_bytes(STEPS.SerializeToString())

    def invoke(*arguments: object, code: int = 0) -> str:
        done = CliRunner().invoke(cli, [*map(str, arguments)])
        assert done.exit_code == code, done.output
        return done.output

    cached = ("--cache", check.cache)
    with simulated_backend(LACKING):
        text = invoke("build", source, "-o", target, "--target", TARGET, *cached)
        assert f"Det_2: determinant on {TARGET} ({WHY})" in " ".join(text.split())
        document = json.loads(invoke("build", source, "-o", target, "--target", TARGET, *cached, "--json"))
        assert [row["node"] for row in document["host_steps"]] == ["Det_2"]
        refused = invoke("build", source, "-o", target, "--target", TARGET, *cached, "--no-host-steps", code=1)
        assert "determinant: Det_2" in refused
    text = invoke("inspect", target)
    assert f"Det_2: determinant on {TARGET}" in " ".join(text.split())
    overview = json.loads(invoke("inspect", target, "--json"))
    assert overview["programs"][0]["host_steps"] == [{"block": 1, "node": "Det_2", "op": "determinant", "why": WHY}]
    text = invoke("inspect", target, "--machine", "sm=9.0,cpu=x86-64-v2")
    assert "its host steps do not run: this CPU supports x86-64-v2" in " ".join(text.split())


# Files.


def test_an_older_reader_asks_for_a_newer_one(check: DeviceChecker) -> None:
    """The section is one that it must know: it says so, and does not call the file damaged."""
    data = bytearray(check.build(STEPS, LACKING).data)
    offset, count = struct.unpack_from("<Q", data, 24)[0], struct.unpack_from("<I", data, 64)[0]
    size = layout.SECTION.size_bytes
    places = [offset + number * size for number in range(count)]
    (place,) = (p for p in places if struct.unpack_from("<I", data, p)[0] == Section.HOST)
    assert struct.unpack_from("<I", data, place + 4)[0] & SectionFlag.REQUIRED
    struct.pack_into("<I", data, place, 99)
    header, table = bytes(data[: layout.HEADER.size_bytes]), bytes(data[offset : offset + count * size])
    data[32:64] = header_digest(header, table)
    for opener in (open_python, open_native):
        with pytest.raises(ArtifactError, match=r"needs section 99"):
            opener(bytes(data))


def changed(data: bytes, **fields: int) -> bytes:
    """The file with fields of its first record of host steps changed."""
    sections = sections_of(data)
    record = layout.RECORD_OF[Section.HOST]
    at = 0
    for field in record.fields:
        if field.name in fields:
            struct.pack_into("<I", sections[Section.HOST], at, fields[field.name])
        at += struct.calcsize("<" + field.format)
    return assemble(sections)


@pytest.mark.parametrize("opener", [open_python, open_native])
def test_damaged_records(check: DeviceChecker, opener: Any) -> None:
    """A file cannot make the loader run a GPU's image as a library, nor a library's code on a GPU."""
    data = check.build(STEPS, LACKING).data
    for block in (0, 1, 3, 4, 99, 0xFFFFFFFF):  # the program itself, blocks for the GPU, and what is not there
        with pytest.raises(ArtifactError, match="damaged"):
            opener(changed(data, block=block))
    for name in ("op", "why"):
        with pytest.raises(ArtifactError, match="damaged"):
            opener(changed(data, **{name: 1 << 20}))
    for without in (b"", bytes(sections_of(data)[Section.HOST])):
        sections = sections_of(data)
        sections[Section.HOST] = bytearray(without)
        if not without:
            with pytest.raises(ArtifactError, match="damaged"):
                opener(assemble(sections))
    sections = sections_of(data)
    del sections[Section.HOST]
    with pytest.raises(ArtifactError, match="damaged"):
        opener(assemble(sections))


def test_targets_that_do_not_fit(check: DeviceChecker) -> None:
    """A program for a CPU has no blocks of another target, whatever the file says."""
    data = check.build(STEPS, LACKING).data
    sections = sections_of(data)
    record = layout.RECORD_OF[Section.PROGRAMS]
    strings = bytes(sections[Section.STRINGS])
    cpu, gpu = (strings.index(name + b"\0") for name in (b"cpu:x86-64-v3", TARGET.encode()))
    assert record.fields[0].name == "target"
    for number, target in ((0, cpu), (1, cpu), (2, gpu), (3, cpu)):
        held = {kind: bytearray(content) for kind, content in sections.items()}
        struct.pack_into("<I", held[Section.PROGRAMS], number * record.size_bytes, target)
        for opener in (open_python, open_native):
            with pytest.raises((ArtifactError, TargetError)):
                opener(assemble(held))


def test_hostile_flows_on_a_device(check: DeviceChecker, fake: ctypes.CDLL) -> None:
    """Flows that the loader accepts and that make no sense: errors, or results; on a device too."""
    for lacking in (frozenset[str](), frozenset({"concat", "reduce_sum"})):
        data = check.build(flow_model(), lacking).data
        refused, failed, ran = survive(data, range(250))
        assert min(refused, failed, ran) > 20, (refused, failed, ran)
        fake.fake_misuse()  # such a flow may read what nothing has written


def test_the_format_is_stable(check: DeviceChecker) -> None:
    artifact = check.build(STEPS, LACKING)
    assert Artifact(artifact.data).programs == artifact.programs
    assert check.build(STEPS, LACKING).data == artifact.data
