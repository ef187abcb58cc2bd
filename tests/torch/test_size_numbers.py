"""Numbers and conditions that Python computes from open sizes, and guards that are no relation of whole numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import aot
from aot.errors import AotError, GuardError, RunError
from aot.evaluate import evaluate
from aot.frontend import load

TARGET = "cpu:x86-64-v3"
SHORT = 5  # beside the example's 8


def exported(function: Callable[[Any], Any], x: Any = None) -> Any:
    """A program of a function of x, whose first size is open."""

    class Call(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    given = (torch.randn(8, 2) if x is None else x,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Call(), given, strict=False, dynamic_shapes=({0: Dim.DYNAMIC},))


def results(program: Any, *given: Any) -> list[Any]:
    return evaluate(load(program), [tensor.numpy() for tensor in given])


NUMBERS: dict[str, Callable[..., Any]] = {
    "power": lambda x, n: x * n**-0.5,
    "inverse": lambda x, n: x * (1 / n),
    "half": lambda x, n: x + n / 2 - x / (n / 2),
    "floor": lambda x, n: x // (n / 4),
    "full": lambda x, n: torch.full((2,), n / 3),
    "filled": lambda x, n: x.clone().fill_(n / 7),
    "bounds": lambda x, n: x.clamp(min=-n / 20, max=n / 9),
    "a base": lambda x, n: x.abs() ** (1 / n),
    "choice": lambda x, n: torch.where(x > 0, x, n / 2),
    "masked": lambda x, n: x.masked_fill(x > 0, n / 2),
    "a line": lambda x, n: torch.linspace(0, n - 1, 4),
    "sum": lambda x, n: torch.add(x, x, alpha=1 / n),
    "sum of products": lambda x, n: torch.addcmul(x, x, x, value=1 / n),
    "product and sum": lambda x, n: torch.addmm(x, x, torch.ones(2, 2), alpha=1 / n, beta=n / 3),
    "between": lambda x, n: torch.lerp(x, x * 2, 1 / n),
    "a slope": lambda x, n: F.leaky_relu(x, 1 / n),
    "distance": lambda x, n: x * abs(n - 6),
    "a rounded number": lambda x, n: x * round(n / 3),
    "a condition": lambda x, n: torch.tensor(n > 5),
    "conditions": lambda x, n: torch.tensor((n > 3) & (n < 6)),
    "times a condition": lambda x, n: x * (n % 2 == 0),
    "half precision": lambda x, n: x.half() * n**-0.5,
    "double precision": lambda x, n: x.double() * (1 / n),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_those_of_the_run(name: str) -> None:
    program = exported(lambda x: NUMBERS[name](x, x.shape[0]))
    for rows in (8, SHORT, 13):
        x = torch.randn(rows, 2)
        (found,) = results(program, x)
        wanted = NUMBERS[name](x, rows).numpy()
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=2e-3 if wanted.dtype == np.float16 else 1e-5, atol=1e-6)


def test_a_size_from_a_number(tmp_path: Path) -> None:
    program = exported(lambda x: (lambda n: x[: round(n / 3)].sum(0) + round(n / 3))(x.shape[0]))
    with aot.compile(program, TARGET, cache_dir=str(tmp_path)).load(threads=1) as model:
        for rows in (8, SHORT, 13):
            x = torch.randn(rows, 2)
            wanted = x[: round(rows / 3)].sum(0) + round(rows / 3)
            np.testing.assert_allclose(model(x), wanted, rtol=1e-5, atol=1e-6)


def test_the_branch_of_the_run(tmp_path: Path) -> None:
    def branches(x: Any) -> Any:
        return torch.cond(torch.tensor(x.shape[0] > 5), lambda x: x.sum(0), lambda x: x.amax(0) / x.shape[0], (x,))

    program = exported(branches)
    with aot.compile(program, TARGET, cache_dir=str(tmp_path)).load(threads=1) as model:
        for rows in (8, SHORT, 6, 2):
            x = torch.randn(rows, 2)
            np.testing.assert_allclose(model(x), x.sum(0) if rows > 5 else x.amax(0) / rows, rtol=1e-5)


def test_outputs_that_are_numbers_and_conditions() -> None:
    program = exported(lambda x: (x.sum(), x.shape[0] > 4, x.shape[0] / 2, x.shape[0]))
    for rows in (8, SHORT, 3):
        _, is_long, half, size = results(program, torch.randn(rows, 2))
        assert (bool(is_long), float(half), int(size)) == (rows > 4, rows / 2, rows)


CONDITIONS: dict[str, Callable[[int], bool]] = {
    "a root": lambda n: n**0.5 > 2.5,
    "half": lambda n: n / 2 > 2.5,
    "a factor": lambda n: n * 0.3 > 2,
    "a fourth": lambda n: n / 4 == 2,
    "rounded": lambda n: round(n / 3) == 3,
    "rounded up": lambda n: math.ceil(n / 3) == 3,
    "a whole root": lambda n: int(n**0.5) == 2,
    "bits": lambda n: n & (n - 1) == 0,
    "third": lambda n: n // 3 == 2,
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_program_runs_for_the_sizes_of_its_branch_alone(name: str, tmp_path: Path) -> None:
    holds = CONDITIONS[name]
    program = exported(lambda x: x * 2 if holds(x.shape[0]) else x * 3)
    with aot.compile(program, TARGET, cache_dir=str(tmp_path)).load(threads=1) as model:
        for rows in range(2, 20):
            x = torch.randn(rows, 2)
            if holds(rows) == holds(8):
                np.testing.assert_array_equal(model(x), x * 2)
            else:
                with pytest.raises((GuardError, RunError), match=r"sizes of the inputs|dimension 0|L\['x'\]"):
                    model(x)


FACTORIES: dict[str, Callable[[], Any]] = {
    "hamming": lambda: torch.hamming_window(16),
    "blackman": lambda: torch.blackman_window(16),
    "kaiser": lambda: torch.kaiser_window(16),
    "bartlett": lambda: torch.bartlett_window(16, periodic=False),
}


def test_a_condition_that_ends_far_away(tmp_path: Path) -> None:
    program = exported(lambda x: x * 2 if x.shape[0] / 2 < 5000.3 else x * 3)
    with aot.compile(program, TARGET, cache_dir=str(tmp_path)).load(threads=1) as model:
        for rows in (2, 5000, 10000):
            np.testing.assert_array_equal(model(torch.ones(rows, 2)), 2)
        with pytest.raises((GuardError, RunError)):
            model(torch.ones(10001, 2))


@pytest.mark.parametrize("name", FACTORIES)
def test_tensors_that_are_made_of_numbers_alone(name: str) -> None:
    x = torch.randn(3, 16)
    (found,) = results(exported(lambda x: x * FACTORIES[name](), torch.randn(8, 16)), x)
    np.testing.assert_allclose(found, x * FACTORIES[name](), rtol=1e-6)


def test_paddings_of_open_sizes() -> None:
    kernel = torch.randn(1, 1, 3)
    program = exported(lambda x: F.conv1d(x.T[:, None], kernel, padding=x.shape[0] - 2))
    turned = exported(
        lambda x: F.conv_transpose1d(
            F.conv1d(x.T[:, None], kernel, stride=3), kernel, stride=3, output_padding=x.shape[0] % 3
        )
    )
    for rows in (8, SHORT, 7, 12):
        x = torch.randn(rows, 2)
        np.testing.assert_allclose(
            results(program, x)[0], F.conv1d(x.T[:, None], kernel, padding=rows - 2), rtol=1e-5, atol=1e-6
        )
        wanted = F.conv_transpose1d(F.conv1d(x.T[:, None], kernel, stride=3), kernel, stride=3, output_padding=rows % 3)
        np.testing.assert_allclose(results(turned, x)[0], wanted, rtol=1e-5, atol=1e-6)


def test_both_axes_padded_to_pairs() -> None:
    def merged(x: Any) -> Any:
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        return torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)

    class Merged(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return merged(x)

    for height, width in ((7, 10), (7, 11), (8, 10)):
        program = torch.export.export(
            Merged(), (torch.randn(2, height, width, 3),), dynamic_shapes=({1: Dim.AUTO, 2: Dim.AUTO},)
        )
        for rows, columns in ((8, 9), (8, 10), (7, 7), (5, 12)):
            x = torch.randn(2, rows, columns, 3)
            try:
                wanted = program.module()(x)
            except AssertionError:  # PyTorch's own guards
                continue
            (found,) = results(program, x)
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", ["scan", "root"])
def test_files_of_what_pytorch_writes(kind: str, tmp_path: Path) -> None:
    from torch._higher_order_ops.associative_scan import associative_scan

    class Added(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return associative_scan(torch.add, x, dim=0, combine_mode="generic")

    if kind == "scan":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(Added(), (torch.randn(8, 2),))
        sizes = [8]
    else:
        program, sizes = exported(lambda x: x * torch.sym_sqrt(x.shape[0])), [8, SHORT]
    path = tmp_path / "program.pt2"
    torch.export.save(program, path)
    for rows in sizes:
        x = torch.randn(rows, 2)
        (found,) = evaluate(load(path), [x.numpy()])
        np.testing.assert_allclose(found, x.cumsum(0) if kind == "scan" else x * rows**0.5, rtol=1e-5, atol=1e-6)


def test_what_is_not_computed_says_so() -> None:
    with pytest.raises(AotError, match="PowByNatural"):
        load(exported(lambda x: x * 2 ** x.shape[0]))
