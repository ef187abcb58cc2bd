"""The commands on a hand-made artifact: output, JSON, files written, exit codes, errors."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from aot.cli.common import seconds_text
from aot.cli.main import COMMANDS, cli, main
from tests.cli.conftest import META, WEIGHT, make_artifact


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def document(*arguments: object, code: int = 0) -> Any:
    result = invoke(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


# The group.


def test_help_lists_every_command_and_exit_codes() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in COMMANDS)
    assert "3 verification" in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_json(name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout and "--traceback" in result.stdout


def test_main_returns_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert main(["nonsense"]) == 2
    assert main(["run"]) == 2
    assert main(["inspect", "/nowhere/x.aot"]) == 2
    assert "error: " in capsys.readouterr().err


def test_help_is_quick_because_commands_load_when_used() -> None:
    heavy = "[name for name in ('numpy', 'onnx', 'rich') if name in sys.modules]"
    code = f"import sys, aot.cli.main as main; main.main(['--help']); print({heavy})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("[]")


# Errors.


def test_an_error_has_message_where_and_hint(tmp_path: Path) -> None:
    path = tmp_path / "x.aot"
    path.write_bytes(b"not an artifact")
    result = invoke("inspect", path)
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.split("\n")
    assert lines[0].startswith("error: ") and "not an artifact" in lines[0]
    assert lines[1] == f"  where: {path}"
    assert lines[2].startswith("  hint: ")
    assert "Traceback" not in result.stderr
    assert "Traceback" in invoke("inspect", path, "--traceback").stderr


def test_an_error_is_json_when_asked(tmp_path: Path) -> None:
    error = document("inspect", tmp_path / "missing.aot", code=2)["error"]
    assert error["code"] == "option" and error["where"].endswith("missing.aot")


def test_a_defect_is_told_without_a_traceback(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import aot.cli.cmd_inspect as module

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(module, "overview", broken)
    result = invoke("inspect", artifact)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ZeroDivisionError: oops")
    assert "Traceback" not in result.stderr


# run


def test_run_random(artifact: Path, runtime: SimpleNamespace) -> None:
    result = invoke("run", artifact, "--random", "--seed", 7, "--dim", "N=5", "--threads", 2)
    assert result.exit_code == 0, result.output
    assert "[5, 3]" in result.stdout and "float32" in result.stdout
    assert "random inputs, seed 7, N=5" in result.stderr
    assert runtime.options == {"threads": 2, "target": None, "weights": None, "device": 0}


def test_run_files(artifact: Path, runtime: SimpleNamespace, tmp_path: Path) -> None:
    x = np.ones((2, 4), np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    outputs = document("run", artifact, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")["outputs"]
    assert outputs == [
        {"output": "y", "type": "float32", "shape": [2, 3], "min": 18.0, "max": 26.0, "mean": 22.0, "not_finite": 0,
         "values": [[18.0, 22.0, 26.0]] * 2}
    ]  # fmt: skip
    with np.load(tmp_path / "out.npz") as file:
        np.testing.assert_array_equal(file["y"], x @ WEIGHT)


def test_random_inputs_depend_on_the_seed_alone(artifact: Path, runtime: SimpleNamespace) -> None:
    first, again, other = (document("run", artifact, "--seed", seed)["outputs"] for seed in (1, 1, 2))
    assert first == again != other


def test_run_one_array(artifact: Path, runtime: SimpleNamespace, tmp_path: Path) -> None:
    """.npy files, by position, as --inputs and by name; numbers on the command line; the output as .npy."""
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "swapped.npy", x.astype(">f4"))
    np.save(tmp_path / "turned.npy", np.asfortranarray(x))
    path = tmp_path / "x.npy"
    for arguments in (
        (path,),
        ("--inputs", path),
        ("--input", f"x={path}"),
        ("--input", path),
        (tmp_path / "swapped.npy",),
        (tmp_path / "turned.npy",),
        ("--input", "x=[[0, 1, 2, 3], [4, 5.0, 6, 7]]"),
    ):
        outputs = document("run", artifact, *arguments, "-o", tmp_path / "y.npy")["outputs"]
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x @ WEIGHT)
        np.testing.assert_array_equal(outputs[0]["values"], x @ WEIGHT)


def test_nan_is_told(artifact: Path, runtime: SimpleNamespace, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[0, np.nan, 1, np.nan]], np.float32))
    result = invoke("run", artifact, tmp_path / "x.npy")
    assert result.exit_code == 0 and "note: input 'x' holds NaN, in 2 of 4 elements" in result.stderr


def test_run_errors(artifact: Path, runtime: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK\3\4 not really")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "text.npy").write_text("1 2 3")
    np.save(tmp_path / "wide.npy", np.ones((1, 4)))
    np.save(tmp_path / "x.npy", np.ones((1, 4), np.float32))
    np.savez(tmp_path / "x.npz", x=np.ones((1, 4), np.float32))
    np.savez(tmp_path / "other.npz", z=np.ones(3))
    np.savez(tmp_path / "pickle.npz", x=np.array([{}], dtype=object))
    np.save(tmp_path / "pickle.npy", np.array([{}], dtype=object))
    np.save(tmp_path / "text-array.npy", np.array(["a"]))
    for arguments, code, text in (
        (("--inputs", tmp_path / "no.npz"), 2, "no such file"),
        (("--input", f"x={tmp_path / 'no.npy'}"), 2, "no such file"),
        (("--inputs", tmp_path), 2, "it is a folder"),
        (("--inputs", tmp_path / "bad.npz"), 2, "not an .npz or .npy file"),
        (("--inputs", tmp_path / "empty.npz"), 2, "not an .npz or .npy file"),
        (("--inputs", tmp_path / "text.npy"), 2, "not an .npz or .npy file"),
        (("--inputs", tmp_path / "pickle.npz"), 2, "could run code"),
        ((tmp_path / "pickle.npy",), 2, "could run code"),
        ((tmp_path / "text-array.npy",), 2, "input 'x': expected float32 elements, got <U1"),
        ((tmp_path / "wide.npy",), 2, "input 'x': expected float32 elements, got float64"),
        ((tmp_path / "wide.npy",), 2, "hint: Convert the array with .astype('float32')"),
        (("--inputs", tmp_path / "other.npz"), 2, "no input 'z'"),
        (("--inputs", tmp_path / "other.npz"), 2, "hint: The inputs are 'x': f32[N,4]."),
        (("--input", "X=1"), 2, "no input 'X'"),
        (("--input", f"x={tmp_path / 'x.npz'}"), 2, "it holds arrays by name (.npz), not one"),
        (("--input", "x=[1]", "--input", "x=[2]"), 2, "gives an input twice"),
        (("--input", "1"), 2, "cannot read --input '1'"),
        (("--input", "x=[1, [2]]"), 2, "no such file"),
        (("--input", "x=[1]", tmp_path / "x.npy"), 2, "the file holds one array, and 0 inputs are not given"),
        (("--inputs", tmp_path / "x.npz", "--seed", 1), 2, "the inputs are given; --seed and --dim say"),
        (("--inputs", tmp_path / "x.npz", tmp_path / "x.npz"), 2, "run takes one file"),
        (("--dim", "M=3"), 2, "no dimension 'M'"),
        (("--dim", "N=1..3"), 2, "one extent is wanted"),
        (("--dim", "N"), 2, "cannot read --dim"),
        (("--threads", "0"), 2, "0 is not in the range"),
        (("-o", tmp_path / "nowhere" / "out.npz"), 2, "cannot write there"),
        (("-o", tmp_path), 2, "it is a folder"),
        (("-o", tmp_path / "out.txt"), 2, "no file of arrays ends in '.txt'"),
        ((tmp_path / "text.npy",), 2, "it begins as neither does"),
    ):
        result = invoke("run", artifact, *arguments)
        assert (result.exit_code, text in result.stderr) == (code, True), (arguments, result.stderr)


def test_run_of_a_model(onnx_model: Path) -> None:
    """Not a damaged artifact, but a file that is to be built first."""
    result = invoke("run", onnx_model)
    assert result.exit_code == 1
    assert "this is an ONNX model, not an artifact" in result.stderr and f"aotc build {onnx_model}" in result.stderr


# verify and bench


def test_verify_agrees(artifact: Path, runtime: SimpleNamespace, onnx_model: Path) -> None:
    pytest.importorskip("onnxruntime")
    result = invoke("verify", artifact, "--against", onnx_model)
    assert result.exit_code == 0, result.output
    assert "agree with onnxruntime" in result.stdout


def test_verify_differs(artifact: Path, runtime: SimpleNamespace, onnx_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    runtime.offset = 0.5
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((2, 4), np.float32))
    found = document(
        "verify",
        artifact,
        "--against",
        onnx_model,
        "--inputs",
        tmp_path / "a.npz",
        "--inputs",
        tmp_path / "b.npz",
        code=3,
    )
    assert found["passed"] is False
    assert [case["case"] for case in found["cases"]] == ["a.npz", "b.npz"]
    (output,) = found["cases"][0]["outputs"]
    assert (output["name"], output["max_error"], output["wrong"], output["elements"]) == ("y", 0.5, 6, 6)
    assert output["relative_error"] == pytest.approx(0.5 / 18)
    result = invoke("verify", artifact, "--against", onnx_model, "--atol", 1)
    assert result.exit_code == 0


def test_verify_needs_a_model(artifact: Path, runtime: SimpleNamespace, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert invoke("verify", artifact).exit_code == 2
    assert invoke("verify", artifact, "--against", tmp_path / "no.onnx").exit_code == 2
    (tmp_path / "bad.onnx").write_bytes(b"bad")
    result = invoke("verify", artifact, "--against", tmp_path / "bad.onnx")
    assert result.exit_code == 1 and "this is text, not a model to compare with" in result.stderr


def test_missing_onnxruntime_is_told(
    artifact: Path, runtime: SimpleNamespace, onnx_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = invoke("verify", artifact, "--against", onnx_model)
    assert result.exit_code == 2 and "pip install onnxruntime" in result.stderr


def test_bench(artifact: Path, runtime: SimpleNamespace, onnx_model: Path) -> None:
    pytest.importorskip("onnxruntime")
    found = document("bench", artifact, "--against", onnx_model, "--seconds", 0.01, "--profile")
    (case,) = found["cases"]
    assert case["ratio"] == pytest.approx(case["artifact"]["median_s"] / case["reference"]["median_s"])
    assert case["artifact"]["runs"] == case["reference"]["runs"] >= 5 and case["agree"]
    assert case["artifact"]["p10_s"] <= case["artifact"]["median_s"] <= case["artifact"]["p90_s"]
    assert [step["step"] for step in case["steps"]] == ["matmul", "relu"]
    assert runtime.options["threads"] == 1
    text = invoke("bench", artifact, "--seconds", 0.01, "--profile").stdout
    assert "aotc" in text and "75.0%" in text


def test_bench_interleaves() -> None:
    from aot.cli.cmd_bench import Side, interleave, timing

    calls: list[str] = []
    side = Side(lambda: calls.append("b"), lambda: calls.append("."))
    samples = interleave([Side(lambda: calls.append("a")), side], 1e-9)
    assert "".join(calls) == "aab.b." + "ab.b.aab.b.aab."
    assert [len(side) for side in samples] == [5, 5]
    assert timing([3.0, 1.0, 2.0]).median_s == 2.0


# inspect


def test_overview(artifact: Path) -> None:
    text = invoke("inspect", artifact).stdout
    for part in (
        "aotc 0.1.0",
        "opset: 17",
        "gcc 12.2",
        "x: f32[N,4]",
        "y: f32[N,3]",
        "N in 1..64",
        "2 kernels, 2 steps",
    ):
        assert part in text
    found = document("inspect", artifact)
    assert found["meta"] == META and found["programs"][0]["inputs"] == [
        {"name": "x", "dtype": "f32", "shape": ["N", 4]}
    ]


def test_the_source_of_an_artifact() -> None:
    """Every op is there, and no operator set where the model has none."""
    from aot.cli.cmd_inspect import _source_lines

    ops = {f"aten_operator_{number}.default": number + 1 for number in range(40)}
    symbols = {"s77": "s77", "batch_size": "batch size"}
    lines = list(_source_lines({"digest": "ab", "opset": 0, "ops": ops, "symbols": symbols, "producer": "torch 2.13"}))
    text = " ".join(line.strip() for line in lines)
    assert all(f"{op} {count}" in text for op, count in ops.items())
    assert "opset" not in text and "..." not in text and max(map(len, lines)) <= 100
    assert "symbols: s77, batch_size (batch size)" in lines and "producer: torch 2.13" in lines
    assert list(_source_lines({"opset": 17, "symbols": {}})) == ["opset: 17"]


def test_views(artifact: Path) -> None:
    expected = {
        "plan": ["launch 0 @k_matmul(b0, b1, b2) dims=[N] ; fc", "buf 3 spare: arena 12*N bytes above 2 steps 1..1"],
        "kernels": ["tile 6x4", "act[0]", "k_relu"],
        "guards": ["x axis 0 is N in 1..64", "x axis 1 == 4"],
        "fusion": ["the product has another user", "1 x matmul-relu: ", "alone: 2 kernels"],
        "weights": ["fc.weight", "f32[4, 3]", "source"],
    }
    for view, parts in expected.items():
        text = invoke("inspect", artifact, f"--{view}").stdout
        assert all(part in text for part in parts), text
    both = invoke("inspect", artifact, "--guards", "--fusion").stdout
    assert "N in 1..64" in both and "another user" in both
    found = document("inspect", artifact, *(f"--{view}" for view in expected))
    assert set(found) == set(expected)
    assert found["kernels"][1]["nodes"] == ["act[0]"]
    rule, _, reason = META["fusion_refusals"][0]  # type: ignore[index]
    assert found["fusion"]["not_rewritten"] == [{"what": rule, "reason": reason, "places": ["act[0]"]}]
    assert found["weights"]["constants"][0]["sources"] == ["fc.weight"]


def test_memory(artifact: Path) -> None:
    lines = invoke("inspect", artifact, "--memory", "--dim", "N=6").stdout.rstrip().split("\n")
    assert lines[0] == "arena 256 B at N=6, lower bound 256 B (greedy, proved), 2 buffers"
    assert lines[2].split() == ["0", "72", "██", "product"]
    assert lines[3].split() == ["128", "72", "·█", "spare"]
    found = document("inspect", artifact, "--memory", "--dim", "N=6")["memory"]
    assert (found["peak_bytes"], found["live_bytes"]) == (256, [128, 256])


def test_memory_picture(artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    result = invoke("inspect", artifact, "--memory", "--svg", path, "--dim", "N=6")
    assert result.exit_code == 0 and "arena 256 B" in result.stdout
    root = ElementTree.fromstring(path.read_text())
    titles = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "product\nmade by fc\nbytes 0..72 (72 B)\nsteps 0..1" in titles
    assert "spare\nmade by act[0]\nbytes 128..200 (72 B)\nsteps 1..1" in titles
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "step of the plan" in texts and "offset in the arena" in texts


def test_source(artifact: Path, tmp_path: Path) -> None:
    assert invoke("inspect", artifact, "--source", "nothing").exit_code == 2
    result = invoke("inspect", artifact, "--source", "relu")
    assert "void k_relu" in result.stdout or "holds no sources" in result.stderr


def test_program_number(artifact: Path) -> None:
    result = invoke("inspect", artifact, "--program", 3)
    assert result.exit_code == 2 and "programs 0 to 0" in result.stderr


# diff


def test_diff(artifact: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.aot"
    meta = META | {"options": {"targets": ["cpu"], "exact": True}, "source": {"digest": "cd" * 32, "opset": 17}}
    make_artifact(meta, schedule="tile 14x2", weight=WEIGHT + 1).save(other)
    text = invoke("diff", artifact, other).stdout
    for part in (
        "~ digest: abab",
        "~ exact: False -> True",
        "~ matmul: schedule tile 6x4 -> tile 14x2",
        "~ fc.weight: f32 4x3",
    ):
        assert part in text, text
    found = document("diff", artifact, other, "--exit-code", code=3)
    assert not found["identical"]
    assert set(found["changes"]) == {
        "source",
        "options",
        "kernels of cpu:x86-64-v3",
        "weights of cpu:x86-64-v3",
    }


def test_diff_of_equal_files(artifact: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.aot"
    copy.write_bytes(artifact.read_bytes())
    assert invoke("diff", artifact, copy, "--exit-code").stdout == "identical: the same bytes\n"
    assert document("diff", artifact, copy) == {"identical": True, "a": str(artifact), "b": str(copy), "changes": {}}


def test_diff_of_programs(artifact: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.aot"
    make_artifact(variant="N=1").save(other)
    changes = document("diff", artifact, other)["changes"]["programs"]
    assert [(change["what"], change["change"]) for change in changes] == [
        ("cpu:x86-64-v3", "removed"),
        ("cpu:x86-64-v3 N=1", "added"),
    ]


# build, with a stand-in for the driver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    state = SimpleNamespace(options=None, unsupported=[], told=[])
    module = ModuleType("aot.driver")

    def compile(model: Path, *, options: Any, operators: Any, progress: Any, external_name: str) -> Any:
        progress("transform", "fold")
        state.options, state.external_name = options, external_name
        built = make_artifact()
        built.report = SimpleNamespace(seconds={"read": 0.01, "compile": 1.5}, notes=("N is at most 64",), refusals=())
        return built

    module.compile = compile  # type: ignore[attr-defined]
    module.check = lambda model, options: state.unsupported  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aot.driver", module)
    import aot

    monkeypatch.setattr(aot, "driver", module, raising=False)
    return state


def test_build(driver: SimpleNamespace, onnx_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.aot"
    result = invoke(
        "build", onnx_model, "-o", out, "--dim", "N=1..8", "--variant", "N=1,8", "--dump", tmp_path / "dump", "--exact"
    )
    assert result.exit_code == 0, result.output
    for part in (
        "3 ops, 2 after rewriting",
        "2, 2 distinct (1 contract, 1 map)",
        "4.0 KB -> 1.0 KB per run, 75% less by fusion",
        "1.5 KB at the peak, equal to the lower bound (greedy)",
        "48 B",
        "1.51 s (read 10.0 ms, compile 1.50 s)",
        "cpu:x86-64-v3",
    ):
        assert part in result.stdout, result.stdout
    assert "note: N is at most 64" in result.stderr
    assert out.is_file()
    options = driver.options
    assert options.dim("N") == ("N", 1, 8) and options.variants == ((("N", 1),), (("N", 8),))
    assert options.exact and options.dump_dir == tmp_path / "dump" and options.cache_dir is not None


def test_build_json_and_external(driver: SimpleNamespace, onnx_model: Path, tmp_path: Path) -> None:
    found = document("build", onnx_model, "-o", tmp_path / "out.aot", "--weights", "external")
    assert found["build"] == META["build"] and found["seconds"]["compile"] == 1.5
    assert found["external"] == str(tmp_path / "out.safetensors") and driver.external_name == "out.safetensors"


def test_build_check(driver: SimpleNamespace, onnx_model: Path) -> None:
    from aot.frontend import Unsupported

    assert "every op is supported" in invoke("build", onnx_model, "--check").stdout
    assert document("build", onnx_model, "--check")["supported"] is True
    driver.unsupported = [Unsupported("", "Loop", 17, "control flow", 2, ("loop_1", "loop_2"))]
    result = invoke("build", onnx_model, "--check")
    assert result.exit_code == 1 and "Loop" in result.stdout and "loop_1, loop_2" in result.stdout
    assert document("build", onnx_model, "--check", code=1)["unsupported"][0]["count"] == 2


def test_build_usage(driver: SimpleNamespace, onnx_model: Path, tmp_path: Path) -> None:
    for arguments, text in (
        ((tmp_path / "no.onnx",), "no such file"),
        ((onnx_model, "--dim", "N=8..1"), "empty range"),
        ((onnx_model, "--variant", "N=x"), "cannot read --variant"),
        ((onnx_model, "--precision", "fp8"), "fp8"),
        ((onnx_model, "--dim", "N=1..4", "--variant", "N=9"), "outside"),
        ((onnx_model, "-o", tmp_path / "no" / "out.aot"), "cannot write there"),
        ((onnx_model, "--jobs", "0"), "at least 1"),
    ):
        result = invoke("build", *arguments)
        assert (result.exit_code, text in result.stderr) == (2, True), (arguments, result.stderr)
    assert driver.options is None


def test_environment(
    driver: SimpleNamespace, onnx_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOTC_CC", "mycc")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert invoke("build", onnx_model, "-o", tmp_path / "out.aot").exit_code == 0
    assert driver.options.c_compiler == "mycc" and driver.options.cache_dir == tmp_path / "cache" / "aotc"
    monkeypatch.setenv("AOTC_CACHE", str(tmp_path / "mine"))
    assert invoke("build", onnx_model, "-o", tmp_path / "out.aot").exit_code == 0
    assert driver.options.cache_dir == tmp_path / "mine"


# usage errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--json"), "Missing argument"),
        (("run", "x.aot", "--foo", "--json"), "No such option"),
        (("nothing", "--json"), "No such command"),
        (("build", "--json", "x.onnx", "--dim", "3"), "cannot read --dim '3'"),
    ],
)
def test_usage_errors_are_json_too(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "option" and message in error["message"]


def test_short_times_have_a_digit_more() -> None:
    assert [seconds_text(seconds) for seconds in (4.4e-7, 7.13e-6, 1.24e-5)] == ["0.4 us", "7.1 us", "12 us"]
