"""docs/cli.md names every command and every option, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from aot.cli.main import COMMANDS, cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
EVERYWHERE = {"--json", "--traceback", "--help"}
"""Said once for all commands, in the introduction, or by the command line itself."""


def _sections() -> dict[str, str]:
    """The text of each command's section, heading included."""
    parts = re.split(r"(?m)^## ", PAGE.read_text())
    return {part.split()[1]: part for part in parts if part.startswith("aotc ")}


def _options(name: str) -> set[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    found = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {max(option.opts, key=len) for option in found if not option.hidden}


def test_every_command_has_a_section() -> None:
    assert sorted(_sections()) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_named_in_its_section(name: str) -> None:
    sections = _sections()
    text = sections[name]
    if name in ("verify", "bench", "profile"):
        text += sections["run"]  # which says that these take its options too
    elif name == "opt":
        text += sections["build"]
    named = {*re.findall(r"--[a-z][\w-]*", text), *(["--output"] if "`-o" in text else [])}
    assert _options(name) - EVERYWHERE <= named


def test_every_named_option_exists() -> None:
    page = re.sub(r"(?s)```.*?```", "", PAGE.read_text())
    known = set().union(*map(_options, COMMANDS), EVERYWHERE)
    assert set(re.findall(r"`[^`]*?(--[a-z][\w-]*)", page)) <= known
