"""The digits model of the README, built once for all tests of a run, with a kernel cache of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot

DIGITS = Path(__file__).resolve().parents[2] / "docs" / "digits"


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Callable[..., Path]:
    """Builds digits with some options, once for each set of them, and returns the path of the artifact."""
    folder = tmp_path_factory.mktemp("digits")
    made: dict[str, Path] = {}

    def run(**options: Any) -> Path:
        key = repr(sorted(options.items()))
        if key not in made:
            path = folder / f"digits{len(made)}.aot"
            name = f"digits{len(made)}.safetensors" if options.get("weights") == "external" else ""
            aot.compile(DIGITS / "digits.onnx", cache_dir=cache, external_name=name, **options).save(path)
            made[key] = path
        return made[key]

    return run


@pytest.fixture(scope="session")
def held_out() -> dict[str, np.ndarray[Any, Any]]:
    """images [n, 1, 8, 8] in 0..1, labels [n] and the logits of ONNX Runtime."""
    with np.load(DIGITS / "test.npz") as data:
        return {name: data[name] for name in data.files}
