"""Options of all builds here: kernels are compiled once in a session."""

from __future__ import annotations

import pytest

from aot.options import CompileOptions


@pytest.fixture(scope="session")
def options(tmp_path_factory: pytest.TempPathFactory) -> CompileOptions:
    return CompileOptions(cache_dir=tmp_path_factory.mktemp("kernels"), jobs=1)
