"""Functions of tensors through torch.export, import and interpreter or compiler, compared with eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import aot
from aot.evaluate import evaluate
from aot.frontend import load
from aot.ir import Graph
from tests.torch.opinfo import array_of, compare


def exported(function: Callable[..., Any], inputs: Sequence[Any], open_axes: Sequence[Sequence[int]] = ()) -> Any:
    """The exported program; `open_axes`: for each input the axes whose sizes stay symbolic."""
    import torch

    class Call(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

    shapes = tuple({axis: torch.export.Dim.AUTO for axis in axes} for axes in open_axes) or None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(
            Call(), tuple(inputs), strict=False, dynamic_shapes=None if shapes is None else (shapes,)
        )


def leaves(result: Any) -> list[Any]:
    """The tensors of what a function gave."""
    from torch.utils import _pytree as pytree

    return list(pytree.tree_leaves(result))


def check(
    function: Callable[..., Any],
    *inputs: Any,
    open_axes: Sequence[Sequence[int]] = (),
    others: Sequence[Sequence[Any]] = (),
) -> Graph:
    """The graph, after its interpretation agreed with eager on the inputs and on `others`."""
    graph = load(exported(function, inputs, open_axes))
    for given in (inputs, *others):
        compare(evaluate(graph, [array_of(tensor) for tensor in given]), leaves(function(*given)))
    return graph


def check_compiled(
    function: Callable[..., Any], *inputs: Any, cache: Path, relative: float = 2e-4, others: Sequence[Any] = ()
) -> None:
    """As `check`, through the compiler and the runtime, on two threads; `others` are more inputs to run."""
    model = aot.compile(exported(function, inputs), "cpu:x86-64-v3", cache_dir=str(cache)).load(threads=2)
    for each in (inputs, *others):
        given = dict(zip([info.name for info in model.inputs], map(array_of, each), strict=True))
        for mine, theirs in zip(model.run(given).values(), leaves(function(*each)), strict=True):
            np.testing.assert_allclose(mine, array_of(theirs), rtol=relative, atol=1e-5)
