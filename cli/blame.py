"""Which node is to blame where an artifact differs from its model: the comparison of every tensor, and the verdict.

Three questions tell faults apart. Does a kernel do what it means, on the tensors that it read? If not, its code is
wrong, or something wrote over them. Do the model's nodes, on the program's own tensors, give what the program has? If
not although the kernels do what they mean, a rewrite changed the meaning, or the precision does not suffice there. Do
the nodes as they were imported give what the other implementation has, on its tensors? If not, the import is wrong.
Else errors only grew along the way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aot.cli.local_errors import UNITS, Judgement, Precision, Rounded, judge, unit_of
from aot.cli.measures import Distance, distance, error_histogram, value_histogram, value_range
from aot.cli.reference import Comparison, widened
from aot.cli.traced import KernelJudgement, Named
from aot.ir import Array, Graph, Value

_MOST_FLOAT16 = 65504.0


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor that the program and the model have. `order`: of its step in the run.

    `against`: the program's against the other implementation's, None where that has none of the name. `own`: what its
    stretch of nodes adds. `drift_bound`: how far rounding along the network may carry it from the other's.
    """

    name: str
    order: int
    kernel: str
    nodes: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    own: Judgement
    against: Distance | None
    drift_bound: float | None

    @property
    def is_beyond(self) -> bool:
        """Whether the stretch adds more than rounding explains, and what follows shows it."""
        return self.own.is_beyond and self.own.confirmed

    @property
    def has_drifted(self) -> bool:
        """Whether it is further from the other implementation's than rounding along the network explains."""
        if self.against is None or self.drift_bound is None:
            return False
        return not self.against.max_error <= self.drift_bound


@dataclass(frozen=True, slots=True)
class Fault:
    """What is to blame. `kind`: "kernel", "meaning" (a rewrite or the precision), "import", "drift" or "" (nothing).

    `found` and `expected` are the arrays of the tensor, where there are such.
    """

    kind: str
    tensor: str = ""
    kernel: str = ""
    order: int = -1
    nodes: tuple[str, ...] = ()
    error: float = 0.0
    bound: float = 0.0
    counts: bool = False
    found: Array | None = None
    expected: Array | None = None
    why: str = ""
    ledger: str = ""  # what the error ledger of a quantized artifact says of the node

    def histograms(self) -> dict[str, Any]:
        """The distribution of the differences and of both tensors' values, as text."""
        if self.found is None or self.expected is None or self.found.shape != self.expected.shape:
            return {}
        low, high = value_range(self.found, self.expected)
        return {
            "differences": error_histogram(self.found, self.expected),
            "low": low,
            "high": high,
            "found": value_histogram(self.found, low, high),
            "expected": value_histogram(self.expected, low, high),
        }


@dataclass(slots=True)
class Compared:
    """Everything about one comparison. `renamed`: tensors that are other values than the model's of the same name.

    `unmatched`: tensors that steps wrote and the model does not have; `other_shape`: those that have another shape.
    """

    reference: str
    precision: str
    rows: list[Row]
    outputs: list[Comparison]
    fault: Fault
    kernels: int
    kernels_left_out: int
    nodes_left_out: int
    unmatched: int
    model_only: int
    other_shape: list[str] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.fault.kind and not wrong_outputs(self.outputs, self.rows)

    @property
    def amplified(self) -> tuple[list[str], Row | None]:
        """The outputs beyond the usual tolerance that are still where rounding may carry them in this network; and the
        tensor at which errors grow most."""
        wrong = {output.name for output in wrong_outputs(self.outputs, self.rows)}
        names = [output.name for output in self.outputs if not output.passed and output.name not in wrong]
        return names, _most_growth(self.rows) if names else None


def wrong_outputs(outputs: Sequence[Comparison], rows: Sequence[Row]) -> list[Comparison]:
    """The outputs that are beyond their tolerance and beyond what rounding amounts to along the network."""
    explained = {row.name for row in rows if row.drift_bound is not None and not row.has_drifted}
    return [output for output in outputs if not output.passed and (output.reason or output.name not in explained)]


def precision_of(name: str, quantization: Mapping[str, Any]) -> Precision:
    """How coarse a program's arithmetic is: of its precision, and of the record that a quantized artifact keeps."""
    quantized: dict[str, Rounded] = {}
    for node in quantization.get("nodes", ()):
        form = str(node.get("form", "float"))
        if form != "float":
            scale = 0.0 if "balance" in node else float(node.get("scale") or 0.0)
            quantized[str(node["node"])] = Rounded(form, scale, int(node.get("zero_point") or 0))
    return Precision(UNITS[name], name != "fp32", quantized)


