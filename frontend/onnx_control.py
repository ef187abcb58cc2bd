"""If, Loop and Scan: bodies become regions, what they read from outside becomes their operands.

A body is imported like any graph, into a builder of its own. Sizes that differ between branches, or from one
iteration to the next, become unbacked symbols: they get their values when the program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from onnx import AttributeProto, GraphProto, ValueInfoProto, helper

from aot import dims as dimension
from aot import dtypes
from aot.control import add_cond, add_loop
from aot.dims import Dim, Symbol
from aot.errors import ModelError, UnsupportedError
from aot.frontend.known import KnownBuilder
from aot.frontend.onnx_model import attribute_value
from aot.ir import TensorType, Value
from aot.ops.opdef import normalize_axis, same_extent

if TYPE_CHECKING:
    from aot.frontend.onnx_import import Frame, Importer, Scope

MOST_ROUNDS = 16  # imports of one body until the types of what it carries hold
_NO_LIMIT = np.iinfo(np.int64).max


@dataclass
class Region:
    """A body that is being imported. `captured` maps outer values to its own; `operands` are those it takes."""

    builder: KnownBuilder
    outer: KnownBuilder
    captured: dict[Value, Value] = field(default_factory=dict)
    operands: list[Value] = field(default_factory=list)
    symbols: set[Symbol] = field(default_factory=set)  # that get their values inside
    results: list[Value] = field(default_factory=list)

    def capture(self, value: Value) -> Value:
        """The region's own value for one from outside."""
        if value not in self.captured:
            self.captured[value] = self._captured(value)
        return self.captured[value]

    def _captured(self, value: Value) -> Value:
        if value in self.outer.consts:
            return self.builder.const(self.outer.consts[value], value.name)
        contents = self.outer.known(value)
        if contents is not None and self.outer.is_pending(value):
            return self.builder.known_value(contents, value.type.dtype)
        inner = self.builder.input(value.name, value.type.dtype, value.type.shape)
        self.operands.append(value)
        if contents is not None:
            self.builder.assume(inner, contents)
        return inner

    def sees(self, dim: Dim) -> bool:
        """Whether the dimension has a value outside as well."""
        return not any(symbol in self.symbols for symbol in dimension.symbols_of(dim))


def _join(importer: Importer, name: str, sides: Sequence[tuple[TensorType, Region]], what: str) -> TensorType:
    """The type that stands for results of several types: extents that differ become symbols."""
    first = sides[0][0]
    for type_, _ in sides[1:]:
        if type_.dtype != first.dtype:
            raise ModelError(f"{what} is {first.dtype} in one branch and {type_.dtype} in the other")
        if type_.rank != first.rank:
            raise UnsupportedError(f"{what} has rank {first.rank} in one branch and rank {type_.rank} in the other")
    shape: list[Dim] = []
    for axis in range(first.rank):
        extents = [type_.shape[axis] for type_, _ in sides]
        same = all(extent == extents[0] for extent in extents)
        if same and all(region.sees(extent) for extent, (_, region) in zip(extents, sides, strict=True)):
            shape.append(extents[0])
        else:
            least = min(dimension.bounds(extent)[0] for extent in extents)
            shape.append(importer.unbacked(f"{name}_d{axis}", max(int(least), 0)))
    return TensorType(first.dtype, tuple(shape))


def import_if(
    importer: Importer,
    condition: Value,
    attributes: Mapping[str, AttributeProto],
    name: str,
    outputs: Sequence[str],
    scope: Scope,
    frame: Frame,
) -> list[Value] | None:
    """An If on a condition that only the run knows. None where something in a branch is unsupported."""
    _must_be_condition(condition)
    sides: list[Region] = []
    for branch in ("then_branch", "else_branch"):
        region = importer.region(attributes[branch].g, (), scope, frame, name, branch)
        if region is None:
            return None
        sides.append(region)
    first, second = sides
    if len(first.results) != len(second.results):
        raise ModelError(f"the branches have {len(first.results)} and {len(second.results)} results")
    types = []
    for number, pair in enumerate(zip(first.results, second.results, strict=True)):
        label = outputs[number] if number < len(outputs) and outputs[number] else f"{name}_{number}"
        both = [(value.type, region) for value, region in zip(pair, sides, strict=True)]
        types.append(_join(importer, label, both, f"result {number}"))
    captures = tuple(importer.operands(region) for region in sides)
    importer.builder.materialize(condition)
    graphs = (importer.finish_region(first, first.results), importer.finish_region(second, second.results))
    return list(add_cond(importer.builder, condition, graphs, (captures[0], captures[1]), types))


