"""A serving host: the runtime and numpy, none of the compiler's packages."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import DIGITS

ROOT = Path(__file__).resolve().parents[2]

SERVE = """
import sys
import numpy as np
import aot.runtime

data = np.load(sys.argv[2])
model = aot.runtime.load(sys.argv[1], threads=2)
logits = model.run({"image": data["images"]})["logits"]
np.testing.assert_allclose(logits, data["logits"], rtol=1e-3, atol=1e-4)
refused = ("onnx", "click", "rich", "torch", "triton", "ml_dtypes")
ours = ("aot.runtime", "aot.errors")
compiler = [
    name
    for name, module in sys.modules.items()
    if module and (name.split(".")[0] in refused or (name.startswith("aot.") and not name.startswith(ours)))
]
assert not compiler, compiler
print("served", len(logits))
"""


def test_nothing_of_the_compiler_is_needed(build: Callable[..., Path]) -> None:
    names = ("onnx", "click", "rich", "torch", "ml_dtypes", "aot.driver")
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in names)
    script = f"import sys\n{blocked}{SERVE}"
    command = [sys.executable, "-P", "-c", script, str(build()), str(DIGITS / "test.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["served", "540"]


@pytest.mark.slow
def test_the_wheel_serves_without_its_dependencies(build: Callable[..., Path], tmp_path: Path) -> None:
    """As the README says: `pip install --no-deps aotc` and numpy, in a fresh environment."""
    pip = [sys.executable, "-m", "pip", "--quiet"]
    made = subprocess.run(
        [*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(ROOT)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no wheel could be built here: {made.stderr.strip().splitlines()[-1]}")
    (wheel,) = tmp_path.glob("aotc-*.whl")
    assert wheel.name.startswith("aotc-") and "-py3-none-" in wheel.name
    venv.create(tmp_path / "host", with_pip=True)
    python = tmp_path / "host" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "--quiet", "install", "--no-deps", str(wheel), f"numpy=={np.__version__}"], check=True
    )
    done = subprocess.run(
        [python, "-c", SERVE, str(build()), str(DIGITS / "test.npz")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["served", "540"]
