"""Artifacts of zoo models, built once for all tests of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import aot


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    folder = tmp_path_factory.mktemp("artifacts")

    def build(model: Path) -> Path:
        path = folder / f"{model.stem}.aot"
        if not path.exists():
            aot.compile(model, target="cpu").save(path)
        return path

    return build
