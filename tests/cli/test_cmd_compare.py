"""aotc compare: clean artifacts have nothing to blame, and planted faults are found at the right node."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from aot import assemble, driver
from aot.artifacts import Artifact
from aot.cli import rebuild
from aot.cli.main import cli
from aot.frontend.onnx_registry import CONVERTERS
from aot.ir import Array, Graph, Level, Node, const_of
from aot.lower import lower
from aot.options import CompileOptions
from aot.passes import Context, Pass, transform
from aot.pipeline import CORE_PASSES, TARGET_PASSES
from aot.quantization import Quantization
from aot.quantize import quantize
from tests.control.models import model_of
from tests.zoo.catalogue import folder

TARGET = "cpu:x86-64-v3"
WIDE = 24


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(autouse=True)
def cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_CACHE", str(cache))


def network(scale: float = 1.0) -> onnx.ModelProto:
    """x f32 [n, 24] to y f32 [n, 24]: four layers, of which /a3 multiplies by 3 and /t is a tanh."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    generator = np.random.default_rng(5)
    weights = {
        name: (generator.normal(size=(WIDE, WIDE)) * scale / WIDE**0.5).astype(np.float32)
        for name in ("w1", "w2", "w3")
    }
    weights["three"] = np.array(3, np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"], "/m1"),
        helper.make_node("Relu", ["m1"], ["r1"], "/r1"),
        helper.make_node("MatMul", ["r1", "w2"], ["m2"], "/m2"),
        helper.make_node("Softmax", ["m2"], ["s2"], "/s2"),
        helper.make_node("Mul", ["s2", "three"], ["a3"], "/a3"),
        helper.make_node("Tanh", ["a3"], ["t"], "/t"),
        helper.make_node("Add", ["t", "r1"], ["sum"], "/sum"),
        helper.make_node("MatMul", ["sum", "w3"], ["y"], "/m3"),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, ["n", WIDE]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(w, name) for name, w in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(network().SerializeToString())
    return path


def build(model: Path, cache: Path, **options: Any) -> Path:
    chosen: dict[str, Any] = {"targets": (TARGET,), "cache_dir": cache, **options}
    path = model.with_suffix(".aot")
    driver.compile(model, options=CompileOptions(**chosen)).save(path)
    return path


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, ["compare", *map(str, arguments)])


def compared(artifact: Path, model: Path, *arguments: Any, code: int) -> dict[str, Any]:
    """The JSON document of a comparison."""
    result = run(artifact, "--against", model, "--json", *arguments)
    assert result.exit_code == code, result.output
    return dict(json.loads(result.stdout))


# Nothing is wrong.


@pytest.mark.parametrize("threads", [1, 2])
def test_a_clean_artifact(model: Path, cache: Path, threads: int) -> None:
    artifact = build(model, cache)
    found = compared(artifact, model, "--threads", threads, "--dim", "n=7", code=0)
    assert found["passed"] and found["fault"] is None and found["reference"].startswith("onnxruntime")
    tensors = {row["tensor"]: row for row in found["tensors"]}
    assert {"r1", "sum", "y"} <= set(tensors) and tensors["y"]["shape"] == [7, WIDE]
    assert [row["step"] for row in found["tensors"]] == sorted(row["step"] for row in found["tensors"])
    for row in tensors.values():
        assert 0 <= row["error"] <= row["bound"] < 1e-3 and float(row["against"]["snr_db"]) > 100
        assert row["against"]["max_error"] <= row["expected_error"] < 1e-3
    assert found["kernels"] == len(Artifact.open(artifact).programs[0].steps)
    assert found["not_compared"] | {"model_only": 0} == {
        "kernels": 0, "nodes": 0, "without_name": 0, "model_only": 0, "other_shape": [], "renamed": [],
    }  # fmt: skip


def test_text(model: Path, cache: Path) -> None:
    result = run(build(model, cache), "--against", model)
    assert result.exit_code == 0
    assert "agree: " in result.stdout and "outputs against onnxruntime" in result.stdout
    assert "tensors of the model are inside of kernels, or folded" in result.stderr
    shown = run(build(model, cache), "--against", model, "--top", 1).stdout
    assert "1 of " in shown


