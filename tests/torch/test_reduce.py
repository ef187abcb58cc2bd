"""Reductions, running results, orders, softmax and distinct elements in torch.export programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.torch.programs import check, check_compiled

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow  # an export for each case: minutes in all
functional = torch.nn.functional


def x(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda t: (t.sum(), t.sum(1), t.sum((0, -1), keepdim=True), t.sum(0, dtype=torch.float64)),
    "mean": lambda t: (t.mean(), t.mean((0, 2)), t.mean(-1, keepdim=True)),
    "prod": lambda t: (t.prod(), t.prod(1), t.prod(2, keepdim=True)),
    "amax": lambda t: (t.amax(), t.amax((0, 1)), t.amin(2, keepdim=True), torch.aminmax(t, dim=1)),
    "max": lambda t: (t.max(), t.max(1), t.min(-1, keepdim=True), torch.max(t, t * 2)),
    "argmax": lambda t: (t.argmax(), t.argmax(1), t.argmin(2, keepdim=True), t.argmin()),
    "any": lambda t: ((t > 1).any(), (t > 1).any(1), (t > -1).all((0, 2)), t.all()),
    "var": lambda t: (t.var(), t.var(1), t.std((0, 2), correction=0), torch.var_mean(t, dim=1, keepdim=True)),
    "logsumexp": lambda t: (t.logsumexp(1), t.logsumexp((0, 2), keepdim=True)),
    "norm": lambda t: tuple(
        torch.linalg.vector_norm(t, order, dim=1) for order in (2, 1, 0, 3.5, float("inf"), -float("inf"))
    ),
    "dist": lambda t: (torch.dist(t, t + 1), torch.dist(t, t * 2, 1)),
    "count": lambda t: ((t > 0).count_nonzero(), (t > 0).count_nonzero(1), t.nansum(1), t.nanmean(1)),
    "cumsum": lambda t: (t.cumsum(1), t.cumprod(-1), t.logcumsumexp(0)),
    "cummax": lambda t: (t.cummax(1), t.cummin(-1)),
    "softmax": lambda t: (t.softmax(1), t.log_softmax(-1), t.softmax(0, dtype=torch.float64), functional.softmin(t, 1)),
    "sort": lambda t: (t.sort(stable=True, dim=1), t.sort(dim=-1, descending=True, stable=True), t.argsort(0)),
    "topk": lambda t: (t.topk(2, dim=1), t.topk(3, largest=False)),
    "kthvalue": lambda t: (t.kthvalue(2, dim=1), t.kthvalue(1, keepdim=True)),
    "median": lambda t: (t.median(), t.median(1), t.nanmedian(), t.nanmedian(2, keepdim=True)),
    "histc": lambda t: (t.histc(7), t.histc(4, -1, 1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_of_floats(name: str) -> None:
    check(REDUCTIONS[name], x(3, 5, 4))


@pytest.mark.parametrize("name", [name for name in REDUCTIONS if name not in ("histc", "topk", "kthvalue", "median")])
def test_of_numbers_that_are_none(name: str) -> None:
    t = x(3, 5, 4)
    t[0, 1, 2] = t[2, 2] = float("nan")
    if name != "var":  # whose mean of infinities is NaN in torch
        t[1, 0, 0], t[1, 1, 1] = float("inf"), -float("inf")
    check(REDUCTIONS[name], t)


def test_orders_put_numbers_that_are_none_last() -> None:
    """Values; torch does not say which of equal elements it takes."""
    t = x(3, 5, 4)
    t[0, 1, 2] = t[2, 2] = float("nan")
    check(lambda v: (v.topk(2, dim=1).values, v.kthvalue(2, dim=1).values, v.median(1).values, v.median()), t)
    check(lambda v: (v.nanmedian(1).values, v.nanmedian(), v.nanmedian(2, keepdim=True).values), t)


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "max", "argmax", "cumsum", "cummax", "count"])
def test_of_whole_numbers(name: str) -> None:
    t = torch.arange(60).reshape(3, 5, 4) * 7 % 11 - 3
    if name == "cumsum":
        check(lambda v: (v.cumsum(1), v.to(torch.int32).cumprod(0)), t)
    elif name == "count":
        check(lambda v: (v.count_nonzero(), v.count_nonzero(1)), t)
    elif name == "sum":
        check(lambda v: (v.sum(), v.to(torch.int8).sum(1), v.sum(1, dtype=torch.float32)), t)
    else:
        check(REDUCTIONS[name], t)


def test_of_truth_values() -> None:
    t = x(3, 5) > 0
    check(lambda v: (v.sum(), v.sum(1), v.amax(1), v.max(1), v.all(0), v.cumsum(1), v.prod(0)), t)


def test_of_one_number() -> None:
    check(
        lambda v: (v.sum(), v.mean(0), v.max(0), v.argmax(), v.softmax(0), v.cumsum(0), v.cummax(0), v.sort()),
        torch.tensor(2.5),
    )
    check(lambda v: (v.topk(1), v.kthvalue(1), v.median(0), v.mode(0), v.logsumexp(0), v.any()), torch.tensor(2.5))


def test_of_half_types() -> None:
    t = x(4, 9).half()
    check(lambda v: (v.sum(1), v.mean(), v.softmax(1), v.amax(0), v.var(1), v.logsumexp(1), v.cummax(0)), t)


def test_of_no_elements() -> None:
    t = torch.zeros(3, 0)
    check(lambda v: (v.sum(1), v.prod(1), v.any(1), v.all(1), v.mean(1), v.cumsum(1), v.sum()), t)


def test_open_axes() -> None:
    check(
        lambda t: (t.mean(1), t.var(1), t.sum((0, 1)), t.std(), t.softmax(1), t.median(1).values),
        x(3, 5),
        open_axes=((0, 1),),
        others=((x(2, 9),),),
    )


def test_mode_takes_the_least_of_the_most_frequent() -> None:
    t = torch.tensor([[3, 1, 3, 1, 2], [2, 2, 2, 0, 0], [5, 4, 3, 2, 1]])
    check(lambda v: (v.mode(1).values, v.mode(0, keepdim=True).values), t)


def test_distinct_elements() -> None:
    t = torch.tensor([[2, 1, 2, 2], [1, 1, 5, 2], [2, 1, 2, 2]])
    check(lambda v: torch.unique(v, return_inverse=True, return_counts=True), t)
    check(lambda v: torch.unique(v, dim=0, return_inverse=True, return_counts=True), t)
    check(lambda v: torch.unique_consecutive(v, return_inverse=True, return_counts=True), t)
    check(lambda v: torch.unique_consecutive(v, dim=1, return_counts=True), t)
    check(lambda v: torch.unique(v), torch.tensor([1.0, float("nan"), -0.0, 0.0, float("nan"), 1.0]))


def test_bins() -> None:
    t = torch.tensor([3, 0, 3, 1, 7])
    check(lambda v: torch.bincount(v), t)
    check(lambda v: torch.bincount(v, minlength=12), t)
    check(lambda v, w: torch.bincount(v, weights=w), t, torch.tensor([0.5, 1.0, 0.25, 2.0, -1.0]))


def test_compiled(tmp_path: Path) -> None:
    def function(t: Any) -> Any:
        return (
            t.softmax(1), t.std(2), t.logsumexp((0, 2)), t.cummax(1), t.median(1), t.max(2), t.argmin(),
            torch.linalg.vector_norm(t, 3, dim=1), t.histc(5), t.all(1), t.cumsum(1),
        )  # fmt: skip

    check_compiled(function, x(3, 7, 5), cache=tmp_path)