def with_ledger(fault: Fault, quantization: Mapping[str, Any]) -> Fault:
    """The fault with what the error ledger says of its last quantized product."""
    entries = {str(entry["node"]): entry for entry in quantization.get("ledger", ())}
    entry = next((entries[node] for node in reversed(fault.nodes) if node in entries), None)
    if entry is None:
        return fault
    said = [f"{entry['node']} in {entry['form']}"]
    if entry.get("alone") is not None:
        said.append(f"error of the outputs {float(entry['alone']):.2e} where it alone is quantized")
    for name, what in (("weight_snr_db", "its weight"), ("input_snr_db", "its input")):
        if entry.get(name) is not None:
            said.append(f"{what} {float(entry[name]):.1f} dB")
    return replace(fault, ledger=", ".join(said))


def precision_text(precision: str, quantization: Mapping[str, Any]) -> str:
    """A program's precision for people, with how many products are quantized."""
    forms = [str(node.get("form")) for node in quantization.get("nodes", ()) if node.get("form") != "float"]
    counts = [f"{forms.count(form)} products in {form}" for form in dict.fromkeys(forms)]
    return ", ".join((precision, *counts))


def match(graph: Graph, tensors: Mapping[str, Named]) -> tuple[dict[Value, Named], list[str]]:
    """The values of the model's graph that the program has under their names; and the names of other shapes."""
    found: dict[Value, Named] = {}
    other: list[str] = []
    for node in graph.nodes:
        for value in node.outputs:
            named = tensors.get(value.name) if value.name else None
            if named is None:
                continue
            if named.array.ndim != value.type.rank or any(
                isinstance(extent, int) and extent != size
                for extent, size in zip(value.type.shape, named.array.shape, strict=False)
            ):
                other.append(value.name)
                continue
            if named.array.dtype.kind in "biu" and value.type.dtype.is_float:
                other.append(value.name)
                continue
            found[value] = named
    return found, other


def compare_tensors(
    graph: Graph,
    feed: Mapping[str, Array],
    matched: Mapping[Value, Named],
    inner: Mapping[str, Array],
    precision: Precision,
) -> tuple[list[Row], int]:
    """A row for each matched tensor, in the order in which the program made them, and how many nodes were not run."""
    arrays = {value: named.array for value, named in matched.items()}
    steps = {value: named.steps for value, named in matched.items() if named.steps is not None}
    reference = {
        value: inner[value.name]
        for value in matched
        if value.name in inner and inner[value.name].shape == matched[value].array.shape
    }
    judged, left_out = judge(graph, _inputs(graph, feed), arrays, precision, steps=steps, with_drift=True)
    rows = []
    for own in judged:
        named, expected = matched[own.value], reference.get(own.value)
        against = None if expected is None else distance(arrays[own.value], expected)
        bound = None
        if own.drift is not None and against is not None:
            unit = max(precision.unit, unit_of(named.array)) if own.value.type.dtype.is_float else 0.0
            bound = 8 * (own.drift + unit * against.most) + (named.steps.size if named.steps is not None else 0.0)
        rows.append(
            Row(
                own.value.name, named.order, named.label, own.nodes, str(own.value.type.dtype),
                tuple(named.array.shape), own, against, bound,
            )
        )  # fmt: skip
    rows.sort(key=lambda row: row.order)
    return rows, left_out


def _inputs(graph: Graph, feed: Mapping[str, Array]) -> list[Array | None]:
    """The inputs in order; those that --io-dtype made 16 bits wide as the model has them."""
    found: list[Array | None] = []
    for value in graph.inputs:
        array = feed.get(value.name)
        is_wide = array is not None and value.type.dtype.is_float and array.dtype.itemsize < 4
        found.append(widened(array) if is_wide and str(value.type.dtype) == "f32" else array)
    return found