def test_every_reference(model: Path, cache: Path) -> None:
    artifact = build(model, cache)
    found = compared(artifact, model, "--reference", "interpreter", code=0)
    assert found["reference"] == "aotc's reference interpreter"
    assert all(row["against"] is not None for row in found["tensors"])


def test_without_onnx_runtime(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = build(model, cache)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = run(artifact, "--against", model)
    assert result.exit_code == 2 and "pip install onnxruntime" in result.stderr
    assert compared(artifact, model, "--reference", "interpreter", code=0)["passed"]


def test_variants_and_io_dtypes(model: Path, cache: Path) -> None:
    artifact = build(model, cache, variants=((("n", 4),),), io_dtype="fp16")
    for n in (4, 5):
        assert compared(artifact, model, "--dim", f"n={n}", code=0)["passed"]


def test_a_stripped_artifact_has_its_outputs_compared(model: Path, cache: Path) -> None:
    found = compared(build(model, cache, strip_debug=True), model, code=0)
    assert [row["tensor"] for row in found["tensors"]] == ["y"]
    assert found["not_compared"]["kernels"] > 0


def test_interpreted(model: Path, cache: Path) -> None:
    found = compared(build(model, cache), model, "--interpret", code=0)
    assert found["kernels"] and {"r1", "y"} <= {row["tensor"] for row in found["tensors"]}


def test_control_flow(tmp_path: Path, cache: Path) -> None:
    model = tmp_path / "loop.onnx"
    loop = model_of("""g (float[n,4] x, int64 M) => (float[n,4] y)
        <float[4,4] w = {1,0.5,0,0,0,1,0.5,0,0,0,1,0.5,0.5,0,0,1}, bool on = {1}> {
        s = Tanh (x)
        z = Loop (M, on, s) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a2) {
            co = Identity (ci)
            a1 = MatMul (a, w)
            a2 = Tanh (a1)
        }>
        y = Add (z, x)
    }""")
    model.write_bytes(loop.SerializeToString())
    found = compared(build(model, cache), model, "--input", "M=3", "--random", code=0)
    assert {"s", "y"} <= {row["tensor"] for row in found["tensors"]}
    assert found["kernels"] >= 1 and found["not_compared"]["kernels"] >= 1  # what a loop carries is not known
    result = run(model.with_suffix(".aot"), "--against", model, "--interpret", "--input", "M=3", "--random")
    assert result.exit_code == 2 and "cannot be interpreted" in result.stderr


def test_data_dependent_sizes_and_integers(tmp_path: Path, cache: Path) -> None:
    model = tmp_path / "sizes.onnx"
    text = """g (float[n] x) => (int64[1,k] places, int64 most) <float half = {0.5}> {
        z = Sub (x, half)
        r = Relu (z)
        places = NonZero (r)
        m = ArgMax <axis = 0, keepdims = 0> (z)
        most = Identity (m)
    }"""
    model.write_bytes(model_of(text).SerializeToString())
    found = compared(build(model, cache), model, "--dim", "n=9", code=0)
    assert {"places", "most"} <= {row["tensor"] for row in found["tensors"]}


def test_no_elements_and_what_is_not_finite_in_both(model: Path, cache: Path, tmp_path: Path) -> None:
    artifact = build(model, cache, dims=("n=0..64",))
    np.save(tmp_path / "none.npy", np.zeros((0, WIDE), np.float32))
    assert compared(artifact, model, tmp_path / "none.npy", code=0)["passed"]
    x = np.random.default_rng(0).normal(size=(3, WIDE)).astype(np.float32)
    x[1, 2], x[2, 3] = np.nan, np.inf
    np.save(tmp_path / "strange.npy", x)
    found = compared(artifact, model, tmp_path / "strange.npy", code=0)
    assert found["passed"], found["fault"]


def test_torch_programs(tmp_path: Path, cache: Path) -> None:
    torch = pytest.importorskip("torch")
    importlib.import_module("torch.export")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.n = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4), torch.nn.LayerNorm(16)
            self.register_buffer("seen", torch.zeros(16))

        def forward(self, x: Any, *, gain: Any) -> Any:
            h = torch.relu(self.a(x))
            self.seen.add_(h.sum(0))
            return self.b(self.n(h) + h * gain).softmax(-1)

    program = torch.export.export(Net().eval(), (torch.randn(3, 8),), {"gain": torch.ones(())})
    model = tmp_path / "net.pt2"
    torch.export.save(program, model)
    found = compared(build(model, cache), model, code=0)
    assert found["reference"].startswith("PyTorch")
    inner = [row for row in found["tensors"] if row["tensor"] == "relu"]
    assert inner and float(inner[0]["against"]["snr_db"]) > 100


