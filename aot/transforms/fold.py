"""Folds nodes whose operands are all constants.

The arithmetic is `aot.evaluate.fold_value`, whose bits do not depend on the machine. Invariant: a
folded constant that is made of weights keeps how (`Const.recipe`) wherever a recipe can say it, so
that it can be made again at load; and folding never makes a small graph a big file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from aot import dtypes
from aot.dtypes import DType
from aot.evaluate import fold_value
from aot.ir import Const, Graph, Level, Node, Value, attr_symbols, const_of
from aot.ops.helpers import int_attr
from aot.passes import Context, transform
from aot.program import RecipeOp, RecipeStep
from aot.recipe import concat as concat_step

GROWTH_BYTES = 64 * 1024  # a result up to this size is made even where its operands are smaller
_SPREADING = frozenset(("expand", "tile", "iota", "one_hot", "resize"))  # repeat or invent their data
_MOST_STEPS = 48  # a longer recipe would cost more at load than the bytes it saves

Lineage = tuple[tuple[RecipeStep, ...], tuple[Const, ...]]


@transform(takes=Level.CORE, gives=Level.CORE)
def fold(graph: Graph, context: Context) -> Graph:
    """Replaces every node that depends on constants alone by its value."""
    consts = dict(graph.consts)
    named = set(graph.outputs) | {value for _, value in graph.state}
    nodes: list[Node] = []
    renamed: dict[Value, Value] = {}
    for node in graph.nodes:
        if any(v in renamed for v in node.operands):
            node = replace(node, inputs=tuple(renamed.get(v, v) if v is not None else None for v in node.inputs))
        operands = [None if v is None else consts.get(v) for v in node.inputs]
        if any(c is None and v is not None for c, v in zip(operands, node.inputs, strict=True)):
            nodes.append(node)
            continue
        is_output = any(value in named for value in node.outputs)
        results = None if is_output and node.op == "copy" else fold_node(node, operands)
        if results is None or not context.allow("fold", node.where):
            nodes.append(node)
            continue
        for value, const in zip(node.outputs, results, strict=True):
            if value in named:  # an output of the model is computed, so that its buffer gets written
                held = Value(value.type, const.source)
                consts[held] = const
                nodes.append(Node("copy", (held,), (value,), locs=node.locs))
                renamed[value] = held
            else:
                consts[value] = const
    if len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    used = {value for node in nodes for value in node.operands} | named
    return graph.with_(nodes=tuple(nodes), consts={v: c for v, c in consts.items() if v in used})


def fold_node(node: Node, operands: Sequence[Const | None]) -> tuple[Const, ...] | None:
    """The constants that a node gives for constant operands; None where it is better left as it is."""
    if node.op == "dequantize" and operands[0] is not None and operands[0].dtype.bits < 32:
        return None  # a weight of few bits stays one  [tests/ops/test_quantized.py]
    after = 0
    for value in node.outputs:
        size = value.type.bytes
        if not isinstance(size, int):
            return None
        after += size
    if any(True for attr in node.attrs.values() for _ in attr_symbols(attr)):
        return None
    present = [const for const in operands if const is not None]
    before = sum(const.bytes for const in present)
    spreads = node.op in _SPREADING or not present
    if after > max(GROWTH_BYTES, before if spreads else 4 * before):
        return None
    arrays = fold_value(node, [None if const is None else const.array() for const in operands])
    if arrays is None:
        return None
    lineage = _lineage(node, operands) if len(node.outputs) == 1 else None
    return tuple(_constant(np.asarray(array), lineage) for array in arrays)


def _constant(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], lineage: Lineage | None) -> Const:
    const = const_of(array)
    if lineage is None:
        return const
    recipe, sources = lineage
    return replace(const, source=sources[0].source if sources else "", recipe=recipe, recipe_sources=sources)


def cast_const(const: Const, dtype: DType) -> Const:
    """The constant in a float type, with how it is made of weights."""
    with np.errstate(all="ignore"):
        array = const.array().astype(dtype.numpy)
    lineage = lineage_of(const)
    if lineage is None or not lineage[1]:
        return const_of(array)
    return _constant(array, ((*lineage[0], _cast_step(dtype)), lineage[1]))


def concat_consts(consts: Sequence[Const], axis: int) -> Const | None:
    """Constants of one type joined along an axis, with how that is made of weights; None where no recipe can say it."""
    lineages = [lineage_of(const) for const in consts]
    known = [lineage for lineage in lineages if lineage is not None]
    lineage = None
    if any(sources for _, sources in known):
        lineage = _combined(known, (), (concat_step(axis, len(known)),)) if len(known) == len(consts) else None
        if lineage is None:
            return None
    return _constant(np.concatenate([const.array() for const in consts], axis), lineage)


def vector_const(const: Const, elements: int) -> Const:
    """A constant of one element, or of `elements`, as a vector of that many, with how it is made."""
    array, lineage = const.array().reshape(-1), lineage_of(const)
    steps = [RecipeStep(RecipeOp.RESHAPE, shape=array.shape)]
    if array.size != elements:
        steps.append(RecipeStep(RecipeOp.PACK, shape=(elements,), coefficients=((0,),)))
    return _constant(np.broadcast_to(array, (elements,)), lineage and ((*lineage[0], *steps), lineage[1]))


def _cast_step(dtype: DType) -> RecipeStep:
    return RecipeStep(RecipeOp.CAST, dtype=dtype.number)


def lineage_of(const: Const) -> Lineage | None:
    """How a constant is made of initializers: recipe steps and their sources; None if unknown."""
    if const.recipe is not None:
        return const.recipe, const.recipe_sources
    if const.source:
        return (RecipeStep(RecipeOp.SOURCE, operands=(0,)),), (const,)
    if all(extent == 1 for extent in const.shape) and const.dtype.is_float:
        number = float(const.array().reshape(()))
        steps = [RecipeStep(RecipeOp.SCALAR, scalar=number, dtype=const.dtype.number)]
        if const.shape:
            steps.append(RecipeStep(RecipeOp.RESHAPE, shape=const.shape))
        return tuple(steps), ()
    return None


_BINARY = {"add": RecipeOp.ADD, "sub": RecipeOp.SUB, "mul": RecipeOp.MUL, "div": RecipeOp.DIV}
_UNARY = {"neg": RecipeOp.NEG, "sqrt": RecipeOp.SQRT}
_ARITHMETIC = frozenset({*_BINARY, *_UNARY, "reciprocal"})


def _lineage(node: Node, operands: Sequence[Const | None]) -> Lineage | None:
    """The lineage of a node's result; None where no recipe can say it or no weight is involved."""
    present = [const for const in operands if const is not None]
    parts = [lineage_of(const) for const in present]
    if not parts or any(part is None for part in parts):
        return None
    steps = _step(node, present)
    if steps is None:
        return None
    if node.op in _ARITHMETIC and all(const.dtype in (dtypes.F16, dtypes.BF16) for const in present):
        # Recipes compute in f32; rounded once more, a single operation gives what it gives in 16 bits.
        parts = [part and ((*part[0], _cast_step(dtypes.F32)), part[1]) for part in parts]
        steps = [*steps, _cast_step(node.output.type.dtype)]
    before: list[RecipeStep] = []
    if steps and steps[0].op == RecipeOp.SCALAR:  # reciprocal: 1 comes before its operand
        before, steps = steps[:1], steps[1:]
    lineage = _combined([part for part in parts if part is not None], before, steps)
    return lineage if lineage is not None and lineage[1] else None


