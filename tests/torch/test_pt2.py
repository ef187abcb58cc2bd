"""A .pt2 file: read without running anything that it says, and what a hostile one is told."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.errors import AotError, ModelError, OptionError, UnsupportedError
from aot.frontend import load
from aot.frontend.torch_import import import_torch
from aot.frontend.torch_program import is_plain_expression

torch: Any = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer with an open batch, a buffer that changes, and a size among its results."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(6, 4)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.calls.add_(1)
            return {"y": torch.relu(self.linear(x)) + self.calls, "rows": x.shape[0]}

    torch.manual_seed(0)
    batch = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(Layer(), (torch.randn(3, 6),), dynamic_shapes=batch, strict=False)
    path = tmp_path_factory.mktemp("pt2") / "layer.pt2"
    torch.export.save(program, path)
    return path


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """The archive with every file passed through `change`; None leaves one out."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data = change(info.filename, old.read(info.filename))
            if data is not None:
                new.writestr(info.filename, data)
    return target


def test_built_from_the_file(saved: Path) -> None:
    program = torch.export.load(saved)
    model = aot.compile(saved, "cpu:x86-64-v3").load(threads=1)
    assert [port.name for port in model.inputs] == ["calls", "x"]
    x = torch.randn(5, 6)
    found = model.run({"x": x, "calls": np.zeros(1, np.float32)})
    expected = program.module()(x)
    np.testing.assert_allclose(found["y"], expected["y"].detach().numpy(), rtol=1e-5, atol=1e-6)
    assert found["rows"] == 5 and found["calls"] == 1
    again = model.run({"x": x, "calls": found["calls"]})
    assert again["calls"] == 2


def test_the_file_and_the_program_give_the_same_graph(saved: Path) -> None:
    from aot.text import print_graph

    assert print_graph(load(saved)) == print_graph(load(torch.export.load(saved)))


def test_sample_inputs_are_never_read(saved: Path, tmp_path: Path) -> None:
    def change(name: str, data: bytes) -> bytes | None:
        return b"cos\nsystem\n(S'false'\ntR." if "sample_inputs" in name else data

    load(rewritten(saved, tmp_path / "samples.pt2", change))


def in_model(edit: Callable[[Any], None]) -> Callable[[str, bytes], bytes | None]:
    def change(name: str, data: bytes) -> bytes | None:
        if not name.endswith("models/model.json"):
            return data
        document = json.loads(data)
        edit(document)
        return json.dumps(document).encode()

    return change


def calls(document: Any) -> None:
    document["graph_module"]["graph"]["nodes"][0]["target"] = "torch.os.system"


def evaluates(document: Any) -> None:
    text = json.dumps(document).replace("Symbol('s", "__import__('os').system('true') or Symbol('s")
    assert "__import__" in text
    document.clear()
    document.update(json.loads(text))


@pytest.mark.parametrize(("edit", "message"), [(calls, "no operator"), (evaluates, "no expression of sizes")])
def test_what_torch_would_run_is_refused(
    edit: Callable[[Any], None], message: str, saved: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        load(rewritten(saved, tmp_path / "hostile.pt2", in_model(edit)))


def pickled(name: str, data: bytes) -> bytes | None:
    if not name.endswith("weights_config.json"):
        return data
    document = json.loads(data)
    for entry in document["config"].values():
        entry["use_pickle"] = True
    return json.dumps(document).encode()


def test_a_pickled_weight_needs_trust(saved: Path, tmp_path: Path) -> None:
    path = rewritten(saved, tmp_path / "pickled.pt2", pickled)
    with pytest.raises(UnsupportedError, match="pickle") as caught:
        load(path)
    assert "--trust-pickle" in str(caught.value)


@pytest.mark.parametrize("left_out", ["models/model.json", "weights_config.json"])
def test_an_archive_with_a_hole(left_out: str, saved: Path, tmp_path: Path) -> None:
    path = rewritten(saved, tmp_path / "hole.pt2", lambda name, data: None if name.endswith(left_out) else data)
    with pytest.raises((ModelError, UnsupportedError)):
        load(path)


def test_damaged_archives(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(40):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 8):
            damaged[place] = rng.integers(0, 256)
        path = tmp_path / f"{number}.pt2"
        path.write_bytes(damaged)
        try:
            load(path)
        except AotError:
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("s77", True),
        ("2*s77 + 1", True),
        ("Symbol('s77', positive=True, integer=True)", True),
        ("Max(1, FloorDiv(s0, 2))", True),
        ("Add(Integer(1), Mul(Integer(2), Symbol('s0')))", True),
        ("().__class__", False),
        ("open('x')", False),
        ("Symbol('a b')", False),
        ("s77.is_real", False),
        ("[s77]", False),
        ("lambda: 1", False),
        ("'text'", False),
        ("s77 if 1 else 2", False),
    ],
)
def test_expressions(text: str, plain: bool) -> None:
    assert is_plain_expression(text) is plain