# Something is.


def changed(node: Node, op: str, to: str) -> Node:
    """A kernel in which an op of the body is another one."""
    (body,) = node.regions
    nodes = tuple(replace(inner, op=to) if inner.op == op else inner for inner in body.nodes)
    return replace(node, regions=(body.with_(nodes=nodes),))


@pytest.fixture
def wrong_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of code generation: a tanh is emitted as an erf."""
    monkeypatch.setattr(assemble, "lower", lambda node, *rest: lower(changed(node, "tanh", "erf"), *rest))


def test_a_fault_of_an_emitter(model: Path, cache: Path, wrong_code: None) -> None:
    found = compared(build(model, cache), model, "--bisect", code=3)
    fault = found["fault"]
    assert fault["kind"] == "kernel" and "/t" in fault["nodes"] and fault["error"] > 100 * fault["bound"]
    assert found["bisect"]["kind"] == "none" and found["bisect"]["text"].startswith("not a rewrite: the code of kernel")
    assert "/t" in found["bisect"]["text"]
    text = run(model.with_suffix(".aot"), "--against", model)
    assert text.exit_code == 3 and text.stdout.startswith("differs: the code of a kernel")
    assert "|difference|" in text.stdout and "BLAMED" in text.stdout and "differ:" in text.stdout.splitlines()[-1]


def test_the_same_fault_is_not_seen_by_the_interpreter(model: Path, cache: Path, wrong_code: None) -> None:
    assert compared(build(model, cache), model, "--interpret", code=0)["passed"]


@transform(takes=Level.CORE, gives=Level.CORE, rules=("three_is_four",))
def plant(graph: Graph, context: Context) -> Graph:
    """A rewrite that is wrong: what is multiplied by 3 is multiplied by 4 afterwards."""
    consts = dict(graph.consts)
    for node in graph.nodes:
        for value in node.operands:
            const = graph.consts.get(value)
            if node.op != "mul" or const is None or const.array().size != 1 or float(const.array().reshape(())) != 3:
                continue
            if context.allow("three_is_four", node.where):
                consts[value] = const_of(np.full(const.shape, 4, np.float32))
    return graph.with_(consts=consts) if consts != dict(graph.consts) else graph


@pytest.fixture
def wrong_rewrite(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    passes: tuple[Pass, ...] = (*CORE_PASSES[:4], plant, *CORE_PASSES[4:])
    monkeypatch.setattr(driver, "CORE_PASSES", passes)
    monkeypatch.setattr(driver, "PIPELINE", (*passes, *TARGET_PASSES))
    monkeypatch.setattr(rebuild, "PIPELINE", (*passes, *TARGET_PASSES))
    yield


@pytest.mark.parametrize("interpret", [False, True])
def test_a_fault_of_a_rewrite(model: Path, cache: Path, wrong_rewrite: None, interpret: bool) -> None:
    options = ("--interpret",) if interpret else ()
    found = compared(build(model, cache), model, "--bisect", *options, code=3)
    assert found["fault"]["kind"] == "meaning" and "/a3" in found["fault"]["nodes"]
    assert "a rewrite changed that" in found["fault"]["why"]
    bisected = found["bisect"]
    assert (bisected["kind"], bisected["rule"], bisected["pass_name"]) == ("rewrite", "three_is_four", "plant:1")
    assert "/a3" in bisected["where"] and bisected["confirmed"]
    assert bisected["builds"] <= 5 + np.ceil(np.log2(bisected["rewrites"]))


def test_text_of_a_bisection(model: Path, cache: Path, wrong_rewrite: None) -> None:
    result = run(build(model, cache), "--against", model, "--bisect", "--html", model.with_suffix(".html"))
    assert result.exit_code == 3
    assert "the rewrite: rewrite " in result.stdout and "three_is_four at mul (/a3), in pass plant:1" in result.stdout
    page = model.with_suffix(".html").read_text()
    assert "three_is_four" in page and "<svg" in page and page.count("<circle") > 4


def test_a_fault_of_the_import(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def softmax(context: Any) -> Any:
        """Along the wrong axis."""
        return context.op("softmax", context.input(0), axis=0)

    monkeypatch.setitem(CONVERTERS, ("", "Softmax"), softmax)
    found = compared(build(model, cache), model, "--dim", "n=6", "--bisect", code=3)
    assert found["fault"]["kind"] == "import" and found["fault"]["node"] in ("/s2", "/t", "/sum")
    assert found["bisect"]["kind"] == "none"
    assert compared(model.with_suffix(".aot"), model, "--reference", "interpreter", code=0)["passed"]


def test_a_fault_that_the_artifact_alone_has(
    model: Path, cache: Path, wrong_code: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built by another aotc, as far as one can see: built again, the model is right."""
    artifact = build(model, cache)
    monkeypatch.undo()
    monkeypatch.setenv("AOTC_CACHE", str(cache))
    found = compared(artifact, model, "--bisect", code=3)
    assert found["fault"]["kind"] == "kernel" and found["bisect"]["kind"] == "gone"


