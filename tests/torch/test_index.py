"""Reads and writes at computed places in torch.export programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.torch.programs import check, check_compiled

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def x(*shape: int) -> Any:
    return torch.arange(1, 1 + int(torch.Size(shape).numel()), dtype=torch.float32).reshape(shape)


I = torch.tensor([2, 0, -1, 2])  # noqa: E741
J = torch.tensor([[1], [0]])
MASK = torch.tensor([True, False, True])

READS: dict[str, Callable[..., Any]] = {
    "one": lambda t: t[I],
    "second axis": lambda t: t[:, J],
    "two neighbours": lambda t: t[:, I, J],
    "two apart": lambda t: t[I, :, J],
    "all": lambda t: t[I, I, I],
    "mask": lambda t: t[MASK],
    "mask of two axes": lambda t: t[t[:, :, 0] > 20],
    "index_select": lambda t: t.index_select(1, torch.tensor([1, 1])),
    "gather": lambda t: t.gather(1, torch.tensor([[[0, 2], [1, 1]]])),
    "take": lambda t: t.take(J),
    "take along": lambda t: torch.take_along_dim(t, torch.tensor([[[0], [2], [1]]]), 0),
    "nonzero": lambda t: (t > 30).nonzero(),
    "nonzero apart": lambda t: (t > 30).nonzero(as_tuple=True),
    "masked_select": lambda t: t.masked_select(t[0] > 5),
    "trace": lambda t: t[0].trace(),
    "repeats of data": lambda t: t.repeat_interleave(torch.tensor([2, 0, 3]), 0),
    "repeats of known sum": lambda t: t.repeat_interleave(torch.tensor([2, 0, 3]), 1, output_size=5),
}


@pytest.mark.parametrize("name", READS)
def test_reads(name: str) -> None:
    check(READS[name], x(3, 3, 4))


def put(accumulate: bool, *where: Any) -> Callable[..., Any]:
    def function(t: Any, v: Any) -> Any:
        return t.index_put(where, v, accumulate)

    return function


ROWS = torch.tensor([[0, 1, 1, 2], [2, 2, 0, 1]])
WRITES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "put rows": (put(False, torch.tensor([2, 0])), (2, 4)),
    "put and add": (put(True, torch.tensor([2, 2])), (2, 4)),
    "put pairs": (put(True, torch.tensor([2, 2]), torch.tensor([1, 1])), (2,)),
    "put under a mask": (put(False, MASK), (2, 4)),
    "put one under a mask": (put(False, MASK), ()),
    "scatter": (lambda t, v: t.scatter(0, ROWS, v), (2, 4)),
    "scatter a number": (lambda t, v: t.scatter(1, ROWS[:, :3], 9.0) + v, ()),
    "scatter of more than is taken": (lambda t, v: t.scatter(0, ROWS[:1], v), (2, 4)),
    "scatter_add": (lambda t, v: t.scatter_add(0, ROWS, v), (2, 4)),
    "scatter mean": (lambda t, v: t.scatter_reduce(0, ROWS, v, "mean"), (2, 4)),
    "scatter mean alone": (lambda t, v: t.scatter_reduce(0, ROWS, v, "mean", include_self=False), (2, 4)),
    "scatter largest": (lambda t, v: t.scatter_reduce(0, ROWS, v, "amax", include_self=False), (2, 4)),
    "scatter product": (lambda t, v: t.scatter_reduce(0, ROWS, v, "prod"), (2, 4)),
    "index_add": (lambda t, v: t.index_add(0, torch.tensor([0, 0]), v, alpha=2), (2, 4)),
    "index_copy": (lambda t, v: t.index_copy(0, torch.tensor([2, 1]), v), (2, 4)),
    "index_fill": (lambda t, v: t.index_fill(1, torch.tensor([3]), 5.0) + v, ()),
    "masked_fill": (lambda t, v: t.masked_fill(t > 5, -1.0) + v, ()),
    "masked_scatter": (lambda t, v: t.masked_scatter(t > 6, v), (3, 4)),
    "put flat": (lambda t, v: t.put(torch.tensor([5, 5, -1]), v, accumulate=True), (3,)),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str) -> None:
    function, shape = WRITES[name]
    check(function, x(3, 4), x(*shape) * 0.5)


def test_truth_values_are_scattered_by_or_and_and() -> None:
    given = torch.tensor([[True, False, True], [False, False, True]])
    places = torch.tensor([[0, 1, 0], [1, 1, 0]])
    for how in ("add", "multiply"):
        check(lambda x, i, s, how=how: x.scatter(0, i, s, reduce=how), given, places, ~given)


def test_tables() -> None:
    check(lambda w, i: functional.embedding(i, w), x(5, 3), J)
    check(lambda i: functional.one_hot(i, 4), J)
    bags = torch.tensor([1, 0, 4, 4, 2]), torch.tensor([0, 2, 2])
    for mode in ("sum", "mean", "max"):
        check(lambda w, i, o, mode=mode: functional.embedding_bag(i, w, o, mode=mode), x(5, 3), *bags)
    table = torch.tensor([1.0, 2.0, 2.0, 5.0])
    for right in (False, True):
        check(lambda t, v, right=right: torch.bucketize(v, t, right=right), table, x(3, 3) - 2)


def test_places_in_open_sizes() -> None:
    inputs = (x(4, 3), torch.tensor([1, 1, 0]))
    others = [(x(2, 3), torch.tensor([1])), (x(7, 3), torch.tensor([6, -1, 3, 0]))]
    check(lambda t, i: t[i] * 2, *inputs, open_axes=[(0,), (0,)], others=others[1:])
    check(lambda t, i: t[t[:, 0] > 3], *inputs, open_axes=[(0,), (0,)], others=others[1:])


def test_through_the_compiler(tmp_path: Path) -> None:
    def function(t: Any, i: Any) -> Any:
        return t[i, :, i], t.index_put((i,), t[i] * 2), t.scatter_add(0, i[:, None, None].expand(4, 3, 4), t[i])

    check_compiled(function, x(3, 3, 4), torch.tensor([2, 0, 1, 2]), cache=tmp_path)