def import_loop(
    importer: Importer,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, AttributeProto],
    name: str,
    outputs: Sequence[str],
    scope: Scope,
    frame: Frame,
) -> list[Value] | None:
    """An ONNX Loop."""
    body = attributes["body"].g
    trips, condition = (*inputs, None, None)[:2]
    initial = [_present(value) for value in inputs[2:]]
    if len(body.input) != 2 + len(initial) or len(body.output) < 1 + len(initial):
        counts = f"{len(body.input)} inputs and {len(body.output)} outputs"
        raise ModelError(f"the loop carries {len(initial)} values; its body has {counts}")
    if trips is not None and (trips.type.dtype.is_float or trips.type.dtype.is_bool or trips.type.elements != 1):
        raise ModelError(f"the number of iterations must be one integer; it is {trips.type}")
    if condition is not None:
        _must_be_condition(condition)
    limit = importer.builder.known(trips) if trips is not None else None
    if limit is not None and limit.flat[0] == _NO_LIMIT:
        trips, limit = None, None
    count = None if limit is None else limit.flat[0]

    def formal(region: Region, types: Sequence[TensorType]) -> list[Value]:
        iteration = region.builder.input(body.input[0].name, dtypes.I64, ())
        going_on = region.builder.known_value(np.full(_declared_shape(body, 1), True, object), dtypes.BOOL)
        carried = [
            region.builder.input(info.name, t.dtype, t.shape) for info, t in zip(body.input[2:], types, strict=True)
        ]
        return [iteration, going_on, *carried]

    def split(results: list[Value]) -> tuple[Value | None, list[Value], list[Value]]:
        return results[0], results[1 : 1 + len(initial)], results[1 + len(initial) :]

    return _loop(importer, name, outputs, scope, frame, body, trips, count, condition, initial, formal, split)


def _must_be_condition(value: Value) -> None:
    if value.type.dtype != dtypes.BOOL or value.type.elements != 1:
        raise ModelError(f"the condition must be one bool; it is {value.type}")


def _present(value: Value | None) -> Value:
    if value is None:
        raise ModelError("a carried value of the loop is missing")
    return value


def _declared_shape(body: GraphProto, index: int) -> tuple[int, ...]:
    """() or (1,), as the body declares its condition."""
    return (1,) * min(len(body.input[index].type.tensor_type.shape.dim), 1)


