"""`aotc profile` on this machine's CPU; the way over a GPU is in tests/runtime/test_cuda.py, on a simulated driver."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.cli.cmd_profile import cpu_copy_rate, cpu_flops
from aot.cli.profile_page import page, roofline
from aot.cli.profile_report import Ceilings, Profile, gap_text, profile, summary, trace, unit_of
from aot.errors import GuardError, RunError
from aot.program import Image, KernelCode
from aot.runtime._times import StepTime, Times
from tests.cli.test_commands import document, invoke
from tests.runtime import cuda_programs, handmade

ROWS = 6


def built(folder: Path) -> Path:
    """A perceptron of two layers and a softmax, with an open batch."""
    onnx = pytest.importorskip("onnx")
    helper, rng = onnx.helper, np.random.default_rng(0)
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"], "net/fc1"),
        helper.make_node("Relu", ["a"], ["b"], "net/act"),
        helper.make_node("Gemm", ["b", "w2", "b2"], ["c"], "net/fc2"),
        helper.make_node("Softmax", ["c"], ["y"], "net/<out>", axis=1),
    ]
    shapes = {"w1": (32, 64), "b1": (64,), "w2": (64, 10), "b2": (10,)}
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    x = helper.make_tensor_value_info("x", 1, ["batch", 32])
    y = helper.make_tensor_value_info("y", 1, ["batch", 10])
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    path = folder / "net.aot"
    aot.compile(model, "cpu").save(path)
    return path


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("profile"))


def test_profile_of_a_cpu_program(net: Path, tmp_path: Path) -> None:
    html, events = tmp_path / "page.html", tmp_path / "trace.json"
    found = document(
        "profile", net, "--random", "--dim", f"batch={ROWS}", "--repeats", 3, "--html", html, "--trace", events
    )
    assert found["dims"] == {"batch": ROWS} and found["target"].startswith("cpu:") and found["method"] == "barriers"
    assert found["run_seconds"] > 0 and found["kernel_seconds"] > 0
    assert found["gap_seconds"] == pytest.approx(found["run_seconds"] - found["kernel_seconds"])
    rows = found["rows"]
    assert sum(row["share"] for row in rows) == pytest.approx(1) and 0 < found["launches"] <= len(rows)
    nodes = {node for row in rows for node in row["nodes"]}
    assert nodes == {"net/fc1", "net/act", "net/fc2", "net/<out>"} == {total["name"] for total in found["nodes"]}
    first = next(row for row in rows if "net/fc1" in row["nodes"])
    assert first["flops"] == 2 * ROWS * 32 * 64  # what multiplying takes
    assert first["bytes"] == 4 * (ROWS * 32 + 32 * 64 + 64 + ROWS * 64)
    assert first["bytes_per_s"] == pytest.approx(first["bytes"] / first["seconds"])
    ceilings = found["ceilings"]
    assert first["memory_share"] == pytest.approx(first["bytes_per_s"] / ceilings["memory_bytes"])
    assert first["unit_share"] == pytest.approx(first["flops_per_s"] / ceilings["flops"]["fp32"])
    assert first["bound"] in ("memory", "fp32", "latency") and first["registers"] is None and first["blocks"] is None
    assert "measured now" in ceilings["memory_from"] and "measured now" in ceilings["flops_from"]
    for totals in (found["kinds"], found["nodes"]):
        assert sum(total["seconds"] for total in totals) == pytest.approx(found["kernel_seconds"])
        assert sum(total["bytes"] for total in totals) == pytest.approx(sum(row["bytes"] for row in rows), abs=4)
    check_page(html.read_text(), found)
    check_trace(json.loads(events.read_text()), found)


def test_profile_as_text(net: Path) -> None:
    text = invoke("profile", net, "--repeats", 2).stdout
    for part in ("net.aot, cpu:x86-64", "batch=1", "launches take", "a barrier and a clock", "by kind", "by node"):
        assert part in text
    assert "net/fc1" in text and "registers" not in text  # no column without a number
    ordered = invoke("profile", net, "--repeats", 2, "--order", "run", "--top", 1)
    assert "more launches" in ordered.stderr and "\n0  " in ordered.stdout and "\n1  " not in ordered.stdout


def test_inputs_from_files(net: Path, tmp_path: Path) -> None:
    given = np.zeros((4, 32), np.float32)
    np.save(tmp_path / "x.npy", given)
    np.savez(tmp_path / "x.npz", x=given)
    assert document("profile", net, tmp_path / "x.npy", "--repeats", 1)["dims"] == {"batch": 4}
    assert document("profile", net, "--inputs", tmp_path / "x.npz", "--repeats", 1)["inputs"] == "x.npz"
    result = invoke("profile", net, tmp_path / "x.npy", tmp_path / "x.npz")
    assert result.exit_code == 2 and "a profile is of one run, and 2 files were given" in result.stderr


def test_a_flow_is_profiled_block_by_block(tmp_path: Path) -> None:
    """Of two branches one runs; sizes that data gives are not known, nor what depends on them."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    x = helper.make_tensor_value_info("x", 1, ["n"])

    def branch(op: str, name: str) -> Any:
        out = helper.make_tensor_value_info(f"{name}_y", 1, None)
        return helper.make_graph([helper.make_node(op, ["x"], [f"{name}_y"], name)], name, [], [out])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], "sum", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["up"], "test"),
        helper.make_node("If", ["up"], ["y"], "if", then_branch=branch("Exp", "yes"), else_branch=branch("Neg", "no")),
        helper.make_node("NonZero", ["y"], ["places"], "places"),
    ]
    outputs = [helper.make_tensor_value_info("y", 1, ["n"]), helper.make_tensor_value_info("places", 7, None)]
    zero = onnx.numpy_helper.from_array(np.zeros((), np.float32), "zero")
    graph = helper.make_graph(nodes, "g", [x], outputs, [zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "flow.aot"
    aot.compile(model, "cpu").save(path)
    np.save(tmp_path / "x.npy", np.ones(1000, np.float32))
    found = document("profile", path, tmp_path / "x.npy", "--repeats", 2, "--html", tmp_path / "flow.html")
    taken = {node: row["seconds"] for row in found["rows"] for node in row["nodes"]}
    assert taken["if/yes"] > 0 and taken["if/no"] == 0
    assert found["rows"][-1]["bytes"] is None and found["rows"][-1]["memory_share"] is None
    assert found["dims"] == {"n": 1000} and "a kernel in a loop" in found["method_text"]
    assert found["launches"] < len(found["rows"])


def test_wrong_use(net: Path, tmp_path: Path) -> None:
    assert invoke("profile", tmp_path / "no.aot").exit_code == 2
    result = invoke("profile", net, "--html", tmp_path / "no" / "page.html")
    assert result.exit_code == 2 and "its folder does not exist" in result.stderr
    result = invoke("profile", net, "--target", "cuda:sm_90a")
    assert result.exit_code == 1 and "no program runs here" in result.stderr


def test_an_artifact_for_gpus_alone_says_why_it_does_not_run(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists() or "libcuda.so" in Path("/proc/self/maps").read_text():
        pytest.skip("there is a driver")
    path = tmp_path / "gpu.aot"
    cuda_programs.artifact().save(path)
    error = document("profile", path, code=1)["error"]
    assert error["code"] == "target" and error["message"].startswith("no program runs here: cuda:sm_90a: no driver")
    assert error["where"] == str(path) and error["hint"]


def test_model_with_state_keeps_its_own() -> None:
    """The profiler's runs update copies."""
    with handmade.artifact().load(threads=1) as model:
        given = {"x": handmade.batch_of(5)}
        before = given["x"].copy()
        times = model.time_steps(given, repeats=2)
        assert [step.label for step in times.steps] == [label for label, _, _ in model.profile(given, 1)]
        assert times.run_seconds > 0 and model.programs[times.program].selected
        np.testing.assert_array_equal(given["x"], before)
        with pytest.raises(RunError, match="repeats must be at least 1"):
            model.time_steps(given, repeats=0)
        with pytest.raises(GuardError, match="missing input 'x'"):
            model.time_steps({})
        with pytest.raises(RunError, match="the model runs on the CPU"):
            model.copy_rate()


def test_ceilings_are_rates() -> None:
    assert 1e8 < cpu_copy_rate(2) < 1e13 and 1e8 < cpu_flops() < 1e13


# The report, of times that are made up.

CEILINGS = Ceilings(4e12, "said so", {"half": 7e14, "tf32": 3.5e14, "fp32": 6e13}, "a table")
FACTS = {"artifact": "a<b.aot", "precision": "fp16", "machine": "a GPU", "inputs": "random"}


def made(run_us: float, step_us: tuple[float, ...] = (4.0, 0.0, 2.0, 2.0)) -> Profile:
    """A profile of the program of four launches, with images; the second launches nothing."""
    program = cuda_programs.program()
    image = Image(0, 8, 128, shared_bytes=2048, registers=40, spilled_bytes=8, is_heavy=True)
    kernels = (replace(program.kernels[0], image=image), *program.kernels[1:])
    steps = (replace(program.steps[0], flops=1_400_000_000, bytes_moved=8_000_000), *program.steps[1:])
    program = replace(program, kernels=kernels, steps=steps)
    taken = [
        StepTime(f"k{n}", step.locs, us * 1e-6, n == 2) for n, (step, us) in enumerate(zip(steps, step_us, strict=True))
    ]
    times = Times(1, tuple(taken), run_us * 1e-6, "graph", 50)
    return profile(times, program, values={"n": 300}, ceilings=CEILINGS, facts=FACTS)


def test_rows_join_times_and_the_program() -> None:
    found = made(10)
    first, second, third, _ = found.rows
    assert (first.blocks, first.threads, first.registers, first.shared_bytes, first.spilled_bytes) == (
        3,
        128,
        40,
        2048,
        8,
    )
    assert first.is_heavy and not first.starts_early and third.starts_early
    assert first.unit == "fp32"  # a map, whatever the precision
    assert first.flops_per_s == pytest.approx(3.5e14) and first.bytes_per_s == pytest.approx(2e12)
    assert first.memory_share == pytest.approx(0.5) and first.bound == "fp32"
    assert second.seconds == 0 and second.bytes_per_s is None and second.bound == "?"
    assert third.bound == "latency" and third.share == pytest.approx(0.25)
    assert found.gap_seconds == pytest.approx(2e-6) and gap_text(found).startswith(
        "gaps 2.00 us (20% of the run, 0.67 us"
    )
    assert "each kernel 50 times in a row" in found.method_text


def test_overlap_is_a_negative_gap() -> None:
    found = made(6)
    assert found.gap_seconds == pytest.approx(-2e-6)
    assert gap_text(found).startswith("overlap -2.00 us (33% of the run")
    assert "overlap -2.00 us" in dict(summary(found))["run"]
    check_trace(trace(found), json.loads(json.dumps({"run_seconds": 6e-6, "kernel_seconds": 8e-6, "rows": [
        {"seconds": row.seconds, "label": row.label, "nodes": list(row.nodes)} for row in found.rows
    ]})))  # fmt: skip
    slower = replace(found, method="barriers")
    assert gap_text(slower).startswith("2.00 us more than the run")


def test_units_of_kernels() -> None:
    image = Image(0, 8, 128)
    dot = KernelCode("k", "contract", "k", (), "", '# aotc {"pointers": ["*fp32"]}\nacc = tl.dot(a, b)', image)
    assert unit_of(dot, "fp16") == unit_of(dot, "bf16") == "half"
    assert (unit_of(dot, "tf32"), unit_of(dot, "fp32")) == ("tf32", "fp32")
    narrow = replace(dot, source=dot.source.replace("fp32", "fp16"))  # exported in 16 bits
    assert unit_of(narrow, "fp32") == "half"
    assert unit_of(replace(dot, source="acc += a * b"), "fp16") == "fp32"  # a stream of few rows
    assert unit_of(replace(dot, source=""), "fp16") == "half"  # stripped: by its kind
    assert unit_of(replace(dot, source="", kind="map"), "fp16") == "fp32"
    assert unit_of(replace(dot, image=None), "fp16") == "fp32"
    integers = replace(dot, source=dot.source.replace("b)", "b, acc, out_dtype=tl.int32)"))
    assert unit_of(integers, "fp16") == unit_of(integers, "fp32") == "8-bit"
    words = '__asm__("{} %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));'
    on_cpu = {name: replace(dot, image=None, source=words.format(name)) for name in ("vpdpbusd", "vdpbf16ps")}
    assert [unit_of(kernel, "bf16") for kernel in on_cpu.values()] == ["8-bit", "half"]


def test_page_of_made_up_times() -> None:
    found = made(10)
    text = page(found)
    assert "a&lt;b.aot" in text and "a<b" not in text
    picture = ElementTree.fromstring(roofline(found))
    circles = [node for node in picture.iter() if node.tag.endswith("circle") and len(node)]
    assert len(circles) == 1 and (circles[0][0].text or "").startswith("k0 (step 0): 4.00 us, 50.0%")
    assert "Not in the picture: 3 of the launches (4.00 us)" in text
    names = [node.text for node in picture.iter() if node.tag.endswith("text")]
    assert {"memory 4 TB/s", "half 700 TFLOP/s", "tf32 350 TFLOP/s", "fp32 60 TFLOP/s"} <= set(names)


def test_page_without_anything() -> None:
    """No ceilings, no arithmetic: still a page."""
    nothing = replace(made(10), rows=(), kinds=(), nodes=(), ceilings=Ceilings(0, "none", {}, "none"))
    ElementTree.fromstring(roofline(nothing))
    assert "memory: not known: none" in page(nothing)


class Balanced(HTMLParser):
    """Checks that every element that opens also closes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag not in ("script", "link", "img"), "the page needs nothing else"
        self.cells += tag == "td"
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(text: str, found: Mapping[str, Any]) -> None:
    """The page holds together, and its picture has a dot for every kernel with arithmetic, inside its frame."""
    parser = Balanced()
    parser.feed(text)
    parser.close()
    assert not parser.open and parser.cells > 10 * len(found["rows"])
    assert "net/&lt;out&gt;" in text and "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    start, end = text.index("<svg"), text.index("</svg>") + 6
    picture = ElementTree.fromstring(text[start:end])
    frame = [node for node in picture.iter() if node.tag.endswith("rect")][-1]
    left, top = float(frame.attrib["x"]), float(frame.attrib["y"])
    dots = [node for node in picture.iter() if node.tag.endswith("circle") and len(node)]
    assert len(dots) == sum(bool(row["flops"] and row["bytes"]) for row in found["rows"])
    for dot in dots:
        assert left <= float(dot.attrib["cx"]) <= left + float(frame.attrib["width"])
        assert top <= float(dot.attrib["cy"]) <= top + float(frame.attrib["height"])
        assert "bound by" in (dot[0].text or "")


def check_trace(events: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Two lanes: the run, and its kernels in their order, which lie inside it and not over each other."""
    whole, *others = [event for event in events["traceEvents"] if event["ph"] == "X"]
    names = {event["args"]["name"] for event in events["traceEvents"] if event["ph"] == "M"}
    assert {"whole run", "kernels"} <= names
    assert whole["tid"] != others[0]["tid"] and whole["dur"] == pytest.approx(found["run_seconds"] * 1e6)
    assert [event["name"] for event in others] == [row["label"] for row in found["rows"]]
    at = 0.0
    for event, row in zip(others, found["rows"], strict=True):
        assert event["ts"] >= at - 1e-6 and event["args"]["us"] == pytest.approx(row["seconds"] * 1e6)
        assert event["args"]["nodes"] == ", ".join(row["nodes"])
        at = event["ts"] + event["dur"]
    assert at <= max(found["run_seconds"], found["kernel_seconds"]) * 1e6 + 1e-3
