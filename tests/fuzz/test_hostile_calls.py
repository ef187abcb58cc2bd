"""Calls that make no sense, and models that live longer than they should: an error each time, never a crash."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from tests.e2e.conftest import DIGITS


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calls")
    path = folder / "digits.aot"
    aot.compile(DIGITS / "digits.onnx", cache_dir=folder / "kernels").save(path)
    return path


@pytest.fixture
def feed() -> dict[str, Any]:
    return {"image": np.ones((2, 1, 8, 8), np.float32)}


def test_a_closed_model_answers_with_an_error(artifact: Path, feed: dict[str, Any]) -> None:
    model = aot.load(artifact)
    model.run(feed)
    model.close()
    model.close()
    uses: list[Callable[[], Any]] = [
        lambda: model.run(feed), lambda: model.dims, lambda: model.programs, lambda: model.meta, lambda: model.target,
        lambda: model.weight_bytes, lambda: model.thread_count, lambda: model.reserve(batch=2),
        lambda: model.profile(feed),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(aot.AotError, match="closed"):
            use()
    assert "image" in repr(model)


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": "2"}, {"plan_cache_size": -1}])
def test_options_that_make_no_sense(artifact: Path, options: dict[str, Any]) -> None:
    with pytest.raises(aot.AotError, match="must be a number"):
        aot.load(artifact, **options)


def test_timeouts(artifact: Path, feed: dict[str, Any]) -> None:
    model = aot.load(artifact)
    for timeout in (float("nan"), "soon"):
        with pytest.raises(aot.AotError, match="timeout_seconds"):
            model.run(feed, timeout_seconds=timeout)  # type: ignore[arg-type]
    with pytest.raises(aot.AotError, match="deadline"):
        model.run(feed, timeout_seconds=0)
    model.run(feed, timeout_seconds=float("inf"))


def test_inputs_that_are_no_mapping(artifact: Path, feed: dict[str, Any]) -> None:
    with pytest.raises(aot.GuardError, match="by name"):
        aot.load(artifact).run([feed["image"]])  # type: ignore[arg-type]


def test_reserving_more_than_an_integer_holds(artifact: Path) -> None:
    with pytest.raises(aot.GuardError, match="batch"):
        aot.load(artifact).reserve(batch=1 << 70)


def test_torch_tensors_whose_memory_is_not_their_values(artifact: Path, feed: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    model = aot.load(artifact)
    image = torch.from_numpy(feed["image"])
    with pytest.raises(aot.GuardError, match="resolve_neg"):
        model.run({"image": image._neg_view()})
    with pytest.raises(aot.GuardError, match="dense"):
        model.run({"image": image.to_sparse()})


@pytest.mark.parametrize("threads", [1, 2])
def test_the_process_may_end_while_models_run(artifact: Path, threads: int) -> None:
    script = f"""
import threading, time, numpy, aot
model = aot.load({str(artifact)!r}, threads={threads})
feed = {{"image": numpy.ones((64, 1, 8, 8), numpy.float32)}}
def loop():
    while True:
        model.run(feed)
for _ in range(3):
    threading.Thread(target=loop, daemon=True).start()
time.sleep(0.2)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
