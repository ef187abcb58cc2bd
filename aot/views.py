"""Which VIEW nodes move no bytes: the strides and offset of a view of a tensor with a given layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aot import dims as dimension
from aot.dims import Dim, typical
from aot.ir import Layout, Node, TensorType
from aot.ops.helpers import dims_attr, ints_attr

VIEW_OPS = frozenset({"reshape", "transpose", "slice", "expand"})


def is_view(node: Node) -> bool:
    """Whether a node may be an alias of what it reads: a view, but for slices that go backwards."""
    return node.op in VIEW_OPS and not (node.op == "slice" and min(ints_attr(node.attrs, "steps"), default=1) < 1)


@dataclass(frozen=True, slots=True)
class View:
    """The result of a view: its type, and where its element 0 lies from its input's element 0, in elements."""

    type: TensorType
    offset_elements: Dim


def view_of(node: Node, source: TensorType) -> View | None:
    """How the node's output lies in the bytes of its input; None where bytes would have to move."""
    out = node.output.type
    strides: tuple[Dim, ...] | None
    offset: Dim = 0
    if node.op == "reshape":
        strides = reshaped_strides(source.shape, source.strides, out.shape)
    elif node.op == "transpose":
        strides = tuple(source.strides[axis] for axis in ints_attr(node.attrs, "perm"))
    elif node.op == "slice":
        steps = ints_attr(node.attrs, "steps")
        if any(step < 1 for step in steps):
            return None
        for start, stride in zip(dims_attr(node.attrs, "starts"), source.strides, strict=True):
            offset = offset + stride * start
        strides = tuple(stride * step for stride, step in zip(source.strides, steps, strict=True))
    elif node.op == "expand":
        lead = len(out.shape) - source.rank
        strides = (0,) * lead + tuple(
            0 if have == 1 and want != 1 else stride
            for have, want, stride in zip(source.shape, out.shape[lead:], source.strides, strict=True)
        )
    else:
        return None
    if strides is None:
        return None
    return View(TensorType(out.dtype, out.shape, layout_of(out.shape, strides)), offset)


def reshaped_strides(shape: Sequence[Dim], strides: Sequence[Dim], new_shape: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """Strides of a reshape that moves no bytes, or None.

    Walks both shapes, matching the shortest groups of axes with equal products; the axes of a group
    of the old shape must be mergeable (each stride is the next extent × the next stride).
    """
    if 0 in shape:
        return dense_strides(new_shape, range(len(new_shape)))
    old = [(extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1]
    result: list[Dim] = []
    position = 0
    remaining: Dim = 1  # what is left of the merged old group, and the stride of its innermost element
    step: Dim = 1
    new = list(new_shape)
    index = 0
    while index < len(new):
        extent = new[index]
        if extent == 1:
            result.append(1)
            index += 1
            continue
        # Gather a group: new axes index..end against old axes position..stop with equal products.
        stop, end = position, index
        old_product: Dim = 1
        new_product: Dim = 1
        while True:
            if stop > position and end > index and old_product == new_product:
                break
            grow_old = stop == position or (
                end > index and dimension.exact_div(new_product, old_product) is not None and new_product != old_product
            )
            if grow_old and stop < len(old):
                old_product = old_product * old[stop][0]
                stop += 1
            elif end < len(new):
                new_product = new_product * new[end]
                end += 1
            else:
                return None
        for (_, outer), (inner_extent, inner) in zip(old[position : stop - 1], old[position + 1 : stop], strict=True):
            if outer != inner_extent * inner:
                return None
        remaining, step = 1, old[stop - 1][1]
        group: list[Dim] = []
        for extent in reversed(new[index:end]):
            group.append(step * remaining)
            remaining = remaining * extent
        result.extend(reversed(group))
        position, index = stop, end
    return tuple(result) if position == len(old) else None


def layout_of(shape: Sequence[Dim], strides: Sequence[Dim]) -> Layout:
    """The simplest layout with these strides: an order where they are dense, else the strides themselves."""
    order = tuple(
        sorted(
            range(len(shape)),
            key=lambda axis: (-typical(strides[axis]), -typical(shape[axis]) == -1, axis),
        )
    )
    for candidate in dict.fromkeys((tuple(range(len(shape))), order)):
        dense = dense_strides(shape, candidate)
        if all(extent == 1 or have == want for extent, have, want in zip(shape, strides, dense, strict=True)):
            return Layout() if candidate == tuple(range(len(shape))) else Layout(order=candidate)
    return Layout(order=order if order != tuple(range(len(shape))) else (), strides=tuple(strides))


def dense_strides(shape: Sequence[Dim], order: Sequence[int]) -> tuple[Dim, ...]:
    """Dense strides of a shape in a memory order."""
    result: list[Dim] = [0] * len(shape)
    step: Dim = 1
    for axis in reversed(order):
        result[axis] = step
        step = step * shape[axis]
    return tuple(result)
