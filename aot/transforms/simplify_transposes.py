"""Moves transposes below elementwise ops, reductions, slices and concats, so that they meet and cancel.

Nothing here changes an arithmetic result, and no rule makes more transposes than it removes.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.builder import Builder
from aot.dims import Dim
from aot.ir import Node, Value
from aot.pattern import SILENT, Match, op, rule
from aot.transforms.shapes import (
    MAPS,
    REDUCES,
    axis_of,
    count_reads,
    dims_of,
    emit,
    ints,
    inverse,
    maker_of,
    perm_of,
    reshaped,
    transposed,
    value_fits,
)

_READERS = MAPS | set(REDUCES) | {"slice", "concat", "pad"}
_TRANSPOSE_READS = count_reads(_READERS, "transpose")


def _transposes(m: Match) -> list[Node | None]:
    return [maker_of(m.view, value, "transpose") for value in m.root.inputs]


def _goes_with_root(m: Match, maker: Node) -> bool:
    return m.view.sole_user(maker.output) is m.root


def _wide(value: Value, rank: int) -> tuple[Dim, ...]:
    """The shape of a broadcast operand with axes of extent 1 in front, up to a rank."""
    return (*(1,) * (rank - value.type.rank), *value.type.shape)


def _turns_freely(value: Value, perm: Sequence[int]) -> bool:
    """Whether a transpose of the value moves axes of extent 1 only."""
    shape = _wide(value, len(perm))
    moved = [axis for axis in perm if shape[axis] != 1]
    return moved == sorted(moved)


def _check_operands(m: Match) -> str | None:
    """Plans the operands of an elementwise op before the transposes they share."""
    node = m.root
    out = node.output.type.shape
    makers = _transposes(m)
    mains = [maker for maker in makers if maker is not None and maker.output.type.shape == out]
    if not mains:
        return SILENT
    perm = perm_of(mains[0])
    back = inverse(perm)
    plan: list[tuple[Value | None, str]] = []
    for value, maker in zip(node.inputs, makers, strict=True):
        if value is None or value.type.rank == 0:
            plan.append((value, "as it is"))
        elif maker is not None and perm_of(maker) == perm:
            plan.append((maker.operands[0], "as it is"))
        elif value_fits(value, out) and (m.view.const(value) is not None or _turns_freely(value, back)):
            plan.append((value, "turned"))
        else:
            return "another operand is neither transposed alike nor a constant"
    if not any(maker is not None and _goes_with_root(m, maker) for maker in makers):
        return "its transposed operands are read by others too"
    m.include(*(maker for maker in makers if maker is not None))
    m.facts["plan"], m.facts["perm"], m.facts["back"] = plan, perm, back
    return None


@rule(op(MAPS), check=_check_operands, measure=_TRANSPOSE_READS)
def transpose_below_map(b: Builder, m: Match) -> Value:
    """An elementwise op on transposed operands is a transpose of the op."""
    perm, back = m.facts["perm"], m.facts["back"]
    operands: list[Value | None] = []
    for value, how in m.facts["plan"]:
        if value is not None and how == "turned":
            wide = _wide(value, len(perm))
            turned = [wide[axis] for axis in back]
            if _turns_freely(value, back):
                value = reshaped(b, value, turned)
            else:
                value = transposed(b, reshaped(b, value, wide), back)
        operands.append(value)
    return transposed(b, emit(b, m.root.op, *operands, **m.root.attrs), perm)


def _check_reduce(m: Match) -> str | None:
    if not m.root.attrs["keepdims"]:
        return SILENT
    if _goes_with_root(m, m.node("inner")) or _turns_freely(m.root.output, inverse(perm_of(m.node("inner")))):
        return None
    return "the transpose is read by others too"


@rule(op(REDUCES, op("transpose", "x", name="inner", shared=True)), check=_check_reduce, measure=_TRANSPOSE_READS)
def transpose_below_reduce(b: Builder, m: Match) -> Value:
    """A reduction of a transposed tensor is a transpose of the smaller reduction."""
    perm = perm_of(m.node("inner"))
    axes = tuple(sorted(perm[axis] for axis in ints(m.root.attrs["axes"])))
    total = emit(b, m.root.op, m["x"], axes=axes, keepdims=True)
    if _turns_freely(total, perm):
        return reshaped(b, total, m.root.output.type.shape)
    return transposed(b, total, perm)


@rule(op("slice", op("transpose", "x", name="inner")), measure=_TRANSPOSE_READS)
def transpose_below_slice(b: Builder, m: Match) -> Value:
    """A slice of a transposed tensor is a transpose of the smaller slice."""
    perm = perm_of(m.node("inner"))
    back = inverse(perm)
    attrs = {}
    for name in ("starts", "sizes", "steps"):
        given = dims_of(m.root.attrs[name])
        attrs[name] = tuple(given[place] for place in back)
    return transposed(b, emit(b, "slice", m["x"], **attrs), perm)


def _check_concat(m: Match) -> str | None:
    makers = [maker for maker in _transposes(m) if maker is not None]
    if not makers:
        return SILENT
    if len(makers) < len(m.root.operands) or len({perm_of(maker) for maker in makers}) > 1:
        return "its pieces are not all transposed alike"
    if not any(_goes_with_root(m, maker) for maker in makers):
        return "its pieces are read by others too"
    m.include(*makers)
    return None


@rule(op("concat"), check=_check_concat, measure=_TRANSPOSE_READS)
def transpose_below_concat(b: Builder, m: Match) -> Value:
    """A concat of tensors transposed alike is a transpose of the concat."""
    makers = [m.view.producer[value] for value in m.root.operands]
    perm = perm_of(makers[0])
    joined = emit(b, "concat", *[n.operands[0] for n in makers], axis=perm[axis_of(m.root)])
    return transposed(b, joined, perm)


TRANSPOSE_RULES = (transpose_below_map, transpose_below_reduce, transpose_below_slice, transpose_below_concat)
