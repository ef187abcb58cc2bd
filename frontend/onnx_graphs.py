"""From an ONNX model to its graphs: conditions on sizes, one graph for each answer to branches on an input's value.

No exception of the importer's own leaves this module: a fault of the model is a ModelError that names the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aot.dims import Dim, maximum
from aot.errors import ModelError, UnsupportedError
from aot.frontend import onnx_custom, onnx_model
from aot.frontend.bindings import Bindings, DimOption, counted
from aot.frontend.edges import Edges, with_edges
from aot.frontend.imported import ImportInfo, Unsupported, report_of
from aot.frontend.onnx_branches import Choices, InputChoice
from aot.frontend.onnx_import import FAULTS, Importer
from aot.frontend.onnx_model import OnnxModel, plain_domain
from aot.ir import Graph
from aot.ops.opdef import DimMismatch

LARGEST_ROUNDS = 64  # conditions on symbols that one import may add
_EXAMPLES = 5


def _declared_sizes(model: OnnxModel, graph: Graph) -> Iterable[tuple[Dim, str]]:
    """Extents of results, with the names that the model declares for them."""
    infos = {info.name: info for info in model.graph.output}
    for value in graph.outputs:
        declared = infos[value.name].type.tensor_type.shape.dim if value.name in infos else ()
        if len(declared) == value.type.rank:
            yield from ((extent, dim.dim_param) for extent, dim in zip(value.type.shape, declared, strict=True))


def _attempt(model: OnnxModel, bindings: Bindings, choices: Choices) -> tuple[Importer, Graph | None]:
    """Imports, adding conditions on symbols until every extent fits."""
    for _ in range(LARGEST_ROUNDS):
        bindings.restart()
        importer = Importer(model, bindings, choices)
        try:
            graph = importer.run()
            # What depends on data may depend on sizes only, where a quotient of them is known not to be negative.
            if (graph is None or importer.reads_data) and any(
                bindings.resolve(maximum(dim, 0), dim, importer.where) for dim in importer.builder.unsigned
            ):
                continue
            if graph is not None and any(bindings.bound(dim, where) for dim, where in importer.builder.room.items()):
                continue
            if graph is not None and importer.reads_data and not bindings.wished:
                wished = bindings.better_names(_declared_sizes(model, graph))
                if wished:
                    bindings = Bindings(bindings.options, wished)
                    continue
            return importer, graph
        except DimMismatch as error:
            if not bindings.resolve(error.left, error.right, importer.where):
                hint = "Bind the dimensions with --dim (in Python: dims), or check the shapes that the model declares."
                raise ModelError(bindings.user_text(error.message), where=importer.where, hint=hint) from error
        except RecursionError as error:
            raise ModelError("the model is nested too deeply", where=importer.where) from error
        except FAULTS as error:
            text = f"the model cannot be read: {type(error).__name__}: {error}"
            raise ModelError(text, where=importer.where) from error
    raise ModelError(f"more than {LARGEST_ROUNDS} conditions on input sizes are needed", where=importer.where)


def import_onnx(
    source: Any, dims: Mapping[str, DimOption] | None = None, edges: Edges | None = None
) -> tuple[tuple[tuple[str, Graph], ...], ImportInfo]:
    """The graphs of an ONNX model by name, and what is known of its source.

    There is one graph, named "", unless a branch depends on what an input holds: then one for each number
    that the model compares with (named as `input=number`, its `input_values` say so), and last the one for all others.
    Raises ModelError (malformed), UnsupportedError (lists everything that is unsupported), OptionError (dims).
    """
    model = with_edges(onnx_model.read_model(source), edges or Edges())
    found = _explore(model, dims, Choices())
    graphs: list[tuple[str, Graph]] = []
    for importer, graph in found:
        if graph is None:
            missing = _rejections(importer)
            hint = onnx_custom.hint(entry.domain for entry in missing)
            raise UnsupportedError(report_of(missing), hint=hint or "`aotc build --check` lists this without building.")
        importer.bindings.check_used()
        choices = importer.branches.choices
        number = {value.name: position for position, value in enumerate(graph.inputs)}
        held = [(number[name], value, True) for name, value in choices.chosen.items()]
        held += [(number[name], value, False) for name, values in choices.excluded.items() for value in sorted(values)]
        label = ",".join(f"{name}={value}" for name, value in choices.chosen.items())
        graphs.append((label, graph.with_(input_values=tuple(held))))
    histogram: dict[str, int] = {}
    for node in model.graph.node:
        name = f"{node.domain}:{node.op_type}" if plain_domain(node.domain) else node.op_type
        histogram[name] = histogram.get(name, 0) + 1
    used = {symbol.name for _, graph in graphs for symbol in graph.symbols}
    displayed = {name: text for importer, _ in found for name, text in importer.bindings.display.items()}
    info = ImportInfo(
        digest=model.digest,
        opset=model.opsets.get("", 0),
        producer=f"{model.proto.producer_name} {model.proto.producer_version}".strip(),
        symbols={name: text for name, text in displayed.items() if name in used},
        node_count=len(model.graph.node),
        ops=dict(sorted(histogram.items())),
        warnings=_warnings([importer for importer, _ in found]),
    )
    return tuple(graphs), info


def _warnings(importers: Sequence[Importer]) -> tuple[str, ...]:
    """What the user should know, a line each: the nodes counted, and for which input values where not for all."""
    found: dict[str, list[str]] = {}
    for importer in importers:
        nodes: dict[str, list[str]] = {}
        for text, node in importer.notes:
            nodes.setdefault(text, []).append(node)
        lines = [f"{text} ({counted(names)})" for text, names in nodes.items()]
        choices = importer.branches.choices
        held = [f"{name} is {value}" for name, value in choices.chosen.items()]
        held += [f"{name} is not {value}" for name, values in choices.excluded.items() for value in sorted(values)]
        for line in (*importer.bindings.conditions(), *lines):
            found.setdefault(line, []).append(" and ".join(held))
    return tuple(
        line if len(held) == len(importers) else f"where {' or '.join(held)}: {line}" for line, held in found.items()
    )


def _explore(
    model: OnnxModel, dims: Mapping[str, DimOption] | None, choices: Choices
) -> list[tuple[Importer, Graph | None]]:
    """Imports once for each answer to the conditions on inputs' values."""
    try:
        return [_attempt(model, Bindings(dims), choices)]
    except InputChoice as choice:
        held = _explore(model, dims, choices.with_chosen(choice.name, choice.value))
        return held + _explore(model, dims, choices.without(choice.name, choice.value))


def check_onnx(
    source: Any, dims: Mapping[str, DimOption] | None = None, edges: Edges | None = None
) -> list[Unsupported]:
    """Everything in a model that cannot be compiled; empty when it can. Raises ModelError for a malformed one."""
    try:
        model = with_edges(onnx_model.read_model(source), edges or Edges())
    except UnsupportedError as error:
        return [Unsupported("", "the model", 0, error.message, 1, ())]
    found: dict[Unsupported, None] = {}
    for importer, _ in _explore(model, dims, Choices()):
        found.update(dict.fromkeys(_rejections(importer)))
    return list(found)


def _rejections(importer: Importer) -> list[Unsupported]:
    found = [
        Unsupported(domain, op_type, version, reason, len(nodes), tuple(nodes[:_EXAMPLES]))
        for (domain, op_type, version, reason), nodes in importer.rejected.items()
    ]
    return sorted(found, key=lambda entry: (-entry.count, entry.domain, entry.op_type, entry.reason))
