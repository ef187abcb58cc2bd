"""The models of tests/cuda/flow_models.py on a GPU against their programs for a CPU, from host and device memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot.runtime
from aot.errors import GuardError

pytestmark = pytest.mark.gpu
FOLDER = os.environ.get("AOT_GPU_FLOWS", "")
EXACT, CPU = "cuda:sm_90a", "cpu:x86-64-v3"
MODELS = ("nonzero", "sizes", "loop", "trips", "branch", "host")

if not FOLDER:
    pytest.skip("AOT_GPU_FLOWS names no folder of artifacts: see tests/cuda/flow_models.py", allow_module_level=True)


def load(name: str, **options: Any) -> Any:
    return aot.runtime.load(Path(FOLDER) / f"{name}.aot", **{"target": EXACT, **options})


def feeds(name: str) -> Iterator[Mapping[str, Any]]:
    """Inputs whose sizes, values and trips differ; some results are empty."""
    rng = np.random.default_rng(len(name))
    for n in (5, 1, 300, 5, 7, 4000, 5):
        x = rng.integers(-2, 4, n).astype(np.float32)
        match name:
            case "nonzero":
                yield {"x": x if n != 7 else 0 * x}
            case "sizes":
                yield {"s": np.array([n % 7, 3, 1 + n % 5]), "x": x}
            case "loop":
                yield {"x": x + 0.5, "limit": np.float32(rng.choice([0.01, 0.5, 9])).reshape(())}
            case "trips":
                yield {"x": x, "M": np.array(n % 11)}
            case "branch":
                yield {"x": x if n % 2 else -abs(x)}
            case "host":
                count = 1 + n % 12
                yield {"x": rng.standard_normal((count, 3, 3), np.float32), "w": np.ones(count, np.float32)}


def same(got: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        found = got[name].numpy() if hasattr(got[name], "numpy") else got[name]
        assert found.shape == value.shape and found.dtype == value.dtype, f"{what}: {name}"
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found, value, rtol=3e-5, atol=3e-5, err_msg=f"{what}: {name}")
        else:
            np.testing.assert_array_equal(found, value, f"{what}: {name}")


@pytest.mark.parametrize("options", [{}, {"graphs": False}, {"poison": True}], ids=["graphs", "plain", "poison"])
@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_are_those_of_the_cpu(name: str, options: dict[str, Any]) -> None:
    with load(name, **options) as model, load(name, target=CPU) as reference:
        assert (model.target, reference.target) == (EXACT, CPU)
        for number, feed in enumerate(feeds(name)):
            wanted = reference.run(feed)
            same(model.run(feed), wanted, f"{name} {number}")
            there = {key: model.to_device(array) for key, array in feed.items()}
            same(model.run(there), wanted, f"{name} {number}, on the device")
        assert (model.host_steps > 0) == (name == "host") == any(p.host_steps for p in model.programs)


def test_state_is_where_the_caller_has_it() -> None:
    rng = np.random.default_rng(1)
    with load("kept") as model:
        (pair,) = model.state
        for on_device in (True, False):
            total = np.zeros(64, np.float32)
            kept = model.to_device(total) if on_device else total.copy()
            for _ in range(5):
                x = rng.standard_normal(64).astype(np.float32)
                total = total + x
                (found,) = model.run({"x": x}, state={pair.input: kept}).values()
                np.testing.assert_allclose(found, total[total > 0], rtol=1e-6)
                np.testing.assert_allclose(np.asarray(kept), total, rtol=1e-6)


def test_a_profile_names_every_step() -> None:
    with load("host") as model:
        rows = model.profile(next(iter(feeds("host"))))
        assert any("eigh" in node for _, nodes, _ in rows for node in nodes)
        assert all(seconds >= 0 for _, _, seconds in rows)


def test_a_captured_stream_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with load("nonzero") as model:
        x = torch.ones(5, device="cuda")
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            (_, values, _) = model(x, stream=stream)
        assert values.shape == (5,)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream), pytest.raises(GuardError, match="looks at data"):
            model.run({"x": x}, stream=torch.cuda.current_stream())
