"""`aotc build --self-test` and `aotc selftest`: what is recorded, and what passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aot
from aot.artifacts import Artifact, layout, safetensors
from aot.artifacts.layout import Section, SectionFlag
from aot.artifacts.table import replaced
from aot.cli.self_test_build import PROBABILITIES, distribution, with_self_test
from aot.cli.self_test_options import SelfTestChoice
from aot.errors import ArtifactError, OptionError
from aot.options import CompileOptions
from aot.runtime import this_machine
from aot.runtime.serving import expected_of
from aot.runtime.serving import stored_tests as stored
from aot.runtime.serving.compare import LARGEST
from aot.runtime.serving.selftest import differences, machine_facts, self_test
from tests.cli.commands import document, invoke
from tests.cli.test_doctor import SM90A, saved
from tests.control.models import model_of
from tests.simulated import TARGET, simulated_backend

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def build(model: Path, folder: Path, cache: Path, *options: object, code: int = 0) -> Any:
    common = ("--target", "cpu:x86-64-v3", "--cache", cache, "-o", folder / "m.aot")
    return document("build", model, *common, *options, code=code)


@pytest.fixture
def built(onnx_model: Path, tmp_path: Path, cache: Path) -> Path:
    build(onnx_model, tmp_path, cache, "--self-test", 3, "--error-samples", 40)
    return tmp_path / "m.aot"


def changed(path: Path, meta: dict[str, Any] | None = None, tests: dict[str, Any] | None = None) -> Path:
    """The artifact with some of its metadata or tensors replaced, beside it."""
    artifact = Artifact.open(path)
    made = artifact.with_parts(meta=artifact.meta | (meta or {}), self_test=artifact.self_test | (tests or {}))
    other = path.with_name("changed.aot")
    made.save(other)
    return other


def test_what_a_build_records(built: Path) -> None:
    artifact = Artifact.open(built)
    assert sorted(artifact.self_test) == sorted(f"{side}/{n}/{name}" for side, name in (("input", "x"), ("output", "y"))
                                                for n in range(3))  # fmt: skip
    said = artifact.meta["self_test"]
    assert said.pop("reference").startswith("onnxruntime ")
    assert said == {
        "inputs": 3, "error_samples": 40, "data": "random, seed 0", "measured": "compiled",
        "target": "cpu:x86-64-v3", "precision": "fp32",
    }  # fmt: skip
    errors = expected_of(artifact.meta)
    assert set(errors) == {"y"} and set(errors["y"]) == {"max_abs", "relative", "cosine", "top1"}
    assert errors["y"]["relative"].samples == 40 and errors["y"]["relative"].largest < 1e-5
    assert [p for p, _ in errors["y"]["relative"].quantiles] == [0.5, 0.9, 0.95, 1.0]
    latency = artifact.meta["latency"]
    assert 0 < latency["p10_seconds"] <= latency["median_seconds"] <= latency["p90_seconds"]
    assert latency["machine"] == machine_facts("cpu:x86-64-v3") and latency["target"] == "cpu:x86-64-v3"


def test_the_outputs_are_the_references(built: Path, onnx_model: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(onnx_model))
    for test in stored.stored_tests(built):
        assert np.array_equal(session.run(None, test.inputs)[0], test.outputs["y"])
    assert stored.stored_tests(built.read_bytes())[2].inputs["x"].shape == (1, 4)


def test_it_passes_where_it_was_built(built: Path) -> None:
    said = document("selftest", built, "--no-latency")
    assert said["passed"] and said["inputs"] == 3 and said["target"] == "cpu:x86-64-v3" and said["latency"] is None
    assert {check["metric"] for check in said["checks"]} == {"max_abs", "relative", "cosine", "top1"}
    assert all(check["limit"] is None for check in said["checks"] if check["metric"] == "top1")
    text = invoke("selftest", built, "--no-latency").output
    assert "passed: 3 inputs on cpu:x86-64-v3" in text and text.count("relative") == 1
    assert invoke("selftest", built, "--no-latency", "--all").output.count("relative") == 3


@pytest.mark.parametrize("size", [1e-3, np.nan, np.inf])
def test_other_numbers_fail(built: Path, size: float) -> None:
    tensors = Artifact.open(built).self_test
    wrong = tensors["output/1/y"].copy()
    wrong[0, 0] += np.float32(size)
    said = document("selftest", changed(built, tests={"output/1/y": wrong}), "--no-latency", code=3)
    assert not said["passed"] and not said["numbers_passed"]
    assert {check["input"] for check in said["checks"] if not check["passed"]} == {1}
    assert "FAILED" in invoke("selftest", built.with_name("changed.aot"), "--no-latency", code=3).output


def test_recorded_errors_widen_what_passes(built: Path) -> None:
    """A difference of 1e-3 is right for a build that saw 5e-4, and wrong for one that saw 1e-4."""
    tensors = Artifact.open(built).self_test
    wrong = {name: value + np.float32(1e-3) for name, value in tensors.items() if name.startswith("output")}
    for seen, code in ((5e-4, 0), (1e-4, 3)):
        scale = min(float(np.linalg.norm(value)) for value in wrong.values())
        rows = {"max_abs": seen, "relative": seen * 4 / scale, "cosine": 1.0}
        errors = {"y": {m: {"samples": 9, "quantiles": [[1.0, v]]} for m, v in rows.items()}}
        document("selftest", changed(built, {"errors": errors}, wrong), "--no-latency", code=code)


def test_without_recorded_errors_rounding_decides(built: Path) -> None:
    tensors = Artifact.open(built).self_test
    assert document("selftest", changed(built, {"errors": {}}), "--no-latency")["passed"]
    wrong = {"output/0/y": tensors["output/0/y"] * np.float32(1 + 1e-3)}
    document("selftest", changed(built, {"errors": {}}, wrong), "--no-latency", code=3)


def test_an_output_of_another_shape_or_name(built: Path) -> None:
    shape = {"output/0/y": np.zeros((2, 3), np.float32), "output/1/z": np.zeros(1, np.float32)}
    said = document("selftest", changed(built, tests=shape), code=3)
    assert len(said["problems"]) == 2 and "expected [2, 3]" in said["problems"][0]
    bad = {"input/0/x": np.zeros((1, 5), np.float32)}
    said = document("selftest", changed(built, tests=bad), code=3)
    assert "the run failed" in said["problems"][0] and said["latency"] is None


def test_latency(built: Path) -> None:
    """A band that nothing meets, one that everything does, and those of another machine and of other threads."""
    recorded = Artifact.open(built).meta["latency"]

    def judged(code: int, **changes: Any) -> Any:
        return document("selftest", changed(built, {"latency": recorded | changes}), code=code)

    said = judged(4, p90_seconds=1e-12)
    assert said["numbers_passed"] and not said["passed"] and "the median of a run is" in said["latency_problem"]
    assert said["latency"]["runs"] >= 5 and not said["warnings"]
    assert judged(0, p90_seconds=1e6)["passed"]
    said = judged(0, p90_seconds=1e-12, machine={"cpu": "another"})
    assert "another machine" in said["warnings"][0] and "the median of a run is" in said["warnings"][0]
    assert "another threads" in judged(0, p90_seconds=1e6, threads=1000)["warnings"][0]
    said = document("selftest", changed(built, {"latency": None}))
    assert "recorded no latency" in said["warnings"][0]
    assert "slower" in invoke("selftest", changed(built, {"latency": recorded | {"p90_seconds": 1e-12}}), code=4).output


def test_no_self_test(onnx_model: Path, tmp_path: Path, cache: Path) -> None:
    build(onnx_model, tmp_path, cache)
    error = document("selftest", tmp_path / "m.aot", code=1)["error"]
    assert "no inputs to test with" in error["message"] and "--self-test" in error["hint"]
    assert "self_test" not in Artifact.open(tmp_path / "m.aot").meta


def test_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    if this_machine().capability:
        pytest.skip("there is a GPU")
    error = document("selftest", saved(tmp_path, SM90A), code=1)["error"]
    assert error["code"] == "target" and "cuda:sm_90a" in error["message"] and "driver" in error["message"]


def test_data_of_the_user(onnx_model: Path, tmp_path: Path, cache: Path) -> None:
    rows = np.arange(6 * 2 * 4, dtype=np.float32).reshape(6, 2, 4)
    np.savez(tmp_path / "data.npz", x=rows)
    build(onnx_model, tmp_path, cache, "--self-test", 2, "--self-test-data", tmp_path / "data.npz")
    artifact = Artifact.open(tmp_path / "m.aot")
    assert artifact.meta["self_test"] | {"reference": ""} == {
        "inputs": 2, "error_samples": 6, "data": "data.npz", "reference": "", "measured": "compiled",
        "target": "cpu:x86-64-v3", "precision": "fp32",
    }  # fmt: skip
    assert np.array_equal(artifact.self_test["input/1/x"], rows[1])
    assert document("selftest", tmp_path / "m.aot", "--no-latency")["passed"]
    cases: list[tuple[tuple[object, ...], str]] = [
        (("--self-test", 7, "--self-test-data", tmp_path / "data.npz"), "wants 7 inputs, and the data has 6"),
        (("--self-test", 7, "--self-test-data", tmp_path / "none.npz"), "no such file"),
        (("--error-samples", 7), "none is to be"),
        (("--no-latency",), "none is to be"),
        (("--self-test", 0), "0 is not in the range"),
    ]
    for options, said in cases:
        assert said in build(onnx_model, tmp_path, cache, *options, code=2)["error"]["message"]
    np.savez(tmp_path / "data.npz", z=rows)
    wrong = build(onnx_model, tmp_path, cache, "--self-test", 1, "--self-test-data", tmp_path / "data.npz", code=2)
    assert "no input 'z'" in wrong["error"]["message"]


def test_equal_builds_give_equal_bytes(onnx_model: Path, tmp_path: Path, cache: Path) -> None:
    found = []
    for _ in range(2):
        build(onnx_model, tmp_path, cache, "--self-test", "--no-latency", "--error-samples", 5, "--self-test-seed", 3)
        found.append((tmp_path / "m.aot").read_bytes())
    assert found[0] == found[1]
    artifact = Artifact(found[0])
    assert "latency" not in artifact.meta and artifact.meta["self_test"]["data"] == "random, seed 3"
    assert artifact.meta["self_test"]["inputs"] == 4  # the default


def test_the_summary(onnx_model: Path, tmp_path: Path, cache: Path) -> None:
    common = ("--target", "cpu:x86-64-v3", "--cache", cache, "-o", tmp_path / "m.aot", "--error-samples", 5)
    text = invoke("build", onnx_model, *common, "--self-test").output
    assert "4 inputs; 5 samples against onnxruntime" in text and "relative error at most" in text


def test_external_weights_and_debug_stay(onnx_model: Path, tmp_path: Path, cache: Path) -> None:
    build(onnx_model, tmp_path, cache, "--self-test", "--weights", "external", "--error-samples", 5)
    path = tmp_path / "m.aot"
    assert path.with_suffix(".safetensors").is_file() and Artifact.open(path).debug
    assert document("selftest", path, "--no-latency")["passed"]


def test_a_target_that_is_not_here_is_interpreted(tmp_path: Path) -> None:
    """Errors are those of what the kernels mean, and the artifact says so."""
    if this_machine().capability:
        pytest.skip("there is a GPU")
    model = model_of("g (float[b,3,3] x) => (float[b,3,3] y) { e = Tanh (x) y = Exp (e) }")
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with simulated_backend(frozenset()):
        options = CompileOptions(targets=(TARGET,), cache_dir=tmp_path / "cache")
        artifact = aot.compile(tmp_path / "net.onnx", options=options)
        made = with_self_test(artifact, tmp_path / "net.onnx", SelfTestChoice(2), options)
    said = made.meta["self_test"]
    assert (said["measured"], said["target"], said["error_samples"]) == ("interpreted", TARGET, 16)
    assert "latency" not in made.meta and 0 <= expected_of(made.meta)["y"]["relative"].largest < 1e-5
    made.save(tmp_path / "m.aot")
    assert document("selftest", tmp_path / "m.aot", code=1)["error"]["code"] == "target"


def test_whole_numbers(tmp_path: Path, cache: Path) -> None:
    model = model_of(
        "g (float[b,5] x) => (int64[b,1] y, bool[b,5] z) { y = ArgMax <axis=1> (x) n = Neg (x) z = Less (n, x) }"
    )
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    build(tmp_path / "net.onnx", tmp_path, cache, "--self-test", "--error-samples", 12)
    errors = expected_of(Artifact.open(tmp_path / "m.aot").meta)
    assert {name: list(metrics) for name, metrics in errors.items()} == {"y": ["max_abs"], "z": ["max_abs"]}
    assert document("selftest", tmp_path / "m.aot", "--no-latency")["passed"]
    tensors = Artifact.open(tmp_path / "m.aot").self_test
    for name, wrong in (("output/0/y", tensors["output/0/y"] + 1), ("output/0/z", ~tensors["output/0/z"])):
        document("selftest", changed(tmp_path / "m.aot", tests={name: wrong}), "--no-latency", code=3)


def test_the_reference_is_the_interpreter_where_there_is_no_other(
    onnx_model: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aot.cli.self_test_build.find_spec", lambda name: None)
    build(onnx_model, tmp_path, cache, "--self-test", "--error-samples", 5)
    assert Artifact.open(tmp_path / "m.aot").meta["self_test"]["reference"] == "aotc's reference interpreter"
    assert document("selftest", tmp_path / "m.aot", "--no-latency")["passed"]


@given(st.lists(st.floats(0, 1e30), min_size=1, max_size=1200))
def test_distributions(values: list[float]) -> None:
    """Quantiles are values that were seen, with the share at or below them that they name; readers take them."""
    held = json.loads(json.dumps(distribution(values)))
    read = expected_of({"errors": {"y": {"max_abs": held}}})["y"]["max_abs"]
    assert read.samples == len(values) and read.largest == max(values)
    for probability, value in read.quantiles:
        assert value in values
        assert sum(each <= value for each in values) >= probability * len(values) - 1e-6
        assert sum(each < value for each in values) <= probability * len(values)
        assert probability == 1.0 or len(values) * (1 - probability) >= 1 - 1e-6
    assert {p for p, _ in read.quantiles} <= {*PROBABILITIES, 1.0}


def test_which_quantiles() -> None:
    def kept(count: int) -> list[float]:
        return [p for p, _ in distribution([float(n) for n in range(count)])["quantiles"]]

    assert kept(1) == [1.0] and kept(10) == [0.5, 0.9, 1.0] and kept(99)[-2:] == [0.95, 1.0]
    assert kept(100)[-2:] == [0.99, 1.0] and kept(1000) == [0.5, 0.9, 0.95, 0.99, 0.999, 1.0]
    assert distribution([float(n) for n in range(100)])["quantiles"][3] == [0.99, 98.0]


def test_differences() -> None:
    one = np.array([[1.0, 2.0], [4.0, 3.0]], np.float32)
    assert set(differences(one, one).values()) == {0.0}
    flipped = differences(one, one[:, ::-1])
    assert flipped["top1"] == 1.0 and flipped["max_abs"] == 1.0
    assert set(differences(one[:, :1], one[:, 1:])) == {"max_abs", "relative", "cosine"}
    assert differences(one, one[:1])["max_abs"] == LARGEST
    assert differences(one, one * np.nan)["relative"] == LARGEST
    assert differences(np.array([1, 2]), np.array([1, 5])) == {"max_abs": 3.0}


def test_the_section_is_read_as_the_format_says(built: Path) -> None:
    assert (stored.SELF_TEST, stored.TREE) == (Section.SELF_TEST, SectionFlag.TREE)
    assert (stored.MAGIC, stored.CHUNK_BYTES) == (layout.MAGIC, layout.TREE_CHUNK_BYTES)
    assert stored._HEADER.size == layout.HEADER.size_bytes and stored._ENTRY.size == layout.SECTION.size_bytes
    assert {text: name for name, text in safetensors._NAMES.items()}.keys() == stored._DTYPES.keys()
    held = stored.to_tensors(stored.stored_tests(built))
    expected = Artifact.open(built).self_test
    assert held.keys() == expected.keys() and all(np.array_equal(held[name], expected[name]) for name in held)


def test_damaged_self_tests(built: Path) -> None:
    data = built.read_bytes()
    for content in (b"x", b"\xff" * 64, safetensors.write({"in/0/x": np.zeros(1)})[0],
                    safetensors.write({"input/x/y": np.zeros(1)})[0], b"\2\0\0\0\0\0\0\0[]"):  # fmt: skip
        with pytest.raises(ArtifactError, match="self-test cannot be read"):
            stored.stored_tests(replaced(data, {Section.SELF_TEST: content}))
    assert stored.stored_tests(replaced(data, {Section.SELF_TEST: None})) == ()
    start = data.index(b"input/0/x")
    for wrong in (data[:start] + b"I" + data[start + 1 :], data[: start + 8], data[:50], b"", b"PK" + bytes(200),
                  data[:70] + b"\xff" + data[71:]):  # fmt: skip
        with pytest.raises(ArtifactError, match="cannot be read"):
            stored.stored_tests(wrong)
    with pytest.raises(ArtifactError, match="No such file"):
        stored.stored_tests(built.with_name("none.aot"))


def test_a_large_section_has_its_digest_of_chunks(built: Path) -> None:
    big = {"input/0/x": np.random.default_rng(0).standard_normal((40_000, 4)).astype(np.float32)}
    (first, *_) = stored.stored_tests(changed(built, tests=big))
    assert np.array_equal(first.inputs["x"], big["input/0/x"])


def test_from_python(built: Path) -> None:
    with aot.load(built, threads=1) as model:
        found = self_test(model, built, threads=1)
        assert found.numbers_passed and found.latency is not None and found.latency.threads == 1
        assert self_test(model, built.read_bytes(), time_it=False).passed


def test_choices_that_do_not_fit(onnx_model: Path, tmp_path: Path, cache: Path) -> None:
    options = CompileOptions(targets=("cpu:x86-64-v3",), cache_dir=cache)
    artifact = aot.compile(onnx_model, options=options)
    with pytest.raises(OptionError, match="no such file"):
        with_self_test(artifact, onnx_model, SelfTestChoice(1, "none.npz"), options)
