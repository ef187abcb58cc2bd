"""The README's example is what happens, but for measured numbers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import aot
from aot.runtime.serving import Deployment
from docs.generator import blocks

ROOT = Path(__file__).resolve().parents[2]
MEASURED = (
    (r"(?m)^time .*$", "time ..."),
    (r"[\d.]+ KB: cpu", "... KB: cpu"),
    (r"(?m)^(logits  32x10 ).*(0 of 320  ok)$", r"\1...\2"),
    (r"onnxruntime [\d.]+", "onnxruntime ..."),
)


@pytest.fixture(scope="module")
def example() -> str:
    text = (ROOT / "README.md").read_text()
    return text.partition("## An example\n")[2].partition("\n## ")[0]


def test_commands_print_what_the_readme_shows(example: str, tmp_path: Path) -> None:
    commands = next(block for block in blocks.blocks_of(example) if block.lines[0].startswith("$ "))
    shown = "\n".join(line for line in commands.lines if line)
    for pattern, dots in MEASURED:
        shown, count = re.subn(pattern, dots, shown)
        assert count == 1, pattern
    environment = {"AOTC_CACHE": str(tmp_path / "cache")}
    (tmp_path / "work").mkdir()
    page = blocks.run_page(f"```console\n{shown}\n```\n", tmp_path / "work", environment)
    assert not page.differences, "\n".join(page.differences)


def test_python_of_the_readme(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(blocks.blocks_of(example))
    program, beside = (block for block in found if block.language == "python")
    guard = next(block for block in found if block.lines[0].startswith("GuardError"))
    shutil.copy(ROOT / "docs" / "digits" / "digits.onnx", tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"images": np.zeros((3, 1, 8, 8), np.float32)}
    exec("\n".join(program.lines), names)
    outputs: object = names["outputs"]
    assert isinstance(outputs, dict) and outputs["logits"].shape == (3, 10)
    model: object = names["model"]
    assert isinstance(model, aot.Model)
    with pytest.raises(aot.GuardError) as raised:
        model.run({"image": np.zeros((3, 1, 8, 9), np.float32)})
    assert f"GuardError {raised.value}".splitlines() == guard.lines
    shutil.copy("model.aot", "next.aot")
    exec("\n".join(beside.lines), names)
    deployment: object = names["deployment"]
    assert isinstance(deployment, Deployment)
    with deployment:
        assert deployment.statistics()["promotions"] == 1 and deployment.statistics()["answered"] == 1
