"""Fixtures of tests that build for the simulated GPU. Imports are inside: GPU hosts have no compiler packages."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cuda.flows import DeviceChecker


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests: their small kernels repeat."""
    return Path(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def check(fake: ctypes.CDLL, kernels: Path) -> DeviceChecker:
    """Builds and compares on one simulated GPU."""
    from tests.cuda.flows import DeviceChecker

    return DeviceChecker(kernels)
