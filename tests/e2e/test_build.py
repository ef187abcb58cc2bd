"""From the model file to a running artifact, through the public API."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import aot
from tests.e2e.conftest import DIGITS

Data = dict[str, np.ndarray[Any, Any]]


def test_accuracy_on_held_out_data(build: Callable[..., Path], held_out: Data) -> None:
    model = aot.load(build())
    logits = model.run({"image": held_out["images"]})["logits"]
    np.testing.assert_allclose(logits, held_out["logits"], rtol=1e-3, atol=1e-4)
    assert (logits.argmax(1) == held_out["labels"]).mean() > 0.95


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 12, 33])
@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v4"])
def test_one_artifact_serves_every_batch(build: Callable[..., Path], held_out: Data, batch: int, target: str) -> None:
    if not aot.runtime.target_supported(target):
        pytest.skip(f"this CPU does not run {target}")
    images = held_out["images"][:batch]
    logits = aot.load(build(), target=target).run({"image": images})["logits"]
    np.testing.assert_allclose(logits, held_out["logits"][:batch], rtol=1e-3, atol=1e-4)


def test_the_same_bits_at_any_thread_count(build: Callable[..., Path], held_out: Data) -> None:
    first, *others = (
        aot.load(build(), threads=threads).run({"image": held_out["images"][:37]})["logits"] for threads in (1, 2, 3, 5)
    )
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_the_same_bits_alone_and_in_a_batch(build: Callable[..., Path], held_out: Data) -> None:
    model = aot.load(build())
    images = held_out["images"][:9]
    together = model.run({"image": images})["logits"]
    alone = np.concatenate([model.run({"image": image[None]})["logits"] for image in images])
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-5)


def test_two_builds_give_the_same_bytes(build: Callable[..., Path], tmp_path: Path) -> None:
    """In another folder, at another time, with a cold cache, on a machine whose numpy has no AVX-512 or AVX2."""
    other = tmp_path / "elsewhere" / "digits.onnx"
    other.parent.mkdir()
    other.write_bytes((DIGITS / "digits.onnx").read_bytes())
    script = "import sys, aot\naot.compile(sys.argv[1], cache_dir=sys.argv[2]).save(sys.argv[3])\n"
    path = tmp_path / "out" / "second.aot"
    path.parent.mkdir()
    disabled = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR AVX2 FMA3 X86_V3 X86_V4"
    supported = _numpy_features()
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(f for f in disabled.split() if f in supported)}
    subprocess.run(
        [sys.executable, "-P", "-c", script, str(other), str(tmp_path / "cache"), str(path)],
        check=True, cwd=tmp_path / "out", env=environment,
    )  # fmt: skip
    assert path.read_bytes() == build().read_bytes()


def _numpy_features() -> set[str]:
    from numpy._core._multiarray_umath import __cpu_dispatch__  # type: ignore[import-not-found, unused-ignore]

    return set(__cpu_dispatch__)


def test_external_weights(build: Callable[..., Path], held_out: Data) -> None:
    path = build(weights="external")
    assert path.stat().st_size < build().stat().st_size
    logits = aot.load(path).run({"image": held_out["images"]})["logits"]
    np.testing.assert_array_equal(logits, aot.load(build()).run({"image": held_out["images"]})["logits"])


def test_weights_from_the_caller(build: Callable[..., Path], held_out: Data) -> None:
    """The runtime packs and folds the initializers of the model, as the build would have, to the same bits."""
    path = build(weights="none")
    with pytest.raises(aot.AotError, match="weight"):
        aot.load(path)
    source = onnx.load(str(DIGITS / "digits.onnx"))
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    logits = aot.load(path, weights=weights).run({"image": held_out["images"]})["logits"]
    np.testing.assert_array_equal(logits, aot.load(build()).run({"image": held_out["images"]})["logits"])


def test_variants_and_bound_dims(build: Callable[..., Path], held_out: Data) -> None:
    from aot.options import DimRange

    path = build(dims=(DimRange("batch", 1, 16),), variants=((("batch", 1),), (("batch", 8),)))
    model = aot.load(path)
    for batch in (1, 8, 5):
        logits = model.run({"image": held_out["images"][:batch]})["logits"]
        np.testing.assert_allclose(logits, held_out["logits"][:batch], rtol=1e-3, atol=1e-4)
    with pytest.raises(aot.GuardError, match=r"(?s)image.*16.*17"):
        model.run({"image": held_out["images"][:17]})


def test_exact_mode_rounds_after_every_operation(tmp_path: Path, cache: Path) -> None:
    """x * w + b with separate roundings, bit for bit, where a fused multiply-add would differ."""
    from onnx import TensorProto, helper

    random = np.random.default_rng(5)
    x, w, b = (random.standard_normal((64, 48)).astype(np.float32) for _ in range(3))
    nodes = [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    shape: list[str | int | None] = ["n", 48]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xwby"]
    graph = helper.make_graph(nodes, "axpy", ports[:3], ports[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    exact = aot.load(aot.compile(model, cache_dir=cache, exact=True).data).run({"x": x, "w": w, "b": b})["y"]
    np.testing.assert_array_equal(exact, x * w + b)


def test_exact_mode_agrees(build: Callable[..., Path], held_out: Data) -> None:
    logits = aot.load(build(exact=True)).run({"image": held_out["images"]})["logits"]
    np.testing.assert_allclose(logits, held_out["logits"], rtol=1e-4, atol=1e-5)


def test_the_report_says_what_was_done(cache: Path) -> None:
    artifact = aot.compile(DIGITS / "digits.onnx", cache_dir=cache)
    figures = artifact.meta["build"]
    assert 0 < figures["kernels_out"] < figures["ops_in"]
    assert figures["bytes_moved_fused"] < figures["bytes_moved_unfused"]
    assert figures["peak_bytes"] >= figures["lower_bound_bytes"] > 0
    assert artifact.report is not None and artifact.report.seconds["compile"] > 0
    assert all(reason for _, _, reason in artifact.report.refusals)
