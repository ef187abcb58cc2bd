"""OpInfo samples of PyTorch, as data: each is exported, imported and run by the interpreter, and compared with eager.

A run is (verdict, reason); verdict is "pass", "unsupported" (this compiler refuses it), "no export" (torch does not
export it, or gives results that are no tensors) or "fail".
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot.errors import UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load
from aot.frontend.torch_program import decompose

DTYPES = ("float32", "float16", "int64", "bool")
TOLERANCE = {"float16": (4e-3, 4e-3), "float32": (2e-4, 2e-5)}  # relative, absolute


@dataclass(frozen=True)
class OpSample:
    """One call: `op` of torch on the tensors of `arguments`, a nested structure in which they stand."""

    name: str
    dtype: str
    number: int
    op: Any
    arguments: Any


def samples(names: Any = None, limit: int = 3, dtypes: tuple[str, ...] = DTYPES) -> Iterator[OpSample]:
    """The samples of the named entries ("add", "nn.functional.gelu"), or of all; at most `limit` for each dtype."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    for entry in op_db:
        if names is not None and entry.name not in names:
            continue
        full = f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name
        for dtype in dtypes:
            kind = getattr(torch, dtype)
            if not entry.supports_dtype(kind, "cpu"):
                continue
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found = list(itertools.islice(entry.sample_inputs("cpu", kind, requires_grad=False), limit))
                except Exception:  # the entry cannot make samples of this dtype here
                    continue
            for number, sample in enumerate(found):
                yield OpSample(full, dtype, number, entry.op, (sample.input, sample.args, sample.kwargs))


def program_of(sample: OpSample) -> tuple[Any, list[Any], list[Any]]:
    """The exported program, its tensors, and the leaves of eager's results. Raises whatever torch raises."""
    import torch
    from torch.utils import _pytree as pytree

    leaves, spec = pytree.tree_flatten(sample.arguments)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[place].detach().clone() for place in places]

    class Call(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, given, strict=True):
                filled[place] = tensor
            first, args, kwargs = pytree.tree_unflatten(filled, spec)
            return sample.op(first, *args, **kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = pytree.tree_leaves(Call()(*[tensor.clone() for tensor in tensors]))
        program = torch.export.export(Call(), tuple(tensor.clone() for tensor in tensors), strict=False)
        return program, tensors, expected


def run(sample: OpSample) -> tuple[str, str]:
    """The verdict on one sample, and the reason."""
    import torch

    try:
        program, tensors, expected = program_of(sample)
        decompose(program)
    except Exception as error:
        return "no export", f"{type(error).__name__}: {str(error)[:120]}"
    wanted = [leaf for leaf in expected if leaf is not None]
    if any(not isinstance(leaf, torch.Tensor | int | float | bool) for leaf in wanted):
        return "no export", "results that are no tensors"
    try:
        graph = load(program)
    except UnsupportedError as error:
        lines = str(error).splitlines()
        return "unsupported", lines[min(1, len(lines) - 1)].strip()
    except Exception as error:
        return "fail", f"{type(error).__name__}: {str(error)[:200]}"
    try:
        feeds = [array_of(tensor) for tensor in tensors]
        names = [f"given_{number}" for number in range(len(feeds))]
        given = dict(zip(names, feeds, strict=True))
        got = evaluate(graph, [given.get(value.name, feeds[i]) for i, value in enumerate(graph.inputs)])
        compare(got, wanted)
    except Exception as error:
        return "fail", f"{type(error).__name__}: {str(error)[:200]}"
    return "pass", ""


def array_of(tensor: Any) -> Any:
    """A torch tensor as the array that the interpreter takes."""
    from aot.frontend.torch_import import np_array
    from aot.frontend.torch_registry import dtype_of

    return np_array(tensor, dtype_of(tensor.dtype))


def compare(got: list[Any], expected: list[Any]) -> None:
    """Raises AssertionError where results differ in number, type, shape or value."""
    import torch

    assert len(got) == len(expected), f"{len(got)} results, eager has {len(expected)}"
    for mine, theirs in zip(got, expected, strict=True):
        wanted = array_of(theirs) if isinstance(theirs, torch.Tensor) else np.asarray(theirs)
        assert mine.shape == wanted.shape, f"shape {mine.shape}, eager has {wanted.shape}"
        if isinstance(theirs, torch.Tensor):
            assert mine.dtype == wanted.dtype, f"type {mine.dtype}, eager has {wanted.dtype}"
        if wanted.dtype.kind in "biu":
            np.testing.assert_array_equal(mine, wanted)
        else:
            relative, absolute = TOLERANCE.get(str(wanted.dtype), (1e-6, 1e-7))
            wide = mine.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(*wide, rtol=relative, atol=absolute, equal_nan=True)