def _combined(parts: Sequence[Lineage], before: Sequence[RecipeStep], after: Sequence[RecipeStep]) -> Lineage | None:
    """The lineage of what steps make of several operands; None where it is too long."""
    recipe = list(before)
    sources: list[Const] = []
    for part in parts:
        numbers = []
        for source in part[1]:
            known = [i for i, s in enumerate(sources) if s.digest == source.digest and s.source == source.source]
            if not known:
                sources.append(source)
            numbers.append(known[0] if known else len(sources) - 1)
        for step in part[0]:
            moved = replace(step, operands=(numbers[step.operands[0]],)) if step.op == RecipeOp.SOURCE else step
            recipe.append(moved)
    recipe.extend(after)
    return (tuple(recipe), tuple(sources)) if len(recipe) <= _MOST_STEPS else None


def _step(node: Node, operands: Sequence[Const]) -> list[RecipeStep] | None:
    """The recipe steps of one op, over operands that are on the stack."""
    first = operands[0]
    shape = tuple(int(extent) for extent in node.output.type.shape if isinstance(extent, int))
    if node.op == "copy":
        return []
    if node.op == "reshape":
        return [RecipeStep(RecipeOp.RESHAPE, shape=shape)]
    if node.op == "concat":
        return [concat_step(int_attr(node.attrs, "axis") % node.output.type.rank, len(operands))]
    if node.op == "cast":
        target = node.output.type.dtype
        if not (target.is_float and (first.dtype.is_float or first.dtype.is_integer)):
            return None  # only conversions to float round the same everywhere
        return [_cast_step(target)]
    if node.op in ("transpose", "slice", "expand", "pad"):
        coefficients = _coefficients(node, first, len(operands))
        return None if coefficients is None else [RecipeStep(RecipeOp.PACK, shape=shape, coefficients=coefficients)]
    computed = dtypes.F32 if first.dtype in (dtypes.F16, dtypes.BF16) else first.dtype
    if node.op not in _ARITHMETIC or computed not in (dtypes.F32, dtypes.F64):
        return None
    if any(const.dtype != first.dtype for const in operands):
        return None
    if node.op == "reciprocal":
        return [RecipeStep(RecipeOp.SCALAR, scalar=1.0, dtype=computed.number), RecipeStep(RecipeOp.DIV)]
    if node.op in _UNARY:
        return [RecipeStep(_UNARY[node.op])]
    if node.op in _BINARY and len(operands) == 2:
        return [RecipeStep(_BINARY[node.op])]
    return None


def _coefficients(node: Node, source: Const, operand_count: int) -> tuple[tuple[int, ...], ...] | None:
    """PACK coefficients [source axis][result axis] of a view op; None where an offset is needed."""
    rank = node.output.type.rank
    rows = [[0] * rank for _ in source.shape]
    if node.op == "transpose":
        perm = node.attrs["perm"]
        assert isinstance(perm, tuple)
        for place, axis in enumerate(perm):
            assert isinstance(axis, int)
            rows[axis][place] = 1
    elif node.op == "slice":
        starts, steps = node.attrs["starts"], node.attrs["steps"]
        assert isinstance(starts, tuple) and isinstance(steps, tuple)
        for axis, (start, step) in enumerate(zip(starts, steps, strict=True)):
            if start != 0 or not isinstance(step, int):
                return None
            rows[axis][axis] = step
    elif node.op == "expand":
        for axis, extent in enumerate(source.shape):
            place = rank - len(source.shape) + axis
            rows[axis][place] = 0 if extent == 1 and node.output.type.shape[place] != 1 else 1
    else:
        before = node.attrs["before"]
        assert isinstance(before, tuple)
        if any(b != 0 for b in before) or node.attrs.get("mode") != "constant" or operand_count > 1:
            return None
        for axis in range(rank):
            rows[axis][axis] = 1
    return tuple(map(tuple, rows))
