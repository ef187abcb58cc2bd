"""Real models, end to end: built, loaded, and compared with ONNX Runtime on every case."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
import aot.runtime
from aot.errors import ModelError, UnsupportedError
from tests.zoo.catalogue import Inputs, ZooModel, catalogue, folder, make_inputs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import models as written

ort = pytest.importorskip("onnxruntime")

RELATIVE, ABSOLUTE = 1e-3, 1e-4


def compare(path: Path, artifact: Path, cases: list[tuple[str, Inputs]], **options: Any) -> None:
    """One artifact serves every case, and agrees with ONNX Runtime."""
    model = aot.load(artifact, **options)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for label, inputs in cases:
        got = model.run(inputs)
        for name, want in zip(names, session.run(names, inputs), strict=True):
            if want.dtype.kind == "f":
                assert got[name].shape == want.shape, f"{label}: {name}"
                np.testing.assert_allclose(got[name], want, rtol=RELATIVE, atol=ABSOLUTE, err_msg=f"{label}: {name}")
            else:
                np.testing.assert_array_equal(got[name], want, err_msg=f"{label}: {name}")


@pytest.mark.zoo
@pytest.mark.parametrize("target", ["cpu:x86-64-v4", "cpu:x86-64-v3"])
@pytest.mark.parametrize("model", catalogue(), ids=lambda model: model.name)
def test_public_models(model: ZooModel, target: str, artifacts: Any) -> None:
    where = folder()
    if where is None or not (where / model.file).exists():
        pytest.skip("the public models are not here: run tests/zoo/fetch.py and set AOT_ZOO")
    if not aot.runtime.target_supported(target):
        pytest.skip(f"this CPU does not run {target}")
    path = where / model.file
    if model.refused:
        with pytest.raises((UnsupportedError, ModelError)):
            aot.compile(path, target=target)
        return
    compare(path, artifacts(path), [(label, make_inputs(spec)) for label, spec in model.cases], target=target)


@pytest.mark.zoo
@pytest.mark.parametrize("name", sorted(written.MODELS))
def test_written_models(name: str, artifacts: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = written.write(name, tmp_path_factory.getbasetemp() / "written")
    compare(path, artifacts(path), [(str(i), case) for i, case in enumerate(written.inputs(name))])
