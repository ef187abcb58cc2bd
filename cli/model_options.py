"""The options that say what a model is and how its kernels are compiled, shared by all that read and build one."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from aot.cli.feeds import DimType
from aot.errors import OptionError
from aot.options import CompileOptions, DimRange, parse_set_option


class SetType(click.ParamType[tuple[str, Any]]):
    """NAME=VALUE."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        try:
            return parse_set_option(value) if isinstance(value, str) else value
        except OptionError as error:
            self.fail(f"{error.message}. {error.hint}", param, ctx)


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --dim, --set, --override, --trust-pickle, --exact, --jobs, --cache and --cc to a command.

    The command takes them as `base`, CompileOptions.
    """

    @wraps(function)
    def gathered(
        *,
        dims: tuple[DimRange, ...],
        values: tuple[tuple[str, Any], ...],
        overridable: tuple[str, ...],
        trust_pickle: bool,
        exact: bool,
        jobs: int | None,
        cache_dir: Path | None,
        c_compiler: str,
        **others: Any,
    ) -> Any:
        base = CompileOptions(
            dims=dims, values=values, overridable=overridable, trust_pickle=trust_pickle, exact=exact, jobs=jobs,
            cache_dir=cache_dir or default_cache(), c_compiler=c_compiler,
        )  # fmt: skip
        return function(base=base, **others)

    path = click.Path(path_type=Path)
    for option in (
        click.option("--cc", "c_compiler", default="", envvar="AOTC_CC", metavar="CMD",
                     help="C compiler. Default: search."),
        click.option("--cache", "cache_dir", type=path, envvar="AOTC_CACHE", help="Compiled kernels."),
        click.option("--jobs", type=int, metavar="N", help="Parallel compilers. Default: one per core."),
        click.option("--exact", is_flag=True, help="No reassociation, no fused multiply-add across ops."),
        click.option("--trust-pickle", is_flag=True, help="Read pickled weights of a .pt2 file, which can run code."),
        click.option("--override", "overridable", multiple=True, metavar="NAME",
                     help="Make an initializer an input; or all of these."),
        click.option("--set", "values", multiple=True, type=SetType(), metavar="NAME=VALUE",
                     help="Make an input a constant."),
        click.option("--dim", "dims", multiple=True, type=DimType(), metavar="NAME=LO..HI",
                     help="Bounds, or NAME=N to fix it."),
    ):  # fmt: skip
        gathered = option(gathered)
    return gathered


def default_cache() -> Path:
    """The user's cache folder: XDG_CACHE_HOME/aotc or ~/.cache/aotc."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotc"
