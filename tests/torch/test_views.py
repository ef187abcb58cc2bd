"""Views, cuts, joins, pads and repeats of torch.export programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.torch.programs import check, check_compiled

torch = pytest.importorskip("torch")
functional = torch.nn.functional
aten = torch.ops.aten


def x(*shape: int) -> Any:
    return torch.arange(1, 1 + int(torch.Size(shape).numel()), dtype=torch.float32).reshape(shape)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "reshape": (lambda t: t.reshape(2, -1, 2), (4, 6)),
    "resize": (lambda t: (torch.ops.aten.resize(t, (3, 5)), torch.ops.aten.resize(t, (2,))), (4, 6)),
    "view": (lambda t: t.view(-1), (4, 6)),
    "bits as integers": (lambda t: t.view(torch.int32) + 1, (4, 6)),
    "flatten": (lambda t: t.flatten(1, 2), (2, 3, 4)),
    "unflatten": (lambda t: t.unflatten(1, (3, -1)), (2, 6)),
    "squeeze all": (lambda t: t.squeeze(), (1, 3, 1)),
    "squeeze one": (lambda t: t.squeeze(1), (1, 3, 1)),
    "squeeze some": (lambda t: t.squeeze((0, 1)), (1, 3, 1)),
    "unsqueeze last": (lambda t: t.unsqueeze(-1), (2, 3)),
    "expand": (lambda t: t.expand(4, -1, 3), (2, 1)),
    "permute": (lambda t: t.permute(2, 0, -2), (2, 3, 4)),
    "movedim": (lambda t: t.movedim((0, 1), (2, 0)), (2, 3, 4)),
    "slice from the end": (lambda t: t[-3:-1], (7, 2)),
    "slice past the end": (lambda t: t[5:100], (7, 2)),
    "slice by steps": (lambda t: t[1::3, ::2], (7, 5)),
    "empty slice": (lambda t: t[5:2], (7, 2)),
    "select": (lambda t: t[:, -1], (3, 4)),
    "narrow": (lambda t: t.narrow(1, 1, 2), (3, 4)),
    "split": (lambda t: t.split(2), (5, 2)),
    "split with sizes": (lambda t: t.split([1, 0, 4]), (5, 2)),
    "chunk": (lambda t: t.chunk(3, 1), (2, 7)),
    "unbind": (lambda t: t.unbind(1), (2, 3)),
    "diagonal": (lambda t: t.diagonal(1, 0, 2), (4, 2, 5)),
    "diagonal below": (lambda t: t.diagonal(-2), (4, 3)),
    "no diagonal": (lambda t: t.diagonal(5), (4, 3)),
    "windows of an axis": (lambda t: t.unfold(0, 3, 2), (8, 2)),
    "strided": (lambda t: t.as_strided((3, 2), (2, 5), 1), (4, 4)),
    "strided dense": (lambda t: t.as_strided((2, 4), (4, 1)), (4, 4)),
    "flip": (lambda t: t.flip(0, 2), (2, 3, 4)),
    "roll": (lambda t: t.roll((5, -1), (0, 1)), (3, 4)),
    "roll all": (lambda t: t.roll(3), (3, 4)),
    "repeat": (lambda t: t.repeat(2, 1, 3), (2, 3)),
    "repeat to none": (lambda t: t.repeat(0, 2), (2, 3)),
    "tile": (lambda t: t.tile(2), (2, 3)),
    "interleave": (lambda t: t.repeat_interleave(3, 1), (2, 3)),
    "pixel shuffle": (lambda t: functional.pixel_shuffle(t, 2), (2, 8, 2, 3)),
    "pixel unshuffle": (lambda t: functional.pixel_unshuffle(t, 2), (2, 4, 6)),
    "channel shuffle": (lambda t: functional.channel_shuffle(t, 3), (1, 6, 2, 2)),
    "pad": (lambda t: functional.pad(t, (1, 2, -1, 3), value=7.0), (3, 4)),
    "reflect": (lambda t: functional.pad(t, (1, 2), mode="reflect"), (2, 3, 4)),
    "replicate and cut": (lambda t: functional.pad(t, (4, -2, -1, 2), mode="replicate"), (1, 2, 3, 4)),
    "circular": (lambda t: functional.pad(t, (2, 1), mode="circular"), (1, 2, 4)),
    "circular and cut": (lambda t: functional.pad(t, (2, -1, -1, 2), mode="circular"), (1, 1, 4, 5)),
    "slice scatter": (lambda t: torch.slice_scatter(t, t[:2] * 0, 0, 1, 3), (5, 2)),
    "slice scatter by steps": (lambda t: torch.slice_scatter(t, t[:2] * 0, 0, 0, 4, 2), (5, 2)),
    "select scatter": (lambda t: torch.select_scatter(t, t[0] * 0, 0, -1), (3, 2)),
    "diagonal scatter": (lambda t: torch.diagonal_scatter(t, torch.zeros(2), 1), (3, 3)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_agrees_with_eager(name: str) -> None:
    function, shape = FUNCTIONS[name]
    check(function, x(*shape))


OPEN: dict[str, Callable[..., Any]] = {
    "merge": lambda t: t.reshape(t.shape[0] * 4, -1),
    "split heads": lambda t: t.reshape(t.shape[0], t.shape[1], 2, 2).transpose(1, 2),
    "last": lambda t: t[:, -1],
    "halves": lambda t: torch.cat([t[:, t.shape[1] // 2 :], t[:, : t.shape[1] // 2]], 1),
    "roll": lambda t: t.roll(1, 1),
    "flip": lambda t: t.flip(1),
    "expand": lambda t: t[:, :1].expand(-1, t.shape[1], -1),
    "pad": lambda t: functional.pad(t, (0, 0, 1, 2)),
    "repeat": lambda t: t.repeat(2, 1, 1),
    "stack": lambda t: torch.stack([t, t + 1], 1).flatten(0, 1),
}


@pytest.mark.parametrize("name", OPEN)
def test_sizes_that_stay_open(name: str) -> None:
    graph = check(OPEN[name], x(3, 6, 4), open_axes=[(0, 1)], others=[(x(2, 8, 4),), (x(5, 4, 4),)])
    assert len(graph.symbols) == 2


def test_joins() -> None:
    check(lambda a, b: torch.cat([a, torch.zeros(0), b], -1), x(2, 3), x(2, 1))
    check(lambda a, b: torch.cat([a, b]), x(2, 3), torch.ones(1, 3, dtype=torch.int64))
    check(lambda a, b: torch.stack([a, b], -1), x(2, 3), x(2, 3))


def test_through_the_compiler(tmp_path: Path) -> None:
    def function(t: Any) -> Any:
        a = functional.pad(t, (1, 1), mode="reflect").roll(1, 1).flip(0)
        return a.unfold(1, 2, 1).sum(-1), t.diagonal().clone(), t.repeat(2, 1)[1:-1:2]

    check_compiled(function, x(4, 6), cache=tmp_path)


def test_positions_from_data(tmp_path: Path) -> None:
    """Numbers of data count from the start or, negative, from the end, as they turn out."""
    places = [torch.tensor(each) for each in ([2, 5], [-3, -1], [0, 0], [5, 2], [9, -9], [-100, 100], [7, -7])]
    first, *others = [(x(7, 3), place) for place in places]
    check_compiled(lambda t, i: torch.tensor_split(t, i), *first, cache=tmp_path, others=others)

    def single(t: Any, i: Any) -> Any:
        k = i.item()
        return t.narrow(0, k, 2), t.select(0, k)

    first, *others = [(x(7, 3), torch.tensor(place)) for place in (2, 0, 4, -1 - 2, -7)]
    check_compiled(single, *first, cache=tmp_path, others=others)

    def open_ended(t: Any, i: Any) -> Any:
        return t[i.item() :] * 2, t[: i.item()] + 1

    first, *others = [(x(7, 3), torch.tensor(place)) for place in (2, 0, 6, 7, 9, -1, -7, -8)]
    check_compiled(open_ended, *first, cache=tmp_path, others=others)


def test_empty_results_of_several_shapes(tmp_path: Path) -> None:
    def function(a: Any, b: Any) -> Any:
        wide = a.exp()
        return wide, wide + b.log1p()

    check_compiled(function, torch.ones(0, 1, 3), torch.ones(1, 10, 3), cache=tmp_path)
    check_compiled(torch.logaddexp, torch.ones(0, 1, 3).half(), torch.ones(10, 3).half(), cache=tmp_path)
