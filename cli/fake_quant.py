"""`aotc verify --fake-quant`: the numbers of few bits that an artifact computes, against those of the quantized graph.

The graph is the model's with quantize and dequantize around its products, as the record says, or as a model that came
quantized has them. The reference interpreter computes it with floats. The artifact computes the same with integers;
where a float lies between two steps, either side of it is right, so that numbers may be one step apart. Each tensor is
computed from the artifact's own tensors of few bits before it: one such step, early in a deep network, moves many later
ones, which says nothing about them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.errors import OptionError
from aot.evaluate import evaluate
from aot.ir import Array, Graph, TensorType, Value, live
from aot.options import CompileOptions
from aot.passes import Context
from aot.quantization import Quantization

if TYPE_CHECKING:
    from aot.artifacts import Artifact

SHARE = 0.999
"""Of the numbers of a tensor, at least this part is at most one step away."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A tensor of few bits: how many numbers it has, how many are equal, how many one step away, the most steps."""

    name: str
    elements: int
    equal: int
    near: int
    most: int

    @property
    def passed(self) -> bool:
        return self.near >= SHARE * self.elements


def fake_quant_graph(model: Path, opened: Artifact, record: Path | None) -> Graph:
    """The model's graph with the record's quantization.

    Raises OptionError where the artifact was built from a record that is not given, or from another one.
    """
    from aot import driver
    from aot.transforms.quantize import quantized

    asked = opened.meta.get("options", {})
    options = replace(_options(asked), targets=("cpu",))
    wanted = asked.get("quantization")
    cores = driver.core_graphs(model, options)
    if not cores.is_whole:
        raise OptionError("the model has branches or loops that are decided in a run: it has no one quantized graph")
    (graph,) = cores.graphs
    if wanted is None:
        return graph
    if record is None or not record.exists():
        raise OptionError(
            "the artifact was built from a quantization record, which is needed here",
            where=str(record or ""),
            hint="Name it: --record FILE. `aotc build --quantize int8` writes it beside the artifact.",
        )
    found = Quantization.open(record)
    if found.digest != wanted:
        raise OptionError("the artifact was built from another record", where=str(record))
    return quantized(graph, found, Context(options=options))


def _options(asked: Mapping[str, Any]) -> CompileOptions:
    """What the artifact's options say of the model itself."""
    from aot.options import DimRange

    return CompileOptions(
        dims=tuple(DimRange(*item) for item in asked.get("dims", ())),
        values=tuple((name, value) for name, value in asked.get("values", ())),
        overridable=tuple(asked.get("overridable", ())),
        exact=bool(asked.get("exact", False)),
    )


def compare_steps(model: Any, graph: Graph, feed: Mapping[str, Array]) -> tuple[list[Steps], int]:
    """What was found of each tensor in 8 bits that the artifact computes, and how many of the graph's it does not."""
    values = _quantized_values(graph)
    seen: dict[str, Array] = {}

    def keep(step: Any) -> None:
        for tensor in step.tensors:
            if tensor.name in values and tensor.array.dtype.itemsize == 1:
                seen.setdefault(tensor.name, np.array(tensor.array))

    model.trace({name: feed[name] for name in (spec.name for spec in model.inputs)}, keep)
    chosen = [value for name, value in values.items() if name in seen]
    forced, given = _with_given(graph, chosen)
    arrays = {value.name: feed[value.name] for value in graph.inputs}
    arrays |= {given[value].name: _as_in(seen[value.name], value.type.dtype.numpy) for value in chosen}
    found = evaluate(forced, arrays)
    steps = [_steps(v.name, arrays[given[v].name], array) for v, array in zip(chosen, found, strict=True)]
    return steps, len(values) - len(chosen)


def _with_given(graph: Graph, chosen: Sequence[Value]) -> tuple[Graph, dict[Value, Value]]:
    """The graph with these values as outputs, whose readers read inputs instead: those of the artifact."""
    given = {value: Value(TensorType(value.type.dtype, value.type.shape), f"{value.name}, given") for value in chosen}
    nodes = tuple(
        replace(node, inputs=tuple(None if v is None else given.get(v, v) for v in node.inputs)) for node in graph.nodes
    )
    inputs = (*graph.inputs, *given.values())
    return live(graph.with_(inputs=inputs, nodes=nodes, outputs=tuple(chosen), state=())), given


def _as_in(array: Array, dtype: Any) -> Array:
    """The numbers in the graph's type: i8 in place of u8 stands for numbers 128 lower."""
    if array.dtype == dtype or array.dtype.kind not in "iu" or np.dtype(dtype).kind not in "iu":
        return array.view(dtype) if array.dtype != dtype else array
    return np.asarray((array.astype(np.int32) + (128 if array.dtype.kind == "i" else -128)).astype(dtype))


def _quantized_values(graph: Graph) -> dict[str, Value]:
    made = [node.output for node in graph.nodes if node.op == "quantize" and node.output.type.dtype.bits == 8]
    return {value.name: value for value in made if value.name}


def _steps(name: str, found: Array, expected: Array) -> Steps:
    if expected.dtype.kind not in "iu":  # floats of 8 bits: codes in order of size
        found, expected = _in_order(found), _in_order(expected)
    apart = np.abs(found.astype(np.int32) - expected.astype(np.int32))
    return Steps(name, apart.size, int(np.sum(apart == 0)), int(np.sum(apart <= 1)), int(apart.max(initial=0)))


def _in_order(codes: Array) -> Array:
    """Codes of 8-bit floats as integers that are ordered as the numbers are."""
    bits = codes.view(np.uint8).astype(np.int16)
    return np.asarray(np.where(bits < 128, bits, 128 - bits), np.int16)


def rows_of(found: Sequence[Steps]) -> list[tuple[Any, ...]]:
    """Lines of a table: name, elements, share equal, share at most a step away, most steps, verdict."""
    return [
        (
            each.name, each.elements, f"{each.equal / max(each.elements, 1):.4%}",
            f"{each.near / max(each.elements, 1):.4%}", each.most, "ok" if each.passed else "FAILED",
        )
        for each in found
    ]  # fmt: skip
