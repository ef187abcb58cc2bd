"""INPUT.AXIS names a dimension wherever one is named: PyTorch saves no names of dims, only symbols such as s77."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import aot
from aot.axes import described, symbol_value
from aot.cli.main import cli
from aot.dims import Dim, Symbol
from aot.errors import GuardError, OptionError, RunError

torch: Any = pytest.importorskip("torch")
TARGET = "cpu:x86-64-v3"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A program of two inputs with one open batch, its symbol's name; and its artifact beside it."""

    class Sum(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return torch.relu(x + y.sum(1, keepdim=True))

    batch = torch.export.Dim("batch", min=2, max=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            Sum(), (torch.ones(3, 6), torch.ones(3, 2)), dynamic_shapes=({0: batch}, {0: batch})
        )
    folder = tmp_path_factory.mktemp("names")
    torch.export.save(program, folder / "sum.pt2")
    names = {str(symbol) for symbol in program.range_constraints}
    assert "batch" not in names
    aot.compile(folder / "sum.pt2", TARGET, cache_dir=folder).save(folder / "sum.aot")
    return folder, names.pop()


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def built(folder: Path, *arguments: str) -> Any:
    out = folder / "out.aot"
    result = invoke("build", folder / "sum.pt2", "-o", out, "--target", TARGET, "--cache", folder, *arguments)
    assert result.exit_code == 0, result.stderr
    return aot.load(out, threads=1)


@pytest.mark.parametrize("name", ["x.0", "y.0"])
def test_build(name: str, saved: tuple[Path, str]) -> None:
    folder, _ = saved
    (dim,) = built(folder, "--dim", f"{name}=4..8").dims
    assert (dim.lo, dim.hi) == (4, 8)
    assert not built(folder, "--dim", f"{name}=4").dims
    model = built(folder, "--variant", f"{name}=1,8")
    assert [program.variant.partition("=")[2] for program in model.programs] == ["1", "8", ""]
    for batch in (1, 3, 8):
        x, y = np.full((batch, 6), -1, np.float32), np.ones((batch, 2), np.float32)
        np.testing.assert_array_equal(model(x, y), np.ones((batch, 6)))


def test_variants_that_say_the_same(saved: tuple[Path, str]) -> None:
    folder, symbol = saved
    model = built(folder, "--variant", "x.0=8", "--variant", "y.0=8", "--variant", f"{symbol}=8", "--variant", "x.1=6")
    assert [program.variant for program in model.programs] == [f"{symbol}=8", ""]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--variant", "batch=8"), "no dimension 'batch'"),
        (("--variant", "z.0=8"), "no dimension 'z.0'"),
        (("--variant", "x.2=8"), "no dimension 'x.2'"),
        (("--variant", "x.1=7"), "7 is asked for, and the size is always 6"),
        (("--variant", "x.0=8", "--variant", "y.0=9"), "two sizes: 8 and 9"),
        (("--dim", "batch=8"), "no dimension 'batch'"),
        (("--dim", "x.0=100"), "the model holds for"),
    ],
)
def test_build_refuses(arguments: tuple[str, ...], message: str, saved: tuple[Path, str]) -> None:
    folder, symbol = saved
    result = invoke("build", folder / "sum.pt2", "-o", folder / "no.aot", "--target", TARGET, *arguments)
    assert result.exit_code in (1, 2) and message in result.stderr
    if "no dimension" in message:
        assert f"{symbol} (x.0)" in result.stderr and "INPUT.AXIS" in result.stderr


def test_commands_that_run(saved: tuple[Path, str]) -> None:
    folder, symbol = saved
    artifact = folder / "sum.aot"
    for name in ("x.0", "y.0", symbol):
        result = invoke("run", artifact, "--dim", f"{name}=7", "--json")
        assert json.loads(result.stdout)["outputs"][0]["shape"] == [7, 6], result.stderr
    assert invoke("bench", artifact, "--dim", "y.0=7", "--seconds", 0.01).exit_code == 0
    assert invoke("inspect", artifact, "--memory", "--dim", "x.0=7").exit_code == 0
    result = invoke("verify", artifact, "--against", folder / "sum.pt2", "--dim", "x.0=7")
    assert result.exit_code == 0 and f"{symbol}=7" in result.stdout
    result = invoke("run", artifact, "--dim", "batch=7")
    assert result.exit_code == 2 and f"{symbol} (x.0); INPUT.AXIS names any size" in result.stderr
    result = invoke("run", artifact, "--dim", "x.1=7")
    assert result.exit_code == 2 and "the size is always 6" in result.stderr
    result = invoke("run", artifact, "--dim", "x.0=7", "--dim", "y.0=8")
    assert result.exit_code == 2 and "two sizes: 7 and 8" in result.stderr


def test_reserve(saved: tuple[Path, str]) -> None:
    model = aot.load(saved[0] / "sum.aot", threads=1)
    assert model.reserve(**{"x.0": 8}) == model.reserve(**{saved[1]: 8})
    with pytest.raises(GuardError):
        model.reserve(**{"y.0": 100})
    for name in ("x.1", "x.9", "z.0", "batch"):
        with pytest.raises((RunError, GuardError)):
            model.reserve(**{name: 8})


def test_sizes_that_follow_from_a_symbol() -> None:
    s = Symbol("s")
    shapes: Mapping[str, tuple[Dim, ...]] = {"a.b": (s.dim * 2 + 1, 4, s.dim * s.dim), "c": (s.dim,)}
    assert symbol_value("a.b.0", 7, shapes) == ("s", 3)
    assert symbol_value("a.b.1", 4, shapes) is None
    assert symbol_value("c.0", 5, shapes) == ("s", 5)
    for name, extent in (("a.b.0", 8), ("a.b.0", 0), ("a.b.1", 5), ("a.b.2", 9)):
        with pytest.raises(OptionError):
            symbol_value(name, extent, shapes)
    assert described(["s", "t"], shapes) == "s (c.0), t"
    assert described([], shapes) == "none"
