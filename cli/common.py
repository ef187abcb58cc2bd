"""What every command shares: exit codes, error and table output, JSON, progress, number formats.

Invariant: results go to stdout, everything else (progress, notes, errors) to stderr; with --json, stdout
holds exactly one JSON document, for errors too.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, TypeVar

import click

from aot.errors import AotError, CompilerError, OptionError
from aot.file_kinds import kind_of

OK = 0
ERROR = 1  # the model, the artifact or the compiler
USAGE = 2  # the command line
DIFFERS = 3  # verification failed

_WIDE_COLUMNS = 160  # of tables that do not go to a terminal
Command = TypeVar("Command", bound=Callable[..., Any])


def common_options(function: Command) -> Command:
    """Adds --json and --traceback to a command; both are read through the root context."""

    def remember(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
        def callback(context: click.Context, parameter: click.Parameter, value: bool) -> None:
            if value:
                context.find_root().meta[f"aotc.{name}"] = True

        return callback

    for name, text in (("traceback", "Show where in aotc an error was raised."), ("json", "Print one JSON document.")):
        function = click.option(
            f"--{name}", is_flag=True, expose_value=False, is_eager=True, callback=remember(name), help=text
        )(function)
    return function


def wants(name: str) -> bool:
    """Whether --json or --traceback was given."""
    context = click.get_current_context(silent=True)
    return bool(context is not None and context.find_root().meta.get(f"aotc.{name}"))


class ErrorGroup(click.Group):
    """A command group that turns errors into text (or JSON) and the documented exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        if "--json" in ctx.args:  # also where the rest of the line cannot be read
            ctx.meta["aotc.json"] = True
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except click.ClickException as error:
            if not wants("json") or isinstance(error, click.exceptions.NoArgsIsHelpError):
                raise
            report_error(OptionError(error.format_message()))
            ctx.exit(error.exit_code)
        except AotError as error:
            report_error(error)
            ctx.exit(USAGE if isinstance(error, OptionError) else ERROR)
        except BrokenPipeError:
            sys.stdout = open(os.devnull, "w")
            ctx.exit(OK)
        except MemoryError:
            report_error(AotError("out of memory", hint="Use smaller inputs, or a machine with more memory."))
            ctx.exit(ERROR)
        except OSError as error:
            report_error(AotError(error.strerror or str(error), where=str(error.filename or "")))
            ctx.exit(ERROR)
        except Exception as error:
            report_error(
                CompilerError(f"{type(error).__name__}: {error}", hint="This is a defect of aotc: see --traceback.")
            )
            ctx.exit(ERROR)


def report_error(error: AotError) -> None:
    """error, where and hint on stderr; a JSON document on stdout with --json."""
    if wants("traceback"):
        traceback.print_exc()
    if wants("json"):
        document = {"code": error.code, "message": error.message, "where": error.where, "hint": error.hint}
        click.echo(json.dumps({"error": document}, indent=2))
        return
    label = click.style("error", fg="red", bold=True)
    click.echo(f"{label}: {error.message}", err=True)
    if error.where:
        click.echo(f"  where: {error.where}", err=True)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)


def note(message: str) -> None:
    """A remark on stderr; nothing with --json."""
    if not wants("json"):
        click.echo(f"note: {message}", err=True)


