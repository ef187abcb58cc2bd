"""WINDOW kernels: a convolution is a matrix product whose left operand is read through its window.

Taps and channels are summed, channels innermost, as channels-last memory has them; places outside of the input read
as the window's fill. With groups each output sums few elements, and a few outputs leave a tile empty: these are summed
without tensor cores (direct.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aot import expr
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cuda.contract import FEW_ROWS, Tile, emit_contract
from aot.backend.cuda.direct import Direct, Lines, emit_direct
from aot.dims import Dim, product
from aot.dtypes import BOOL, F32, I8, I64, U8, DType
from aot.errors import CompilerError
from aot.expr import Expr, axis, const, dim
from aot.ir import TensorType
from aot.kernel import Axis, ContractRoot, Kernel, Kind, WindowRoot
from aot.program import RecipeOp, RecipeStep
from aot.target import Target


def emit_window(kernel: Kernel, target: Target, schedule: Tile | Direct | None = None) -> Emitted:
    """Triton for a kernel with a WindowRoot; with `schedule`, cut as it says."""
    root = kernel.root
    if not isinstance(root, WindowRoot):
        raise CompilerError(f"{kernel.name}: not a convolution")
    if root.groups != 1 or _has_few_outputs(kernel, root):
        direct, lines, packed = _as_direct(kernel, root)
        return emit_direct(direct, target, lines, packed, schedule if isinstance(schedule, Direct) else None)
    product_kernel, packed = _as_product(kernel, root)
    return emit_contract(product_kernel, target, schedule if isinstance(schedule, Tile) else None, packed)


def _has_few_outputs(kernel: Kernel, root: WindowRoot) -> bool:
    """Whether a product would have so few columns that most of a tile is empty: with tensor cores, a single one.

    A window of one place is a plain product all the same, which has forms of its own for few rows.
    """
    w = kernel.inputs[root.w].type
    outputs, channels, *window = w.shape
    most = MOST_SINGLE_OUTPUTS if w.dtype == F32 and root.operand in (None, F32) else 1
    is_plain = all(extent == 1 for extent in window)
    return isinstance(outputs, int) and outputs <= most and isinstance(channels, int) and not is_plain


def _guarded(load: int, dtype: DType, indices: Sequence[Expr], tests: Sequence[Expr], fill: int) -> Expr:
    """An element of an operand, or `fill` where a test does not hold."""
    guard = const(True, BOOL)
    for test in tests:
        guard = test if guard.op == "const" else expr.call("and", guard, test)
    if guard.op == "const":
        return expr.load(load, dtype, indices)
    return Expr("load", (*indices, guard, const(fill, dtype)), dtype, load)


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

    Weights that are constants are packed as [outputs, taps, channels], the order in which they are summed. The last
    axes of the window, as many as `_joined_axes` says, are summed together with the channels, which are their
    neighbours in memory; the others tap by tap, so that where a tap lies is known for a whole row of a tile.
    """
    x, w = kernel.inputs[root.x].type, kernel.inputs[root.w].type
    channels, window = w.shape[1], w.shape[2:]
    number, apart = len(kernel.axes), len(window) - _joined_axes(kernel, root)
    tap_axes = tuple(number + 1 + position for position in range(apart))
    joined = window[apart:]
    axes = (
        *kernel.axes, Axis(product((channels, *joined)), "k"), *(Axis(extent, "r") for extent in window[:apart])
    )  # fmt: skip
    # k = ((r * S) + s) * C + c
    channel, rest = axis(number), const(0, I64)
    if joined:
        channel = expr.call("mod", axis(number), dim(channels)) if channels != 1 else const(0, I64)
        rest = expr.call("floordiv", axis(number), dim(channels)) if channels != 1 else axis(number)
    inner: list[Expr] = []
    for position, extent in reversed(list(enumerate(joined))):
        is_first = position == 0  # the rest is inside then
        inner.insert(0, rest if is_first or extent == 1 else expr.call("mod", rest, dim(extent)))
        rest = rest if is_first or extent == 1 else expr.call("floordiv", rest, dim(extent))
        inner[0] = const(0, I64) if extent == 1 else inner[0]
    taps = [*map(axis, tap_axes), *inner]
    places, tests = _positions(kernel, root, taps)
    a = _operand(root, _guarded(root.x, x.dtype, (axis(0), channel, *places), tests, root.fill))
    b = _operand(root, expr.load(root.w, w.dtype, (axis(1), channel, *taps)))
    order = (0, *range(2, w.rank), 1)
    shape = (w.shape[0], *window[:apart], product((*joined, channels)))
    kernel, packed = _packed(kernel, root, order, shape)
    if packed:
        b = _operand(root, expr.load(root.w, w.dtype, (axis(1), *map(axis, tap_axes), axis(number))))
    contraction = ContractRoot((), 0, 1, number, a, b, root.accumulate, taps=tap_axes)
    return replace(kernel, kind=Kind.CONTRACT, axes=axes, root=contraction), packed


