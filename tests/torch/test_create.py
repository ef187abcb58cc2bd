"""Tensors made from sizes and numbers in torch.export programs, and random numbers of the compiler's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.evaluate import evaluate
from aot.frontend import load
from tests.torch.programs import check, check_compiled, exported

torch = pytest.importorskip("torch")
functional = torch.nn.functional

MADE: dict[str, Callable[[Any], Any]] = {
    "full": lambda t: (torch.full((2, 3), 1.5), torch.full_like(t, -2), t.new_full((2,), 3), torch.full((), True)),
    "zeros": lambda t: (torch.zeros(2), torch.ones_like(t), t.new_zeros(1, 2), torch.ones(3, dtype=torch.int64)),
    "scalar": lambda t: (torch.scalar_tensor(2.5), torch.scalar_tensor(3, dtype=torch.int32)),
    "arange": lambda t: (torch.arange(7), torch.arange(2, 9, 3), torch.arange(5, -3, -2), torch.arange(3, 3)),
    "arange of floats": lambda t: (torch.arange(0, 1, 0.1), torch.arange(1.5, 4), torch.arange(5.0, dtype=torch.half)),
    "linspace": lambda t: (torch.linspace(-1, 2, 7), torch.linspace(3, 1, 5), torch.linspace(2, 5, 1)),
    "linspace of whole numbers": lambda t: torch.linspace(-10, 10, 9, dtype=torch.int64),
    "logspace": lambda t: torch.logspace(-1, 2, 5),
    "eye": lambda t: (torch.eye(3), torch.eye(2, 4, dtype=torch.bool)),
    "triangles": lambda t: (t.tril(), t.triu(1), t.tril(-2), t.bool().triu()),
    "places of triangles": lambda t: (torch.tril_indices(3, 4, 1), torch.triu_indices(4, 3, -1)),
}


@pytest.mark.parametrize("name", MADE)
def test_made(name: str) -> None:
    check(lambda t: (MADE[name](t), t + 1), torch.arange(20.0).reshape(4, 5))


def test_a_range_of_truth_values() -> None:
    check(lambda x: torch.arange(False, True) + x, torch.ones(2))


def test_open_sizes() -> None:
    def function(t: Any) -> Any:
        rows, columns = t.shape
        made = (torch.arange(rows), torch.zeros(columns, rows), torch.full_like(t, 2), torch.eye(rows))
        return (*made, torch.arange(1, rows + columns, 2))

    check(function, torch.randn(3, 4), open_axes=((0, 1),), others=((torch.randn(6, 9),),))


def drawn(function: Callable[[Any], Any], *inputs: Any) -> list[Any]:
    return evaluate(load(exported(function, inputs)), [np.asarray(given) for given in inputs])


def test_random_numbers_have_their_distribution_and_are_the_same_each_time() -> None:
    def function(t: Any) -> Any:
        return (
            torch.rand_like(t), torch.randn(t.shape), torch.randint(2, 7, (4000,)), torch.randperm(50),
            torch.bernoulli(t * 0 + 0.25), torch.rand(4000) + 1,
        )  # fmt: skip

    uniform, normal, whole, order, coin, other = drawn(function, torch.zeros(4000))
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.02
    assert abs(normal.mean()) < 0.06 and abs(normal.std() - 1) < 0.05
    assert set(whole.tolist()) == {2, 3, 4, 5, 6}
    assert sorted(order.tolist()) == list(range(50)) and order.tolist() != list(range(50))
    assert abs(coin.mean() - 0.25) < 0.03 and set(coin.tolist()) == {0.0, 1.0}
    assert not np.allclose(uniform, other - 1)
    for mine, again in zip((uniform, normal), drawn(function, torch.zeros(4000)), strict=False):
        np.testing.assert_array_equal(mine, again)


def test_dropout_does_nothing_outside_of_training() -> None:
    check(lambda t: functional.dropout(t, 0.5, training=False) + 1, torch.randn(5))


def test_dropout_in_training_drops() -> None:
    (kept,) = drawn(lambda t: functional.dropout(t, 0.25, training=True), torch.ones(4000))
    assert abs((kept == 0).mean() - 0.25) < 0.03
    np.testing.assert_allclose(kept[kept != 0], 1 / 0.75, rtol=1e-6)


def test_draws_by_weight() -> None:
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0]])
    with_, without = drawn(lambda t: (t.multinomial(500, replacement=True), t.multinomial(2)), weights)
    assert set(with_.reshape(-1).tolist()) == {1, 2} and abs((with_ == 2).mean() - 0.75) < 0.08
    assert sorted(without.reshape(-1).tolist()) == [1, 2]


def test_skewed_draws() -> None:
    """By their medians and means; their tails are long."""
    cauchy, logs, trials = drawn(
        lambda t: (t.clone().cauchy_(2.0, 0.5), t.clone().log_normal_(1.0, 0.5), t.clone().geometric_(0.25)),
        torch.zeros(4000),
    )
    assert abs(np.median(cauchy) - 2.0) < 0.05 and abs(np.quantile(cauchy, 0.75) - 2.5) < 0.1
    assert abs(np.log(logs).mean() - 1.0) < 0.05 and abs(np.log(logs).std() - 0.5) < 0.05
    assert trials.min() == 1 and abs(trials.mean() - 4.0) < 0.3 and (trials == np.round(trials)).all()


def test_compiled(tmp_path: Path) -> None:
    def function(t: Any) -> Any:
        return tuple(item for name in MADE for item in (MADE[name](t), t + 1))

    check_compiled(function, torch.arange(20.0).reshape(4, 5), cache=tmp_path)
