"""Matrix multiplication kernels.

Batch axes along which B stays the same are rows of one large matrix; the others are matrices of
their own. A constant B is packed into panels at build time. Any other B is packed into scratch, one
group of panels at a time; an A that is computed (a fused prologue) goes to scratch by row blocks.
"""

from __future__ import annotations

from dataclasses import replace

from aot import dims as dimension
from aot import expr
from aot.backend.affine import Affine, affine_of, axes_in, flat_offset
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cpu.code import register_dtype
from aot.backend.cpu.dots import prefers_dots
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.panels import MatrixAxis, PackSite, Panels, emit_panels
from aot.backend.cpu.rows import RowAxis, merge_rows
from aot.backend.cpu.tile import PANEL, TRANSPOSE
from aot.backend.cpu.weights import weight_panels
from aot.backend.cpu.words import ROW_BYTES, WORD_BYTES, are_words, elements_of, panel_elements, unit_of, words_of
from aot.dims import Dim
from aot.dtypes import BF16, F32, DType
from aot.errors import CompilerError
from aot.expr import Expr
from aot.kernel import ContractRoot, Kernel
from aot.program import RecipeOp, RecipeStep

FEW_COLUMNS = PANEL // 2


def plain_load(kernel: Kernel, value: Expr, dtype: DType) -> Affine | None:
    """The flat offset of a value that is an unguarded load of that element type with an affine index, else None."""
    if value.op != "load" or value.dtype != dtype:
        return None
    type_ = kernel.inputs[value.payload].type
    if len(value.args) > type_.rank:
        return None
    offset = flat_offset(type_, value.args)
    return None if offset.rest else offset