def _loop(
    importer: Importer,
    name: str,
    outputs: Sequence[str],
    scope: Scope,
    frame: Frame,
    body: GraphProto,
    trips: Value | None,
    count: Dim | None,
    condition: Value | None,
    initial: Sequence[Value],
    formal: Callable[[Region, Sequence[TensorType]], list[Value]],
    split: Callable[[list[Value]], tuple[Value | None, list[Value], list[Value]]],
) -> list[Value] | None:
    """Imports the body until the types of what it carries hold, and appends the loop.

    `formal` makes the body's inputs; the iteration and what is carried come first in its graph. `split` gives
    its results as (condition, carried, stacked). `count` is the number of iterations where it is known.
    """
    types = [value.type for value in initial]
    varying: list[dict[int, Dim]] = [{} for _ in initial]
    for _ in range(MOST_ROUNDS):
        region = importer.region(body, types, scope, frame, name, "body", formal)
        if region is None:
            return None
        going_on, carried, stacked = split(region.results)
        changed = False
        for number, (before, after) in enumerate(zip(types, carried, strict=True)):
            if after.type.dtype != before.dtype:
                raise ModelError(f"carried value {number} is {before.dtype}; the body makes it {after.type.dtype}")
            if after.type.rank != before.rank:
                raise UnsupportedError(
                    f"carried value {number} has rank {before.rank} at first and rank {after.type.rank} later"
                )
            for axis, (old, new) in enumerate(zip(before.shape, after.type.shape, strict=True)):
                if old != new and axis not in varying[number]:
                    varying[number][axis] = importer.unbacked(f"{name}_{body.input[-1].name}_{number}_d{axis}", 0)
                    changed = True
            shape = tuple(varying[number].get(axis, extent) for axis, extent in enumerate(before.shape))
            types[number] = TensorType(before.dtype, shape)
        if not changed:
            break
    else:
        raise UnsupportedError("the sizes of what the loop carries do not settle")
    if going_on is not None:
        _must_be_condition(going_on)
    region.symbols.update(s for dims in varying for dim in dims.values() for s in dimension.symbols_of(dim))
    always = going_on is None or _is_true(region.builder, going_on)
    if always and condition is not None and _is_true(importer.builder, condition):
        condition = None
    elif condition is None and not always:
        condition = importer.builder.scalar(True, dtypes.BOOL)
    made = _result_types(importer, name, outputs, region, types, stacked, count if condition is None else None)
    captures = importer.operands(region)
    for value in (trips, condition, *initial):
        if value is not None:
            importer.builder.materialize(value)
    conditional = [going_on] if condition is not None and going_on is not None else []
    graph = importer.finish_region(region, [*conditional, *carried, *stacked])
    if trips is not None and trips.type.dtype != dtypes.I64:
        (trips,) = importer.builder.op("cast", trips, to=dtypes.I64)
    return list(add_loop(importer.builder, trips, condition, initial, captures, graph, made))


def _is_true(builder: KnownBuilder, value: Value) -> bool:
    contents = builder.known(value)
    return contents is not None and contents.size == 1 and bool(contents.flat[0])


def _result_types(
    importer: Importer,
    name: str,
    outputs: Sequence[str],
    region: Region,
    carried: Sequence[TensorType],
    stacked: Sequence[Value],
    count: Dim | None,
) -> list[TensorType]:
    """The types of the loop's results, whose sizes may only be known afterwards."""
    labels = [
        outputs[n] if n < len(outputs) and outputs[n] else f"{name}_{n}" for n in range(len(carried) + len(stacked))
    ]
    types = [
        TensorType(type_.dtype, _seen(importer, region, label, type_.shape))
        for label, type_ in zip(labels, carried, strict=False)
    ]
    rows: Dim | None = None if count is None else dimension.maximum(count, 0)
    for label, value in zip(labels[len(carried) :], stacked, strict=True):
        if rows is None:
            rows = importer.unbacked(f"{label}_d0", 0)
        shape = _seen(importer, region, label, value.type.shape, 1)
        types.append(TensorType(value.type.dtype, (rows, *shape)))
    return types


def _seen(importer: Importer, region: Region, label: str, shape: Sequence[Dim], first: int = 0) -> tuple[Dim, ...]:
    """The extents, with a new symbol for each that has a value only inside the region."""
    return tuple(
        extent if region.sees(extent) else importer.unbacked(f"{label}_d{axis}", 0)
        for axis, extent in enumerate(shape, first)
    )


