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
from tests.zoo.catalogue import ABSOLUTE, RELATIVE, Inputs, ZooModel, catalogue, folder, make_inputs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import models as written

ort = pytest.importorskip("onnxruntime")


def compare(
    path: Path, artifact: Path, cases: list[tuple[str, Inputs]], absolute: float = ABSOLUTE, **options: Any
) -> None:
    """One artifact serves every case, and agrees with ONNX Runtime on one thread.

    What ONNX Runtime's quantized LSTM gives for several sequences depends on its number of threads.
    """
    model = aot.load(artifact, **options)
    single = ort.SessionOptions()
    single.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), single, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for label, inputs in cases:
        got = model.run(inputs)
        for name, want in zip(names, session.run(names, inputs), strict=True):
            if absolute > ABSOLUTE and want.ndim > 2:
                np.testing.assert_array_equal(got[name].argmax(axis=-1), want.argmax(axis=-1), err_msg=name)
            if want.dtype.kind == "f":
                assert got[name].shape == want.shape, f"{label}: {name}"
                np.testing.assert_allclose(got[name], want, rtol=RELATIVE, atol=absolute, err_msg=f"{label}: {name}")
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
    artifact = artifacts(path)
    (program,) = {
        program.target for program in aot.Artifact.open(artifact).programs if program.target.startswith(target)
    }
    if not aot.runtime.target_supported(program):
        pytest.skip(f"this CPU does not run {program}")
    cases = [(label, make_inputs(spec)) for label, spec in model.cases]
    compare(path, artifact, cases, model.absolute, target=program)


@pytest.mark.zoo
@pytest.mark.parametrize("name", sorted(written.MODELS))
def test_written_models(name: str, artifacts: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = written.write(name, tmp_path_factory.getbasetemp() / "written")
    compare(path, artifacts(path), [(str(i), case) for i, case in enumerate(written.inputs(name))])
