"""How far a compiled program may be from eager torch, and how far it is.

Every op on the longest path through a program rounds its result once, on either side, and a sum that is taken in
another order differs by about as much again. Hence 4 units of the dtype's precision for each op on that path,
relative to the output's largest element: what is added and subtracted on the way is as large as that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

UNITS = 4


def depth(program: Any) -> int:
    """Ops that compute floats on the longest path through an ExportedProgram; views compute nothing."""
    deepest: dict[Any, int] = {}
    for node in program.graph.nodes:
        before = max((deepest[each] for each in node.all_input_nodes), default=0)
        deepest[node] = before + (node.op == "call_function" and _computes(node))
    return max(deepest.values(), default=0)


def _computes(node: Any) -> bool:
    value = node.meta.get("val")
    if isinstance(value, tuple | list):
        value = next(iter(value), None)
    is_float = isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    return is_float and not getattr(node.target, "is_view", False)


def allowed_error(program: Any, dtype: torch.dtype = torch.float32) -> float:
    """The largest difference that agrees, relative to the output's largest element."""
    return UNITS * torch.finfo(dtype).eps * max(depth(program), 1)


def flat_tensors(outputs: Any) -> list[Any]:
    """The tensors in nested outputs, in order."""
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def of_allowed(got: Sequence[Any], want: Sequence[Any], allowed: float) -> float:
    """The largest |difference| of any output, over what is allowed; infinite where shapes or whole numbers differ."""
    worst = 0.0
    for mine, theirs in zip(got, want, strict=True):
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return float("inf")
        if theirs.dtype.kind != "f":
            worst = worst if np.array_equal(mine, theirs) else float("inf")
            continue
        if not np.isfinite(mine).all() or not np.isfinite(theirs).all():
            return float("inf")
        scale = float(np.abs(theirs).max(initial=0)) or float(np.finfo(theirs.dtype).tiny)
        difference = float(np.abs(mine.astype(np.float64) - theirs).max(initial=0))
        worst = max(worst, difference / (allowed * scale))
    return worst
