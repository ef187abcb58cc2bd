"""What the matmul-like kernels have around their loops: the function, threads' shares, halos, the epilogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from aot import expr
from aot.backend.affine import axes_in
from aot.backend.cpu.code import Code, DimTable, memory_type, register_dtype
from aot.backend.cpu.render import Renderer, Scope
from aot.backend.cpu.tile import merge_loops
from aot.dims import Dim
from aot.dtypes import DType
from aot.errors import CompilerError
from aot.expr import Expr
from aot.ir import TensorType
from aot.kernel import Kernel

INLINE_COST = 8
"""Scalar operations of an epilogue up to which it is written behind every tile form."""

HEAVY = frozenset(
    "exp log log1p expm1 sin cos tan asin acos atan sinh cosh asinh acosh atanh tanh erf sigmoid pow".split()
) | {"fmod", "mod", "floordiv"}


def epilogue_cost(kernel: Kernel) -> int:
    """Vector operations per block of outputs, roughly; a function by polynomial counts as many."""
    nodes = {node for store in kernel.stores for node in expr.walk(store.value)}
    return sum(20 if node.op in HEAVY else 1 for node in nodes if node.op in expr.FUNCTIONS or node.op == "load")


def accumulator_text(dtype: DType, place: str, count: str | None) -> str:
    """C text of the block of accumulators that lies at an address; lanes from `count` on are zero, not read."""
    name = register_dtype(dtype).name
    return f"load_{name}({place})" if count is None else f"loadn_{name}({place}, {count})"


class Epilogue:
    """Renders the stores of a kernel for blocks of one column axis."""

    def __init__(self, renderer: Renderer, column: int) -> None:
        self.renderer = renderer
        self.column = column
        nodes: dict[Expr, None] = {}
        for store in renderer.kernel.stores:
            if any(node.op == "reduce" for node in expr.walk(store.value)):
                raise CompilerError(f"{renderer.kernel.name}: a reduction behind a contraction is not one kernel")
            for node in expr.walk(store.value):
                if node.op == "load" and axes_in([node]) == {column}:
                    nodes.setdefault(node)
        self.column_loads = tuple(nodes)

    def columns(self, code: Code, parent: Scope, column: str, count: str | None) -> Mapping[Expr, str]:
        """Loads what depends on the column alone (a bias), once for all rows of a tile."""
        if not self.column_loads:
            return {}
        scope = self.renderer.scope({self.column: column}, self.column, count, parent=parent, code=code)
        return {node: scope.value(node) for node in self.column_loads}

    def store(
        self,
        code: Code,
        parent: Scope,
        axes: Mapping[int, str],
        column: str,
        count: str | None,
        accumulator: str,
        values: Mapping[Expr, str],
    ) -> None:
        """Stores one block: `accumulator` is the C text of its sums."""
        scope = self.renderer.scope(
            {**axes, self.column: column}, self.column, count, {0: accumulator}, values, parent=parent, code=code
        )
        for store in self.renderer.kernel.stores:
            scope.store(store)


@contextmanager
def kernel_body(code: Code, dims: DimTable) -> Iterator[None]:
    """`void KERNEL(…) { … }` with the integer arguments that the body turned out to use."""
    with code.block("void KERNEL(const aot_kernel_args *args)"):
        declarations = code.fragment()
        yield
        for line in dims.declarations():
            declarations.line(line)


def thread_share(code: Code, total: str, first: str = "u", end: str = "u_end") -> None:
    """Declares this thread's piece of `total` tasks."""
    code.line(f"const i64 {first}_total = {total};")
    code.line(f"i64 {first} = {first}_total * args->thread / args->thread_count;")
    code.line(f"const i64 {end} = {first}_total * (args->thread + 1) / args->thread_count;")


def fill_halos(renderer: Renderer) -> None:
    """Writes code that puts zeros, or its layout's fill, in the halo of every output that has one; threads share it.

    A plane of the halo is a range of one axis, with the full storage of the axes inside it in memory
    and the inner range of those outside it; where the axes inside are whole, it is one run of memory.
    """
    kernel, dims, code = renderer.kernel, renderer.dims, renderer.code
    for number, output in enumerate(kernel.outputs):
        type_ = output.type
        if not any(before or after for before, after in type_.halo):
            continue
        pointer = f"p{len(kernel.inputs) + number}"
        order = type_.order
        for place, axis in enumerate(order):
            before, after = type_.halo[axis]
            for start, length in (((-before), before), (type_.shape[axis], after)):
                if not length:
                    continue
                loops: list[tuple[int, Dim, Dim]] = []
                for position, other in enumerate(order):
                    low, high = type_.halo[other]
                    if position < place:
                        loops.append((other, 0, type_.shape[other]))
                    elif position == place:
                        loops.append((other, start, length))
                    else:
                        loops.append((other, -low, type_.shape[other] + low + high))
                _fill_box(code, dims, type_, pointer, loops)


def _fill_box(
    code: Code, dims: DimTable, type_: TensorType, pointer: str, loops: Sequence[tuple[int, Dim, Dim]]
) -> None:
    """Fills a box of (axis, start, extent) ranges, outermost in memory first; threads share the outer axes."""
    origin = type_.origin_elements
    for axis, start, _ in loops:
        origin = origin + start * type_.strides[axis]
    parts = merge_loops([(extent, type_.strides[axis]) for axis, _, extent in loops])
    *outer, (extent, stride) = parts
    with code.block():
        counts = [dims.text(e) for e, _ in outer]
        thread_share(code, " * ".join(counts) or "1", "h", "h_end")
        with code.block("for (; h < h_end; h++)"):
            rest = "h"
            terms = [dims.text(origin)]
            for number in reversed(range(len(outer))):
                index = rest if number == 0 else f"{rest} % {counts[number]}"
                terms.append(f"({index}) * {dims.text(outer[number][1])}")
                rest = f"({rest}) / {counts[number]}"
            element = memory_type(type_.dtype)
            code.line(f"{element} *const edge = {pointer} + {' + '.join(terms)};")
            step = dims.text(stride)
            place = "e" if step == "1" else f"e * {step}"
            code.line(f"for (i64 e = 0; e < {dims.text(extent)}; e++) edge[{place}] = {type_.layout.fill};")


def bytes_moved(kernel: Kernel) -> Dim:
    """Every operand once."""
    total: Dim = 0
    for operand in (*kernel.inputs, *kernel.outputs):
        total = total + operand.type.bytes
    return total
