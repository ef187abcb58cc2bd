"""An artifact made ready to run, and the options that say how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.array_files import read_npz
from aot.cli.common import check_file, note
from aot.errors import AotError, ArtifactError, OptionError
from aot.file_kinds import kind_of

if TYPE_CHECKING:
    from aot.artifacts import Artifact


def load_options(threads: int | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds --threads (with a default), --target and --weights to a command."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        shown = "what this machine allows" if threads is None else threads
        for option in (
            click.option(
                "--weights",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Weights of an artifact built without them (.safetensors or .npz).",
            ),
            click.option("--target", metavar="TARGET", help="Run this program, not the best one for this machine."),
            click.option("--threads", type=click.IntRange(1), default=threads, help=f"Default: {shown}."),
        ):
            function = option(function)
        return function

    return add


def open_artifact(path: Path) -> Artifact:
    """The artifact as data; raises OptionError for a missing file, ArtifactError for a damaged one."""
    from aot.artifacts import Artifact

    check_file(path, "an artifact")
    return Artifact.open(path)


def load_model(
    path: Path, threads: int | None, target: str | None = None, weights: Path | None = None, *, device: int = 0
) -> Any:
    """The artifact, ready to run; `device` is the number of the GPU."""
    from aot import runtime

    if weights is None:
        return runtime.load(path, threads=threads, target=target, weights=None, device=device)
    given = read_npz(weights) if weights.suffix == ".npz" else _read_safetensors(weights)
    try:
        model = runtime.load(path, threads=threads, target=target, weights=given, device=device)
    except ArtifactError as error:
        if error.where not in given:
            raise
        raise ArtifactError(error.message, where=f"{weights}, weight {error.where!r}", hint=error.hint) from error
    if model.meta.get("options", {}).get("weights") in ("embedded", "packed"):
        note(f"{path} holds its weights: --weights is not used")
    return model


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    """The tensors of a file by name; raises OptionError where it cannot be read."""
    from aot.artifacts import safetensors

    try:
        return safetensors.read(path.read_bytes())[0]
    except (OSError, AotError, ValueError) as error:
        reason = error.message if isinstance(error, AotError) else (getattr(error, "strerror", "") or str(error))
        hint = "Give .safetensors or .npz."
        kind = kind_of(path)
        if kind is not None and kind.name != "safetensors":
            reason = kind.instead_of("a file of named arrays")
            if kind.name == "torch weights":
                hint = "Write them as safetensors: safetensors.torch.save_file(state_dict, 'weights.safetensors')."
        raise OptionError(f"cannot read weights: {reason}", where=str(path), hint=hint) from error
