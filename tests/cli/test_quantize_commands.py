"""calibrate, quantize, build --quantize and explain on a small model: files, JSON documents, exit codes, errors."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from aot.artifacts import Artifact
from aot.calibrate import Calibration
from aot.cli.ledger_page import page
from aot.metrics import LARGEST_ERROR
from aot.quantization import Entry, Method, NodeRecord, Point, Quantization
from tests.cli.commands import document, invoke
from tests.quantization import models

TARGET = "cpu:x86-64-v3"
EVIL = '<script>alert(\'&"1")</script>\x01'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its data in two shards, a calibration, a record, an artifact; and in float."""
    made = tmp_path_factory.mktemp("quantize")
    models.save_onnx(models.dense(), made / "model.onnx")
    data = [sample["x"] for sample in models.data_of("x", 6)]
    for shard, arrays in (("one", data[:4]), ("two", data[4:])):
        (made / shard).mkdir()
        for number, array in enumerate(arrays):
            np.savez(made / shard / f"{number}.npz", x=array)
    (made / "all").mkdir()
    for number, array in enumerate(data):
        np.savez(made / "all" / f"{number}.npz", x=array)
    cache = ("--cache", made / "cache")
    invoke("calibrate", made / "model.onnx", "--data", made / "all", "-o", made / "model.calibration", *cache)
    invoke(
        "quantize", made / "model.onnx", "--data", made / "all", "--allow-slower", "-o", made / "model.quantization",
        "--keep-float", "dense2", *cache,
    )  # fmt: skip
    common = ("--target", TARGET, *cache)
    record = made / "model.quantization"
    invoke("build", made / "model.onnx", "--quantize", record, "-o", made / "int8.aot", *common)
    invoke("build", made / "model.onnx", "-o", made / "float.aot", *common)
    return made


def elements(html: Path) -> ElementTree.Element:
    """The page, read strictly; without scripts and numbers that are none."""
    text = html.read_text(encoding="utf-8")
    assert "<script" not in text and "NaN" not in text and "nan" not in text.replace("finan", "").lower().split()
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def test_calibrate(folder: Path, tmp_path: Path) -> None:
    said = document("calibrate", folder / "model.onnx", "--data", folder / "all", "-o", tmp_path / "c",
                    "--cache", folder / "cache")  # fmt: skip
    assert said["samples"] == 6 and said["tensors"] == 3 and said["not_finite"] == {} and said["constant"] == []
    assert (tmp_path / "c").read_bytes() == (folder / "model.calibration").read_bytes()
    assert Calibration.open(tmp_path / "c").data == said["data"]
    text = invoke("calibrate", folder / "model.onnx", "--data", folder / "one", "-o", tmp_path / "one",
                  "--cache", folder / "cache").stdout  # fmt: skip
    assert "4 samples" in text and "3 observed" in text


