"""Rolls up recurrences that were written out step by step: loops over time in a model's own code.

A chain of equal steps (`roll_find`) whose arithmetic is elementwise, or that of units with weights (`roll_step`),
becomes one node: `recur_map` or `recur_cell`. What the steps are given is computed for all of them at once before it,
and what is made of each step's result at once behind it (`roll_batch`). A chain of any other kind stays as it is.

Invariant: the numbers are added and multiplied as the steps did; rounding differs only as that of one product for all
steps differs from that of products for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from aot.builder import Builder
from aot.dims import Dim, product
from aot.ir import Graph, Level, Node, Value, live
from aot.ops import Kind, OpError
from aot.passes import Context, transform
from aot.transforms.roll_batch import Stacker, joined_along, unstacked
from aot.transforms.roll_find import LEAST_STEPS, Chain, alike, find_chains
from aot.transforms.roll_places import join_places, replaced
from aot.transforms.roll_step import Body, Given, NotRolled, OtherSteps, body_of
from aot.transforms.shapes import as_int, emit, perm_of, reshaped, transposed

_RULE = "roll"


@transform(takes=Level.CORE, gives=Level.CORE)
def roll(graph: Graph, context: Context) -> Graph:
    """Makes one recurrence of steps that were written out one by one."""
    if context.backend is not None and Kind.RECUR not in context.backend.kinds:
        return graph
    original = graph
    tried: set[Value] = set()
    rolled: set[Value] = set()
    joined = join_places(_one_of_each(graph))
    while True:
        found = _roll_one(joined, context, tried, rolled)
        if found is None:
            break
        joined = found
    if not rolled:
        return original
    return _join_results(joined, rolled)


def _roll_one(graph: Graph, context: Context, tried: set[Value], rolled: set[Value]) -> Graph | None:
    """The graph with one more chain rolled; None where there is none left."""
    for chain in find_chains(graph, tried):
        made = {value for step in chain.steps for node in step.nodes for value in node.outputs}
        try:
            result = _rolled(graph, chain, context, rolled)
        except NotRolled as reason:
            context.refuse(_RULE, chain.where, f"{len(chain.steps)} steps: {reason}")
            result = None
            if isinstance(reason, OtherSteps):
                made = set()
        tried |= made
        if result is not None:
            tried |= _before(graph, chain)
            return result
    return None


def _before(graph: Graph, chain: Chain) -> set[Value]:
    """What a step before the first one makes that is like the others in part: no chain ends there."""
    found: set[Value] = set()
    states = zip(chain.next_states, chain.steps[0].states, strict=True)
    pending = [(number, graph.producer.get(value)) for (number, _), value in states]
    while pending:
        number, node = pending.pop()
        if node is None or node.outputs[0] in found or not alike(node, chain.template.nodes[number]):
            continue
        found.update(node.outputs)
        for operand, value in zip(chain.operands[number], node.inputs, strict=True):
            if operand is not None and value is not None and operand.kind == "core":
                pending.append((operand.number, graph.producer.get(value)))
    return found


def _one_of_each(graph: Graph) -> Graph:
    """Constants, and what is made of them alone, once: what all steps share is then one value.

    Nothing else is joined: steps whose states start equal would share more of the first step than of the others.
    """
    named = set(graph.outputs) | {value for _, value in graph.state}
    first: dict[object, Value] = {}
    mapping: dict[Value, Value] = {}
    constant: set[Value] = set(graph.consts)
    for value, const in graph.consts.items():
        if value not in named:
            mapping[value] = first.setdefault((const.digest, const.dtype.name), value)
    nodes = []
    for node in graph.nodes:
        inputs = tuple(None if v is None else mapping.get(v, v) for v in node.inputs)
        node = node if inputs == node.inputs else replace(node, inputs=inputs)
        views = node.op in ("transpose", "reshape", "expand") and set(node.operands) <= constant | set(graph.inputs)
        if len(node.outputs) == 1 and not node.regions and (views or set(node.operands) <= constant):
            constant.add(node.output)
            key = (node.op, inputs, tuple(sorted((name, repr(attr)) for name, attr in node.attrs.items())))
            if node.output not in named:
                kept = first.setdefault(key, node.output)
                mapping[node.output] = kept
                if kept is not node.output:
                    continue
        nodes.append(node)
    return live(graph.with_(nodes=tuple(nodes)))


def _rolled(graph: Graph, chain: Chain, context: Context, rolled: set[Value]) -> Graph | None:
    """The graph with a chain rolled. Raises NotRolled; None where it is switched off."""
    core = {node for step in chain.steps for node in step.nodes}
    reached = {value for node in core for value in node.outputs}
    for node in graph.nodes:
        if node not in core and any(value in reached for value in node.operands):
            reached.update(node.outputs)
    read = {value for step in chain.steps for value in step.given}
    read |= {o.value for row in chain.operands for o in row if o is not None and o.value is not None}
    if not read.isdisjoint(reached):
        raise OtherSteps("what a step is given depends on the steps before it")
    outside = _read_outside(graph, core)
    ends = set(chain.next_states)
    used = [[end for end in _results(chain) if _value(chain, step, end) in outside] for step in range(len(chain.steps))]
    wanted = [end for end in _results(chain) if end not in ends and 2 * sum(end in each for each in used) > len(used)]
    body = body_of(chain, graph.consts, wanted)
    locs = tuple(dict.fromkeys(loc for step in chain.steps for node in step.nodes for loc in node.locs))
    builder = Builder(locs=locs)
    stacker = Stacker(builder, graph.producer, graph.consts, rolled)
    try:
        every, last = (_cell if body.weights else _elementwise)(builder, stacker, chain, body)
    except OpError as error:
        raise NotRolled(str(error)) from error
    mapping: dict[Value, Value] = {}
    final: dict[Value, Value] = {}
    for step, ends_used in enumerate(used):
        for end in ends_used:
            if end not in ends and end not in wanted:
                continue  # few steps are asked for it: they compute it again
            old = _value(chain, step, end)
            if step == len(chain.steps) - 1 and end in last:
                final[old] = reshaped(builder, last[end], old.type.shape)
            if end in every and not (old in final and not any(end in other for other in used[:-1])):
                mapping[old] = unstacked(builder, every[end], step, old.type.shape)
            elif old in final:
                mapping[old] = final[old]
            else:
                raise OtherSteps("others read its second state, and not only the last one")
    if not context.allow(_RULE, chain.where):
        return None
    result = replaced(graph, mapping, builder, final)
    rolled.update(every.values())
    return result


def _results(chain: Chain) -> list[tuple[int, int]]:
    return [(n, r) for n, node in enumerate(chain.template.nodes) for r in range(len(node.outputs))]


def _value(chain: Chain, step: int, end: tuple[int, int]) -> Value:
    return chain.steps[step].nodes[end[0]].outputs[end[1]]


def _read_outside(graph: Graph, core: set[Node]) -> set[Value]:
    """Values that the outputs, or nodes outside of a chain, read."""
    found = set(graph.outputs) | {value for _, value in graph.state}
    for node in graph.nodes:
        if node not in core:
            found.update(node.operands)
    return found


# The nodes of a recurrence.

_Results = tuple[dict[tuple[int, int], Value], dict[tuple[int, int], Value]]
"""By (node, result) of the step: what every step gave, [T, …]; and what the last one gave."""


def _elementwise(b: Builder, stacker: Stacker, chain: Chain, body: Body) -> _Results:
    steps = len(chain.steps)
    operands = []
    for given in body.given:
        value = _as_float(b, _of_all_steps(b, stacker, chain, given), body)
        operands.append(reshaped(b, value, (value.type.shape[0], *given.shape)))
    shape = body.shape
    axis = _axis_of(b, operands, shape)
    groups = _merged([value.type.shape[1:] for value in operands], shape, axis)
    before = sum(1 for _, end in groups if end <= axis)
    operands = [_steps_at(b, value, groups, axis) for value in operands]
    initial = [reshaped(b, value, _product_of(shape, groups)) for value in chain.steps[0].states]
    results = b.op("recur_map", *initial, *operands, step=body.step, states=len(initial), steps=steps, axis=before)
    ends = [*chain.next_states, *body.outputs]
    every = {}
    for end, value in zip(ends, results, strict=False):
        whole = reshaped(b, value, (*shape[:axis], steps, *shape[axis:]))
        first = transposed(b, whole, (axis, *(a for a in range(len(shape) + 1) if a != axis)))
        every[end] = reshaped(b, first, (steps, *_value(chain, 0, end).type.shape))
    return every, dict(zip(chain.next_states, results[len(ends) :], strict=True))


def _axis_of(b: Builder, operands: Sequence[Value], shape: Sequence[Dim]) -> int:
    """Where, among the axes of the states, most operands have their steps in memory."""
    maker = {value: node for node in b.nodes for value in node.outputs}
    votes: dict[int, int] = {}
    for value in operands:
        node = maker.get(value)
        while node is not None and node.op == "reshape":
            node = maker.get(node.operands[0])
        if value.type.shape[1:] == tuple(shape) and node is not None and node.op == "transpose":
            source, place = node.operands[0].type.shape, perm_of(node)[0]
            axis = sum(1 for extent in source[:place] if extent != 1)
            votes[axis] = votes.get(axis, 0) + 1
        else:
            votes[0] = votes.get(0, 0)
    return max(sorted(votes), key=lambda axis: votes[axis])


def _product_of(shape: Sequence[Dim], groups: Sequence[tuple[int, int]]) -> tuple[Dim, ...]:
    return tuple(product(shape[first:end]) for first, end in groups)


def _steps_at(b: Builder, value: Value, groups: Sequence[tuple[int, int]], axis: int) -> Value:
    """[T, …] with the steps at an axis of the states instead, and groups of the states' axes as one."""
    count, *shape = value.type.shape
    moved = transposed(b, value, (*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)))
    joined = list(_product_of(shape, groups))
    joined.insert(sum(1 for _, end in groups if end <= axis), count)
    return reshaped(b, moved, joined)


