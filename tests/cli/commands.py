"""The command line, in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from aot.cli.main import cli


def invoke(*arguments: object, code: int = 0) -> Result:
    """What `aotc` says; it has to exit with `code`."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def document(*arguments: object, code: int = 0) -> Any:
    """What `aotc --json` says."""
    return json.loads(invoke(*arguments, "--json", code=code).stdout)
