"""What PyTorch found that input sizes must meet is checked before a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

import aot
from aot.errors import AotError, GuardError, ModelError
from aot.frontend.torch_import import import_torch
from aot.options import DimRange
from aot.text import parse_graph, print_graph

DYNAMIC = torch.export.Dim.DYNAMIC


def exported(function: Callable[..., Any], inputs: Sequence[Any], open_axes: Sequence[Sequence[int]]) -> Any:
    class Module(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return function(x, y)

    shapes = tuple({axis: DYNAMIC for axis in axes} for axes in open_axes)
    return torch.export.export(Module(), tuple(inputs), dynamic_shapes=shapes)


def sizes(*shapes: tuple[int, ...]) -> list[Any]:
    return [torch.arange(float(np.prod(shape))).reshape(shape) for shape in shapes]


def at_least(x: Any, y: Any) -> Any:
    torch._check(x.shape[0] >= y.shape[0] + 2)
    return x.sum() + y.sum()


def multiple(x: Any, y: Any) -> Any:
    torch._check((x.shape[0] * y.shape[0]) % 6 == 0)
    return x.sum() + y.sum()


def branch(x: Any, y: Any) -> Any:
    return x.sum() + y.sum() if x.shape[0] * 2 > y.shape[0] + 1 else x.sum() - y.sum()


def other(x: Any, y: Any) -> Any:
    return x.sum() + y.sum() if x.shape[0] != 4 else x.sum() - y.sum()


def quotient(x: Any, y: Any) -> Any:
    return x.sum() + y.sum() if x.shape[0] // 3 < torch.sym_max(y.shape[0], 7) else x.sum() - y.sum()


def whole(x: Any, y: Any) -> Any:
    torch._check(x.shape[0] * x.shape[1] == y.shape[0] * y.shape[0])
    return x.sum() + y.sum()


@pytest.mark.parametrize(
    ("function", "open_axes", "given", "good", "bad", "words"),
    [
        (at_least, ((0,), (0,)), ((9, 3), (5, 3)), [((7, 3), (5, 3)), ((4, 3), (1, 3))], [((6, 3), (5, 3))], ">="),
        (multiple, ((0,), (0,)), ((9, 3), (2, 3)), [((3, 3), (4, 3)), ((1, 3), (6, 3))], [((3, 3), (5, 3))], "got 3"),
        (branch, ((0,), (0,)), ((9, 3), (5, 3)), [((4, 3), (6, 3))], [((4, 3), (7, 3))], "> s17 + 1, got 8 and 8"),
        (other, ((0,), (0,)), ((9, 3), (5, 3)), [((5, 3), (1, 3))], [((4, 3), (5, 3))], "!="),
        (
            quotient, ((0,), (0,)), ((9, 3), (5, 3)), [((20, 3), (5, 3)), ((24, 3), (9, 3))], [((21, 3), (6, 3))],
            "> (s77//3), got 7 and 7",
        ),
        (whole, ((0, 1), (0,)), ((4, 9), (6, 3)), [((2, 8), (4, 3)), ((1, 1), (1, 3))], [((4, 8), (6, 3))], "=="),
    ],
)  # fmt: skip
def test_relations_of_sizes(
    function: Any, open_axes: Any, given: Any, good: Any, bad: Any, words: str, tmp_path: Path
) -> None:
    program = exported(function, sizes(*given), open_axes)
    with aot.compile(program, cache_dir=tmp_path).load(threads=1) as model:
        for shapes in (given, *good):
            x, y = sizes(*shapes)
            np.testing.assert_allclose(model(x, y), function(x, y), rtol=1e-5)
        for shapes in bad:
            with pytest.raises(GuardError, match=r"sizes of the inputs.* is dimension 0 of input 'x'") as caught:
                model(*sizes(*shapes))
            assert words in str(caught.value)
    path = tmp_path / "program.pt2"
    torch.export.save(program, path)
    with aot.compile(path, cache_dir=tmp_path).load(threads=1) as model, pytest.raises(GuardError):
        model(*sizes(*bad[0]))


def test_relations_in_the_text_and_with_options(tmp_path: Path) -> None:
    program = exported(at_least, sizes((9, 3), (5, 3)), ((0,), (0,)))
    ((_, graph),), _ = import_torch(program)
    text = print_graph(graph)
    assert "needs s77 >= s17 + 2" in text
    assert parse_graph(text).relations == graph.relations
    names = {symbol.name for symbol in graph.symbols}
    assert names == {"s77", "s17"}
    fixed = aot.compile(program, cache_dir=tmp_path, dims=[DimRange("s77", 8, 8)])
    with fixed.load(threads=1) as model, pytest.raises(GuardError):
        model(*sizes((8, 3), (7, 3)))
    with pytest.raises(ModelError, match="never holds"):
        aot.compile(program, cache_dir=tmp_path, dims=[DimRange("s77", 5, 5), DimRange("s17", 5, 5)])


def test_relations_say_what_sizes_are(tmp_path: Path) -> None:
    """What is cut to another input's size has that size, which only the relation says."""

    def cut(x: Any, y: Any) -> Any:
        torch._check(x.shape[0] >= y.shape[0])
        return x[: y.shape[0]] + y, x[y.shape[0] :] * 2

    program = exported(cut, sizes((6, 3), (4, 3)), ((0,), (0,)))
    with aot.compile(program, cache_dir=tmp_path).load(threads=1) as model:
        for rows in ((6, 4), (5, 5), (9, 2)):
            x, y = sizes((rows[0], 3), (rows[1], 3))
            for mine, theirs in zip(model(x, y), cut(x, y), strict=True):
                np.testing.assert_array_equal(mine, theirs)
        with pytest.raises(GuardError, match=r"expected s77 >= s17, got 3 and 4"):
            model(*sizes((3, 3), (4, 3)))


