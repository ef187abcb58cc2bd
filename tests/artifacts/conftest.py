"""Fixtures of the artifact tests; the programs are made by handmade.py."""

from __future__ import annotations

import pytest

from tests.runtime import handmade


@pytest.fixture(scope="session")
def dense_bytes() -> bytes:
    """relu(x @ w + b) with a dynamic batch, as artifact bytes."""
    return handmade.artifact().data
