"""Programs whose sizes are expressions: derived dims, divisions that must come out, images and pools of open sizes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import aot
from aot import dims as dimension
from aot.dims import Symbol
from aot.errors import GuardError, OptionError, UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load
from aot.frontend.torch_sizes import scaled

AUTO = Dim.AUTO
BOTH = {0: AUTO, 1: AUTO}
IMAGE = {2: AUTO, 3: AUTO}
Shapes = Sequence[tuple[int, ...]]


def _exported(function: Callable[..., Any], shapes: Shapes, axes: tuple[dict[int, Any], ...]) -> Any:
    class Call(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Call(), tuple(map(torch.randn, shapes)), strict=False, dynamic_shapes=(axes,))


def _derived(scale: int, offset: int = 0) -> tuple[Any, Any]:
    """A dim of 1 to 9, and what is linear in it."""
    plain = Dim("_b", min=1, max=9)
    return plain, scale * plain + offset if offset else scale * plain


ONE, TWICE = _derived(2)
ODD = _derived(2, -1)[1]
SMALL, LARGE = _derived(3, 2)

# function, shapes of the example, open axes, shapes that run, shapes that are refused
CASES: dict[str, tuple[Callable[..., Any], Shapes, tuple[dict[int, Any], ...], Sequence[Shapes], Sequence[Shapes]]] = {
    "twice": (
        lambda x: x + 1, [(4, 3)], ({0: TWICE},), [[(2, 3)], [(6, 3)], [(18, 3)]], [[(5, 3)], [(20, 3)], [(0, 3)]]
    ),
    "odd": (lambda x: x.cumsum(0), [(7, 3)], ({0: ODD},), [[(1, 3)], [(17, 3)]], [[(4, 3)], [(19, 3)]]),
    "beside the plain one": (
        lambda x, y: x[:, None] + y[None], [(11,), (3,)], ({0: LARGE}, {0: SMALL}), [[(5,), (1,)], [(8,), (2,)]],
        [[(8,), (3,)], [(9,), (2,)]],
    ),
    "halves": (
        lambda x: x[: x.shape[0] // 2] * x[x.shape[0] // 2 :], [(8,)], ({0: TWICE},), [[(2,)], [(8,)]], [[(9,)]]
    ),
    "pairs of rows": (
        lambda x: x.view(2, -1, x.shape[-1]).sum(1), [(8, 3)], ({0: AUTO, 1: AUTO},), [[(4, 3)], [(2, 3)], [(2, 1)]],
        [[(5, 3)]],
    ),
    "fourths": (
        lambda x: x.reshape(x.shape[0] // 4, 4, -1) * 2, [(8, 3)], ({0: AUTO, 1: AUTO},), [[(4, 3)], [(12, 1)]],
        [[(5, 3)]],
    ),
    "elevenths": (
        lambda x: x.reshape(x.shape[0] // 11, 11, -1) * 2, [(22, 3)], (BOTH,), [[(33, 3)], [(12, 11)]],
        [[(12, 3)], [(5, 3)]],
    ),
    "pixel_unshuffle": (
        lambda x: F.pixel_unshuffle(x, 2), [(1, 3, 8, 12)], (IMAGE,), [[(1, 3, 4, 6)]], [[(1, 3, 5, 6)]]
    ),
    "padded to fours": (
        lambda x: F.pad(x, (0, (-x.shape[1]) % 4)).view(x.shape[0], -1, 4).mean(2), [(3, 10)], (BOTH,),
        [[(5, 12)], [(5, 13)], [(5, 7)]], [],
    ),
    "padded to fours, as in Swin": (
        lambda x: F.pad(x, (0, 0, 0, (4 - x.shape[1] % 4) % 4)).unflatten(1, (-1, 4)), [(3, 10, 8)], (BOTH,),
        [[(5, 13, 8)], [(5, 4, 8)]], [],
    ),
    "padded to a count of fours": (
        lambda x: F.pad(x, (0, (-x.shape[1]) % 4)).view(x.shape[0], (x.shape[1] + 3) // 4, 4).mean(2), [(3, 10)],
        (BOTH,), [[(5, 12)], [(5, 13)]], [],
    ),
    "halves of a strided convolution": (
        lambda x: F.conv1d(x[:, None], torch.ones(1, 1, 3), stride=2, padding=1).view(x.shape[0], 2, -1), [(3, 16)],
        (BOTH,), [[(5, 12)], [(5, 7)], [(5, 15)]], [[(5, 13)], [(5, 10)]],
    ),
    "unequal halves": (
        lambda x: x[:, x.shape[1] // 2 :] + x[:, : x.shape[1] - x.shape[1] // 2], [(3, 18)], (BOTH,),
        [[(5, 12)], [(5, 13)]], [],
    ),
    "halves of what is joined": (
        lambda x, y: torch.cat([x, y], 1).view(x.shape[0], 2, -1).sum(1), [(4, 12), (4, 6)], (BOTH, {1: AUTO}),
        [[(4, 3), (4, 5)]], [[(4, 3), (4, 4)]],
    ),
    "pairs of what is joined": (
        lambda x, y: torch.cat([x, y]).view(-1, 2), [(12,), (6,)], ({0: AUTO}, {0: AUTO}), [[(3,), (5,)]],
        [[(3,), (4,)]],
    ),
    "thirds behind a token": (
        lambda x: torch.cat([x.new_zeros(x.shape[0], 1), x], 1).view(x.shape[0], 3, -1), [(3, 8)], (BOTH,), [[(5, 5)]],
        [[(5, 6)]],
    ),
    "every second of what is joined": (
        lambda x, y: (lambda both: both[::2] + both[1::2])(torch.cat([x, y])), [(12,), (6,)], ({0: AUTO}, {0: AUTO}),
        [[(3,), (5,)]], [[(3,), (4,)]],
    ),
    "rows of another": (
        lambda x, y: x.reshape(y.shape[0], -1) * y[:, None], [(4, 6), (3,)], (BOTH, {0: AUTO}),
        [[(2, 8), (4,)], [(3, 5), (5,)]], [[(3, 5), (4,)]],
    ),
    "columns of another": (
        lambda x, y: x.view(-1, y.shape[1]) + y[:1], [(24,), (5, 6)], ({0: AUTO}, BOTH), [[(12,), (3, 4)]],
        [[(12,), (3, 5)]],
    ),
    "part of a product": (
        lambda x, y: (x[:, None] * y).view(-1)[: x.shape[0]] + x, [(8,), (6,)], ({0: AUTO}, {0: AUTO}),
        [[(3,), (2,)], [(9,), (3,)]], [],
    ),
    "the shorter of two": (
        lambda x, y: (lambda n: x[:, :n] + y[:, :n])(min(x.shape[1], y.shape[1])), [(3, 8), (3, 6)],
        ({1: AUTO}, {1: AUTO}), [[(3, 9), (3, 7)]], [],
    ),
    "repeated to another's size": (
        lambda x, y: x.repeat(1, (y.shape[1] + x.shape[1] - 1) // x.shape[1])[:, : y.shape[1]] + y, [(3, 4), (3, 10)],
        ({1: AUTO}, {1: AUTO}), [[(3, 3), (3, 7)]], [],
    ),
    "unflatten": (lambda x: x.unflatten(0, (-1, 3)).sum(1), [(6, 3)], ({0: AUTO},), [[(3, 3)], [(9, 3)]], [[(5, 3)]]),
    "sliding": (
        lambda x, y: x[::2] + y, [(9,), (5,)], ({0: AUTO}, {0: AUTO}), [[(7,), (4,)], [(8,), (4,)]], [[(8,), (8,)]]
    ),
    "every second of two": (
        lambda x, y: x[:, ::2] + y[:, ::2], [(2, 9), (2, 9)], ({1: AUTO}, {1: AUTO}), [[(2, 7), (2, 7)]], []
    ),
    "nearest by 1.5": (
        lambda x: F.interpolate(x, scale_factor=1.5), [(1, 2, 8, 6)], (IMAGE,), [[(1, 2, 3, 5)], [(1, 2, 40, 7)]], []
    ),
    "nearest by 0.3": (
        lambda x: F.interpolate(x, scale_factor=0.3), [(1, 2, 18, 16)], (IMAGE,), [[(1, 2, 30, 50)]], []
    ),
    "exact by 2": (
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"), [(1, 2, 8, 6)], (IMAGE,), [[(1, 2, 3, 5)]], []
    ),
    "linear by 1.5": (
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), [(1, 2, 8, 6)], (IMAGE,), [[(1, 2, 3, 5)]], []
    ),
    "linear by 1.7, sizes first": (
        lambda x: F.interpolate(x, scale_factor=1.7, recompute_scale_factor=True, mode="bilinear"), [(1, 2, 8, 6)],
        (IMAGE,), [[(1, 2, 13, 5)]], [],
    ),
    "nearest to another's size": (
        lambda x, y: F.interpolate(x, size=y.shape[2:]), [(1, 2, 8, 6), (1, 1, 11, 13)], (IMAGE, IMAGE),
        [[(1, 2, 3, 5), (1, 1, 2, 20)]], [],
    ),
    "mean pools": (
        lambda x: F.adaptive_avg_pool2d(x, (2, 3)), [(1, 2, 8, 6)], (IMAGE,), [[(1, 2, 3, 5)], [(1, 2, 2, 9)]], []
    ),
    "mean pools to another's size": (
        lambda x, y: F.adaptive_avg_pool2d(x, y.shape[2:]), [(1, 2, 8, 7), (1, 1, 3, 4)], (IMAGE, IMAGE),
        [[(1, 2, 3, 2), (1, 1, 5, 2)]], [],
    ),
    "largest of pools": (
        lambda x: F.adaptive_max_pool2d(x, (3, 2)), [(1, 2, 8, 7)], (IMAGE,), [[(1, 2, 13, 5)], [(1, 2, 3, 2)]], []
    ),
    "places of the largest": (
        lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True)[1], [(1, 2, 8, 7)], (IMAGE,),
        [[(1, 2, 13, 5)]], [],
    ),
}  # fmt: skip


# One of each kind that has no refused shapes; those that have are all compiled, since the runtime refuses.
COMPILED = {name for name, (*_, refused) in CASES.items() if refused} | {
    "padded to fours, as in Swin", "unequal halves", "part of a product", "nearest by 1.5",
    "linear by 1.7, sizes first", "mean pools to another's size", "places of the largest",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(CASES) - COMPILED))
def test_agrees_with_eager(name: str) -> None:
    function, example, axes, running, refused = CASES[name]
    assert not refused
    graph = load(_exported(function, example, axes))
    for shapes in (example, *running):
        inputs = [torch.randn(shape) for shape in shapes]
        for found in evaluate(graph, [tensor.numpy() for tensor in inputs]):
            np.testing.assert_allclose(found, function(*inputs).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(COMPILED))
def test_agrees_with_eager_and_refuses_other_sizes(name: str, tmp_path: Path) -> None:
    function, example, axes, running, refused = CASES[name]
    program = _exported(function, example, axes)
    graph = load(program)
    with aot.compile(program, "cpu:x86-64-v3", cache_dir=str(tmp_path)).load(threads=1) as model:
        names = [info.name for info in model.inputs]
        for shapes in (example, *running):
            inputs = [torch.randn(shape) for shape in shapes]
            wanted = function(*inputs).numpy()
            arrays = [tensor.numpy() for tensor in inputs]
            for found in (*model.run(dict(zip(names, arrays, strict=True))).values(), *evaluate(graph, arrays)):
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        for shapes in refused:
            with pytest.raises(GuardError, match=r"dimension [02]|sizes of the inputs"):
                model.run({name: np.zeros(shape, "f4") for name, shape in zip(names, shapes, strict=True)})


@pytest.mark.parametrize("asserts", [True, False])
def test_a_part_whose_length_data_gives(asserts: bool, tmp_path: Path) -> None:
    class Trimmed(torch.nn.Module):
        def forward(self, x: Any, lengths: Any) -> Any:
            longest = lengths.max().item()
            torch._check(longest >= 1)
            if asserts:
                torch._check(longest <= x.shape[1])
            return x[:, :longest] * (torch.arange(longest)[None] < lengths[:, None])[..., None]

    axes = ({0: AUTO, 1: AUTO}, {0: AUTO})
    given = (torch.randn(2, 6, 4), torch.tensor([3, 5]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Trimmed(), given, dynamic_shapes=axes)
    with aot.compile(program, "cpu:x86-64-v3", cache_dir=str(tmp_path)).load(threads=1) as model:
        names = [info.name for info in model.inputs]
        for rows, lengths in ((6, [3, 5]), (6, [6, 1]), (9, [2, 7])):
            arrays = (torch.randn(2, rows, 4), torch.tensor(lengths))
            (found,) = model.run(dict(zip(names, arrays, strict=True))).values()
            np.testing.assert_allclose(found, Trimmed()(*arrays).numpy(), rtol=1e-6)
        with pytest.raises(GuardError):
            model.run(dict(zip(names, (torch.randn(2, 4, 4), torch.tensor([5, 1])), strict=True)))


def test_a_derived_size_is_named_as_it_was_exported(tmp_path: Path) -> None:
    program = _exported(lambda x: x + 1, [(7, 3)], ({0: ODD},))
    saved = io.BytesIO()
    torch.export.save(program, saved)
    path = tmp_path / "odd.pt2"
    path.write_bytes(saved.getvalue())
    artifact = aot.compile(path, "cpu:x86-64-v3", cache_dir=str(tmp_path))
    (symbol,) = artifact.programs[0].input_symbols
    with artifact.load(threads=1) as model:
        (given,) = model.inputs
        with pytest.raises(GuardError, match=rf"expected 2\*{symbol.name} - 1 with {symbol.name} from 1 to 9, got 4"):
            model.run({given.name: np.zeros((4, 3), "f4")})


def test_options_give_derived_sizes_values(tmp_path: Path) -> None:
    program = _exported(lambda x: x + 1, [(7, 3)], ({0: ODD},))
    (given,) = load(program).inputs
    assert load(program, dims={f"{given.name}.0": 5}).inputs[0].type.shape == (5, 3)
    (narrow,) = load(program, dims={f"{given.name}.0": (2, 6)}).symbols
    assert (narrow.lo, narrow.hi) == (2, 3)  # of 2 * n - 1
    for wrong in (4, (4, 4), 19, (1, 40)):
        with pytest.raises(OptionError, match=r"of the form|asked for"):
            load(program, dims={f"{given.name}.0": wrong})


@pytest.mark.parametrize("factor", [0.3, 1.1, 1.3, 1.7, 2.5, 1 / 3, 2.0])
def test_open_sizes_are_scaled_as_double_precision_does(factor: float) -> None:
    size = scaled(Symbol("n").dim, factor)
    assert all(dimension.evaluate(size, {"n": n}) == int(n * factor) for n in range(1, 5000))


@pytest.mark.parametrize("factor", [0.1234567, 0.7])  # 90 * 0.7 is 62.99999999999999 in double precision
def test_a_factor_that_is_no_simple_fraction_is_refused(factor: float) -> None:
    with pytest.raises(UnsupportedError, match=f"times {factor}"):
        scaled(Symbol("n").dim, factor)