def _pack(kernel: Kernel, root: ContractRoot, batch: tuple[int, ...], dots: bool, word: int) -> PackedOperand | None:
    """B as panels, or as [batch…, N, K], if it is a constant that nothing else reads.

    A panel is [K, 16], or for words of `word` elements, if that is not 0, [K / word, 16, word].
    """
    value = root.b.args[0] if root.b.op == "cast" else root.b
    if value.op != "load" or not kernel.inputs[value.payload].constant:
        return None
    source = kernel.inputs[value.payload].type
    others = [root.a, *(store.value for store in kernel.stores)]
    if len(value.args) > source.rank or any(
        node.op == "load" and node.payload == value.payload for other in others for node in expr.walk(other)
    ):
        return None
    extents = [kernel.axes[axis].extent for axis in (*batch, root.k, root.n)]
    if not all(isinstance(extent, int) for extent in extents):
        return None
    coefficients: list[tuple[int, ...]] = []
    for index in value.args:
        sum_ = affine_of(index)
        factors = [sum_.coefficients.get(axis, 0) for axis in (*batch, root.k, root.n)]
        if sum_.rest or sum_.constant != 0 or not all(isinstance(f, int) and f >= 0 for f in factors):
            return None
        *outer, k, n = (int(f) for f in factors if isinstance(f, int))
        inner = (n, k) if dots else (n * PANEL, k * word, n, k) if word else (n * PANEL, k, n)
        coefficients.append((*outer, *inner))
    *outer_extents, k_extent, n_extent = (int(e) for e in extents if isinstance(e, int))
    panels = -(-n_extent // PANEL)
    if word and not dots:
        inner_extents: tuple[int, ...] = (panels, -(-k_extent // word), PANEL, word)
    else:
        inner_extents = (n_extent, k_extent) if dots else (panels, k_extent, PANEL)
    shape = (*outer_extents, *inner_extents)
    steps: list[RecipeStep] = []
    dtype = root.b.dtype if word else root.accumulate
    if source.dtype != dtype:
        steps.append(RecipeStep(RecipeOp.CAST, dtype=dtype.number))
    steps.append(RecipeStep(RecipeOp.PACK, shape=shape, coefficients=tuple(coefficients)))
    return PackedOperand(tuple(steps), dtype.number, shape)


def emit_contract(kernel: Kernel, isa: Isa) -> Emitted:
    """C for a kernel with a ContractRoot."""
    root = kernel.root
    if not isinstance(root, ContractRoot):
        raise CompilerError(f"{kernel.name}: not a contraction")
    accumulate = root.accumulate
    moving = axes_in([root.b])
    if root.m in moving or root.n in axes_in([root.a]):
        raise CompilerError(f"{kernel.name}: an operand of a contraction runs over the other's axis")
    matrices = tuple(axis for axis in root.batch if axis in moving and kernel.axes[axis].extent != 1)
    row_axes = [axis for axis in root.batch if axis not in matrices] + [root.m]
    if are_words(isa, accumulate, root.a.dtype, root.b.dtype):
        root = replace(root, a=_worth_rounding(root.a, kernel.axes[root.n].extent))
    words = are_words(isa, accumulate, root.a.dtype, root.b.dtype)
    word = elements_of(root.b.dtype) if words else 0
    offset = plain_load(kernel, root.a, root.a.dtype if words else accumulate)
    if words and offset and kernel.axes[root.k].extent != 1 and offset.coefficients.get(root.k) != 1:
        offset = None  # words are neighbours: rows are put together in scratch
    rows = [
        RowAxis(axis, kernel.axes[axis].extent, offset.coefficients.get(axis, 0) if offset else 0) for axis in row_axes
    ]
    merged, merged_rows, (a_value,) = merge_rows(kernel, rows, [expr.const(0, accumulate) if offset else root.a])
    summed = kernel.axes[root.k].extent
    columns = kernel.axes[root.n].extent
    loops = ((summed, 1 if words or offset is None else offset.coefficients.get(root.k, 0)),)
    dots = prefers_dots(isa, accumulate.itemsize_bytes, columns, loops, word)
    weight = weight_panels(kernel, root)
    dots = dots and weight is None
    packed = None if weight is not None else _pack(kernel, root, matrices, dots, word)
    dots = dots and packed is not None
    w_stride: Dim = summed * (columns if dots else PANEL * dimension.ceildiv(columns, PANEL))
    if words and not dots:
        w_stride = panel_elements((summed,), root.b.dtype) * dimension.ceildiv(columns, PANEL)
    axes: list[MatrixAxis] = []
    for axis in reversed(matrices):
        a_stride = offset.coefficients.get(axis, 0) if offset else 0
        axes.append(MatrixAxis(axis, kernel.axes[axis].extent, a_stride, w_stride))
        w_stride = w_stride * kernel.axes[axis].extent
    loads = [node.payload for node in expr.walk(root.b) if node.op == "load"]
    emitted = emit_panels(
        Panels(
            kernel=merged,
            isa=isa,
            accumulate=accumulate,
            rows=merged_rows,
            matrices=tuple(reversed(axes)),
            column=root.n,
            columns=columns,
            loops=loops,
            a=root.a.payload if offset else None,
            a_origin=offset.constant if offset else 0,
            w=loads[0] if packed is not None else -1,
            packed=packed,
            fill=None if packed is not None else weight.fill if weight else _fill_words if words else _fill,
            weight=weight,
            a_value=None if offset else a_value,
            k=root.k,
            b=root.b,
            label="matmul",
            dots=dots,
            w_dtype=root.b.dtype if words else None,
            helpers=(TRANSPOSE,) if packed is None and _is_transposed(kernel, root) else (),
        )
    )
    return emitted


def _worth_rounding(left: Expr, columns: Dim) -> Expr:
    """A left factor without its rounding to bf16, where that costs more than products of pairs save.

    What lies in f32 is put into scratch, rounded. For up to FEW_COLUMNS it is multiplied as it lies: in f32 these need
    half a panel.
    """
    is_few = isinstance(columns, int) and columns <= FEW_COLUMNS
    return left.args[0] if is_few and left.op == "cast" and left.args[0].dtype == F32 else left


def _is_transposed(kernel: Kernel, root: ContractRoot) -> bool:
    """Whether B lies with its summed axis innermost, in 4-byte elements that can be moved as they are."""
    offset = plain_load(kernel, root.b, root.accumulate)
    if offset is None or root.accumulate.itemsize_bytes != 4:
        return False
    return offset.coefficients.get(root.k) == 1 and offset.coefficients.get(root.n, 0) != 1


def _fill(problem: Panels, site: PackSite) -> None:
    """Packs panels of a B that is not constant: by blocks of columns, or by transposing."""
    root, code = problem.kernel.root, site.code
    assert isinstance(root, ContractRoot) and problem.b is not None
    element = register_dtype(problem.accumulate).name
    summed = site.dims.text(problem.summed)
    if _is_transposed(problem.kernel, root):
        offset = plain_load(problem.kernel, root.b, root.accumulate)
        assert offset is not None
        start = {**dict(offset.coefficients), root.n: 0, root.k: 0}
        place = site.scope.offset_text(Affine(offset.constant, {a: c for a, c in start.items() if c != 0}))
        n_stride = site.dims.text(offset.coefficients.get(root.n, 0))
        with code.block(f"for (i64 p = 0; p < {site.count}; p++)"):
            code.line(f"const i64 n = ({site.first} + p) * {PANEL}, left = columns - n;")
            source = f"(const f32 *)(p{root.b.payload} + {place} + n * {n_stride})"
            target = f"(f32 *)({site.target} + p * {summed} * {PANEL})"
            code.line(f"tile_transpose({source}, {n_stride}, left < {PANEL} ? left : {PANEL}, {target}, {summed});")
        return
    lanes = problem.isa.lanes
    with (
        code.block(f"for (i64 p = 0; p < {site.count}; p++)"),
        code.block(f"for (i64 j = 0; j < {PANEL}; j += {lanes})"),
    ):
        code.line(f"const i64 n = ({site.first} + p) * {PANEL} + j;")
        code.line(f"{site.element} *const target = {site.target} + p * {summed} * {PANEL} + j;")

        def rows(count: str | None) -> None:
            with code.block(f"for (i64 k = 0; k < {summed}; k++)"):
                scope = site.renderer.scope({root.k: "k", root.n: "n"}, root.n, count, parent=site.scope, code=code)
                value = scope.value(problem.b) if problem.b is not None else ""
                code.line(f"store_{element}(target + k * {PANEL}, {value});")

        with code.block(f"if (n + {lanes} <= columns)"):
            rows(None)
        with code.block("else if (n < columns)"):
            code.line("const i64 count = columns - n;")
            rows("count")
        with code.block("else"), code.block(f"for (i64 k = 0; k < {summed}; k++)"):
            code.line(f"store_{element}(target + k * {PANEL}, splat_{element}(0));")


def _fill_words(problem: Panels, site: PackSite) -> None:
    """Packs panels of words of a B that is not constant: by blocks of columns, a word's rows at a time."""
    root, code, lanes = problem.kernel.root, site.code, problem.isa.lanes
    assert isinstance(root, ContractRoot) and problem.b is not None
    dtype = root.b.dtype
    word, unit = elements_of(dtype), unit_of(dtype)
    summed, words = site.dims.text(problem.summed), site.dims.text(words_of(problem.summed, dtype))
    offset = plain_load(problem.kernel, root.b, root.b.dtype)
    along = offset is not None and offset.coefficients.get(root.k) == 1
    with code.block(f"for (i64 p = 0; p < {site.count}; p++)"):
        code.line(f"u8 *const panel = (u8 *){site.target} + p * {words} * {ROW_BYTES};")
        if along and offset is not None:
            start = {axis: c for axis, c in offset.coefficients.items() if axis not in (root.n, root.k)}
            n_stride = site.dims.text(offset.coefficients.get(root.n, 0))
            place = site.scope.offset_text(Affine(offset.constant, start))
            with code.block(f"for (i64 l = 0; l < {PANEL}; l++)"):
                code.line(f"const i64 n = ({site.first} + p) * {PANEL} + l;")
                code.line(f"u8 *const target = panel + l * {WORD_BYTES};")
                with code.block("if (n >= columns)"):
                    code.line(f"for (i64 k = 0; k < {words}; k++) *(word_u *)(target + k * {ROW_BYTES}) = 0;")
                    code.line("continue;")
                code.line(f"const {unit} *const source = (const {unit} *)p{root.b.payload} + {place} + n * {n_stride};")
                code.line("i64 k = 0;")
                code.line(f"for (; k < {summed} / {word}; k++)")
                code.line(f"  *(word_u *)(target + k * {ROW_BYTES}) = word_whole_{unit}(source + k * {word});")
                code.line(f"if ({summed} % {word})")
                part = f"word_rest_{unit}(source + k * {word}, {summed} % {word})"
                code.line(f"  *(word_u *)(target + k * {ROW_BYTES}) = {part};")
            return
        with code.block(f"for (i64 j = 0; j < {PANEL}; j += {lanes})"):
            code.line(f"const i64 n = ({site.first} + p) * {PANEL} + j;")
            code.line(f"u8 *const target = panel + j * {WORD_BYTES};")

            def row(element: int, count: str | None) -> None:
                axes = {root.k: f"(k * {word} + {element})", root.n: "n"}
                scope = site.renderer.scope(axes, root.n, count, parent=site.scope, code=code)
                value = scope.value(problem.b) if problem.b is not None else ""
                bits = _bf16_bits(problem.b, value) if dtype == BF16 else f"(v_u32)widen_u8_i32((v_u8){value})"
                shift = f" << {dtype.bits * element}" if element else ""
                code.line(f"word |= {bits}{shift};")

            def columns(count: str | None) -> None:
                code.line("i64 k = 0;")
                with code.block(f"for (; k < {summed} / {word}; k++)"):
                    code.line("v_u32 word = {0};")
                    for element in range(word):
                        with code.block():
                            row(element, count)
                    code.line(f"store_u32((u32 *)(target + k * {ROW_BYTES}), word);")
                with code.block(f"if ({summed} % {word})"):
                    code.line("v_u32 word = {0};")
                    for element in range(word - 1):
                        with code.block(f"if ({summed} % {word} > {element})"):
                            row(element, count)
                    code.line(f"store_u32((u32 *)(target + k * {ROW_BYTES}), word);")

            with code.block(f"if (n + {lanes} <= columns)"):
                columns(None)
            with code.block("else if (n < columns)"):
                code.line("const i64 count = columns - n;")
                columns("count")
            with code.block("else"), code.block(f"for (i64 k = 0; k < {words}; k++)"):
                code.line(f"store_u32((u32 *)(target + k * {ROW_BYTES}), splat_u32(0));")


def _bf16_bits(value: Expr | None, text: str) -> str:
    """C text of the bits of a block of bf16, as u32; what is loaded is one already, what is computed is rounded."""
    if value is not None and value.op == "load":
        return f"((v_u32){text} >> 16)"
    return f"__builtin_convertvector(narrow_bf16({text}), v_u32)"
