"""One kernel cache for all tests of this folder: their small kernels repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.control.models import Checker


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Checker:
    return Checker(Path(tmp_path_factory.mktemp("kernels")))
