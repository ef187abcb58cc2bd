"""The examples of torch.export's own catalogue: each is exported as it says, built by itself, and compared."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import aot
from aot.errors import UnsupportedError
from tests.torch.compare_files import compared, seen_whole
from tests.torch.suites import COMPARE, FILE, Call, Case, Outcome, array_of, brief, bytes_of, judged, quiet


def examples() -> Iterator[Any]:
    """The examples that PyTorch says it exports."""
    from torch._export.db.examples import all_examples

    for example in all_examples().values():
        if example.support_level.name == "SUPPORTED":
            yield example


def run(example: Any, cache: Path, target: str = "cpu:x86-64-v3", through: str = FILE) -> Outcome:
    """What becomes of an example, `through` a .pt2 file, or in memory; COMPARE only compares the graphs of both."""
    args, kwargs = example.example_args, example.example_kwargs
    call = Call(example.model, args, kwargs)
    outcome = Outcome(Case(example.name, "", 0, call, call.tensors()))
    given = copy.deepcopy((args, kwargs))
    try:
        with quiet():
            program = torch.export.export(
                copy.deepcopy(example.model), args, kwargs, dynamic_shapes=example.dynamic_shapes, strict=False
            )
            source = bytes_of(program) if through == FILE else program
            expected = pytree.tree_leaves(copy.deepcopy(example.model)(*given[0], **given[1]))
    except Exception as error:
        outcome.settle("no export", brief(error))
        return outcome
    if through == COMPARE:
        with quiet():
            outcome.settle(*compared(program, seen_whole))
        return outcome
    kinds = torch.Tensor | bool | int | float
    wanted = [(str(number), leaf) for number, leaf in enumerate(expected) if isinstance(leaf, kinds)]
    try:
        with quiet():  # PyTorch warns of its own treespecs
            artifact = aot.compile(source, target, cache_dir=cache)
        with aot.load(artifact.data, threads=1) as model:
            kept = {pair.output for pair in model.state}
            results = model.run(_feeds(program, model, call.tensors()))
            mine = [array for name, array in results.items() if name not in kept]
            outcome.settle(*judged(outcome, mine, wanted))
    except UnsupportedError as error:
        outcome.settle("unsupported", brief(error))
    except Exception as error:
        outcome.settle("fail", brief(error))
    return outcome


def _feeds(program: Any, model: Any, tensors: list[Any]) -> dict[str, Any]:
    """The arrays for the inputs of an artifact: the caller's tensors, and buffers that change."""
    rest = iter(tensors)
    given: dict[str, Any] = {}
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT" and isinstance(values[spec.arg.name], torch.Tensor):
            given[spec.arg.name] = next(rest)
        elif spec.kind.name == "BUFFER":
            given[spec.target] = program.state_dict.get(spec.target, program.constants.get(spec.target))
    return {port.name: array_of(given[port.name]) for port in model.inputs}
