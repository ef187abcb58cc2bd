"""OpInfo samples of PyTorch, as data, and as cases for the compiled target.

`run` is the quick way of looking at one sample: it is exported, imported and run by the interpreter. It gives
(verdict, reason); verdict is "pass", "unsupported" (this compiler refuses it), "no export" (torch does not export
it, or gives results that are no tensors) or "fail".
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.errors import UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load
from aot.frontend.torch_program import decompose

if TYPE_CHECKING:
    from tests.torch.suites import Case

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


# Nothing writes what these return.
UNWRITTEN = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
# Which of equal elements is named, and in which order, PyTorch leaves open.
UNORDERED = frozenset(
    {"argsort", "kthvalue", "max", "median", "min", "mode", "msort", "nanmedian", "sort", "topk", "argmax", "argmin"}
)


def cases(names: Any = None, limit: int = 12, dtypes: tuple[str, ...] = DTYPES) -> Iterator[Case]:
    """The samples as cases. Complex tensors are passed, and returned, as pairs of real numbers."""
    from tests.torch.suites import Call, Case

    for sample in samples(names, limit, dtypes):
        first, args, kwargs = sample.arguments
        call = Call(sample.op, (first, *args), kwargs)
        base = sample.name.partition(".")[0]
        same = same_elements if base in UNORDERED else None
        yield Case(sample.name, sample.dtype, sample.number, call, call.tensors(), base in UNWRITTEN, same)


def same_elements(mine: Any, theirs: Any, tensors: Any) -> str:
    """Whether indices that differ name equal elements along some axis; other results must be equal."""
    from tests.torch.suites import differences

    source = array_of(tensors[0])
    for array, leaf in zip(mine, theirs, strict=True):
        if not differences([array], [leaf]):
            continue
        wanted = array_of(leaf)
        if wanted.dtype.kind not in "iu" or not any(
            _picks(source, array, axis) is not None
            and np.array_equal(_picks(source, array, axis), _picks(source, wanted, axis), equal_nan=True)
            for axis in (None, *range(source.ndim))
        ):
            return ""
    return "equal elements in another order"


def _picks(source: Any, indices: Any, axis: int | None) -> Any:
    """The elements that indices name along an axis (None: of all in a row); None if they do not fit."""
    if axis is None:
        flat = source.reshape(-1)
        return flat[indices] if indices.size and 0 <= indices.min() and indices.max() < flat.size else None
    if indices.ndim == source.ndim - 1:
        indices = np.expand_dims(indices, axis)
    fits = indices.ndim == source.ndim and all(
        a == b for n, (a, b) in enumerate(zip(indices.shape, source.shape, strict=True)) if n != axis
    )
    if not fits or (indices.size and not (0 <= indices.min() and indices.max() < source.shape[axis])):
        return None
    return np.take_along_axis(source, indices, axis)


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
