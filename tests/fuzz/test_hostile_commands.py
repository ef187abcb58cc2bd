"""Command lines that make no sense: the exit codes of docs/cli.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aot.cli.main import main
from tests.e2e.conftest import DIGITS

MODEL = str(DIGITS / "digits.onnx")


Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Runs a command; its exit code, and all that it printed."""

    def run(*arguments: str) -> tuple[int, str]:
        code = main(list(arguments))
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@pytest.mark.parametrize("command", ["run", "inspect", "bench", "verify"])
def test_a_missing_artifact_is_a_wrong_command_line(invoke: Invoke, command: str, tmp_path: Path) -> None:
    more = ["--against", MODEL] if command == "verify" else []
    assert invoke(command, str(tmp_path / "none.aot"), *more)[0] == 2
    code, output = invoke(command, str(tmp_path), *more)
    assert code == 2 and "folder" in output


def test_a_model_that_is_a_folder(invoke: Invoke, tmp_path: Path) -> None:
    code, output = invoke("build", str(tmp_path), "--json")
    assert code == 2 and "folder" in json.loads(output)["error"]["message"]


@pytest.mark.parametrize("option", ["--rtol", "--atol"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_tolerances_are_finite(invoke: Invoke, option: str, value: str, tmp_path: Path) -> None:
    """With NaN nothing was ever found to be wrong."""
    assert invoke("verify", str(tmp_path / "x.aot"), "--against", MODEL, option, value)[0] == 2


def test_dumps_into_a_file(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    code, output = invoke("build", MODEL, "-o", str(tmp_path / "x.aot"), "--dump", str(file))
    assert code == 2 and "cannot dump there" in output
