"""--precision bf16 on CPUs: which levels have it, what others say, and the digits model in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.cli.loading import open_artifact
from aot.cli.machine import selection
from aot.cli.main import main
from aot.errors import TargetError
from aot.runtime import Machine, this_machine
from tests.e2e.conftest import DIGITS

BF16 = "cpu:x86-64-v4+vnni+bf16"
HERE = pytest.mark.skipif(
    this_machine().cpu_level < 4 or this_machine().cpu_extras != sum(Machine.EXTRAS.values()), reason="this CPU"
)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4", "x86-64-v4+vnni"])
def test_a_level_without_it_refuses(level: str) -> None:
    with pytest.raises(TargetError) as caught:
        aot.compile(DIGITS / "digits.onnx", target=f"cpu:{level}", precision="bf16")
    assert f"cpu:{level}" in str(caught.value) and f"--target {BF16}" in str(caught.value)


def test_beside_a_level_that_has_it_another_is_fp32(build: Callable[..., Path]) -> None:
    path = build(target=(BF16, "cpu:x86-64-v3"), precision="bf16")
    artifact = open_artifact(path)
    assert artifact.meta["precisions"] == {BF16: "bf16", "cpu:x86-64-v3": "fp32"}
    assert any("cpu:x86-64-v3 are fp32, not bf16" in note for note in artifact.meta["notes"])


def test_a_bare_cpu_is_that_level_and_one_that_runs_anywhere(build: Callable[..., Path]) -> None:
    """Each machine takes the program that it has the instructions for."""
    artifact = open_artifact(build(target="cpu", precision="bf16"))
    assert artifact.meta["precisions"] == {BF16: "bf16", "cpu:x86-64-v3": "fp32"}
    for machine, chosen in (
        (Machine(4, cpu_extras=3), BF16), (Machine(4, cpu_extras=1), "cpu:x86-64-v3"), (Machine(3), "cpu:x86-64-v3"),
    ):  # fmt: skip
        assert [row["target"] for row in selection(artifact.programs, machine) if row["selected"]] == [chosen]


@HERE
def test_digits(build: Callable[..., Path], held_out: dict[str, Any]) -> None:
    path = build(target=BF16, precision="bf16")
    logits = aot.load(path).run({"image": held_out["images"]})["logits"]
    assert logits.dtype == np.float32
    largest = np.abs(held_out["logits"]).max()
    assert 0 < np.abs(logits - held_out["logits"]).max() <= 2.0**-6 * largest
    assert (logits.argmax(1) == held_out["labels"]).mean() > 0.95


@HERE
def test_threads_give_the_same_bits(build: Callable[..., Path], held_out: dict[str, Any]) -> None:
    path = build(target=BF16, precision="bf16")
    first, second = (
        aot.load(path, threads=threads).run({"image": held_out["images"]})["logits"].tobytes() for threads in (1, 3)
    )
    assert first == second


@HERE
def test_verify_has_a_tolerance_for_it(build: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = build(target=BF16, precision="bf16")
    words = ["verify", str(path), "--against", str(DIGITS / "digits.onnx"), "--dim", "batch=5"]
    for reference in ("onnxruntime", "interpreter"):
        if reference == "onnxruntime":
            pytest.importorskip("onnxruntime")
        assert main([*words, "--reference", reference]) == 0
        assert "bf16" in capsys.readouterr().out
    assert main([*words, "--rtol", "1e-6", "--atol", "1e-6"]) == 3


@HERE
def test_compare_judges_its_kernels(build: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    path = build(target=BF16, precision="bf16")
    assert main(["compare", str(path), "--against", str(DIGITS / "digits.onnx"), "--dim", "batch=5"]) == 0
    assert "bf16" in capsys.readouterr().out


def test_weights_take_half_the_bytes(tmp_path: Path) -> None:
    """In the file: for a model of little else."""
    onnx = pytest.importorskip("onnx")
    weight = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    kinds = {"x": ("n", 512), "y": ("n", 1024)}
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in kinds.items()]
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], [onnx.numpy_helper.from_array(weight, "w")])
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    sizes = []
    for precision in ("bf16", "fp32"):
        artifact = aot.compile(path, target=BF16, precision=precision)
        artifact.save(tmp_path / f"{precision}.aot")
        sizes.append((tmp_path / f"{precision}.aot").stat().st_size)
    assert sizes[0] < 0.52 * sizes[1]