def _packed(
    kernel: Kernel, root: WindowRoot, order: Sequence[int], shape: Sequence[Dim]
) -> tuple[Kernel, dict[int, PackedOperand]]:
    """The kernel with weights whose axes lie in an order, read as of a shape, and their packing.

    Nothing is packed where the weights are no constant, or the epilogue reads them too.
    """
    w = kernel.inputs[root.w]
    sizes = tuple(size for a in order if isinstance(size := w.type.shape[a], int))
    if not w.constant or len(sizes) < w.type.rank or _is_read_by_stores(kernel, root.w):
        return kernel, {}
    coefficients = tuple(tuple(int(source == moved) for moved in order) for source in range(w.type.rank))
    step = RecipeStep(RecipeOp.PACK, shape=sizes, coefficients=coefficients)
    inputs = list(kernel.inputs)
    inputs[root.w] = replace(w, type=TensorType(w.type.dtype, tuple(shape)))
    packed = {root.w: PackedOperand((step,), w.type.dtype.number, sizes)}
    return replace(kernel, inputs=tuple(inputs)), packed


MOST_SINGLE_OUTPUTS = 8
"""Output channels of a convolution in f32, without tensor cores, that are summed one by one."""

LEAST_CHANNELS = 16
"""Channels that make a step of a product by themselves; of 8 bits twice as many."""


def _joined_axes(kernel: Kernel, root: WindowRoot) -> int:
    """How many axes of the window are summed together with the channels: fewer make steps with simpler places.

    None where the channels are enough for a step; the last where they are few; all where a product has no taps: one of
    few rows, which is a stream, or one that is not added in f32.
    """
    dtype = kernel.inputs[root.w].type.dtype
    channels, *window = kernel.inputs[root.w].type.shape[1:]
    rows = product(a.extent for number, a in enumerate(kernel.axes[: kernel.domain]) if number != 1)
    has_tiles = root.accumulate == F32 or dtype in (I8, U8)
    if not has_tiles or (isinstance(rows, int) and rows <= FEW_ROWS):
        return len(window)
    least = LEAST_CHANNELS * (2 if dtype.itemsize_bytes == 1 else 1)
    return 1 if isinstance(channels, int) and channels < least else 0


def _operand(root: WindowRoot, value: Expr) -> Expr:
    """An element of x or w in the type in which it is multiplied."""
    return value if root.operand is None else expr.cast(value, root.operand)


def _is_read_by_stores(kernel: Kernel, operand: int) -> bool:
    return any(
        node.op == "load" and node.payload == operand for store in kernel.stores for node in expr.walk(store.value)
    )


def _as_direct(kernel: Kernel, root: WindowRoot) -> tuple[Kernel, Lines, dict[int, PackedOperand]]:
    """The kernel with a product at each place and channel, over taps and the channels of a group.

    Weights that are constants are packed as [taps, channels of a group, outputs]: tiles have outputs innermost.
    """
    x, w = kernel.inputs[root.x].type, kernel.inputs[root.w].type
    outputs, channels = w.shape[0], w.shape[1]
    if not isinstance(outputs, int) or not isinstance(channels, int):
        raise CompilerError(f"{kernel.name}: a convolution with groups of unknown sizes")
    first = len(kernel.axes)
    axes = (*kernel.axes, Axis(channels, "k"), *(Axis(extent, "r") for extent in w.shape[2:]))
    taps = [axis(first + 1 + n) for n in range(w.rank - 2)]
    places, tests = _positions(kernel, root, taps)
    group = expr.call("floordiv", axis(1), dim(outputs // root.groups)) if outputs != root.groups else axis(1)
    group = const(0, I64) if root.groups == 1 else group
    indices = (axis(0), group * channels + axis(first), *places)
    a = _operand(root, _guarded(root.x, x.dtype, indices, tests, root.fill))
    b = _operand(root, expr.load(root.w, w.dtype, (axis(1), axis(first), *taps)))
    order = (*range(2, w.rank), 1, 0)
    kernel, packed = _packed(kernel, root, order, tuple(w.shape[a] for a in order))
    if packed:
        b = _operand(root, expr.load(root.w, w.dtype, (*taps, axis(first), axis(1))))
    tap_axes = tuple(range(first + 1, len(axes)))
    product_root = ContractRoot((), 0, 1, first, a, b, root.accumulate, taps=tap_axes)
    spatial = max(w.rank - 4, 0)  # of images the lines, of a series its only axis
    lines = Lines(2 + spatial, tap_axes[spatial], root.strides[spatial], root.dilations[spatial])
    return replace(kernel, kind=Kind.CONTRACT, axes=axes, root=product_root), lines, packed