@pytest.mark.parametrize(("kind", "expected"), [("CeilToInt", 3), ("FloorToInt", 2), ("TruncToInt", 2)])
def test_a_quotient_is_rounded_as_it_says(kind: str, expected: int) -> None:
    sympy = pytest.importorskip("sympy")
    from torch.utils._sympy import functions

    from aot.dims import evaluate
    from aot.frontend.bindings import Bindings
    from aot.frontend.torch_sizes import SizeReader

    size = sympy.Symbol("s0", positive=True, integer=True)
    sizes = SizeReader(Bindings(), {})
    sizes.symbols["s0"] = Bindings().input_dim("x", 0, "s0")
    rounded = getattr(functions, kind)(functions.IntTrueDiv(size, sympy.Integer(2)))
    assert evaluate(sizes.of(rounded), {"s0": 5}) == expected


class FromData(torch.nn.Module):
    """Sizes that data gives, and conditions on them, in every form that sympy has a name for."""

    def forward(self, x: Any, n: Any) -> Any:
        k = n.item()
        torch._check(k >= 1)
        torch._check(k < 5)
        torch._check(k != 4)
        return x[:k] * 2, torch.nonzero(x), x[x > 0], x.narrow(0, k, 1)


def test_sizes_from_data_in_a_file(tmp_path: Path) -> None:
    x = torch.tensor([1.0, -2.0, 0.0, 4.0, 5.0])
    program = torch.export.export(FromData(), (x, torch.tensor(2)))
    torch.export.save(program, tmp_path / "program.pt2")
    model = aot.compile(tmp_path / "program.pt2", "cpu:x86-64-v3").load(threads=1)
    for k in (1, 3):
        found = model.run({"x": x, "n": torch.tensor(k)})
        for mine, theirs in zip(found.values(), FromData()(x, torch.tensor(k)), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("TruncToInt(Mul(Float('1.5', precision=53), ToFloat(Symbol('s0', positive=True, integer=True))))", True),
        ("LessThan(Symbol('u0', integer=True), Integer(3))", True),
        ("Float('-1e-3', precision=53)", True),
        ("Float('__import__', precision=53)", False),
        ("Float('1.5', precision=open)", False),
        ("Float('1.5', parse=1)", False),
        ("Float(open('x'))", False),
        ("Float()", False),
    ],
)
def test_numbers_in_expressions(text: str, is_plain: bool) -> None:
    assert is_plain_expression(text) is is_plain


def test_options_stay_inside_of_the_exported_range(tmp_path: Path) -> None:
    """PyTorch drops branches that the range excludes: beyond it the program is another one."""

    class Branch(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.shape[0] < 100 else x * 100

    shapes = ({0: torch.export.Dim("n", min=3, max=64)},)
    program = torch.export.export(Branch(), (torch.ones(5),), dynamic_shapes=shapes)
    (name,) = {str(symbol) for symbol in program.range_constraints}
    for key in (name, "x.0"):
        for wide in ((3, 200), (2, 64), (3, None), 100):
            with pytest.raises(OptionError, match=r"the model holds for 3\.\.64 alone"):
                import_torch(program, {key: wide})
        import_torch(program, {key: (4, 32)})
