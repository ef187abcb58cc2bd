"""ModuleInfo of PyTorch as cases: the modules of torch.nn with inputs, in evaluation mode."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from tests.torch.suites import Call, Case

DTYPES = ("float32", "float16")


def cases(names: Any = None, dtypes: tuple[str, ...] = DTYPES) -> Iterator[Case]:
    """Every input of the named modules ("nn.Conv2d"), or of all, in the element types that they list."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if names is not None and info.name not in names:
            continue
        for dtype in dtypes:
            kind = getattr(torch, dtype)
            if kind not in info.supported_dtypes("cpu"):
                continue
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = _made(info, kind)
            for number, (module, args, kwargs) in enumerate(made):
                call = Call(module, args, kwargs)
                yield Case(info.name, dtype, number, call, call.tensors())


def _made(info: Any, kind: Any) -> list[tuple[Any, Any, Any]]:
    """(module, args, kwargs) of the inputs of a module; none where it does not take its own inputs."""
    found = []
    try:
        inputs = info.module_inputs_func(info, device="cpu", dtype=kind, requires_grad=False, training=False)
    except Exception:  # the entry cannot make inputs here
        return []
    for given in inputs:
        if given.forward_input is None:
            continue
        made, forward = given.constructor_input, given.forward_input
        module = info.module_cls(*made.args, **made.kwargs).to(kind).eval()
        found.append((module, forward.args, forward.kwargs))
    return found