def test_merge(folder: Path, tmp_path: Path) -> None:
    """Shards in both orders give the bytes of all."""
    for shard in ("one", "two"):
        invoke("calibrate", folder / "model.onnx", "--data", folder / shard, "-o", tmp_path / shard,
               "--cache", folder / "cache")  # fmt: skip
    for order in (("one", "two"), ("two", "one")):
        files = [tmp_path / shard for shard in order]
        assert document("calibrate", "--merge", *files, "-o", tmp_path / "sum")["samples"] == 6
        assert (tmp_path / "sum").read_bytes() == (folder / "model.calibration").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calibrate", "{model}"), "there is no data"),
        (("calibrate", "{model}", "{model}", "--data", "{data}"), "2 models are given"),
        (("calibrate", "{model}", "--data", "{data}/nothing"), "no such file or folder"),
        (("calibrate", "{model}", "--data", "no_module_like_that:f"), "cannot load the data"),
        (("calibrate", "--merge", "{calibration}", "--data", "{data}"), "--merge adds up"),
        (("calibrate", "--merge", "{calibration}", "{model}"), "not a calibration file"),
        (("calibrate", "--merge", "{data}/nothing"), "cannot read a calibration"),
        (("quantize", "{model}"), "takes its numbers from data"),
        (("quantize", "{model}", "--form", "int9"), "int9"),
        (("quantize", "{model}", "--form", "int8", "--block", "32", "--data", "{data}"), "blocks are for"),
        (("quantize", "{model}", "--form", "int4-weights", "--block", "5"), "32, 64, 128"),
        (("quantize", "{model}", "--rounding", "gptq", "--data", "{data}"), "gptq is for"),
        (("quantize", "{model}", "--data", "{data}", "--accuracy-budget", "speed=1"), "cannot read the budget"),
        (("quantize", "{model}", "--data", "{data}", "--accuracy-budget", "no_module:f=1"), "cannot load the metric"),
        (("quantize", "{model}", "--form", "int8-dynamic", "--accuracy-budget", "top1=0.9"), "there is none"),
        (("quantize", "{model}", "--calibration", "{record}"), "says that it is"),
        (("quantize", "{model}", "--calibration", "{model}"), "not a calibration file"),
        (("quantize", "{other}", "--calibration", "{calibration}"), "another model"),
        (("quantize", "{model}", "--data", "{data}", "--percentile", "20"), "a percentile lies above 50"),
        (("build", "{model}", "--data", "{data}"), "nothing is to be"),
        (("build", "{model}", "--quantize", "{record}", "--data", "{data}"), "says what is quantized"),
        (("build", "{model}", "--quantize", "{data}/nothing"), "cannot read a quantization record"),
        (("build", "{model}", "--quantize", "{calibration}"), "expected 'aot.quantization/1'"),
        (("build", "{other}", "--quantize", "{record}"), "nodes that the model does not have"),
        (("build", "{twin}", "--quantize", "{record}"), "other weights"),
        (("build", "{model}", "--quantize", "{record}", "--weights", "none"), "does not go with quantization"),
        (("explain", "{data}/nothing"), "nothing"),
        (("explain", "{calibration}"), "expected 'aot.quantization/1'"),
    ],
    ids=str,
)
def test_errors(folder: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """Exit code 2, the message and a remedy, as text and as JSON; and nothing is written."""
    models.save_onnx(models.dense(0, (12, 8, 6)), tmp_path / "other.onnx")
    models.save_onnx(models.dense(1), tmp_path / "twin.onnx")
    places = {
        "model": folder / "model.onnx", "data": folder / "all", "calibration": folder / "model.calibration",
        "record": folder / "model.quantization", "other": tmp_path / "other.onnx", "twin": tmp_path / "twin.onnx",
    }  # fmt: skip
    given = [argument.format(**places) for argument in arguments]
    output = () if given[0] == "explain" else ("-o", tmp_path / "out", "--cache", folder / "cache")
    result = invoke(*given, *output, code=2)
    assert message in result.stderr and "Traceback" not in result.output
    error = document(*given, *output, code=2)["error"]
    assert message in error["message"] + error["where"] + error["hint"] and error["message"]
    assert not (tmp_path / "out").exists()


def test_quantize(folder: Path, tmp_path: Path) -> None:
    record = Quantization.open(folder / "model.quantization")
    assert [node.form for node in record.nodes] == ["int8", "int8", "float"]
    assert record.ledger[2].reason == "asked for: dense2" and record.final is not None
    said = document("quantize", folder / "model.onnx", "--data", folder / "all", "--calibration",
                    folder / "model.calibration", "--allow-slower", "--keep-float", "dense2", "-o", tmp_path / "again",
                    "--cache", folder / "cache")  # fmt: skip
    assert (tmp_path / "again").read_bytes() == (folder / "model.quantization").read_bytes()
    assert said["ledger"][0]["node"] == "dense0" and said["final"] == record.final and said["record"]
    text = invoke("quantize", folder / "model.onnx", "--form", "int4-weights", "-o", tmp_path / "int4",
                  "--cache", folder / "cache").stdout  # fmt: skip
    assert "int4-weights: 3 of 3 products" in text and "nothing: there was no data" in text


MODULE = """
import numpy as np
def data():
    random = np.random.default_rng(0)
    for _ in range(3):
        yield {"x": random.standard_normal((4, 12)).astype(np.float32)}
def broken():
    raise ValueError("disk on fire")
def score(predictions, samples):
    return float(np.mean([np.abs(next(iter(each.values()))).mean() for each in predictions]))
def fails(predictions, samples):
    raise ValueError("no labels")
"""


def test_functions_of_the_user(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_functions.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    common = ("--allow-slower", "-o", tmp_path / "r", "--cache", folder / "cache")
    model = folder / "model.onnx"
    said = document("quantize", model, "--data", "users_functions:data", "--accuracy-budget",
                    "users_functions:score=0.5", *common)  # fmt: skip
    assert said["samples"] == 3 and said["metric"] == "loss of users_functions:score" and said["final"] <= 0.5
    for data, budget, message in (("broken", "score", "disk on fire"), ("data", "fails", "no labels")):
        result = invoke("quantize", model, "--data", f"users_functions:{data}", "--accuracy-budget",
                        f"users_functions:{budget}=0.5", *common, code=2)  # fmt: skip
        assert message in result.stderr and "defect of aotc" not in result.stderr


def test_build(folder: Path, tmp_path: Path) -> None:
    """With a form: the record is written beside the artifact, and a build from it gives the same bytes."""
    arguments = ("build", folder / "model.onnx", "--target", TARGET, "--cache", folder / "cache")
    text = invoke(*arguments, "--quantize", "int8", "--data", folder / "all", "--allow-slower", "-o",
                  tmp_path / "a.aot").stdout  # fmt: skip
    assert "3 of 3 products in int8, relative error" in text
    invoke(*arguments, "--quantize", tmp_path / "a.quantization", "-o", tmp_path / "b.aot")
    assert (tmp_path / "a.aot").read_bytes() == (tmp_path / "b.aot").read_bytes()
    held = Artifact.open(tmp_path / "a.aot").meta["quantization"]
    assert held == json.loads(json.dumps(Quantization.open(tmp_path / "a.quantization").summary()))
    shown = invoke("run", tmp_path / "a.aot", "--random", "--dim", "N=2").stdout
    assert "2" in shown


def test_a_self_test_of_random_inputs_is_noted(folder: Path, tmp_path: Path) -> None:
    """Errors of inputs that the model is not quantized for say little to a canary."""
    arguments = ("build", folder / "model.onnx", "--target", TARGET, "--cache", folder / "cache", "--quantize", "int8",
                 "--data", folder / "all", "--allow-slower", "--self-test", "1", "--error-samples", "2", "--no-latency",
                 "-o", tmp_path / "a.aot")  # fmt: skip
    assert "--self-test-data" in invoke(*arguments).stderr
    assert "--self-test-data" not in invoke(*arguments, "--self-test-data", folder / "all").stderr


def test_explain_an_artifact(folder: Path, tmp_path: Path) -> None:
    """The same ledger from the record, under any name, and from the artifact."""
    (tmp_path / "record").write_bytes((folder / "model.quantization").read_bytes())
    ledgers = []
    for source in (folder / "model.quantization", tmp_path / "record", folder / "int8.aot"):
        text = invoke("explain", source, "--html", tmp_path / "page.html").stdout
        for part in ("dense0", "dense1", "asked for: dense2", "int8: 2 of 3 products", "1 by asked for", "written:"):
            assert part in text, part
        page_text = "".join(elements(tmp_path / "page.html").itertext())
        assert "dense0" in page_text and "Ledger, worst first" in page_text and "asked for: dense2" in page_text
        ledgers.append(document("explain", source)["ledger"])
    assert ledgers[0] == ledgers[1] == ledgers[2] and len(ledgers[0]) == 3


def test_explain_a_float_artifact(folder: Path, tmp_path: Path) -> None:
    assert "nothing is quantized" in invoke("explain", folder / "float.aot", "--html", tmp_path / "p.html").stdout
    assert document("explain", folder / "float.aot") == {
        "artifact": str(folder / "float.aot"), "ledger": None, "products": []
    }  # fmt: skip
    assert "Nothing is quantized" in "".join(elements(tmp_path / "p.html").itertext())


def test_explain_a_model_that_came_quantized(folder: Path, tmp_path: Path) -> None:
    """QuantizeLinear and DequantizeLinear around a matmul; one more stays float."""
    random = np.random.default_rng(0)
    constants = {
        "xs": np.float32(0.05), "xz": np.uint8(128), "w": random.integers(-127, 128, (12, 8)).astype(np.int8),
        "ws": np.float32(0.01), "v": random.standard_normal((8, 3)).astype(np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["d"], "d"),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], "wd"),
        helper.make_node("MatMul", ["d", "wd"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "v"], ["y"], "second"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ["N", 12])], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    models.save_onnx(model, tmp_path / "qdq.onnx")
    invoke("build", tmp_path / "qdq.onnx", "-o", tmp_path / "qdq.aot", "--target", TARGET, "--cache", folder / "cache")
    result = invoke("explain", tmp_path / "qdq.aot", "--html", tmp_path / "p.html")
    assert "1 float, 1 int8" in result.stdout and "came quantized" in result.stderr
    assert document("explain", tmp_path / "qdq.aot")["products"] == [
        {"node": "first", "op": "matmul", "form": "int8"}, {"node": "second", "op": "matmul", "form": "float"}
    ]  # fmt: skip
    assert {"first", "second", "int8"} <= set(elements(tmp_path / "p.html").itertext())


