"""Convolution kernels: implicit matmuls over panels of weights, and direct loops for depthwise ones.

The input carries its halo, so no tap needs a check. A dense convolution is the matmul of
`panels.py`: rows are pixels of an output row, the summed loops run over kernel positions and
channels. 1x1 convolutions, and whatever else walks evenly, get longer rows by merging axes there.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot import dims as dimension
from aot import expr
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cpu.code import memory_type
from aot.backend.cpu.depthwise import emit_depthwise
from aot.backend.cpu.dots import prefers_dots
from aot.backend.cpu.functions import get
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.panels import MatrixAxis, PackSite, Panels, emit_panels
from aot.backend.cpu.rows import RowAxis, merge_rows
from aot.backend.cpu.tile import PANEL, merge_loops
from aot.backend.cpu.winograd import emit_winograd, prefers_winograd
from aot.backend.cpu.words import are_words, elements_of, panel_elements, unit_of, words_of
from aot.dims import Dim
from aot.errors import CompilerError
from aot.ir import TensorType
from aot.kernel import Kernel, WindowRoot
from aot.program import RecipeOp, RecipeStep


def static_shape(kernel: Kernel, operand: int) -> tuple[int, ...]:
    """The shape of an operand that must be known: a convolution's weights."""
    shape = kernel.inputs[operand].type.shape
    known = tuple(extent for extent in shape if isinstance(extent, int))
    if len(known) != len(shape):
        raise CompilerError(f"{kernel.name}: convolution weights of unknown shape {shape}")
    return known


def is_constant_weight(kernel: Kernel, root: WindowRoot) -> bool:
    """Whether the weights can be packed at build time: constant, and nothing else reads them."""
    loads = (node for store in kernel.stores for node in expr.walk(store.value) if node.op == "load")
    return kernel.inputs[root.w].constant and all(node.payload != root.w for node in loads)


