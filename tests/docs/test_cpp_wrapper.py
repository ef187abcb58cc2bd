"""aot/runtime.hpp: a C++ program under the address and undefined-behaviour sanitizers uses all of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aot.runtime import _library
from tests.runtime import handmade

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "runtime" / "include"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def test_cpp_wrapper(tmp_path: Path, dense_bytes: bytes) -> None:
    if "aot_runtime" not in _library.library_path().name:
        pytest.skip("a development build")
    lib = _library.library_path().parent.resolve()
    (tmp_path / "model.aot").write_bytes(dense_bytes)
    handmade.artifact(weights="none").save(tmp_path / "bare.aot")
    command = ["g++", "-std=c++17", *WARNINGS, *SANITIZE, f"-I{INCLUDE}", str(HERE / "runtime_hpp_test.cpp")]
    link = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-laot_runtime", "-pthread", "-o", str(tmp_path / "test")]
    subprocess.run([*command, *link], check=True)
    done = subprocess.run(
        [tmp_path / "test", "model.aot", "bare.aot"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.fixture(scope="session")
def dense_bytes() -> bytes:
    """relu(x @ w + b) with a dynamic batch, as artifact bytes."""
    return handmade.artifact().data
