"""The commands on the digits model of the README: real compiler, real runtime, ONNX Runtime beside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aot.text import parse_graph, print_graph
from tests.cli.commands import document, invoke

DIGITS = Path(__file__).resolve().parents[2] / "docs" / "digits"
MODEL = DIGITS / "digits.onnx"
TARGET = "cpu:x86-64-v3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """out.aot, its dumps, the kernel cache and inputs with the expected outputs."""
    made = tmp_path_factory.mktemp("cli")
    with np.load(DIGITS / "test.npz") as test:
        np.savez(made / "in.npz", image=test["images"][:7])
        np.save(made / "logits.npy", test["logits"][:7])
    common = ("--target", TARGET, "--cache", made / "cache", "--json")
    result = invoke("build", MODEL, "-o", made / "out.aot", "--dump", made / "dump", *common)
    (made / "build.json").write_text(result.stdout)
    invoke("build", MODEL, "-o", made / "exact.aot", "--exact", *common)
    return made


def test_build_figures(folder: Path) -> None:
    report = json.loads((folder / "build.json").read_text())
    figures = report["build"]
    assert figures["ops_in"] > figures["ops_simplified"] > figures["kernels_out"] > 0
    assert figures["bytes_moved_unfused"] > figures["bytes_moved_fused"] > 0
    assert figures["peak_bytes"] >= figures["lower_bound_bytes"] > 0
    assert figures["weights_bytes"] > 70_000
    assert sum(report["seconds"].values()) > 0
    assert report["targets"] == [TARGET] and report["artifact_bytes"] == (folder / "out.aot").stat().st_size


def test_dumps_read_back(folder: Path) -> None:
    files = sorted((folder / "dump").iterdir())
    assert files[0].name == "000-input.air" and len(files) > 5
    for path in files:
        text = path.read_text()
        assert print_graph(parse_graph(text)) == text, path.name
    assert len({path.name[:3] for path in files}) == len(files)


def test_run(folder: Path) -> None:
    invoke("run", folder / "out.aot", "--inputs", folder / "in.npz", "-o", folder / "out.npz")
    with np.load(folder / "out.npz") as found:
        np.testing.assert_allclose(found["logits"], np.load(folder / "logits.npy"), rtol=1e-3, atol=1e-4)
    assert document("run", folder / "out.aot", "--random", "--seed", 3, "--dim", "batch=2")["outputs"][0]["shape"] == [
        2,
        10,
    ]


def test_verify_and_bench(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    found = document("verify", folder / "out.aot", "--against", MODEL, "--inputs", folder / "in.npz", "--threads", 2)
    assert found["passed"] and found["cases"][0]["outputs"][0]["elements"] == 70
    invoke("verify", folder / "out.aot", "--against", MODEL, "--rtol", 0, "--atol", 1e-12, code=3)
    timed = document("bench", folder / "out.aot", "--against", MODEL, "--seconds", 0.05, "--profile")
    (case,) = timed["cases"]
    assert (
        case["ratio"] > 0
        and len(case["steps"]) == json.loads((folder / "build.json").read_text())["build"]["kernels_out"]
    )


def test_wrong_input_is_named(folder: Path) -> None:
    np.savez(folder / "wrong.npz", image=np.zeros((2, 1, 8, 9), np.float32))
    result = invoke("run", folder / "out.aot", "--inputs", folder / "wrong.npz", code=1)
    assert "image" in result.stderr and "8" in result.stderr and "9" in result.stderr and "hint:" in result.stderr


def test_inspect(folder: Path) -> None:
    views = ("--plan", "--memory", "--kernels", "--guards", "--fusion", "--weights")
    text = invoke("inspect", folder / "out.aot", *views, "--svg", folder / "plan.svg", "--dim", "batch=4").stdout
    for part in ("launch 0", "arena ", "window", "image axis 1 == 1", "not fused: 11 pairs", "stem.conv.weight"):
        assert part in text
    found = document("inspect", folder / "out.aot", *views)
    memory = found["memory"]
    assert memory["peak_bytes"] >= memory["lower_bound_bytes"] == max(memory["live_bytes"])
    placed = memory["buffers"]
    for i, one in enumerate(placed):  # independent of the compiler's checker: nothing alive together overlaps
        for other in placed[i + 1 :]:
            together = one["first_step"] <= other["last_step"] and other["first_step"] <= one["last_step"]
            apart = (
                one["offset_bytes"] + one["size_bytes"] <= other["offset_bytes"]
                or other["offset_bytes"] + other["size_bytes"] <= one["offset_bytes"]
            )
            assert apart or not together, (one, other)
    nodes = {node for row in found["kernels"] for node in row["nodes"]}
    assert {"stem.conv", "classifier"} <= nodes
    symbol = found["kernels"][0]["symbol"]
    assert "args" in invoke("inspect", folder / "out.aot", "--source", symbol).stdout


def test_diff(folder: Path) -> None:
    changes = document("diff", folder / "out.aot", folder / "exact.aot")["changes"]
    assert {"what": "exact", "change": "changed", "before": False, "after": True} in changes["options"]
    assert "source" not in changes


def test_opt_is_the_build_step_by_step(folder: Path) -> None:
    """Text of one stage is the start of the next, and gives what the build gave."""
    files = {path.name[4:-4]: path for path in sorted((folder / "dump").iterdir())}
    start, end = files["assign_layouts"], files["fuse"]
    text = invoke("opt", start, "--pass", "fuse", "--weights", MODEL, "--target", TARGET).stdout
    assert text == end.read_text()


def test_opt_on_a_model(folder: Path) -> None:
    result = invoke("opt", MODEL, "--until", "decompose", "--dump-after-all", folder / "opt", "-o", folder / "core.air")
    assert "normalize: " in result.stderr
    assert parse_graph((folder / "core.air").read_text()).nodes
    assert sorted((folder / "opt").iterdir())
    listed = document("opt", "--list")
    assert listed[0]["takes"] == "core" and any(row["gives"] == "ordered" for row in listed)
    nothing = document("opt", MODEL, "--until", "decompose", "--bisect", 0)
    some = document("opt", MODEL, "--until", "decompose", "--bisect", 3)
    assert sum(nothing["rewrites"].values()) == 0 and sum(some["rewrites"].values()) == 3


def test_why(folder: Path) -> None:
    result = invoke("opt", MODEL, "--why", "fuse", "stem.relu", "--target", TARGET)
    assert "fuse at " in result.stdout and "stem.relu" in result.stdout
    assert invoke("opt", MODEL, "--why", "fuse", "no_such_node", code=2).stderr.startswith("error: no node")
    assert "no rule 'fussion'" in invoke("opt", MODEL, "--why", "fussion", "stem.relu", code=2).stderr
    assert all("stem" in row["where"] for row in document("opt", MODEL, "--why", "*", "stem")["refusals"])


def test_opt_errors(folder: Path) -> None:
    (folder / "bad.air").write_text("aot ir 1\ngraph g level=core {\n  %0: f99[1] = input\n}\n")
    result = invoke("opt", folder / "bad.air", code=1)
    assert "unknown element type 'f99'" in result.stderr and "bad.air, line 3" in result.stderr
    assert "no pass 'fuze'" in invoke("opt", MODEL, "--pass", "fuze", code=2).stderr
    assert "no such file" in invoke("opt", folder / "none.air", code=2).stderr
    invoke("opt", code=2)
    invoke("opt", MODEL, "--pass", "fold", "--until", "fuse", code=2)


def test_weights_external_and_none(folder: Path) -> None:
    common = ("--target", TARGET, "--cache", folder / "cache")
    inputs = ("--inputs", folder / "in.npz")
    expected = document("run", folder / "out.aot", *inputs)["outputs"]
    invoke("build", MODEL, "-o", folder / "ext.aot", "--weights", "external", *common)
    assert (folder / "ext.safetensors").is_file()
    assert document("run", folder / "ext.aot", *inputs)["outputs"] == expected
    invoke("build", MODEL, "-o", folder / "none.aot", "--weights", "none", *common)
    assert (folder / "none.aot").stat().st_size < (folder / "out.aot").stat().st_size
    assert "weight" in invoke("run", folder / "none.aot", *inputs, code=1).stderr
    assert document("run", folder / "none.aot", *inputs, "--weights", folder / "ext.safetensors")["outputs"] == expected
    (folder / "bad.safetensors").write_bytes(b"not tensors")
    assert (
        "cannot read weights"
        in invoke("run", folder / "none.aot", "--weights", folder / "bad.safetensors", code=2).stderr
    )


def test_variants_and_check(folder: Path) -> None:
    common = ("--target", TARGET, "--cache", folder / "cache")
    invoke("build", MODEL, "-o", folder / "var.aot", "--dim", "batch=1..16", "--variant", "batch=1,8", *common)
    programs = document("inspect", folder / "var.aot")["programs"]
    assert [program["variant"] for program in programs] == ["batch=1", "batch=8", ""]
    for batch in (1, 5, 8):
        found = document("verify", folder / "var.aot", "--against", MODEL, "--dim", f"batch={batch}")
        assert found["passed"]
    result = invoke("run", folder / "var.aot", "--dim", "batch=17", code=1)
    assert "17" in result.stderr and "16" in result.stderr
    assert document("build", MODEL, "--check")["supported"] is True


def test_malformed_models(folder: Path) -> None:
    (folder / "bad.onnx").write_bytes(MODEL.read_bytes()[:1000])
    for arguments in (("build", folder / "bad.onnx", "-o", folder / "bad.aot"), ("opt", folder / "bad.onnx")):
        assert "bad.onnx" in invoke(*arguments, code=1).stderr
    assert not (folder / "bad.aot").exists()
