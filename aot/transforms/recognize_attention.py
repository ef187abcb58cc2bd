"""Finds attention: softmax(q kᵀ scale + mask) v, with the scale and the mask as exporters place them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from aot.builder import Builder
from aot.dims import Dim
from aot.dtypes import BF16, F16, F32
from aot.ir import Attr, Node, Value
from aot.pattern import SILENT, Match, View, op, rule
from aot.transforms.recognize_factors import dies
from aot.transforms.shapes import as_int, emit, maker_of, perm_of, reshaped, transposed, value_fits

_SURELY_MASKED = -1e8  # a finite score this low has no weight beside any real one


@dataclass(slots=True)
class _Mask:
    """What is added to scores; or, with a `fill`, the condition where they are replaced by it.

    `windows`: the shape of rank 5 in which it is added, the batch taken apart (shifted windows).
    """

    value: Value
    fill: float | None = None
    masked_where: bool = True
    windows: tuple[Dim, ...] = ()


@dataclass(slots=True)
class _Scores:
    """What stands between a softmax and the product of q and k."""

    product: Node
    scale: float = 1.0
    masks: list[_Mask] = field(default_factory=list)  # in the order in which they are applied
    nodes: list[Node] = field(default_factory=list)
    group: Dim | None = None  # how many heads share a key, where their rows are joined in the product


def _unscaled(view: View, value: Value) -> tuple[Value, float, list[Node]]:
    """A value without multiplications by numbers: what is left, their product, the nodes."""
    scale = 1.0
    nodes: list[Node] = []
    while True:
        narrowed = _narrowed(view, value)
        node = view.producer.get(value if narrowed is None else narrowed[-1].operands[0])
        number = view.number(node.inputs[1]) if node is not None and node.op in ("mul", "div") else None
        if node is None or not number or (nodes and view.sole_user(value) is None):
            return value, scale, nodes
        factor = node.operands[0]
        if narrowed is not None:
            widened = view.producer.get(factor)
            if widened is None or widened.op != "cast" or widened.operands[0].type.dtype != value.type.dtype:
                return value, scale, nodes
            nodes += [*narrowed, node, widened]
            factor = widened.operands[0]
        else:
            nodes.append(node)
        scale = scale * number if node.op == "mul" else scale / number
        value = factor


def _narrowed(view: View, value: Value) -> list[Node] | None:
    """The cast by which a value of 16 bits is what was computed in f32 for it alone; None where it is not so."""
    node = view.producer.get(value)
    is_rounded = node is not None and node.op == "cast" and value.type.dtype in (F16, BF16)
    if node is None or not is_rounded or node.operands[0].type.dtype != F32:
        return None
    return [node] if view.sole_user(node.operands[0]) is not None else None


def _scores(view: View, value: Value) -> _Scores | None:
    """Takes scores apart, from the softmax upwards; None where no matmul is at the end."""
    plain, scale, nodes = _unscaled(view, value)
    product = maker_of(view, plain, "matmul")
    if product is not None:
        return _Scores(product, scale, nodes=[*nodes, product])
    node = view.producer.get(value)
    if node is not None and node.op == "reshape":
        return _grouped_scores(view, node) or _windowed_scores(view, node)
    if node is None or node.op not in ("add", "where"):
        return None
    if node.op == "add":
        for inner, mask in (node.operands, node.operands[::-1]):
            found = _scores(view, inner)
            if found is not None:
                found.masks.append(_Mask(mask))
                found.nodes.append(node)
                return found
        return None
    condition, yes, no = node.operands
    for inner, other, masked_where in ((no, yes, True), (yes, no, False)):
        fill = view.number(other)
        found = _scores(view, inner) if fill is not None else None
        if fill is not None and found is not None:
            found.masks.append(_Mask(condition, fill, masked_where))
            found.nodes.append(node)
            return found
    return None


def _grouped_scores(view: View, apart: Node) -> _Scores | None:
    """Scores [batch, heads, group, rows, keys] of a product whose rows are those of a group, one after another."""
    before, after = apart.operands[0].type.shape, apart.output.type.shape
    if len(after) != 5:
        return None
    batch, heads, group, rows, keys = after
    if before not in ((batch, heads, group * rows, keys), (batch * heads, group * rows, keys)):
        return None
    found = _scores(view, apart.operands[0])
    if found is None or found.masks or found.group is not None:
        return None
    found.group = group
    found.nodes.append(apart)
    return found


def _windowed_scores(view: View, joined: Node) -> _Scores | None:
    """Scores that were taken apart to [batch, windows, heads, rows, columns] for a mask by window."""
    total = maker_of(view, joined.operands[0], "add")
    shape = joined.output.type.shape
    if total is None or len(shape) != 4 or total.output.type.rank != 5 or total.output.type.shape[2:] != shape[1:]:
        return None
    for inner, mask in (total.operands, total.operands[::-1]):
        apart = maker_of(view, inner, "reshape")
        if apart is None or apart.operands[0].type.shape != shape or inner.type.shape != total.output.type.shape:
            continue
        found = _scores(view, apart.operands[0])
        if found is not None:
            found.masks.append(_Mask(mask, windows=total.output.type.shape))
            found.nodes.extend((apart, total, joined))
            return found
    return None


def _weights(view: View, value: Value) -> tuple[Node | None, list[Node]]:
    """The softmax that makes a value, and the nodes that put 0 for its NaN (torch: rows masked throughout)."""
    chosen = maker_of(view, value, "where")
    if chosen is None:
        return maker_of(view, value, "softmax"), []
    condition, yes, no = chosen.operands
    missing = maker_of(view, condition, "isnan")
    if missing is None or missing.operands[0] is not no or view.number(yes) != 0:
        return None, []
    return maker_of(view, no, "softmax"), [missing, chosen]


def _check_attention(m: Match) -> str | None:
    weights, guard = _weights(m.view, m["weights"])
    rank = m.root.output.type.rank
    joined = maker_of(m.view, m["weights"], "reshape") if weights is None else None
    if joined is not None:
        weights, guard = _weights(m.view, joined.operands[0])
        guard = [*guard, joined]
    if weights is None:
        return SILENT
    scored = weights.output.type.rank
    if as_int(weights.attrs["axis"]) % scored != scored - 1:
        return "its softmax is not over the last axis"
    if not m.root.output.type.dtype.is_float:
        return SILENT
    found = _scores(m.view, weights.operands[0])
    if found is None:
        return "its softmax is not over a product"
    if rank not in (3, 4, 5):
        return f"it has rank {rank}"
    if (found.group is not None) != (joined is not None) or scored != (5 if joined is not None else rank):
        return "its weights have another shape than its scores"
    q, q_scale, q_nodes = _unscaled(m.view, found.product.operands[0])
    k, k_scale, k_nodes = _unscaled(m.view, found.product.operands[1])
    turned = maker_of(m.view, k, "transpose")
    shape = found.product.output.type.shape
    batch = q.type.shape[:-2]
    if q.type.rank != rank or k.type.rank != rank or m["v"].type.rank != rank:
        return "q, k and v have different ranks"
    shared = (*batch[:-1], 1) if rank == 5 else batch
    if k.type.shape[:-2] != m["v"].type.shape[:-2] or k.type.shape[:-2] not in (batch, shared):
        return "q, k and v have different batches or heads"
    if joined is not None and joined.output.type.shape != shape:
        return SILENT
    for mask in found.masks:
        if not value_fits(mask.value, mask.windows or weights.output.type.shape):
            return "the mask widens the scores"
        if mask.fill is not None and mask.fill > _SURELY_MASKED:
            return f"masked scores are set to {mask.fill:g}, which may still count"
    if not dies(m, weights, *guard, *found.nodes):
        return "its scores are read by others too"
    m.include(*q_nodes, *k_nodes, *([turned] if turned is not None else []))
    is_guarded = len(guard) > (joined is not None)
    m.facts.update(q=q, k=k, turned=turned, scale=found.scale * q_scale * k_scale, scores=found, guard=is_guarded)
    m.facts["shape"] = weights.output.type.shape
    return None


def _four(b: Builder, value: Value, shape: Sequence[Dim], group: Dim | None = None) -> Value:
    """A tensor of rank 3 with an axis for one head; groups of heads as heads. `shape`: that of the weights."""
    if value.type.rank == 5:
        batch, heads, each, rows, columns = value.type.shape
        return reshaped(b, value, (batch, heads * each, rows, columns))
    if len(shape) == 5:
        *_, rows, columns = value.type.shape
        if group is None:
            return reshaped(b, value, (*shape[:2], rows, columns))
        return reshaped(b, value, (shape[0], shape[1] * group, shape[3], columns))
    if value.type.rank == 4:
        return value
    batch, rows, columns = value.type.shape
    return reshaped(b, value, (batch, 1, rows, columns))


def _grouped_mask(b: Builder, mask: Value, shape: Sequence[Dim]) -> Value:
    """A mask for scores [batch, heads, group, rows, keys], for their heads in groups."""
    if mask.type.rank < 3:
        return mask
    padded: tuple[Dim, ...] = (*(1,) * (5 - mask.type.rank), *mask.type.shape)
    batch, heads, group, *rest = padded
    if (heads, group) != (1, 1) and (heads, group) != tuple(shape[1:3]):
        heads, group = shape[1:3]
        mask = emit(b, "expand", mask, shape=(batch, heads, group, *rest))
    return reshaped(b, mask, (batch, heads * group, *rest))


def _keys(b: Builder, k: Value, turned: Node | None) -> Value:
    """k from its transpose: through the transpose that made it, or by turning it back."""
    rank = k.type.rank
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    if turned is None:
        return transposed(b, k, swapped)
    perm = perm_of(turned)
    return transposed(b, turned.operands[0], [perm[axis] for axis in swapped])


def _joined(b: Builder, mask: _Mask, before: Value | None) -> Value:
    """A mask by window for the joined batch; with it what was added before, where that is the same for every sample."""
    batch, windows = mask.windows[:2]
    value = mask.value
    is_shared = before is not None and before.type.rank == 4 and before.type.shape[0] == 1
    if before is not None and is_shared:
        value = emit(b, "add", reshaped(b, before, (1, *before.type.shape)), value)
    rest = ((1,) * (5 - value.type.rank) + value.type.shape)[2:]
    wide = emit(b, "expand", value, shape=(batch, windows, *rest))
    joined = reshaped(b, wide, (batch * windows, *rest))
    return joined if before is None or is_shared else emit(b, "add", before, joined)


def _mask(b: Builder, found: _Scores, rank: int, shape: Sequence[Dim]) -> Value | None:
    """The masks as attention takes one: True where a score counts, or what is added to scores."""
    mask: Value | None = None
    dtype = found.product.output.type.dtype
    for step in found.masks:
        if step.fill is None:
            if step.windows:
                mask = _joined(b, step, mask)
            else:
                mask = step.value if mask is None else emit(b, "add", mask, step.value)
        elif step.fill == -math.inf and len(found.masks) == 1:
            mask = emit(b, "not", step.value) if step.masked_where else step.value
        else:
            parts = [b.scalar(step.fill, dtype), b.scalar(0.0, dtype) if mask is None else mask]
            mask = emit(b, "where", step.value, *(parts if step.masked_where else parts[::-1]))
    if mask is not None and len(shape) == 5:
        return _grouped_mask(b, mask, shape)
    if mask is None or rank == 4 or mask.type.rank < 3:
        return mask
    batch, *rest = mask.type.shape
    widened: tuple[Dim, ...] = (batch, 1, *rest)
    return reshaped(b, mask, widened)


@rule(op("matmul", "weights", "v"), check=_check_attention, measure="cost", exact=False)
def attention(b: Builder, m: Match) -> Value:
    """softmax(q kᵀ * scale + mask) v is attention; so it is with 0 for the NaN of rows masked throughout."""
    found: _Scores = m.facts["scores"]
    rank = m.root.output.type.rank
    shape = m.facts["shape"]
    q = _four(b, m.facts["q"], shape, found.group)
    operands = [q, _four(b, _keys(b, m.facts["k"], m.facts["turned"]), shape), _four(b, m["v"], shape)]
    mask = _mask(b, found, rank, shape)
    if mask is not None:
        operands.append(mask)
    attrs: dict[str, Attr] = {"scale": float(m.facts["scale"]), "causal": False, "zero_empty": m.facts["guard"]}
    result = emit(b, "attention", *operands, **attrs)
    return reshaped(b, result, m.root.output.type.shape)


ATTENTION_RULES = (attention,)
