"""Control flow, sizes from data and host steps on a GPU that is simulated: the models of tests/control, and what counts.

The numbers are ONNX Runtime's. What the driver's simulation checks besides: that work on memory is ordered, that
handles live, and that nothing is left.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import aot
from aot.artifacts import Artifact
from aot.cli.machine import selection
from aot.errors import AotError, GuardError, RunError, UnsupportedError
from aot.frontend import load_variants
from aot.ir import Graph
from aot.ops import OPS
from aot.partition import partition
from aot.runtime import Machine
from tests.control import models
from tests.control.models import Array, Feed, arrays, assert_same, by_onnxruntime, model_of
from tests.control.test_if import *  # noqa: F403
from tests.control.test_loop import *  # noqa: F403
from tests.control.test_scan import *  # noqa: F403
from tests.control.test_sizes import *  # noqa: F403
from tests.simulated import TARGET, simulated_backend


def some_ops(seed: int) -> frozenset[str]:
    """Half of the ops."""
    return frozenset(name for name in OPS if zlib.crc32(f"{seed} {name}".encode()) % 2)


class DeviceChecker(models.Checker):
    """Builds for the simulated GPU, all kernels or half of them there, and compares with ONNX Runtime."""

    def build(self, model: onnx.ModelProto, lacking: frozenset[str] = frozenset(), **options: Any) -> Artifact:
        with simulated_backend(lacking):
            return aot.compile(model.SerializeToString(), target=TARGET, cache_dir=str(self.cache), **options)

    def __call__(self, model: onnx.ModelProto, *feeds: Feed, want: Sequence[Sequence[Array]] | None = None) -> Graph:
        given = [arrays(feed, model) for feed in feeds]
        expected = by_onnxruntime(model, given) if want is None else want
        names = [info.name for info in model.graph.output]
        seed = zlib.crc32(model.SerializeToString())
        for lacking in (frozenset[str](), some_ops(seed)):
            artifact = self.build(model, lacking)
            for options in ({}, {"poison": True, "graphs": False}):
                with artifact.load(threads=1 + seed % 2, target=TARGET, **options) as loaded:
                    for number, feed in [*enumerate(given), *enumerate(given)]:
                        got = loaded.run(feed)
                        assert_same([got[name] for name in names], expected[number], f"feed {number}")
                        there = {name: loaded.to_device(array) for name, array in feed.items()}
                        found = loaded.run(there)
                        results = [found[name].numpy() if there else found[name] for name in names]
                        assert_same(results, expected[number], f"feed {number} on the device")
        return load_variants(model)[0][0][1]


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def check(fake: ctypes.CDLL, kernels: Path) -> DeviceChecker:
    return DeviceChecker(kernels)
