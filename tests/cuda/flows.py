"""Builds models for the simulated GPU and compares them with ONNX Runtime; the model that has a host step."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import onnx

import aot
from aot.artifacts import Artifact
from aot.frontend import load_variants
from aot.ir import Graph
from aot.ops import OPS
from tests.control import models
from tests.control.models import Array, Feed, arrays, assert_same, by_onnxruntime, model_of
from tests.simulated import TARGET, simulated_backend

STEPS = model_of("""g (float[b,3,3] x, float[b] w) => (float[b] y, float[b,3,3] e)
        <float[3,3] scale = {1,2,3,4,5,6,7,8,10}> {
    e = Tanh (x)
    s = Mul (e, scale)
    d = Det (s)
    y = Add (d, w)
}""")
LACKING = frozenset({"determinant"})
"""What the GPU of the tests has no kernel for; STEPS has one in the middle."""


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
        for number, lacking in enumerate((frozenset[str](), some_ops(seed))):
            options = {"poison": True, "graphs": False} if (number + seed) % 2 else {}
            with self.build(model, lacking).load(threads=1 + seed % 2, target=TARGET, **options) as loaded:
                for number, feed in [*enumerate(given), *enumerate(given)]:
                    got = loaded.run(feed)
                    assert_same([got[name] for name in names], expected[number], f"feed {number}")
                    found = loaded.run({name: loaded.to_device(array) for name, array in feed.items()})
                    results = [found[name].numpy() if feed else found[name] for name in names]
                    assert_same(results, expected[number], f"feed {number} on the device")
        return load_variants(model)[0][0][1]
