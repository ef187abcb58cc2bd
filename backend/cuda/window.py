"""WINDOW kernels: a convolution is a matrix product whose left operand is read through its window.

Summed axes are one: taps, and channels innermost, as channels-last memory has them; places outside of the input read
as 0. With groups each output sums few elements, and is a loop over them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from aot import expr
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cuda.contract import emit_contract
from aot.backend.cuda.loops import emit_loops
from aot.dims import product
from aot.dtypes import BOOL, I64, DType
from aot.errors import CompilerError
from aot.expr import Expr, axis, const, dim
from aot.ir import TensorType
from aot.kernel import Axis, ContractRoot, Kernel, Kind, WindowRoot
from aot.program import RecipeOp, RecipeStep
from aot.target import Target


def emit_window(kernel: Kernel, target: Target) -> Emitted:
    """Triton for a kernel with a WindowRoot."""
    root = kernel.root
    if not isinstance(root, WindowRoot):
        raise CompilerError(f"{kernel.name}: not a convolution")
    if root.groups != 1:
        return emit_loops(_as_sums(kernel, root), target)
    product_kernel, packed = _as_product(kernel, root)
    return emit_contract(product_kernel, target, packed=packed)


def _guarded(load: int, dtype: DType, indices: Sequence[Expr], tests: Sequence[Expr]) -> Expr:
    """An element of an operand, or 0 where a test does not hold."""
    guard = const(True, BOOL)
    for test in tests:
        guard = test if guard.op == "const" else expr.call("and", guard, test)
    if guard.op == "const":
        return expr.load(load, dtype, indices)
    return Expr("load", (*indices, guard, const(0, dtype)), dtype, load)


def _positions(kernel: Kernel, root: WindowRoot, taps: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
    """Where the taps of a window lie in the input, per spatial axis, and the tests that they are inside."""
    shape = kernel.inputs[root.x].type.shape[2:]
    window = kernel.inputs[root.w].type.shape[2:]
    places, tests = [], []
    for number, tap in enumerate(taps):
        before = root.pads[number][0]
        out, extent = kernel.axes[2 + number].extent, shape[number]
        place = axis(2 + number) * root.strides[number] + tap * root.dilations[number] - before
        places.append(place)
        last = (out - 1) * root.strides[number] + (window[number] - 1) * root.dilations[number] - before
        if before:
            tests.append(place >= 0)
        overhang = last - extent
        if not (isinstance(overhang, int) and overhang < 0):
            tests.append(place < dim(extent))
    return places, tests


def _as_product(kernel: Kernel, root: WindowRoot) -> tuple[Kernel, dict[int, PackedOperand]]:
    """The kernel with a matrix product: rows are samples and places, columns are output channels.

    Weights that are constants are packed as [outputs, taps and channels], the order in which they are summed.
    """
    x, w = kernel.inputs[root.x].type, kernel.inputs[root.w].type
    channels, window = w.shape[1], w.shape[2:]
    number = len(kernel.axes)
    summed = axis(number)
    # k = ((r * S) + s) * C + c
    channel = expr.call("mod", summed, dim(channels)) if channels != 1 else const(0, I64)
    rest = expr.call("floordiv", summed, dim(channels)) if channels != 1 else summed
    taps: list[Expr] = []
    for extent in reversed(window):
        taps.insert(0, const(0, I64) if extent == 1 else expr.call("mod", rest, dim(extent)))
        rest = rest if extent == 1 else expr.call("floordiv", rest, dim(extent))
    places, tests = _positions(kernel, root, taps)
    a = _operand(root, _guarded(root.x, x.dtype, (axis(0), channel, *places), tests))
    b = _operand(root, expr.load(root.w, w.dtype, (axis(1), channel, *taps)))
    inputs, packed = list(kernel.inputs), {}
    sizes = tuple(size for size in (w.shape[0], *window, channels) if isinstance(size, int))
    if inputs[root.w].constant and len(sizes) == w.rank and not _is_read_by_stores(kernel, root.w):
        order = (0, *range(2, w.rank), 1)
        coefficients = tuple(tuple(int(source == moved) for moved in order) for source in range(w.rank))
        packed[root.w] = PackedOperand(
            (RecipeStep(RecipeOp.PACK, shape=sizes, coefficients=coefficients),), w.dtype.number, sizes
        )
        inputs[root.w] = replace(inputs[root.w], type=TensorType(w.dtype, (sizes[0], math.prod(sizes[1:]))))
        b = _operand(root, expr.load(root.w, w.dtype, (axis(1), summed)))
    contraction = ContractRoot((), 0, 1, number, a, b, root.accumulate)
    axes = (*kernel.axes, Axis(product((channels, *window)), "k"))
    return replace(kernel, kind=Kind.CONTRACT, axes=axes, inputs=tuple(inputs), root=contraction), packed


def _operand(root: WindowRoot, value: Expr) -> Expr:
    """An element of x or w in the type in which it is multiplied."""
    return value if root.operand is None else expr.cast(value, root.operand)


def _is_read_by_stores(kernel: Kernel, operand: int) -> bool:
    return any(
        node.op == "load" and node.payload == operand for store in kernel.stores for node in expr.walk(store.value)
    )


def _as_sums(kernel: Kernel, root: WindowRoot) -> Kernel:
    """The kernel with a sum over taps and the channels of a group in place of its root."""
    x, w = kernel.inputs[root.x].type, kernel.inputs[root.w].type
    outputs, channels = w.shape[0], w.shape[1]
    if not isinstance(outputs, int) or not isinstance(channels, int):
        raise CompilerError(f"{kernel.name}: a convolution with groups of unknown sizes")
    first = len(kernel.axes)
    extents = (channels, *w.shape[2:])
    axes = (*kernel.axes, *(Axis(extent, "kr"[bool(n)]) for n, extent in enumerate(extents)))
    summed = [axis(first + n) for n in range(len(extents))]
    places, tests = _positions(kernel, root, summed[1:])
    group = expr.call("floordiv", axis(1), dim(outputs // root.groups)) if outputs != root.groups else axis(1)
    place = (axis(0), group * channels + summed[0], *places)
    value = expr.cast(_operand(root, _guarded(root.x, x.dtype, place, tests)), root.accumulate)
    value = value * expr.cast(_operand(root, expr.load(root.w, w.dtype, (axis(1), *summed))), root.accumulate)
    for n in reversed(range(len(extents))):
        value = expr.reduce("sum", first + n, value)

    def leaf(node: Expr) -> Expr | None:
        return expr.cast(value, node.dtype) if node.op == "root" else None

    stores = tuple(replace(store, value=expr.rewrite(store.value, leaf)) for store in kernel.stores)
    return replace(kernel, kind=Kind.REDUCE, axes=axes, stores=stores, root=None)
