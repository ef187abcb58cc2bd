"""Normalizations in torch.export programs: one op of the table each, whatever form they have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.torch.programs import check, check_compiled

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def x(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


C, W, B = x(6, seed=1), x(7, seed=2), x(7, seed=3)
MEAN, VAR = x(6, seed=4), x(6, seed=5).abs() + 0.1
NORMS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "layer": ("layer_norm", lambda t: functional.layer_norm(t, (7,), W, B, 1e-3)),
    "layer of two axes": ("layer_norm", lambda t: functional.layer_norm(t, (6, 7))),
    "layer without bias": ("layer_norm", lambda t: functional.layer_norm(t, (7,), W)),
    "rms": ("rms_norm", lambda t: functional.rms_norm(t, (7,), W, 1e-3)),
    "rms by default": ("rms_norm", lambda t: functional.rms_norm(t, (6, 7))),
    "group": ("group_norm", lambda t: functional.group_norm(t, 3, C, C)),
    "group without parameters": ("group_norm", lambda t: functional.group_norm(t, 2)),
    "instance": ("instance_norm", lambda t: functional.instance_norm(t, weight=C, bias=C)),
    "instance by statistics": (
        "batch_norm",
        lambda t: functional.instance_norm(t, MEAN, VAR, C, C, use_input_stats=False),
    ),
    "batch": ("batch_norm", lambda t: functional.batch_norm(t, MEAN, VAR, C, C)),
    "batch without parameters": ("batch_norm", lambda t: functional.batch_norm(t, MEAN, VAR)),
    "batch of this batch": ("batch_norm", lambda t: functional.batch_norm(t, None, None, C, C, training=True)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str) -> None:
    op, function = NORMS[name]
    graph = check(function, x(4, 6, 7))
    assert op in {node.op for node in graph.nodes}


@pytest.mark.parametrize("name", ["layer of two axes", "rms by default", "group without parameters"])
def test_of_half_types(name: str) -> None:
    check(NORMS[name][1], x(4, 6, 7).half())


@pytest.mark.parametrize("name", ["layer", "rms", "group", "batch"])
def test_open_batch(name: str) -> None:
    check(NORMS[name][1], x(4, 6, 7), open_axes=((0,),), others=((x(9, 6, 7),),))


def test_native_forms_give_their_statistics() -> None:
    check(lambda t: torch.ops.aten.native_layer_norm(t, (7,), W, B, 1e-5), x(4, 6, 7))
    check(lambda t: torch.ops.aten.native_group_norm(t, C, C, 4, 6, 7, 3, 1e-5), x(4, 6, 7))
    check(lambda t: torch.ops.aten.native_batch_norm(t, C, C, None, None, True, 0.1, 1e-5), x(4, 6, 7))


@pytest.mark.parametrize("kind", ["batch", "instance"])
def test_running_statistics_are_state(kind: str) -> None:
    import numpy as np

    from aot.evaluate import evaluate
    from aot.frontend import load

    model = torch.nn.BatchNorm1d(6) if kind == "batch" else torch.nn.InstanceNorm1d(6, track_running_stats=True)
    program = torch.export.export(model, (x(4, 6, 5),), strict=False)
    graph = load(program)
    names = [value.name for value in graph.inputs]
    start = {name: np.asarray(buffer) for name, buffer in model.named_buffers() if name in names}
    feeds = [start[name] if name in start else x(4, 6, 5).numpy() for name in names]
    got = {value.name: array for value, array in zip(graph.outputs, evaluate(graph, feeds), strict=True)}
    model(x(4, 6, 5))
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(got[name], getattr(model, name).numpy(), rtol=1e-5, atol=1e-6)


def test_compiled(tmp_path: Path) -> None:
    check_compiled(lambda t: tuple(NORMS[name][1](t) for name in NORMS), x(4, 6, 7), cache=tmp_path)