def _merged(shapes: Sequence[tuple[Dim, ...]], shape: tuple[Dim, ...], axis: int) -> list[tuple[int, int]]:
    """Ranges of axes, none across `axis`, along which every operand is either whole or broadcast: they can be one."""
    groups: list[tuple[int, int]] = []
    for place in range(len(shape)):
        kinds = [each[place] == 1 for each in shapes]
        alike = groups and all((each[groups[-1][0]] == 1) == kind for each, kind in zip(shapes, kinds, strict=True))
        if alike and place != axis:
            groups[-1] = groups[-1][0], place + 1
        else:
            groups.append((place, place + 1))
    return groups


def _of_all_steps(b: Builder, stacker: Stacker, chain: Chain, given: Given) -> Value:
    """[T, …] of what the steps are given, [1, …] of what is the same in all of them."""
    if given.number is None:
        return reshaped(b, given.value, (1, *given.value.type.shape))
    return stacker.stack([step.given[given.number] for step in chain.steps])


def _as_float(b: Builder, value: Value, body: Body) -> Value:
    return value if value.type.dtype == body.dtype else emit(b, "cast", value, to=body.dtype)


def _cell(b: Builder, stacker: Stacker, chain: Chain, body: Body) -> _Results:
    steps = len(chain.steps)
    *lead, hidden = body.shape
    assert isinstance(hidden, int)
    rows = product(lead)
    inputs = []
    for given, parts in _runs(body.given):
        value = _as_float(b, _of_all_steps(b, stacker, chain, given), body)
        width = given.shape[-1] if given.shape else 1
        value = reshaped(b, value, (value.type.shape[0], *given.shape[:-1], width))
        if width == 1:
            width = hidden
        elif parts * hidden != width:
            value = _part(b, value, given.part * hidden, parts * hidden)
            width = parts * hidden
        if value.type.shape != (steps, *lead, width):
            value = emit(b, "expand", value, shape=(steps, *lead, width))
        inputs.append(reshaped(b, value, (steps, rows, width)))
    gates = inputs[0] if len(inputs) == 1 else emit(b, "concat", *inputs, axis=2)
    weights = []
    for weight, by_column in body.weights:
        flat = reshaped(b, weight, weight.type.shape[-2:])
        weights.append(transposed(b, flat, (1, 0)) if by_column else flat)
    weight = weights[0] if len(weights) == 1 else emit(b, "concat", *weights, axis=0)
    extra = []
    for given, parts in _runs(body.extra):
        value = reshaped(b, _as_float(b, given.value, body), (given.shape[-1] if given.shape else 1,))
        whole = value.type.shape[0]
        if whole == 1:
            value = emit(b, "expand", value, shape=(hidden,))
        elif whole != parts * hidden:
            value = _part(b, value, given.part * hidden, parts * hidden)
        extra.append(value)
    initial = [_initial(b, stacker, chain.steps[0].states[n], (1, rows, hidden)) for n in body.state_order]
    results = b.op(
        "recur_cell", gates, reshaped(b, weight, (1, *weight.type.shape)), None, initial[0],
        initial[1] if len(initial) > 1 else None,
        None if not extra else extra[0] if len(extra) == 1 else emit(b, "concat", *extra, axis=0),
        step=body.step, reset=body.reset, inputs=len(body.given), sums=body.sums, states=len(initial),
    )  # fmt: skip
    ends = [chain.next_states[n] for n in body.state_order]
    every = {ends[0]: reshaped(b, results[0], (steps, *_value(chain, 0, ends[0]).type.shape))}
    return every, dict(zip(ends, results[1:], strict=True))


