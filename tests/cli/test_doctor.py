"""`aotc doctor`: verdicts, causes and repairs for machines that are here and machines that are described."""

from __future__ import annotations

import shlex
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import aot
from aot.artifacts import Artifact
from aot.artifacts.layout import Section
from aot.artifacts.table import FileView, read_entries, replaced
from aot.artifacts.write import header_digest
from aot.cli.build_command import build_command
from aot.cli.doctor import read_held
from aot.cli.driver_versions import BRANCHES, cuda_version, driver_text
from aot.cli.machine import parse
from aot.cli.main import cli
from aot.errors import OptionError
from aot.program import Program
from tests.cli.commands import document, invoke
from tests.cli.test_machine import empty
from tests.control.models import model_of
from tests.simulated import TARGET, simulated_backend

META: dict[str, Any] = {
    "aotc": "0.1.0",
    "source": {"file": "net.onnx", "digest": "ab" * 32},
    "options": {"targets": ["cpu"], "precision": "fp32", "weights": "embedded"},
}


def saved(tmp_path: Path, *programs: Program, meta: dict[str, Any] | None = None, **options: Any) -> Path:
    path = tmp_path / "net.aot"
    Artifact.build(programs, meta=META if meta is None else meta, **options).save(path)
    return path


def diagnosis(path: Path, machine: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = document("doctor", path, "--machine", machine, code=code)
    return found


V3, V4, VNNI = empty("cpu:x86-64-v3"), empty("cpu:x86-64-v4"), empty("cpu:x86-64-v4+vnni")
SM80, SM89, SM90A = empty("cuda:sm_80", 12000), empty("cuda:sm_89", 12000), empty("cuda:sm_90a", 12000)
PTX = empty("cuda:compute_80", 12000)


@pytest.mark.parametrize(
    ("programs", "machine", "verdict", "target", "codes", "command"),
    [
        ((V4, V3), "cpu=x86-64-v4", "runs", "cpu:x86-64-v4", [], ""),
        ((V4, V3), "cpu=x86-64-v3", "runs", "cpu:x86-64-v3", [], ""),
        ((V4, V3), "cpu=x86-64-v4+vnni", "runs", "cpu:x86-64-v4", [], ""),  # of floats: nothing to gain
        ((V3,), "cpu=x86-64-v4", "runs slower", "cpu:x86-64-v3", ["cpu"], "--target cpu:x86-64-v4 --target cpu"),
        ((V4, V3), "sm=89", "runs slower", "cpu:x86-64-v4", ["gpu"], "--target cuda:sm_89 --target cpu"),
        ((SM90A, V3), "sm=89,cpu=x86-64-v3", "runs slower", "cpu:x86-64-v3", ["gpu"], "--target cuda:sm_89"),
        ((SM90A, V3), "sm=9.0", "runs", "cuda:sm_90a", [], ""),
        ((SM90A, V3), "sm=90,driver=515", "runs slower", "cpu:x86-64-v3", ["driver"], ""),
        ((V3,), "sm=90,driver=515,cpu=x86-64-v3", "runs slower", "cpu:x86-64-v3", ["driver"], ""),
        ((V3,), "sm=75,cpu=x86-64-v3", "runs", "cpu:x86-64-v3", [], ""),  # no code for such GPUs can be made
        ((PTX, V3), "sm=89", "runs slower", "cuda:compute_80", ["ptx"], "--target cuda:sm_89"),
        ((PTX, V3), "sm=120", "runs slower", "cuda:compute_80", ["older"], "--target cuda:compute_90"),
        ((SM80,), "sm=89", "runs slower", "cuda:sm_80", ["older"], "--target cuda:sm_89"),
        ((SM89,), "sm=89,cpu=none", "runs", "cuda:sm_89", [], ""),
        ((SM90A,), "cpu=x86-64-v3", "cannot run", None, ["target"], "--target cpu"),
        ((SM90A,), "sm=86,cpu=none", "cannot run", None, ["target"], "--target cuda:sm_86"),
        ((SM90A,), "sm=90,driver=470", "cannot run", None, ["driver"], ""),
        ((V4, V3), "cpu=none", "cannot run", None, ["target"], ""),
        ((V4, V3), "cpu=x86-64-v2", "cannot run", None, ["target"], ""),
        ((V4,), "cpu=x86-64-v3", "cannot run", None, ["target"], "--target cpu"),
    ],
)
def test_verdicts(
    tmp_path: Path,
    programs: tuple[Program, ...],
    machine: str,
    verdict: str,
    target: str | None,
    codes: list[str],
    command: str,
) -> None:
    path = saved(tmp_path, *programs)
    found = diagnosis(path, machine, code=3 if verdict == "cannot run" else 0)
    assert (found["verdict"], found["target"]) == (verdict, target)
    assert [cause["code"] for cause in found["causes"]] == codes
    assert bool(found["command"]) is bool(command) and command in found["command"]
    assert bool(found["repair"]) is bool(codes)
    if command:
        assert found["command"].startswith("aotc build net.onnx --target ") and found["command"].endswith(f"-o {path}")
        assert_is_a_build(found["command"])


def assert_is_a_build(line: str) -> None:
    """The command line can be read as one of `aotc build`."""
    build = cli.get_command(None, "build")  # type: ignore[arg-type]
    assert build is not None
    build.make_context("build", shlex.split(line)[2:])


def test_drivers_to_update(tmp_path: Path) -> None:
    path = saved(tmp_path, empty("cuda:sm_100a", 12080))
    found = diagnosis(path, "sm=100,driver=550", code=3)
    assert found["repair"] == "update the NVIDIA driver to 570.26 (CUDA 12.8) or newer" and not found["command"]
    assert "the driver supports CUDA 12.4, 12.8 or newer is needed" in found["causes"][0]["text"]
    assert diagnosis(path, "sm=100,driver=570")["verdict"] == "runs"
    assert "570.26" in diagnosis(path, "sm=100,driver=580.65.06")["notes"][0]


def test_quantized_models_want_vnni_and_bf16_its_products(tmp_path: Path) -> None:
    meta = META | {"quantization": {"nodes": []}}
    found = diagnosis(saved(tmp_path, V4, V3, meta=meta), "cpu=x86-64-v4+vnni")
    assert found["verdict"] == "runs slower" and "VNNI" in found["causes"][0]["text"]
    assert "--target cpu:x86-64-v4+vnni" in found["command"]
    assert "--quantize" not in found["command"]
    assert diagnosis(saved(tmp_path, VNNI, V3, meta=meta), "cpu=x86-64-v4+vnni")["verdict"] == "runs"
    meta = META | {"options": META["options"] | {"precision": "bf16"}}
    found = diagnosis(saved(tmp_path, V4, meta=meta), "cpu=x86-64-v4+vnni+bf16")
    assert "bfloat16" in found["causes"][0]["text"] and "--precision bf16" in found["command"]
    assert document("doctor", tmp_path / "net.aot", "--machine", "cpu=x86-64-v4+bf16+vnni", "--strict", code=3)


def test_this_machine(tmp_path: Path) -> None:
    from aot.runtime import this_machine

    found = document("doctor", saved(tmp_path, V3))
    assert found["machine"]["cpu_level"] == this_machine().cpu_level
    text = invoke("doctor", tmp_path / "net.aot").output
    assert "(this one)" in text and "cpu:x86-64-v3" in text


def test_notes(tmp_path: Path) -> None:
    path = saved(tmp_path, SM90A, V4, V3, weights="none")
    notes = diagnosis(path, "cpu=x86-64-v4")["notes"]
    assert notes[0].startswith("cuda:sm_90a does not run: ") and "gives them" in notes[1]
    meta = META | {"host_steps": [{"target": "cuda:sm_90a", "node": "/n", "op": "unique", "why": "no kernel"}]}
    assert (
        "1 node of cuda:sm_90a on the CPU, as host steps: unique"
        in diagnosis(saved(tmp_path, SM90A, meta=meta), "sm=90")["notes"]
    )


def test_external_weights(tmp_path: Path) -> None:
    from tests.runtime import handmade

    path = tmp_path / "net.aot"
    handmade.artifact(handmade.program("cpu:x86-64-v3"), weights="external").save(path)
    machine = "cpu=x86-64-v3"
    assert diagnosis(path, machine)["verdict"] == "runs"
    (weights,) = tmp_path.glob("*.safetensors")
    data = weights.read_bytes()
    for content in (data[:-1], data + b"x", data[:20], b""):
        weights.write_bytes(content)
        found = diagnosis(path, machine, code=3)
        assert found["verdict"] == "cannot run" and found["causes"][0]["code"] == "weights"
        expected = f"has {len(content)} bytes, expected {len(data)}"
        assert (expected if len(content) > 20 else "bytes, expected") in found["causes"][0]["text"]
    weights.unlink()
    found = diagnosis(path, machine, code=3)
    assert f"{weights.name} is missing" in found["causes"][0]["text"] and "copy the weights file" in found["repair"]
    weights.mkdir()
    assert diagnosis(path, machine, code=3)["verdict"] == "cannot run"


def test_only_headers_are_read(tmp_path: Path) -> None:
    """Damage in weights and code is not seen, since they are not read; the bytes that are read are few."""
    from tests.runtime import handmade

    path = tmp_path / "net.aot"
    handmade.artifact(handmade.program("cpu:x86-64-v3")).save(path)
    data = bytearray(path.read_bytes())
    entries = read_entries(memoryview(bytes(data)))
    for kind in (Section.WEIGHTS, Section.CODE):
        data[entries[kind].offset + 5] ^= 0xFF
    path.write_bytes(data)
    found = diagnosis(path, "cpu=x86-64-v3")
    assert found["verdict"] == "runs"
    assert found["bytes_read"] < len(data) - entries[Section.CODE].bytes - entries[Section.WEIGHTS].bytes
    with FileView(path) as view:
        assert len(view) == len(data) and bytes(view[8:12]) == bytes(data[8:12])


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    path = saved(tmp_path, V3)
    good = path.read_bytes()
    cases: list[tuple[bytes, str]] = [
        (good[:1000], "truncated?"),
        (good[:40], "fewer than a header"),
        (b"", "fewer than a header"),
        (good[:60] + b"\x01" + good[61:], "digest"),
        (b"PK\3\4" + bytes(500), "zip"),
        (bytes(500), "damaged"),
        (good + b"x", "truncated?"),
    ]
    for data, said in cases:
        path.write_bytes(data)
        error = document("doctor", path, code=1)["error"]
        assert error["code"] == "artifact" and error["where"] == str(path), error
        assert said in error["message"] or "not an" in error["message"] or "archive" in error["message"], error
    entries = read_entries(memoryview(good))
    for kind in (Section.PROGRAMS, Section.META, Section.STRINGS):
        changed = bytearray(good)
        changed[entries[kind].offset + 1] ^= 1
        path.write_bytes(changed)
        assert kind.name.lower() in document("doctor", path, code=1)["error"]["message"]
    assert "no such file" in document("doctor", tmp_path / "none.aot", code=2)["error"]["message"]
    assert document("doctor", tmp_path, code=2)["error"]["code"] == "option"


def test_another_version(tmp_path: Path) -> None:
    path = saved(tmp_path, V3)
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack("<HH", 2, 0)
    count, size = struct.unpack_from("<II", data, 64)
    data[32:64] = header_digest(bytes(data[:80]), bytes(data[80 : 80 + count * size]))
    path.write_bytes(data)
    error = document("doctor", path, code=1)["error"]
    assert "format version 2.0, this reader knows 1.x" in error["message"] and "same major" in error["hint"]


def test_blocks_are_part_of_their_program(tmp_path: Path) -> None:
    """Those of a flow, and those of a GPU's program that are for the CPU."""
    model = model_of("g (float[b,3,3] x) => (float[b] y) { e = Tanh (x) d = Det (e) y = Exp (d) }")
    with simulated_backend(frozenset({"determinant"})):
        host = aot.compile(model.SerializeToString(), target=TARGET, cache_dir=tmp_path / "cache")
    path = tmp_path / "net.aot"
    host.save(path)
    held, artifact = read_held(path), Artifact.open(path)
    assert [p.target for p in held.programs] == [p.target for p in artifact.programs]
    for mine, theirs in zip(held.programs, artifact.programs, strict=True):
        assert [part.target for part in mine.parts] == [part.target for part in theirs.parts]
    assert {part.target for part in held.programs[0].parts} > {"cpu:x86-64-v3"}


@pytest.mark.parametrize(
    ("text", "cuda"),
    [("550", 12040), ("550.54", 12040), ("550.54.14", 12040), ("12.4", 12040), ("12040", 12040), ("535", 12020),
     ("551", 12040), ("470.256.02", 11040), ("999", 13000), ("13.0", 13000), ("9020", 9020), ("384", 9000),
     ("100", None), ("12", None), ("x", None), ("", None), ("550.54.14.1", None), ("12041", None)],
)  # fmt: skip
def test_driver_versions(text: str, cuda: int | None) -> None:
    assert cuda_version(text) == cuda


def test_the_table_of_drivers() -> None:
    assert list(BRANCHES) == sorted(BRANCHES)
    assert [cuda for _, cuda, _ in BRANCHES] == sorted({cuda for _, cuda, _ in BRANCHES})
    assert all(first.startswith(f"{branch}.") for branch, _, first in BRANCHES)
    assert driver_text(12040) == "550.54.14 (CUDA 12.4)" and driver_text(14000) == "a driver for CUDA 14.0"
    assert parse("sm=89,driver=550") == parse("sm=89,driver=12.4")
    with pytest.raises(OptionError, match="is not sm="):
        parse("sm=89,driver=latest")


def test_build_commands_are_those_that_were_given(tmp_path: Path) -> None:
    """Every option of a build that the artifact records comes back, quoted for a shell."""
    options = {
        "targets": ["cpu:x86-64-v3"], "dims": [["batch", 1, 64], ["n", 8, 8], ["m", 2, None]],
        "values": [["k", [1, 2]], ["s p", 3]], "overridable": ["w"], "trust_pickle": True, "precision": "bf16",
        "variants": [[["batch", 1], ["m", 4]], [["batch", 8], ["m", 4]]], "io_dtype": "fp16", "exact": True,
        "host_steps": False, "weights": "external", "strip_debug": True, "quantization": "ab" * 32,
        "disable": ["fold:1"], "bisect": 3,
    }  # fmt: skip
    meta = {"source": {"file": "my net.onnx"}, "options": options, "self_test": {"inputs": 4, "data": "d.npz"}}
    line = build_command(meta, tmp_path / "a b.aot", ("cuda:sm_89",))
    assert line.startswith("aotc build 'my net.onnx' --target cuda:sm_89 --target cpu:x86-64-v3 --dim batch=1..64 ")
    for part in (
        "--dim n=8", "--dim m=2..", "--variant batch=1,8", "--variant m=4", "--set 'k=[1,2]'", "--set 's p=3'",
        "--override w", "--trust-pickle", "--precision bf16", "--io-dtype fp16", "--exact", "--no-host-steps",
        "--weights external", "--strip-debug", "--quantize", "--disable fold:1", "--bisect 3",
        "--self-test 4 --self-test-data d.npz",
    ):  # fmt: skip
        assert part in line
    assert build_command({}, tmp_path / "x.aot", ("cpu",)) == f"aotc build MODEL --target cpu -o {tmp_path / 'x.aot'}"


def test_a_build_records_its_model(tmp_path: Path, onnx_model: Path) -> None:
    invoke("build", onnx_model, "-o", tmp_path / "m.aot", "--target", "cpu:x86-64-v3", "--cache", tmp_path / "cache")
    assert Artifact.open(tmp_path / "m.aot").meta["source"]["file"] == "model.onnx"
    found = diagnosis(tmp_path / "m.aot", "cpu=x86-64-v4")
    assert found["command"].startswith("aotc build model.onnx --target cpu:x86-64-v4 --target cpu:x86-64-v3 ")


@pytest.mark.parametrize("wrong", [5, "x", [1], None, True, {"a": [1]}, [[1, 2]]])
@pytest.mark.parametrize("field", ["source", "options", "targets", "host_steps", "self_test", "quantization"])
def test_meta_of_another_form_is_the_files_fault(tmp_path: Path, field: str, wrong: Any) -> None:
    path = saved(tmp_path, V3, meta={**META, field: wrong})
    result = CliRunner().invoke(cli, ["doctor", str(path), "--machine", "cpu=x86-64-v4"])
    assert result.exit_code in (0, 1) and "defect of aotc" not in result.output


def test_meta_that_is_nested_without_end(tmp_path: Path) -> None:
    path = saved(tmp_path, V3)
    path.write_bytes(replaced(path.read_bytes(), {Section.META: b"[" * 100_000}))
    result = CliRunner().invoke(cli, ["doctor", str(path), "--machine", "cpu=x86-64-v4"])
    assert result.exit_code == 1 and "damaged" in result.output