def import_scan(
    importer: Importer,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, AttributeProto],
    name: str,
    outputs: Sequence[str],
    scope: Scope,
    frame: Frame,
    opset: int,
) -> list[Value] | None:
    """An ONNX Scan: a loop over slices of its last operands."""
    if opset < 9:
        return _import_batched_scan(importer, inputs, attributes, name, outputs, scope, frame)
    body = attributes["body"].g
    given = [_present(value) for value in inputs]
    scanned_count = int(attribute_value(attributes["num_scan_inputs"], name))
    states = len(given) - scanned_count
    if scanned_count < 1 or states < 0 or len(body.input) != len(given) or len(body.output) < states:
        raise ModelError(
            f"the body has {len(body.input)} inputs and {len(body.output)} outputs for {len(given)} operands"
        )
    initial, scanned = given[:states], given[states:]
    made_count = len(body.output) - states

    def numbers(attribute: str, count: int) -> tuple[int, ...]:
        if attribute not in attributes:
            return (0,) * count
        found = tuple(int(number) for number in attribute_value(attributes[attribute], name))
        if len(found) != count:
            raise ModelError(f"{attribute} has {len(found)} entries for {count} operands")
        return found

    axes = [
        normalize_axis(axis, value.type.rank)
        for axis, value in zip(numbers("scan_input_axes", scanned_count), scanned, strict=True)
    ]
    backwards = numbers("scan_input_directions", scanned_count)
    count = scanned[0].type.shape[axes[0]]
    for axis, value in zip(axes, scanned, strict=True):
        same_extent(value.type.shape[axis], count, "the lengths that a Scan runs over")

    def formal(region: Region, types: Sequence[TensorType]) -> list[Value]:
        builder = region.builder
        iteration = builder.input("iteration", dtypes.I64, ())
        formals = [
            builder.input(info.name, t.dtype, t.shape) for info, t in zip(body.input[:states], types, strict=True)
        ]
        last = builder.known_value(np.array(count - 1, object).reshape(()), dtypes.I64)
        for value, axis, reverse in zip(scanned, axes, backwards, strict=True):
            place = builder.op("sub", last, iteration)[0] if reverse else iteration
            formals.append(builder.op("gather", region.capture(value), place, axis=axis)[0])
        return formals

    def split(results: list[Value]) -> tuple[Value | None, list[Value], list[Value]]:
        return None, results[:states], results[states:]

    trips = importer.builder.known_value(np.array(count, object).reshape(()), dtypes.I64)
    results = _loop(importer, name, outputs, scope, frame, body, trips, count, None, initial, formal, split)
    if results is None:
        return None
    arranged = zip(
        results[states:],
        numbers("scan_output_axes", made_count),
        numbers("scan_output_directions", made_count),
        strict=True,
    )
    return results[:states] + [_arranged(importer.builder, *row) for row in arranged]


def _import_batched_scan(
    importer: Importer,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, AttributeProto],
    name: str,
    outputs: Sequence[str],
    scope: Scope,
    frame: Frame,
) -> list[Value] | None:
    """The Scan of operator set 8: a newer one for each entry of the first axis, which is a Scan over that axis."""
    if inputs and inputs[0] is not None:
        raise UnsupportedError("a Scan of operator set 8 with lengths of sequences")
    body, count = attributes["body"].g, len(inputs) - 1
    taken = [f"{name}/batch_{number}" for number in range(count)]
    given = [f"{name}/batch_result_{number}" for number in range(len(body.output))]
    directions = attributes["directions"].ints if "directions" in attributes else [0] * attributes["num_scan_inputs"].i
    inner = helper.make_node(
        "Scan", taken, given, name=f"{name}/batch", body=body, num_scan_inputs=attributes["num_scan_inputs"].i,
        scan_input_directions=list(directions),
    )  # fmt: skip
    outer = GraphProto(name=f"{name}/batches", node=[inner])
    outer.input.extend(ValueInfoProto(name=operand) for operand in taken)
    outer.output.extend(ValueInfoProto(name=result) for result in given)
    made = {attribute.name: attribute for attribute in (
        helper.make_attribute("body", outer), helper.make_attribute("num_scan_inputs", count)
    )}  # fmt: skip
    newer = replace(frame, opsets={**frame.opsets, "": 9})
    return import_scan(importer, inputs[1:], made, name, outputs, scope, newer, 9)


def _arranged(builder: KnownBuilder, value: Value, axis: int, reverse: int) -> Value:
    """A stacked result in the order, and along the axis, that the Scan asks for."""
    rank, rows = value.type.rank, value.type.shape[0]
    if reverse:
        starts = (rows - 1, *(0,) * (rank - 1))
        steps = (-1, *(1,) * (rank - 1))
        (value,) = builder.op("slice", value, starts=starts, sizes=value.type.shape, steps=steps)
    axis = normalize_axis(axis, rank)
    if axis:
        perm = list(range(1, rank))
        perm.insert(axis, 0)
        (value,) = builder.op("transpose", value, perm=tuple(perm))
    return value