def _runs(given: Sequence[Given]) -> list[tuple[Given, int]]:
    """Neighbouring parts of one operand together: the first of them, and how many they are."""
    runs: list[tuple[Given, int]] = []
    for item in given:
        if runs:
            first, count = runs[-1]
            if item == replace(first, part=first.part + count) and first.shape and first.shape[-1] != 1:
                runs[-1] = first, count + 1
                continue
        runs.append((item, 1))
    return runs


def _part(b: Builder, value: Value, start: int, size: int) -> Value:
    """value[…, start : start + size]."""
    rank = value.type.rank
    starts = (*[0] * (rank - 1), start)
    return emit(b, "slice", value, starts=starts, sizes=(*value.type.shape[:-1], size), steps=(1,) * rank)


def _initial(b: Builder, stacker: Stacker, value: Value, shape: tuple[Dim, ...]) -> Value | None:
    """The state before the first step; None for zeros."""
    const = stacker.consts.get(value)
    if const is not None and not np.any(const.array()):
        return None
    return reshaped(b, value, shape)


# What is made of the steps' results.


def _join_results(graph: Graph, rolled: set[Value]) -> Graph:
    """Concats of what was made of the results of every step, made for all of them at once."""
    made: dict[Value, Value] = {}
    builder = Builder()
    for node in graph.nodes:
        if node.op != "concat" or len(node.inputs) < LEAST_STEPS:
            continue
        axis = as_int(node.attrs["axis"]) % node.output.type.rank
        with builder.at(*node.locs):
            stacker = Stacker(builder, graph.producer, graph.consts, rolled)
            runs = _stacked_runs(stacker, node.operands)
            if runs is None:
                continue
            parts = [joined_along(builder, value, axis) if is_stack else value for value, is_stack in runs]
            made[node.output] = parts[0] if len(parts) == 1 else emit(builder, "concat", *parts, axis=axis)
    if not made:
        return graph
    return replaced(graph, made, builder)


def _stacked_runs(stacker: Stacker, values: Sequence[Value]) -> list[tuple[Value, bool]] | None:
    """The operands of a concat, most of them as one stack; None where they do not come from a recurrence."""
    for first, end in ((0, len(values)), (1, len(values)), (0, len(values) - 1)):
        stacker.uses_rolled = False
        stacked = stacker.together(values[first:end])
        if stacked is not None and stacker.uses_rolled:
            edges = [(value, False) for value in values]
            return [*edges[:first], (stacked, True), *edges[end:]]
    return None