def find_fault(
    rows: Sequence[Row],
    kernels: Sequence[KernelJudgement],
    matched: Mapping[Value, Named],
    outputs: Sequence[Comparison],
    graph: Graph,
    feed: Mapping[str, Array],
    inner: Mapping[str, Array],
    precision: Precision,
) -> Fault:
    """What is to blame: the first in the order of the run."""
    wrong_kernel = next(
        (kernel for kernel in kernels if kernel.judgement.is_beyond and not kernel.judgement.follows), None
    )
    wrong_row = next((row for row in rows if row.is_beyond and not row.own.follows), None)
    if wrong_kernel is not None and (wrong_row is None or wrong_kernel.order <= wrong_row.order):
        return _of_kernel(wrong_kernel)
    if wrong_row is not None:
        return _of_row(wrong_row, matched, kernels, precision)
    wrong = wrong_outputs(outputs, rows)
    if not wrong:
        return Fault("")
    imported = _of_import(graph, feed, inner)
    if imported is not None:
        return imported
    return _of_growth(rows, matched, inner, wrong)


def _of_kernel(kernel: KernelJudgement) -> Fault:
    judgement = kernel.judgement
    return Fault(
        "kernel", judgement.value.name, kernel.label, kernel.order, kernel.nodes, judgement.error, judgement.bound,
        judgement.counts, kernel.array, judgement.expected,
        "on the tensors that it read, the kernel gives something else than it means: its code is wrong, or something "
        "wrote over what it read",
    )  # fmt: skip


def _of_row(
    row: Row, matched: Mapping[Value, Named], kernels: Sequence[KernelJudgement], precision: Precision
) -> Fault:
    own, found = row.own, matched[row.own.value].array
    judged = {kernel.order for kernel in kernels}
    why = "on the program's own tensors, these nodes of the model give something else"
    expected = own.expected
    overflows = expected is not None and found.dtype.kind == "f" and not np.isfinite(widened(found)).all()
    if overflows and expected is not None and np.isfinite(expected).all():
        most = float(np.abs(expected.astype(np.float64)).max())
        why = f"the program has values that are not finite; the largest should be {most:.4g}"
        if precision.unit == UNITS["fp16"] and most > _MOST_FLOAT16:
            why += f", and 16-bit floats end at {_MOST_FLOAT16:.0f}: build with --precision bf16 or tf32"
    elif row.order in judged:
        why += ": its kernels do what they mean, so a rewrite changed that; --bisect finds it"
    return Fault(
        "meaning", row.name, row.kernel, row.order, row.nodes, own.error, own.bound, own.counts, found, expected, why
    )


def _of_import(graph: Graph, feed: Mapping[str, Array], inner: Mapping[str, Array]) -> Fault | None:
    """The first node that, as it was imported, does not give what the other implementation has, on its tensors."""
    values = [value for node in graph.nodes for value in node.outputs if value.name in inner]
    arrays = {value: widened(inner[value.name]) for value in values}
    judged, _ = judge(graph, _inputs(graph, feed), arrays, Precision())
    for each in judged:
        if each.is_beyond and each.confirmed and not each.follows:
            return Fault(
                "import", each.value.name, "", -1, each.nodes, each.error, each.bound, each.counts,
                arrays[each.value], each.expected,
                "on the tensors of the other implementation, the imported nodes give something else than that does",
            )  # fmt: skip
    return None


def _of_growth(
    rows: Sequence[Row], matched: Mapping[Value, Named], inner: Mapping[str, Array], outputs: Sequence[Comparison]
) -> Fault:
    """No node adds more than it may: where the errors first are more than rounding explains, or grow most."""
    row = next((row for row in rows if row.has_drifted), None)
    why = "no node adds more than rounding explains, but here the errors of all before it amount to more than expected"
    if row is None:
        row = _most_growth(rows)
        why = "no node adds more than rounding explains; errors grow along the network, most here"
    if row is None or row.against is None:
        wrong = outputs[0]
        return Fault("drift", wrong.name, why=wrong.reason or "there are no tensors to compare before this output")
    return Fault(
        "drift", row.name, row.kernel, row.order, row.nodes, row.against.max_error, row.drift_bound or 0.0, False,
        matched[row.own.value].array, inner[row.name], why,
    )  # fmt: skip


def _most_growth(rows: Sequence[Row]) -> Row | None:
    """The row whose relative error exceeds that of the row before it the most."""
    found, most, last = None, -math.inf, 0.0
    for row in rows:
        if row.against is None:
            continue
        share = row.against.share
        if share - last > most:
            found, most = row, share - last
        last = share if math.isfinite(share) else last
    return found
