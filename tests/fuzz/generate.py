"""A random model from a seed: inputs, then steps until it is large enough, then outputs of every awkward kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.fuzz.grow import Case, Grower
from tests.fuzz.steps import STEPS, chance, choice

SETTINGS: tuple[Mapping[str, int], ...] = ({"N": 3, "T": 5}, {"N": 1, "T": 13}, {"N": 8, "T": 1})
EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 12, 16, 17)


def generate(seed: int) -> Case:
    """The same model, inputs and expected outputs for the same seed."""
    random = np.random.default_rng(seed)
    g = Grower(seed, int(random.choice([13, 17, 21])), SETTINGS)
    dynamic = chance(g, 0.6)
    for _ in range(int(random.integers(1, 4))):
        add_input(g, dynamic)
    weights = np.asarray([weight for weight, _ in STEPS])
    size, tries = int(random.integers(3, 26)), 0
    while len(g.nodes) < size and tries < 4 * size:
        tries += 1
        STEPS[int(g.random.choice(len(STEPS), p=weights / weights.sum()))][1](g)
    return g.finish(outputs_of(g))


def add_input(g: Grower, dynamic: bool) -> str:
    rank = choice(g, [1, 2, 3, 3, 4, 4, 4, 5])
    shape: list[Any] = [choice(g, EXTENTS if rank < 4 else EXTENTS[:8]) for _ in range(rank)]
    if dynamic:
        if chance(g, 0.7):
            shape[0] = "N"
        if rank > 1 and chance(g, 0.4):
            shape[choice(g, [axis for axis in range(rank) if axis != 1 or rank < 3])] = "T"
    dtype = choice(g, ["float32"] * 8 + ["float64", "int64", "int64", "int32", "bool"])
    return g.input(shape, dtype)


def outputs_of(g: Grower) -> list[str]:
    """Every value that nothing reads, some others, and now and then an input, a constant, or a copy."""
    used = {name for node in g.nodes for name in node.input}
    results = [name for node in g.nodes for name in node.output]
    outputs = [name for name in results if name not in used]
    outputs += [name for name in results if name in used and chance(g, 0.1)]
    if outputs and chance(g, 0.2):
        copy = g.add("Identity", [choice(g, outputs)])
        outputs += [copy] if copy else []
    if chance(g, 0.1):
        outputs.append(choice(g, list(g.inputs)))
    if chance(g, 0.1) and g.constants:
        outputs.append(choice(g, list(g.constants)))
    order = g.random.permutation(len(outputs))
    return [outputs[index] for index in order] or [g.add("Identity", [g.order[0]])]