def test_assumptions_of_tracing_are_none_of_the_users(tmp_path: Path) -> None:
    """PyTorch assumes that no size is 1; a compiled program holds for it."""
    program = exported(lambda x, y: x[2:] + y, sizes((9, 3), (7, 3)), ((0,), (0,)))
    assert any("!= 1" in line for line in program._guards_code)
    with aot.compile(program, cache_dir=tmp_path).load(threads=1) as model:
        x, y = sizes((3, 3), (1, 3))
        np.testing.assert_array_equal(model(x, y), x[2:] + y)


def test_nested_and_repeated_arguments(tmp_path: Path) -> None:
    class Module(torch.nn.Module):
        def forward(self, first: Any, *more: Any, named: Any) -> Any:
            torch._check(first["a"][0].shape[0] >= named.shape[0] + 2)
            return first["a"][0].sum() + named.sum() + more[0].sum()

    x, y, z = sizes((9, 3), (5, 3), (4, 3))
    shapes = {"first": {"a": [{0: DYNAMIC}]}, "more": ({0: DYNAMIC},), "named": {0: DYNAMIC}}
    program = torch.export.export(Module(), ({"a": [x]}, z), {"named": y}, dynamic_shapes=shapes)
    with aot.compile(program, cache_dir=tmp_path).load(threads=1) as model:
        names = [port.name for port in model.inputs]
        model.run(dict(zip(names, (x, z, y), strict=True)))
        with pytest.raises(GuardError, match="got 6 and 7"):
            model.run(dict(zip(names, sizes((6, 3), (4, 3), (5, 3)), strict=True)))


HOSTILE = [
    "(" * 5000 + ")" * 5000,
    "L['z'].size()[0] >= 2", "L['x'].size()[7] >= 2", "L['x'].size()[-1] >= 2", "L['x'].stride()[0] >= 2",
    "L['x'].size()[0] // 0 >= 1", "L['x'].size()[0] in (1, 2)", "", "\0", "lambda: 1",
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "holds"),
    [
        ("L['x'].size()[0] >= 1.5", True), ("L['x'].size()[0] >= True", True), ("not L['x'].size()[0]", False),
        ("L['x'].size()[0] >= 2 **" + " 9 **" * 50 + " 9", False), ("L['x'].size()[0] ^ L['y'].size()[0] == 12", True),
        ("L['x'].size()[0] + L['y'].size()[0] == 4 or (L['x'].size()[0] + L['y'].size()[0]) % 7 == 0", True),
        ("L['x'].size()[0] or L['y'].size()[0] / 2", True), ("round(L['x'].size()[0] / L['y'].size()[0]) == 3", False),
    ],
)  # fmt: skip
def test_odd_lines_are_computed(line: str, holds: bool, tmp_path: Path) -> None:
    program: Any = exported(at_least, sizes((9, 3), (5, 3)), ((0,), (0,)))
    program._guards_code.append(line)
    artifact = aot.compile(program, "cpu:x86-64-v3", cache_dir=str(tmp_path))
    with artifact.load(threads=1) as model:
        given = [np.ones((9, 3), "f4"), np.ones((5, 3), "f4")]
        if holds:
            model(*given)
        else:
            with pytest.raises(AotError):
                model(*given)


def test_a_choice_of_which_one_part_says_all() -> None:
    program: Any = exported(at_least, sizes((9, 3), (5, 3)), ((0,), (0,)))
    total = "(L['x'].size()[0] + L['y'].size()[0])"
    program._guards_code.append(f"{total} == 14 or {total} % 7 == 0")
    ((_, graph),), info = import_torch(program)
    assert any(str(each).endswith("%7) == 0") for each in graph.relations)
    assert not any("is not checked" in each for each in info.warnings)


@pytest.mark.parametrize("through_file", [False, True], ids=["object", "file"])
def test_guards_are_never_run(through_file: bool, tmp_path: Path) -> None:
    """Hostile and odd lines are named, and not followed; they are Python, which PyTorch itself runs."""
    program: Any = exported(at_least, sizes((9, 3), (5, 3)), ((0,), (0,)))
    touched = tmp_path / "touched"
    write = f"open({str(touched)!r}, 'w').write('1')"
    lines = [*HOSTILE, write, f"L['x'].size()[0] >= int({write})", f"L[{write}].size()[0] >= 1"]
    program._guards_code.extend(lines)
    if through_file:
        torch.export.save(program, tmp_path / "program.pt2")
        program = tmp_path / "program.pt2"
    _, info = import_torch(program)
    assert not touched.exists()
    assert sum("is not checked" in each for each in info.warnings) == len(lines)
