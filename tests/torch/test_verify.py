"""`aotc verify` of torch.export programs: against PyTorch, read with and without trust, and the interpreter."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")
import torch

import aot
from aot.cli.main import cli


def verify(artifact: Path, program: Path, *options: object) -> Result:
    return CliRunner().invoke(cli, ["verify", str(artifact), "--against", str(program), *map(str, options)])


class Model(torch.nn.Module):
    """A layer with everything that has a name: buffers and inputs that change, numbers, nested results, a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 4)
        self.register_buffer("calls", torch.full((1,), 3.0))

    def forward(self, x: Any, cache: Any, scale: float, *, mask: Any) -> Any:
        self.calls.add_(1)
        cache.add_(1)
        hidden = self.linear(x) * scale + self.calls
        return {"y": torch.where(mask, hidden, cache), "rows": x.shape[0], "rest": (hidden.sum(), None)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("verify")
    torch.manual_seed(0)
    auto = torch.export.Dim.AUTO
    tensors = torch.randn(3, 6), torch.randn(3, 4), 2.5
    mask = {"mask": torch.rand(3, 4) > 0.5}
    shapes = {"x": {0: auto}, "cache": {0: auto}, "scale": None, "mask": {0: auto}}
    program = torch.export.export(Model(), tensors, mask, dynamic_shapes=shapes, strict=False)
    torch.export.save(program, folder / "model.pt2")
    aot.compile(folder / "model.pt2", "cpu:x86-64-v3").save(folder / "model.aot")
    return folder / "model.aot", folder / "model.pt2"


@pytest.mark.parametrize("options", [(), ("--reference", "torch"), ("--trust-pickle",), ("--random", "--seed", 3)])
def test_agrees_with_pytorch(built: tuple[Path, Path], options: tuple[object, ...]) -> None:
    artifact, program = built
    result = verify(artifact, program, *options, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["reference"] == f"PyTorch {torch.__version__}"
    (case,) = document["cases"]
    assert {output["name"] for output in case["outputs"]} == {"calls", "cache", "y", "rows", "rest.0"}


def test_agrees_with_the_interpreter(built: tuple[Path, Path]) -> None:
    result = verify(*built, "--reference", "interpreter", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["reference"] == "aotc's reference interpreter"


def test_buffers_start_as_in_the_file(built: tuple[Path, Path], tmp_path: Path) -> None:
    """And may be given; a run leaves nothing behind for the next one."""
    rng = np.random.default_rng(0)
    files = []
    for number, calls in enumerate((None, 40.0, None)):
        given: dict[str, Any] = {"x": rng.normal(size=(2, 6)), "cache": rng.normal(size=(2, 4))}
        feed: dict[str, Any] = {name: array.astype(np.float32) for name, array in given.items()} | {
            "mask": np.ones((2, 4), bool)
        }
        if calls is not None:
            feed["calls"] = np.full(1, calls, np.float32)
        np.savez(tmp_path / f"{number}.npz", **feed)
        files.append(tmp_path / f"{number}.npz")
    result = verify(*built, *files)
    assert result.exit_code == 0, result.output


def test_a_difference_is_found(built: tuple[Path, Path], tmp_path: Path) -> None:
    artifact, program = built
    other = tmp_path / "other.pt2"
    exported = torch.export.load(program)
    with torch.no_grad():
        exported.state_dict["linear.bias"].add_(0.5)
    torch.export.save(exported, other)
    result = verify(artifact, other)
    assert result.exit_code == 3, result.output
    assert "differ with PyTorch" in result.stdout and "another file" in result.stderr


def test_16_bit_inputs_and_a_half_model(tmp_path: Path) -> None:
    module = torch.nn.Linear(8, 4).to(torch.bfloat16)
    torch.export.save(torch.export.export(module, (torch.randn(2, 8).bfloat16(),)), tmp_path / "half.pt2")
    aot.compile(tmp_path / "half.pt2", "cpu:x86-64-v3").save(tmp_path / "half.aot")
    assert verify(tmp_path / "half.aot", tmp_path / "half.pt2").exit_code == 0
    torch.export.save(torch.export.export(torch.nn.Linear(8, 4), (torch.randn(2, 8),)), tmp_path / "full.pt2")
    aot.compile(tmp_path / "full.pt2", "cpu:x86-64-v3", io_dtype="fp16").save(tmp_path / "full.aot")
    assert verify(tmp_path / "full.aot", tmp_path / "full.pt2").exit_code == 0


def rewritten(source: Path, target: Path, name: str, change: Any) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data = old.read(info.filename)
            new.writestr(info.filename, change(data) if info.filename.endswith(name) else data)
    return target


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("trusted", [False, True])
def test_nothing_is_unpickled_without_trust(built: tuple[Path, Path], trusted: bool, tmp_path: Path) -> None:
    """torch.export.load unpickles the inputs of the export."""
    artifact, program = built
    file = io.BytesIO()
    torch.save(Runs(tmp_path / "ran"), file)
    hostile = rewritten(program, tmp_path / "hostile.pt2", "sample_inputs/model.pt", lambda data: file.getvalue())
    result = verify(artifact, hostile, *(["--trust-pickle"] if trusted else []))
    assert (tmp_path / "ran").exists() is trusted, result.output
    assert trusted or result.exit_code == 0, result.output


def test_pickled_weights_need_trust(built: tuple[Path, Path], tmp_path: Path) -> None:
    artifact, program = built

    def pickled(data: bytes) -> bytes:
        document = json.loads(data)
        for entry in document["config"].values():
            entry["use_pickle"] = True
        return json.dumps(document).encode()

    path = rewritten(program, tmp_path / "pickled.pt2", "model_weights_config.json", pickled)
    result = verify(artifact, path)
    assert result.exit_code == 1 and "pickle" in result.stderr


@torch.library.custom_op("aotc_verify::writes", mutates_args=())  # type: ignore[untyped-decorator,unused-ignore]
def writes(x: torch.Tensor) -> torch.Tensor:
    """An operator of another package, which could do anything."""
    return x.clone()


@writes.register_fake  # type: ignore[untyped-decorator,unused-ignore]
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_of_other_packages_are_not_run(built: tuple[Path, Path], tmp_path: Path) -> None:
    class Calls(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.aotc_verify.writes(x)

    torch.export.save(torch.export.export(Calls(), (torch.ones(3),)), tmp_path / "calls.pt2")
    result = verify(built[0], tmp_path / "calls.pt2")
    assert result.exit_code == 2
    assert "aotc_verify.writes" in result.stderr and "--trust-pickle" in result.stderr


def test_options_that_do_not_fit(built: tuple[Path, Path], tmp_path: Path) -> None:
    result = verify(*built, "--reference", "onnxruntime")
    assert result.exit_code == 2 and "does not run torch.export programs" in result.stderr
    onnx = pytest.importorskip("onnx")
    helper, info = onnx.helper, onnx.helper.make_tensor_value_info
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [info("x", 1, [2])], [info("y", 1, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    aot.compile(tmp_path / "m.onnx", "cpu:x86-64-v3").save(tmp_path / "m.aot")
    for options in (("--reference", "torch"), ("--trust-pickle",)):
        assert verify(tmp_path / "m.aot", tmp_path / "m.onnx", *options).exit_code == 2
    result = verify(tmp_path / "m.aot", tmp_path / "m.onnx", "--reference", "interpreter")
    assert result.exit_code == 0, result.output


def test_inputs_that_pytorch_does_not_take(built: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "damaged.pt2").write_bytes(built[1].read_bytes()[:-300])
    assert verify(built[0], tmp_path / "damaged.pt2").exit_code in (1, 2)
    assert verify(built[0], tmp_path / "damaged.pt2", "--trust-pickle").exit_code in (1, 2)


# bench


def bench(artifact: Path, program: Path, *options: object) -> Result:
    arguments = ["bench", str(artifact), "--against", str(program), "--seconds", "0.01", *map(str, options)]
    return CliRunner().invoke(cli, arguments)


def test_bench_runs_pytorch(built: tuple[Path, Path], tmp_path: Path) -> None:
    """On the same inputs, with state put back after each run; outputs that differ are told."""
    artifact, program = built
    result = bench(artifact, program, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["reference"] == f"PyTorch {torch.__version__}"
    (case,) = document["cases"]
    assert case["agree"] and case["artifact"]["runs"] == case["reference"]["runs"] >= 5 and case["ratio"] > 0
    assert "PyTorch" in bench(artifact, program, "--trust-pickle").stdout
    exported = torch.export.load(program)
    with torch.no_grad():
        exported.state_dict["linear.bias"].add_(0.5)
    torch.export.save(exported, tmp_path / "other.pt2")
    result = bench(artifact, tmp_path / "other.pt2")
    assert result.exit_code == 0 and "y, rest.0 differ from PyTorch" in result.stderr, result.stderr
    assert json.loads(bench(artifact, tmp_path / "other.pt2", "--json").stdout)["cases"][0]["agree"] is False


class Filling(torch.nn.Module):
    """A cache with room for four rows: a fifth run without its state put back would fail in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        self.rows.index_copy_(0, self.position, x)
        self.position.add_(1)
        return self.rows.sum(0)


def test_bench_puts_state_back(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Filling(), (torch.ones(1, 3),)), tmp_path / "m.pt2")
    aot.compile(tmp_path / "m.pt2", "cpu:x86-64-v3").save(tmp_path / "m.aot")
    result = bench(tmp_path / "m.aot", tmp_path / "m.pt2", "--json")
    assert result.exit_code == 0, result.output
    (case,) = json.loads(result.stdout)["cases"]
    assert case["agree"] and case["reference"]["runs"] >= 5


def test_bench_does_not_run_operators_of_other_packages(built: tuple[Path, Path], tmp_path: Path) -> None:
    class Calls(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.aotc_verify.writes(x)

    torch.export.save(torch.export.export(Calls(), (torch.ones(3),)), tmp_path / "calls.pt2")
    result = bench(built[0], tmp_path / "calls.pt2")
    assert result.exit_code == 2 and "--trust-pickle" in result.stderr
