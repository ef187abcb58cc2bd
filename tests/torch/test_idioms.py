"""Idioms of model code: what they become, and that they agree with eager; the kernels of a decoder layer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.evaluate import evaluate
from aot.frontend import load
from aot.ir import Graph
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES

pytest.importorskip("torch")
import torch

from tests.torch.idioms import GROUPS, Grouped, Layer, group_arguments, idioms, layer_arguments
from tests.torch.opinfo import array_of
from tests.torch.programs import leaves

IDIOMS = idioms()
WHOLE = {"norm": "rms_norm", "gate": "matmul", "patches": "attention", "windows": "attention", "decoder": "attention",
         "grouped": "attention"}  # fmt: skip


def core(model: Any, arguments: tuple[Any, ...], **options: Any) -> Graph:
    """The graph before fusion."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model.eval(), arguments, strict=False, **options)
    return PassManager(CORE_PASSES, Context()).run(load(program))


def agree(graph: Graph, model: Any, arguments: tuple[Any, ...]) -> None:
    given = [array_of(argument) for argument in arguments if isinstance(argument, torch.Tensor)]
    for mine, theirs in zip(evaluate(graph, given), leaves(model(*arguments)), strict=True):
        np.testing.assert_allclose(mine, array_of(theirs), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", IDIOMS)
def test_is_recognized_and_agrees(name: str) -> None:
    torch.manual_seed(3)
    make, arguments = IDIOMS[name]
    model, given = make(), arguments()
    graph = core(model, given)
    ops = [node.op for node in graph.nodes]
    wanted = WHOLE.get(name.split(" ")[0].rstrip(","))
    assert wanted is None or wanted in ops
    assert not {"softmax", "rsqrt", "erf", "tanh", "tile"} & set(ops), ops
    if name.startswith("grouped"):
        assert set(ops) <= {"attention", "reshape"}, ops
    with torch.no_grad():
        agree(graph, model, given)


FORMS = [
    *((how, mask) for how in GROUPS for mask in ("none", "added")),
    *((how, mask) for how in ("gqa", "stack", "interleave") for mask in ("flags", "causal")),
]


@pytest.mark.parametrize(("how", "mask"), FORMS)
def test_repeated_keys_are_never_made(how: str, mask: str) -> None:
    torch.manual_seed(4)
    model, given = Grouped(how, mask), group_arguments(mask)
    graph = core(model, given)
    (attention,) = (node for node in graph.nodes if node.op == "attention")
    assert [value.type.shape for value in attention.operands[1:3]] == [(2, 2, 6, 8)] * 2
    assert all(value in graph.inputs for value in attention.operands[1:3])
    agree(graph, model, given)


@pytest.mark.parametrize("how", ["interleave", "expand", "stack", "gqa", "axis", "einsum"])
def test_a_symbolic_batch_is_grouped_too(how: str) -> None:
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=512)
    shapes = {"q": {0: batch}, "k": {0: batch, 2: length}, "v": {0: batch, 2: length}, "mask": None}
    given = (*group_arguments("none"), None)
    graph = core(Grouped(how, "none"), given, dynamic_shapes=shapes)
    assert [node.op for node in graph.nodes if node.op in ("attention", "matmul", "expand", "copy")] == ["attention"]
    others = (torch.randn(3, 4, 6, 8), torch.randn(3, 2, 9, 8), torch.randn(3, 2, 9, 8))
    agree(graph, Grouped(how, "none"), others)


def test_a_mask_by_head_is_grouped() -> None:
    """A mask that differs between the heads of a group, and one that differs between groups."""
    for shape in ((1, 2, 2, 6, 6), (2, 2, 1, 6, 6), (1, 1, 2, 6, 6), (6, 6)):
        torch.manual_seed(5)
        mask = torch.randn(*shape)

        class Five(torch.nn.Module):
            def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
                scores = q.view(2, 2, 2, 6, 8) @ k[:, :, None].transpose(-1, -2) * 8**-0.5 + mask
                return (scores.softmax(-1) @ v[:, :, None]).flatten(1, 2)

        given = (*group_arguments("none"), mask)
        graph = core(Five(), given)
        assert sum(node.op == "attention" for node in graph.nodes) == 1
        agree(graph, Five(), given)


def test_kernels_of_a_decoder_layer(tmp_path: Path) -> None:
    """No kernel moves a cache: one writes a row of it, and attention reads it where it lies."""
    model = Layer().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, layer_arguments(), strict=False)
    artifact = aot.compile(program, "cpu:x86-64-v3", cache_dir=str(tmp_path))
    (planned,) = artifact.programs
    kinds = [kernel.kind for kernel, _ in planned.launches]
    assert sorted(kinds) == sorted(
        [*["row"] * 2, *["contract"] * 7, *["map"] * 4, *["scatter"] * 2, "attend"]
    )  # two norms; q, k, v, out, gate, up and down; the halves of two rotations; two rows written
    assert planned.state == ((1, 1), (2, 2))
    # A product with the other's activation and the residual are epilogues.
    locs = [set(step.locs) for kernel, step in planned.launches if kernel.kind == "contract"]
    assert any("silu" in found and len(found) > 2 for found in locs)
    arguments = layer_arguments()
    compiled = artifact.load(threads=1)
    with torch.no_grad():
        wanted = [tensor.numpy() for tensor in model(*arguments)]
    given = dict(zip([spec.name for spec in compiled.inputs], map(array_of, arguments), strict=True))
    state = {name: given.pop(name).copy() for name in ("keys", "values")}
    (found,) = compiled.run(given, state=state).values()
    for mine, theirs in zip((found, *state.values()), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)
