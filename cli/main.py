"""The entry point: the group of commands, each loaded when it is used.

Exit codes: 0 done; 1 the model, the artifact or the compiler failed; 2 the command line makes no
sense; 3 a verification found differences; 130 interrupted. `canary judge` has its own (docs/canary_judge.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from aot.cli.common import ErrorGroup

COMMANDS = {
    "build": "Compile a model into one artifact.",
    "calibrate": "Record what a model's tensors look like on data, for quantization.",
    "quantize": "Decide what is quantized, within a measured accuracy budget.",
    "explain": "Tell what quantization costs, product by product, and why.",
    "run": "Run an artifact on inputs from a file, or on random ones.",
    "verify": "Compare an artifact's outputs with ONNX Runtime's.",
    "compare": "Find the first node where an artifact differs from its model.",
    "bench": "Time an artifact, interleaved with its model.",
    "profile": "Tell where the time of a run goes, kernel by kernel.",
    "inspect": "Show what is in an artifact.",
    "doctor": "Say whether an artifact runs on a machine, and what repairs it.",
    "selftest": "Run the inputs that an artifact holds, and check numbers and latency.",
    "sign": "Sign an artifact, verify who signed it, or make keys.",
    "package": "Put artifacts into an OCI layout for registries, or get one out of it.",
    "opt": "Run compiler passes on a model or on IR text.",
    "diff": "Show what changed between two artifacts.",
    "canary": "Judge, steer and simulate the rollout of a new version.",
}


class LazyGroup(ErrorGroup):
    """Imports a command's module (aot.cli.cmd_NAME) when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"aot.cli.cmd_{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"aotc {version('aotc')}")
        except PackageNotFoundError:
            click.echo("aotc (not installed)")
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def cli() -> None:
    """aotc: ahead-of-time deployment compiler.

    A model goes in, one versioned .aot file comes out, and runs anywhere the runtime does.

    Exit codes: 0 done, 1 model or compile error, 2 usage, 3 verification failed.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    try:
        result = cli.main(args=None if arguments is None else list(arguments), prog_name="aotc", standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return result if isinstance(result, int) else 0
