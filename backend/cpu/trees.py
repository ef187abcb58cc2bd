"""Tree ensembles: eight walks at a time, without branches.

A walk is a chain of loads that waits for memory at every step, so eight independent ones run side by
side: eight rows through one tree, and for the rows that are left over one row through eight trees. A step
chooses its child by arithmetic, so nothing is mispredicted. Every row adds its leaves in the order of the
trees, whichever way it went.
"""

from __future__ import annotations

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cpu.code import Code, DimTable, memory_type
from aot.backend.cpu.frame import bytes_moved, kernel_body, thread_share
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.owned import need, offset, owned_root, start
from aot.errors import CompilerError
from aot.kernel import Kernel
from aot.ops.helpers import int_attr

WAYS = 8
BLOCK = 256
"""Rows that go through a tree before the next one: its nodes stay in the nearest cache."""


def emit_trees(kernel: Kernel, isa: Isa) -> Emitted:
    """C for a `tree_ensemble`."""
    root = owned_root(kernel)
    numbers = [need(kernel, number) for number in root.operands[:4]]
    x, nodes, trees, weights = (kernel.inputs[number].type for number in numbers)
    lists = [number for number in root.operands[4:] if number is not None]
    for type_ in (nodes, trees, weights, *(kernel.inputs[number].type for number in lists)):
        if type_.layout:
            raise CompilerError(f"{kernel.name}: the arrays of trees must be row-major")
    targets, inner = int_attr(root.attrs, "targets"), int_attr(root.attrs, "inner")
    aggregate = str(root.attrs["aggregate"])
    out = kernel.outputs[0].type
    value, held = memory_type(x.dtype), memory_type(out.dtype)
    code, dims = Code(), DimTable()
    padding = "" if x.dtype.bits == 32 else " i32 padding;"
    step = dims.text(x.strides[1])
    scaled = "" if step == "1" else f" * {step}"
    compare = "<" if root.attrs["strict"] else "<="
    scratch = BLOCK * targets * out.dtype.itemsize_bytes
    with kernel_body(code, dims):
        start(kernel, dims, isa, code)
        names = [f"p{number}" for number in numbers]
        code.line(f"typedef struct {{ {value} threshold; i32 feature, left, right;{padding} }} tree_node;")
        code.line(f"const tree_node *const nodes = (const tree_node *){names[1]};")
        code.line(f"{held} *const sums = ({held} *)args->scratch;")
        rows, count = dims.text(x.shape[0]), dims.text(trees.shape[0])
        thread_share(code, dims.text(dimension.ceildiv(x.shape[0], WAYS)), "unit", "unit_end")
        code.line(f"const i64 row_end = unit_end * {WAYS} < {rows} ? unit_end * {WAYS} : {rows};")

        def walk(way: str) -> str:
            if root.attrs["missing"]:
                feature = "(q->feature & 0x7fffffff)"
                right = f"((i32)((v {compare} q->threshold) | ((v != v) & (q->feature < 0))) - 1)"
            else:
                feature, right = "q->feature", f"((i32)(v {compare} q->threshold) - 1)"
            return (
                f"{{ const tree_node *const q = nodes + at{way}; const {value} v = x{way}[{feature}{scaled}]; "
                f"at{way} = q->left + (q->right & {right}); }}"
            )

        def begin(way: int, tree: str, row: str) -> None:
            code.line(f"i32 at{way} = {names[2]}[2 * ({tree})];")
            code.line(f"const {value} *const x{way} = {names[0]} + {offset(dims, x, [f'({row})', '0'])};")

        def walks(depth: str) -> None:
            """All ways, until every one is at a leaf."""
            with code.block(f"for (i32 left = {depth}; left > 0; left--)"):
                for way in range(WAYS):
                    code.line(walk(str(way)))
                if inner:
                    least = " & ".join(f"({inner - 1} - at{way})" for way in range(WAYS))
                    code.line(f"if ((left & 3) == 1 && (i32)({least}) < 0) break;")

        def add(way: int, row: str) -> None:
            leaf = f"(at{way} - {inner})"
            if not lists:
                if targets == 1:
                    code.line(_joined(aggregate, f"sums[{row}]", f"{names[3]}[{leaf}]"))
                else:
                    entry = _joined(aggregate, f"sums[({row}) * {targets} + k]", f"{names[3]}[{leaf} * {targets} + k]")
                    code.line(f"for (i64 k = 0; k < {targets}; k++) {{ {entry} }}")
                return
            starts, places = (f"p{number}" for number in lists)
            entry = _joined(aggregate, f"sums[({row}) * {targets} + {places}[k]]", f"{names[3]}[k]")
            code.line(f"for (i64 k = {starts}[{leaf}]; k < {starts}[{leaf} + 1]; k++) {{ {entry} }}")

        with code.block(f"for (i64 row = unit * {WAYS}; row < row_end; row += {BLOCK})"):
            code.line(f"const i64 most = row_end - row < {BLOCK} ? row_end - row : {BLOCK};")
            code.line(f"for (i64 k = 0; k < most * {targets}; k++) sums[k] = {_neutral(aggregate)};")
            code.line(f"const i64 whole = most - most % {WAYS};")
            with code.block(f"if (whole) for (i64 tree = 0; tree < {count}; tree++)"):
                code.line(f"const i32 depth = {names[2]}[2 * tree + 1];")
                with code.block(f"for (i64 r = 0; r < whole; r += {WAYS})"):
                    for way in range(WAYS):
                        begin(way, "tree", f"row + r + {way}")
                    walks("depth")
                    for way in range(WAYS):
                        add(way, f"r + {way}")
            with code.block("for (i64 r = whole; r < most; r++)"):
                code.line("i64 tree = 0;")
                with code.block(f"for (; tree + {WAYS} <= {count}; tree += {WAYS})"):
                    code.line("i32 depth = 0;")
                    code.line(
                        f"for (i64 k = tree; k < tree + {WAYS}; k++)"
                        f" depth = {names[2]}[2 * k + 1] > depth ? {names[2]}[2 * k + 1] : depth;"
                    )
                    for way in range(WAYS):
                        begin(way, f"tree + {way}", "row + r")
                    walks("depth")
                    for way in range(WAYS):
                        add(way, "r")
                with code.block(f"for (; tree < {count}; tree++)"):
                    begin(0, "tree", "row + r")
                    code.line(f"while (at0 < {inner}) {walk('0')}")
                    add(0, "r")
            with code.block(f"for (i64 r = 0; r < most; r++) for (i64 k = 0; k < {targets}; k++)"):
                place = offset(dims, out, ["(row + r)", "k"])
                total = f"sums[r * {targets} + k]"
                code.line(f"p{len(kernel.inputs)}[{place}] = {_finished(aggregate, total, count, held)};")
    walks_of_all = x.shape[0] * trees.shape[0]
    return Emitted(
        code.text(), dims.dims, f"{WAYS} walks at a time", scratch_bytes=scratch, flops=walks_of_all * 32,
        # Few rows see few of the nodes.
        bytes_moved=dimension.minimum(bytes_moved(kernel), walks_of_all * 128 + x.storage_bytes + out.storage_bytes),
    )  # fmt: skip


def _neutral(aggregate: str) -> str:
    return {"min": "__builtin_inff()", "max": "-__builtin_inff()"}.get(aggregate, "0")


def _joined(aggregate: str, total: str, weight: str) -> str:
    if aggregate in ("min", "max"):
        return f"if ({weight} {'<' if aggregate == 'min' else '>'} {total}) {total} = {weight};"
    return f"{total} += {weight};"


def _finished(aggregate: str, total: str, trees: str, held: str) -> str:
    if aggregate == "average":
        return f"{total} / ({held})({trees} > 0 ? {trees} : 1)"
    if aggregate in ("min", "max"):
        return f"{total} == {_neutral(aggregate)} ? 0 : {total}"
    return total
