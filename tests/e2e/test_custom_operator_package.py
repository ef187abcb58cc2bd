"""The example of docs/custom_operators.md, as a user's package: installed outside of this one, built with, and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aot

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "custom_operator_example"
GUIDE = (ROOT / "docs" / "custom_operators.md").read_text()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed in it, by pip, without network."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", "site", "./source"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def run(package: Path, *arguments: str, installed: bool = True) -> str:
    """python ARGUMENTS in the package's folder; returns what it prints."""
    paths = [str(ROOT), str(package / "site")] if installed else [str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "AOTC_CACHE": str(package / "cache")}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=package, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def artifact(package: Path) -> Path:
    run(package, "source/make_model.py", "audio.onnx")
    run(package, "-m", "aot.cli", "build", "audio.onnx", "-o", "audio.aot")
    return package / "audio.aot"


def test_its_own_tests(package: Path) -> None:
    assert "2 passed" in run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "source/tests")


def envelope(x: np.ndarray, attack: float, release: float) -> np.ndarray:
    state, level = np.zeros(x.shape[:-1], x.dtype), np.empty_like(x)
    for step in range(x.shape[-1]):
        now = np.abs(x[..., step])
        state = state + np.where(now > state, np.float32(attack), np.float32(release)) * (now - state)
        level[..., step] = state
    return level


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_artifact_runs_without_the_package(artifact: Path, threads: int) -> None:
    assert "acme_operators" not in sys.modules
    x = np.random.default_rng(5).normal(size=(4, 3, 77)).astype(np.float32)
    found = aot.load(artifact, threads=threads).run({"x": x})
    loud, alpha = np.float32(1.5) * x, np.array([[0.5], [1.0], [2.0]], np.float32)
    level = envelope(loud + np.sin(alpha * loud) ** 2 / alpha + x, 0.5, 0.05)
    np.testing.assert_allclose(found["loudness"], np.sqrt(level), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["last"], level[..., -1], rtol=1e-4, atol=1e-5)


def test_what_the_artifact_says(package: Path, artifact: Path) -> None:
    opened = aot.Artifact.open(artifact)
    assert opened.meta["operators"] == [
        {"name": "acme.envelope", "onnx": "com.acme:Envelope-1", "package": "acme-operators", "version": "1.2.0"},
        {"name": "acme.snake", "onnx": "com.acme:Snake-1", "package": "acme-operators", "version": "1.2.0"},
    ]
    # Snake is one kernel with the product before it and the sum after it.
    assert sorted(kernel.locs for kernel in opened.programs[0].kernels) == [
        ("follow",), ("gain", "snake", "mix"), ("root",),
    ]  # fmt: skip
    run(package, "-m", "aot.cli", "build", "audio.onnx", "-o", "again.aot")
    assert (package / "again.aot").read_bytes() == artifact.read_bytes()


def test_the_commands(package: Path, artifact: Path) -> None:
    checked = run(package, "-m", "aot.cli", "build", "--check", "audio.onnx")
    assert "every op is supported" in checked
    assert "custom operator com.acme:Snake-1 (acme.snake, acme-operators 1.2.0)" in checked
    verified = run(package, "-m", "aot.cli", "verify", "audio.aot", "--against", "audio.onnx", "--json")
    assert json.loads(verified)["passed"] and "reference interpreter" in verified
    assert "acme.snake(" in run(package, "-m", "aot.cli", "opt", "audio.onnx", "--until", "fold")
    file = "source/src/acme_operators/__init__.py"
    run(package, "-m", "aot.cli", "build", "audio.onnx", "--operators", file, "-o", "file.aot", installed=False)
    operators = aot.Artifact.open(package / "file.aot").meta["operators"]
    assert [item["package"] for item in operators] == ["acme_operators/__init__.py"] * 2


@pytest.mark.parametrize(
    "name",
    ["pyproject.toml", "src/acme_operators/__init__.py", "src/acme_operators/envelope.c", "tests/test_operators.py"],
)
def test_the_guide_shows_the_files_as_they_are(name: str) -> None:
    assert (
        f"```{ {'.toml': 'toml', '.py': 'python', '.c': 'c'}[Path(name).suffix] }\n{(EXAMPLE / name).read_text()}```"
        in GUIDE
    )


def test_the_guide_names_what_there_is() -> None:
    """Functions, headers and the structs, against the backend's own tables."""
    from aot.backend.cpu import source
    from aot.backend.cpu.isa import V3
    from aot.backend.cpu.prelude import functions

    row = next(line for line in GUIDE.splitlines() if line.startswith("| `aot_exp_f32(x)`"))
    named = re.findall(r"`([a-z0-9 ]+)`", row)
    assert named[-2].split() == list(source.UNARY) and named[-1].split() == list(source.BINARY)
    for word in re.findall(r"`(\w+_f32)\(", GUIDE):
        assert word.removeprefix("aot_") in functions(V3)
    for header in re.findall(r"`(\w+\.h)`", GUIDE):
        assert header in source.HEADERS
    members = re.findall(r"\b(\w+)(?=[,;])", re.sub(r"/\*.*?\*/", "", source._BEFORE.partition("static")[0]))
    assert set(members) <= set(re.findall(r"\w+", GUIDE))
