"""The option --operators, shared by the commands that read models with custom operators; and a reference for these.

ONNX Runtime knows no operators of other packages. A model that it cannot load for that reason is compared
with the reference interpreter, in which a custom operator has the numpy meaning that its package gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli.common import note
from aot.cli.feeds import generic
from aot.cli.reference import Reference, check_model, edges_of, widened
from aot.dtypes import F32
from aot.errors import ModelError, OptionError
from aot.file_kinds import PROGRAM
from aot.ir import Array

if TYPE_CHECKING:
    from aot.artifacts import Artifact
    from aot.cli.torch_reference import TorchReference
    from aot.ir import Graph


def operators_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --operators to a command."""
    return click.option(
        "--operators",
        multiple=True,
        metavar="MODULE|FILE.py",
        help="Custom operators: a module or file that defines OPERATORS. Installed packages need none.",
    )(function)


def reference_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --reference (as `runs_it`), --trust-pickle and --operators: what open_reference takes."""
    for option in (
        operators_option,
        click.option("--trust-pickle", is_flag=True, help="Let PyTorch read a .pt2 file itself, which can run code."),
        click.option(
            "--reference",
            "runs_it",
            type=click.Choice(["onnxruntime", "torch", "interpreter"]),
            help="What runs the model. Default: onnxruntime, and torch for a .pt2 file.",
        ),
    ):
        function = option(function)
    return function


def operators_text(operators: Sequence[Mapping[str, str]]) -> str:
    """The custom operators of an artifact, with who provides them."""
    named = [(item["onnx"], f"{item['package']} {item['version']}".strip()) for item in operators]
    return ", ".join(f"{name} ({provider})" if provider else name for name, provider in named)


class Interpreter:
    """A model in the reference interpreter, as `Reference` is one in ONNX Runtime."""

    def __init__(
        self,
        path: Path,
        artifact: Artifact,
        operators: Sequence[str],
        *,
        trust_pickle: bool = False,
        wanted: Collection[str] = (),
    ) -> None:
        from aot import custom, frontend

        self.inner: dict[str, Array] = {}
        self._wanted = frozenset(wanted)
        self.name = "aotc's reference interpreter"
        self.path = path
        self.defaults: dict[str, Array] = {}
        with custom.use(operators) as self._operators:
            dims = {name: (lo, hi) for name, lo, hi in artifact.meta.get("options", {}).get("dims", [])}
            graphs, _ = frontend.load_variants(path, dims=dims, edges=edges_of(artifact), trust_pickle=trust_pickle)
            self._graphs = [graph for _, graph in graphs]
        self.inputs = [value.name for value in self._graphs[0].inputs]
        self.outputs = [value.name for value in self._graphs[0].outputs]

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name."""
        from aot import custom
        from aot.evaluate import evaluate

        missing = [name for name in self.inputs if name not in feed]
        if missing:
            raise OptionError(f"the model also needs the inputs {', '.join(missing)}", where=str(self.path))
        graph = next(graph for graph in self._graphs if _holds(graph, feed))
        with custom.use(self._operators):
            floats = {value.name for value in graph.inputs if value.type.dtype == F32}
            given = {name: widened(feed[name]) if name in floats else feed[name] for name in self.inputs}
            if self._wanted:
                self.inner = named_values(graph, given, self._wanted)
            results = evaluate(graph, given)
        return dict(zip(self.outputs, results, strict=True))


def named_values(graph: Graph, feed: Mapping[str, Array], names: Collection[str]) -> dict[str, Array]:
    """The values of a graph that have one of the names, in the reference interpreter; those of its regions are not
    among them."""
    from aot.evaluate import evaluate

    wanted = [value for node in graph.nodes for value in node.outputs if value.name in names]
    arrays = evaluate(graph.with_(outputs=tuple(wanted), state=()), feed)
    return {value.name: array for value, array in zip(wanted, arrays, strict=True)}


def _holds(graph: Graph, feed: Mapping[str, Array]) -> bool:
    """Whether the graph is the one for the numbers that inputs hold."""
    return all(
        (int(feed[graph.inputs[number].name].reshape(())) == value) is is_equal
        for number, value, is_equal in graph.input_values
    )


def open_reference(
    path: Path,
    threads: int,
    artifact: Artifact,
    operators: Sequence[str] = (),
    *,
    runs_it: str | None = None,
    trust_pickle: bool = False,
    wanted: Collection[str] = (),
) -> Reference | Interpreter | TorchReference:
    """The model in what runs it: as asked, else ONNX Runtime, and PyTorch for torch programs.

    Where custom operators are in ONNX Runtime's way, the interpreter. `trust_pickle`: of a .pt2 file. `wanted`: names
    of tensors inside of the model that a run is to keep in `inner`.
    """
    custom_names = [item["onnx"] for item in artifact.meta.get("operators", [])]
    kind = check_model(path)
    is_program = kind is not None and kind.name == PROGRAM
    if runs_it == ("onnxruntime" if is_program else "torch"):
        raise OptionError(
            f"--reference {runs_it} does not run {'torch.export programs' if is_program else 'ONNX models'}",
            where=str(path),
            hint=f"Leave it out for {'PyTorch' if is_program else 'ONNX Runtime'}, or give --reference interpreter.",
        )
    if trust_pickle and not is_program:
        raise OptionError("--trust-pickle is for .pt2 files", where=str(path))
    if runs_it == "interpreter":
        return Interpreter(path, artifact, operators, trust_pickle=trust_pickle, wanted=wanted)
    if is_program:
        from aot.cli.torch_reference import TorchReference

        program = generic(artifact.programs)
        return TorchReference(path, program, threads, trust_pickle=trust_pickle, wanted=wanted)
    try:
        return Reference(path, threads, edges_of(artifact), wanted)
    except ModelError:
        if not custom_names or runs_it is not None:
            raise
        reference = Interpreter(path, artifact, operators, wanted=wanted)
        note(
            f"ONNX Runtime does not know {', '.join(custom_names)}: the outputs are compared with aotc's reference "
            "interpreter instead, and custom operators with the references that their packages give"
        )
        return reference