def plain(value: Any) -> Any:
    """A value as JSON can hold it: dims and paths as text, dataclasses as objects, NaN as text."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, Enum):
        return value.name.lower() if isinstance(value, IntEnum) else value.value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if abs(value) < float("inf") else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type) and type(value).__str__ is object.__str__:
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    return str(value)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    text = json.dumps(plain(document), indent=2, ensure_ascii=False)
    click.echo(text.encode(errors="backslashreplace").decode())  # what is no Unicode, as JSON escapes it


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
    """A table on stdout. Numbers (int, float) and columns headed by a unit are right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=_WIDE_COLUMNS)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, heading in enumerate(headings):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) or _is_amount(row[index]) for row in rows)
        table.add_column(Text(heading), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    if title:
        click.echo(click.style(title, italic=True))
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().rstrip("\n").split("\n"):
        click.echo(line.rstrip())


def _is_amount(cell: Any) -> bool:
    """Whether a cell is text that starts with a digit and ends in a unit."""
    return isinstance(cell, str) and cell[:1].isdigit() and cell[-1:].isalpha() and " " in cell


def print_facts(facts: Sequence[tuple[str, Any]]) -> None:
    """`name  value` lines, aligned."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        lines = str(value).split("\n")
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {lines[0]}")
        for line in lines[1:]:
            click.echo(f"{' ' * width}  {line}")


def bytes_text(count: Any) -> str:
    """A byte count for people: 1.5 MB; symbolic ones as they are."""
    if not isinstance(count, (int, float)):
        return f"{count} B"
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if abs(size) < 1000 or unit == "GB":
            return f"{int(size)} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""


def target_bytes_text(rows: Sequence[Any]) -> str:
    """A line for each target of an artifact: its code, its constants in the file, and what a load makes."""
    lines = []
    for row in rows:
        made = f", {bytes_text(row.made_bytes)} made at load" if row.made_bytes else ""
        ready = (
            f"{bytes_text(row.ready_bytes)} of constants ready" if row.ready_bytes or not made else "no constants ready"
        )
        alone = f"; {bytes_text(row.own_bytes)} are its own" if len(rows) > 1 else ""
        lines.append(f"{row.target}: {bytes_text(row.code_bytes)} of code, {ready}{made}{alone}")
    return "\n".join(lines)


def precision_text(meta: Mapping[str, Any], target: str) -> str:
    """ " in fp16" where the programs of an artifact for a target are not in fp32; `meta` is the artifact's."""
    precision = meta.get("precisions", {}).get(target, "fp32")
    return "" if precision == "fp32" else f" in {precision}"


def host_steps_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """What GPUs leave to the CPU, as the artifact's meta section lists it: a line for a node and target."""
    return "\n".join(f"{row['node']}: {row['op']} on {row['target']} ({row['why']})" for row in rows)


def seconds_text(seconds: float) -> str:
    """A duration for people, to two or three digits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us" if seconds < 1e-5 else f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _silent(stage: str, detail: str = "") -> None:
    """Tells nobody."""


@contextmanager
def progress() -> Iterator[Callable[[str, str], None]]:
    """Gives a function to tell (stage, detail); shown as a spinner where stderr is a terminal."""
    if wants("json") or not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console
    from rich.markup import escape

    start = time.perf_counter()
    with Console(stderr=True).status("starting") as status:

        def tell(stage: str, detail: str = "") -> None:
            elapsed = time.perf_counter() - start
            status.update(f"[bold]{escape(stage)}[/bold] {escape(detail)} [dim]{elapsed:.1f} s[/dim]")

        yield tell


def write_text(path: Path, text: str) -> None:
    """Writes a text file; raises OptionError where that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"cannot write there: {error.strerror or error}",
            where=str(path),
            hint="Choose a folder that exists and is writable.",
        ) from error


def check_file(path: Path, wanted: str) -> None:
    """Raises OptionError where there is no file; of a folder it says what that is, instead of `wanted`."""
    if path.is_file():
        return
    kind = kind_of(path) if path.is_dir() else None
    if kind is None:
        if path.exists():
            raise OptionError("it is no regular file", where=str(path), hint="Save it as a file: pipes are not read.")
        raise OptionError("no such file", where=str(path))
    raise OptionError(kind.instead_of(wanted), where=str(path), hint=kind.remedy)


def check_writable(path: Path) -> None:
    """Raises OptionError early, before long work, if a result could not be written there."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        reason = "it is a folder" if path.is_dir() else "its folder does not exist or is not writable"
        raise OptionError(
            f"cannot write there: {reason}",
            where=str(path),
            hint="Choose a file in a folder that exists and is writable.",
        )