def test_a_large_value_in_few_bits(tmp_path: Path, cache: Path) -> None:
    """fp16 overflow, in a program for a GPU that is not here."""
    pytest.importorskip("triton")
    model = tmp_path / "large.onnx"
    model.write_bytes(network(scale=700).SerializeToString())
    artifact = build(model, cache, targets=("cuda:sm_90a",), precision="fp16")
    x = tmp_path / "x.npy"
    np.save(x, np.random.default_rng(1).normal(size=(16, WIDE)).astype(np.float32) * 30)
    result = run(artifact, "--against", model, "--interpret", "--json", x)
    found = json.loads(result.stdout)
    assert result.exit_code == 3 and found["precision"] == "fp16"
    assert found["fault"]["tensor"] == "r1" and "16-bit floats end at 65504" in found["fault"]["why"]
    np.save(x, np.random.default_rng(1).normal(size=(16, WIDE)).astype(np.float32) / 700)
    assert json.loads(run(artifact, "--against", model, "--interpret", "--json", x).stdout)["fault"] is None


# Quantized.


@pytest.fixture(scope="module")
def record(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of quantization: the three products in 8 bits, ranges from data."""
    samples = [{"x": np.random.default_rng(seed).normal(size=(16, WIDE)).astype(np.float32)} for seed in range(4)]
    options = CompileOptions(targets=(TARGET,), cache_dir=cache)
    made = quantize(network(), "int8", data=samples, options=options, allow_slower=True)
    assert {node.form for node in made.nodes} == {"int8"}
    path = tmp_path_factory.mktemp("record") / "net.quantization"
    made.save(path)
    return path


def test_a_quantized_artifact(model: Path, cache: Path, record: Path) -> None:
    artifact = build(model, cache, quantization=Quantization.open(record))
    found = compared(artifact, model, "--dim", "n=16", code=0)
    assert "3 products in int8" in found["precision"] and found["not_compared"]["kernels"]
    assert any("--quantize FILE" in note for note in found["notes"])
    whole = compared(artifact, model, "--dim", "n=16", "--quantize", record, code=0)
    assert whole["kernels"] and not whole["not_compared"]["kernels"]
    tensors = {row["tensor"]: row for row in whole["tensors"]}
    assert tensors["y"]["error"] > 1e-3  # quantization costs something, and that is expected
    assert "r1" in tensors  # it lies in 8 bits, under the name of what it stands for
    result = run(artifact, "--against", model, "--bisect")
    assert result.exit_code == 2 and "--quantize FILE" in result.stderr
    other = replace(Quantization.open(record), nodes=Quantization.open(record).nodes[:2])
    other.save(model.with_suffix(".record"))
    result = run(artifact, "--against", model, "--quantize", model.with_suffix(".record"))
    assert result.exit_code == 2 and "another record of quantization" in result.stderr


def test_a_fault_in_a_quantized_artifact(model: Path, cache: Path, record: Path, wrong_code: None) -> None:
    artifact = build(model, cache, quantization=Quantization.open(record))
    found = compared(artifact, model, "--dim", "n=16", "--quantize", record, code=3)
    assert found["fault"]["kind"] == "kernel" and "/t" in found["fault"]["nodes"]
    found = compared(artifact, model, "--dim", "n=16", code=3)
    assert found["fault"]["kind"] in ("kernel", "meaning") and "/t" in found["fault"]["nodes"]


# Real models.


@pytest.mark.zoo
@pytest.mark.parametrize(
    "name", ["dnsmos_model_v8", "magika_v3_3", "centerface", "minilm_l3_fp32", "tashkeel_rawi_int8"]
)
def test_real_models(name: str, cache: Path, tmp_path: Path) -> None:
    where = folder()
    if where is None or not (where / f"{name}.onnx").exists():
        pytest.skip("the public models are not here: run tests/zoo/fetch.py and set AOT_ZOO")
    artifact = tmp_path / f"{name}.aot"
    driver.compile(where / f"{name}.onnx", options=CompileOptions(targets=(TARGET,), cache_dir=cache)).save(artifact)
    found = compared(artifact, where / f"{name}.onnx", code=0)
    assert found["passed"] and found["kernels"] and not found["not_compared"]["renamed"]
    assert len(found["tensors"]) >= 6 and not any(row["drifted"] for row in found["tensors"])


# What does not fit.


def test_another_model(model: Path, cache: Path, tmp_path: Path) -> None:
    artifact = build(model, cache)
    other = tmp_path / "other.onnx"
    proto = network()
    for tensor in proto.graph.initializer:
        if tensor.name == "w2":
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * np.float32(1.5), "w2"))
    other.write_bytes(proto.SerializeToString())
    found = compared(artifact, other, code=3)
    assert any("the artifact may be of another model" in note for note in found["notes"])
    assert "/m2" in found["fault"]["nodes"]
    proto.graph.input[0].name = "z"
    proto.graph.node[0].input[0] = "z"
    other.write_bytes(proto.SerializeToString())
    result = run(artifact, "--against", other)
    assert result.exit_code == 2 and "the model also needs the inputs 'z'" in result.stderr


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, WIDE)), "expected float32 elements, got float64"),
        (np.zeros((2, WIDE + 1), np.float32), f"expected {WIDE}, got {WIDE + 1}"),
        (np.zeros(WIDE, np.float32), "expected 2 dimensions [n, 24], got 1"),
    ],
)
def test_inputs_that_do_not_fit(model: Path, cache: Path, tmp_path: Path, array: Array, message: str) -> None:
    np.save(tmp_path / "x.npy", array)
    result = run(build(model, cache), "--against", model, tmp_path / "x.npy")
    assert result.exit_code in (1, 2) and message in result.stderr
    assert "Traceback" not in result.stderr and "defect" not in result.stderr


def test_names_that_do_not_fit(model: Path, cache: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", z=np.zeros((2, WIDE), np.float32))
    result = run(build(model, cache), "--against", model, tmp_path / "x.npz")
    assert result.exit_code == 2 and "no input 'z'" in result.stderr
    np.savez(tmp_path / "x.npz", x=np.zeros((2, WIDE), np.float32))
    two = run(model.with_suffix(".aot"), "--against", model, tmp_path / "x.npz", tmp_path / "x.npz")
    assert two.exit_code == 2 and "a comparison is of one run" in two.stderr


def test_an_artifact_that_does_not_say_how_it_was_made(model: Path, cache: Path) -> None:
    meta = driver._meta
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_meta", lambda *rest: {k: v for k, v in meta(*rest).items() if k != "options"})
        artifact = build(model, cache)
    result = run(artifact, "--against", model)
    assert result.exit_code == 2 and "with which options" in result.stderr