def _pack(kernel: Kernel, root: WindowRoot, shape: Sequence[int], dots: bool, words: bool) -> PackedOperand:
    """Weights [O, Cg, k…] as panels [G, ceil(Og / 16), loops…, 16], or as [G, Og, loops…]; see `_loop_order`."""
    outputs, channels, *window = shape
    groups = root.groups
    per_group = outputs // groups
    order = _loop_order(kernel.inputs[root.x].type)
    summed = [shape[axis] for axis in order]
    packed = (groups, per_group, *summed) if dots else (groups, -(-per_group // PANEL), *summed, PANEL)
    width = len(packed)

    def unit(position: int) -> tuple[int, ...]:
        return tuple(int(p == position) for p in range(width))

    output_row = unit(1) if dots else tuple(PANEL if p == 1 else int(p == width - 1) for p in range(width))
    rows = (unit(0), output_row, *(unit(2 + order.index(axis)) for axis in range(1, len(shape))))
    steps = [
        RecipeStep(RecipeOp.RESHAPE, shape=(groups, per_group, channels, *window)),
        RecipeStep(RecipeOp.PACK, shape=packed, coefficients=rows),
    ]
    source = kernel.inputs[root.w].type.dtype
    dtype = source if words else root.accumulate
    if source != dtype:
        steps.insert(0, RecipeStep(RecipeOp.CAST, dtype=dtype.number))
    return PackedOperand(tuple(steps), dtype.number, packed)


def _pack_words(kernel: Kernel, root: WindowRoot, shape: Sequence[int], extents: Sequence[int]) -> PackedOperand:
    """Narrow weights [O, Cg, k…] as panels of words [G, ceil(Og / 16), …, ceil(run / word), 16, word].

    `extents`: of the merged summed loops, of which the last is the run.
    """
    word = elements_of(kernel.inputs[root.w].type.dtype)
    moved = _pack(kernel, root, shape, dots=True, words=True)  # [G, Og, summed…]
    groups, per_group, *_ = moved.shape
    *outer, run = extents
    packed = (groups, -(-per_group // PANEL), *outer, -(-run // word), PANEL, word)
    width = len(packed)
    rows = [[0] * width for _ in range(2 + len(extents))]
    rows[0][0] = 1
    rows[1][1], rows[1][-2] = PANEL, 1
    for number in range(len(outer)):
        rows[2 + number][2 + number] = 1
    rows[-1][-3], rows[-1][-1] = word, 1
    return PackedOperand(
        (
            *moved.recipe,
            RecipeStep(RecipeOp.RESHAPE, shape=(groups, per_group, *extents)),
            RecipeStep(RecipeOp.PACK, shape=packed, coefficients=tuple(map(tuple, rows))),
        ),
        moved.dtype,
        packed,
    )


def _loop_order(x: TensorType) -> list[int]:
    """The summed axes (1 channels, 2… kernel positions), outermost first: as the input lies in memory."""
    spatial = list(range(2, x.rank))
    wide = [axis for axis in x.order if x.shape[axis] != 1]  # where an axis of extent 1 stands means nothing
    return [1, *spatial] if 1 in wide and wide[-1] != 1 else [*spatial, 1]


def emit_window(kernel: Kernel, isa: Isa, exact: bool = False) -> Emitted:
    """C for a kernel with a WindowRoot. `exact` forbids Winograd, which reassociates sums.

    Where `operand` of the root asks that an x in f32 be rounded, it is multiplied as it lies, which is no slower.
    """
    root = kernel.root
    if not isinstance(root, WindowRoot):
        raise CompilerError(f"{kernel.name}: not a convolution")
    outputs, channels, *window = static_shape(kernel, root.w)
    x = kernel.inputs[root.x].type
    for (low, high), (before, after) in zip(x.halo[2:], root.pads, strict=True):
        if low < before or high < after:
            raise CompilerError(f"{kernel.name}: the input's halo {x.halo} does not cover the padding {root.pads}")
    if any(map(any, root.pads)) and x.layout.fill != root.fill:
        raise CompilerError(f"{kernel.name}: the input's halo holds {x.layout.fill}, not {root.fill}")
    constant = is_constant_weight(kernel, root)
    if constant and channels == 1 and root.groups > 1:
        return emit_depthwise(kernel, isa)
    if constant and not exact and prefers_winograd(kernel, isa):
        return emit_winograd(kernel, isa)
    strides = x.strides
    per_group = outputs // root.groups
    origin: Dim = x.origin_elements
    for number, (before, _) in enumerate(root.pads):
        origin = origin - before * strides[2 + number]
    rows = [RowAxis(0, kernel.axes[0].extent, strides[0])]
    for number, step in enumerate(root.strides):
        rows.append(RowAxis(2 + number, kernel.axes[2 + number].extent, step * strides[2 + number]))
    steps = {1: strides[1], **{2 + d: dilation * strides[2 + d] for d, dilation in enumerate(root.dilations)}}
    extents = dict(enumerate((channels, *window), start=1))
    loops = [(extents[axis], steps[axis]) for axis in _loop_order(x)]
    merged, merged_rows, _ = merge_rows(kernel, rows, [])
    summed = dimension.product([channels, *window])
    panels = -(-per_group // PANEL)
    w_dtype = kernel.inputs[root.w].type.dtype
    words = are_words(isa, root.accumulate, x.dtype, w_dtype)
    word = elements_of(w_dtype) if words else 0
    run_extents = [int(str(extent)) for extent, _ in merge_loops(loops)]
    dots = (
        constant
        and (words or x.dtype == root.accumulate)
        and prefers_dots(isa, root.accumulate.itemsize_bytes, per_group, merge_loops(loops), word)
    )
    matrices: tuple[MatrixAxis, ...] = ()
    if root.groups > 1:
        w_stride = summed * (per_group if dots else panels * PANEL)
        if words and not dots:
            w_stride = panels * panel_elements(tuple(run_extents), w_dtype)
        matrices = (MatrixAxis(None, root.groups, channels * strides[1], w_stride),)
    if not constant:
        packed = None
    elif words and not dots:
        packed = _pack_words(kernel, root, (outputs, channels, *window), run_extents)
    else:
        packed = _pack(kernel, root, (outputs, channels, *window), dots, words)
    return emit_panels(
        Panels(
            kernel=merged,
            isa=isa,
            accumulate=root.accumulate,
            rows=merged_rows,
            matrices=matrices,
            column=1,
            columns=per_group,
            loops=tuple(loops),
            a=root.x,
            a_origin=origin,
            w=root.w,
            packed=packed,
            fill=None if constant else _fill_words if words else _fill,
            w_dtype=w_dtype if words else None,
            unique_bytes_per_row=dimension.product(root.strides) * channels * x.dtype.itemsize_bytes,
            label="convolution",
            dots=dots,
        )
    )


def _fill(problem: Panels, site: PackSite) -> None:
    """Packs panels of weights that are computed at run time, element by element."""
    root, code = problem.kernel.root, site.code
    assert isinstance(root, WindowRoot)
    type_ = problem.kernel.inputs[root.w].type
    strides = [site.dims.text(stride) for stride in type_.strides]
    group = f"{site.matrix[0]} * columns + " if site.matrix else ""
    code.line(f"{site.element} *target = {site.target};")
    element = memory_type(type_.dtype)
    order = _loop_order(problem.kernel.inputs[root.x].type)
    with code.block(f"for (i64 p = 0; p < {site.count}; p++)"):
        code.line(f"const i64 n = ({site.first} + p) * {PANEL};")
        base = f"p{root.w} + {site.dims.text(type_.origin_elements)} + ({group}n) * {strides[0]}"
        code.line(f"const {element} *const base = {base};")
        for axis in order:
            extent = site.dims.text(type_.shape[axis])
            code.line(f"for (i64 t{axis} = 0; t{axis} < {extent}; t{axis}++)")
        place = " + ".join(f"t{axis} * {strides[axis]}" for axis in order)
        with code.block(f"for (i64 l = 0; l < {PANEL}; l++)"):
            value = get(type_.dtype, "base", f"{place} + l * {strides[0]}")
            code.line(f"*target++ = n + l < columns ? {value} : 0;")


def _fill_words(problem: Panels, site: PackSite) -> None:
    """Packs panels of words of weights that are computed at run time, element by element."""
    root, code = problem.kernel.root, site.code
    assert isinstance(root, WindowRoot)
    type_ = problem.kernel.inputs[root.w].type
    strides = [site.dims.text(stride) for stride in type_.strides]
    group = f"{site.matrix[0]} * columns + " if site.matrix else ""
    run, _ = merge_loops(problem.loops)[-1]
    word, unit = elements_of(type_.dtype), unit_of(type_.dtype)
    size = site.dims.text(panel_elements(tuple(extent for extent, _ in merge_loops(problem.loops)), type_.dtype))
    order = _loop_order(problem.kernel.inputs[root.x].type)
    with code.block(f"for (i64 p = 0; p < {site.count}; p++)"):
        code.line(f"const i64 n = ({site.first} + p) * {PANEL};")
        code.line(f"{unit} *const panel = ({unit} *){site.target} + p * {size};")
        code.line(f"for (i64 e = 0; e < {size}; e++) panel[e] = 0;")
        base = f"(const {unit} *)p{root.w} + {site.dims.text(type_.origin_elements)} + ({group}n) * {strides[0]}"
        code.line(f"const {unit} *const base = {base};")
        code.line("i64 outer = 0, place = 0;")
        for axis in order:
            code.line(f"for (i64 t{axis} = 0; t{axis} < {site.dims.text(type_.shape[axis])}; t{axis}++)")
        element = " + ".join(f"t{axis} * {strides[axis]}" for axis in order)
        with code.block():
            words = site.dims.text(words_of(run, type_.dtype))
            row = f"(outer * {words} + place / {word}) * {word * PANEL} + place % {word}"
            code.line(f"{unit} *const target = panel + {row};")
            code.line(f"for (i64 l = 0; l < {PANEL} && n + l < columns; l++)")
            code.line(f"  target[l * {word}] = base[{element} + l * {strides[0]}];")
            code.line(f"if (++place == {site.dims.text(run)}) {{ place = 0; outer++; }}")
