"""SORT kernels: whole rows in order, or the first k.

An element and its place become one unsigned number whose order is the order wanted: equal elements then
differ by their places, so that any way of sorting gives the same result. Long rows are sorted digit by
digit, short ones by merging; for a part of the row only elements below the k-th smallest so far are kept.
"""

from __future__ import annotations

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cpu.code import Code, DimTable, memory_type, register_dtype
from aot.backend.cpu.frame import bytes_moved, kernel_body, thread_share
from aot.backend.cpu.functions import get
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.owned import need, offset, owned_root, start, unit_indices
from aot.dims import Dim
from aot.dtypes import DType
from aot.errors import CompilerError
from aot.kernel import Kernel
from aot.ops.helpers import int_attr

MOST_INSERTED = 128
"""The largest k for which a new element is inserted at its place; more are collected and sorted together."""
BLOCK = 16
"""Elements that are compared with the k-th smallest at once: most blocks of a long row hold none below."""
SPARE = 512
"""Elements beyond k that are collected before they are sorted."""


def emit_sort(kernel: Kernel, isa: Isa) -> Emitted:
    """C for a `sort` or `top_k`."""
    root = owned_root(kernel)
    source = need(kernel, root.operands[0])
    x = kernel.inputs[source].type
    axis = int_attr(root.attrs, "axis") % x.rank
    extent = x.shape[axis]
    wanted: Dim = extent
    if root.op == "top_k":
        k = root.attrs["k"]
        if not isinstance(k, int | dimension.DimExpr):
            raise CompilerError(f"{kernel.name}: k is {k!r}")
        wanted = k
    descending = bool(root.attrs["largest" if root.op == "top_k" else "descending"])
    wide = register_dtype(x.dtype).bits == 64
    item_bytes = 16 if wide else 8
    item_type = "u128" if wide else "u64"
    code, dims = Code(), DimTable()
    with kernel_body(code, dims):
        start(kernel, dims, isa, code)
        outer = [(f"i{number}", n) for number, n in enumerate(x.shape) if number != axis]
        n, count = dims.text(extent), dims.text(wanted)
        # A part of its own for each of the two buffers, whatever rows a thread gets.
        room = dimension.ceildiv(extent * item_bytes, 64) * 64
        code.line(f"{item_type} *const first = ({item_type} *)args->scratch;")
        code.line(f"{item_type} *const second = ({item_type} *)((u8 *)args->scratch + {dims.text(room)});")
        thread_share(code, " * ".join(dims.text(e) for _, e in outer) or "1", "row", "row_end")
        with code.block("for (; row < row_end; row++)"):
            unit_indices(code, dims, "row", outer)
            names = [f"i{number}" for number in range(x.rank)]
            base = [*names[:axis], "0", *names[axis + 1 :]]
            step = dims.text(x.strides[axis])
            pointer = f"p{source}"
            code.line(f"const {memory_type(x.dtype)} *const from = {pointer} + {offset(dims, x, base)};")
            key = _key(x.dtype, get(x.dtype, "from", f"i * {step}"), descending)
            item = f"(({item_type})({key}) << {64 if wide else 32}) | ({item_type})i"
            if root.op == "sort":
                code.line(f"for (i64 i = 0; i < {n}; i++) first[i] = {item};")
                code.line(f"const {item_type} *const sorted = sort_items_{item_type}(first, second, {n});")
            else:
                _select(code, n, count, item_type, key, item, bits=64 if wide else 32)
            for number, role in ((root.results[0], "value"), (root.results[1], "place")):
                if number is None:
                    continue
                out = kernel.outputs[number].type
                element = memory_type(out.dtype)
                place = f"p{len(kernel.inputs) + number} + {offset(dims, out, base)}"
                to = dims.text(out.strides[axis])
                at = f"(i64)({'(u64)' if wide else '(u32)'}sorted[i])"
                value = f"from[{at} * {step}]" if role == "value" else at
                with code.block():
                    code.line(f"{element} *const to = {place};")
                    code.line(f"for (i64 i = 0; i < {count}; i++) to[i * {to}] = {value};")
    note = "all elements" if root.op == "sort" else "those below the k-th so far"
    return Emitted(
        code.text(), dims.dims, f"rows sorted: {note}", scratch_bytes=room * 2,
        flops=x.elements * 8, bytes_moved=bytes_moved(kernel),
    )  # fmt: skip


def _select(code: Code, n: str, count: str, item_type: str, key: str, item: str, bits: int) -> None:
    """Writes what makes `sorted` the first `count` items; `key` and `item` are texts for place i.

    Places ascend, so that of equal keys the one that is held already comes first: only smaller keys matter.
    """
    code.line(f"for (i64 i = 0; i < {count}; i++) first[i] = {item};")
    code.line(f"{item_type} *sorted = sort_items_{item_type}(first, second, {count});")
    with code.block(f"if ({count} > 0)"):
        code.line(f"{item_type} *spare = sorted == first ? second : first;")
        code.line(f"u{bits} limit = (u{bits})(sorted[{count} - 1] >> {bits});")
        code.line(f"i64 held = {count};")
        code.line(f"const i64 most = {count} + ({count} > {SPARE} ? {count} : {SPARE});")
        with code.block(f"for (i64 block = {count}; block < {n}; block += {BLOCK})"):
            code.line(f"const i64 end = block + {BLOCK} < {n} ? block + {BLOCK} : {n};")
            with code.block(f"if (end - block == {BLOCK})"):
                code.line("i32 below = 0;")
                code.line(f"for (i64 l = 0; l < {BLOCK}; l++) {{ const i64 i = block + l; below |= {key} < limit; }}")
                code.line("if (!below) continue;")
            with code.block("for (i64 i = block; i < end; i++)"):
                code.line(f"if ({key} >= limit) continue;")
                code.line(f"const {item_type} item = {item};")
                with code.block(f"if ({count} <= {MOST_INSERTED})"):
                    code.line(f"i64 j = {count} - 1;")
                    code.line("for (; j > 0 && item < sorted[j - 1]; j--) sorted[j] = sorted[j - 1];")
                    code.line("sorted[j] = item;")
                with code.block("else"):
                    code.line("sorted[held++] = item;")
                    code.line("if (held < most) continue;")
                    code.line(f"{item_type} *const again = sort_items_{item_type}(sorted, spare, held);")
                    code.line("spare = again == sorted ? spare : sorted; sorted = again;")
                    code.line(f"held = {count};")
                code.line(f"limit = (u{bits})(sorted[{count} - 1] >> {bits});")
        code.line(f"if (held > {count}) sorted = sort_items_{item_type}(sorted, spare, held);")


def _key(dtype: DType, element: str, descending: bool) -> str:
    """C text of the unsigned number that stands for an element."""
    held = register_dtype(dtype)
    if held.is_float or held.bits == 64:
        name = held.name
    else:
        name = "i32" if dtype.family == "int" else "u32"
    return f"{'~' if descending else ''}sort_key_{name}({element})"