def test_a_page_of_anything(tmp_path: Path) -> None:
    """Names that are markup, errors of zero and without bound, nothing measured, no product at all."""
    nodes = tuple(NodeRecord(name, "int8", 0.1, 3) for name in (EVIL, "b", "c"))
    entries = (
        Entry(node=EVIL, op="conv", form="float", alone=LARGEST_ERROR, running=LARGEST_ERROR,
              input_hardness=LARGEST_ERROR,
              reason=f"the budget: {EVIL}", float_us=3.0, quantized_us=2.0),
        Entry(node="b", op="conv", form="int8", alone=0.0, running=0.0, input_hardness=0.0),
        Entry(node="c", op="conv", form="int8", alone=1e-9, running=0.5, input_hardness=0.2, saturated=0.5),
    )  # fmt: skip
    points = (Point(quantized=0, error=0.0, run_us=9.0, weight_bytes=9),
              Point(quantized=3, error=LARGEST_ERROR, run_us=8.0, weight_bytes=3),
              Point(quantized=2, error=0.5, run_us=8.5, weight_bytes=3, chosen=True))  # fmt: skip
    full = Quantization(
        Method(), nodes, "ab", metric="relative error", budget=0.6, final=0.5, measured_samples=1, ledger=entries,
        points=points, notes=(EVIL,), data="00", samples=1, timed=EVIL,
    )  # fmt: skip
    empty = Quantization(Method(), (), "ab")
    planned = Quantization(Method(), nodes, "ab", ledger=tuple(
        Entry(node=node.node, op="conv", form="int8") for node in nodes))  # fmt: skip
    tight = Quantization(Method(), nodes, "ab", metric="m", budget=0.0, final=0.0, ledger=entries[1:2],
                         points=points[:1])  # fmt: skip
    for number, record in enumerate((full, empty, planned, tight)):
        html = tmp_path / f"{number}.html"
        html.write_text(page(record.summary(), EVIL), encoding="utf-8")
        assert elements(html).tag == "html"
        record.save(tmp_path / "r.quantization")
        invoke("explain", tmp_path / "r.quantization", "--html", html)
        document("explain", tmp_path / "r.quantization")
    assert len((tmp_path / "0.html").read_text()) < 20_000, "no line for each power of ten up to the largest error"
