"""SORT kernels: whole rows in order, or the first k.

An element and its place become one unsigned number whose order is the order wanted: equal elements then
differ by their places, so that any way of sorting gives the same result. Long rows are sorted digit by
digit, short ones by merging; for a small k only elements below the k-th smallest so far are kept.
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

RADIX_LEAST = 700
"""Elements from which sorting by digits is faster than merging."""
SPARE = 512
"""Elements beyond k that are collected before they are sorted."""

_SORTER = """\
typedef __unsigned_int__ sort_item;
static sort_item *sort_items(sort_item *a, sort_item *b, i64 n) {
  if (n >= __radix_least__) {
    for (i32 shift = __place_bits__; shift < __item_bits__; shift += 8) {
      i64 start[256];
      for (i32 d = 0; d < 256; d++) start[d] = 0;
      for (i64 i = 0; i < n; i++) start[(u8)(a[i] >> shift)]++;
      if (start[(u8)(a[0] >> shift)] == n) continue;
      i64 total = 0;
      for (i32 d = 0; d < 256; d++) { const i64 count = start[d]; start[d] = total; total += count; }
      for (i64 i = 0; i < n; i++) b[start[(u8)(a[i] >> shift)]++] = a[i];
      sort_item *const other = a; a = b; b = other;
    }
    return a;
  }
  for (i64 s = 0; s < n; s += 12) {
    const i64 e = s + 12 < n ? s + 12 : n;
    for (i64 i = s + 1; i < e; i++) {
      const sort_item x = a[i]; i64 j = i;
      for (; j > s && x < a[j - 1]; j--) a[j] = a[j - 1];
      a[j] = x;
    }
  }
  for (i64 w = 12; w < n; w *= 2) {
    for (i64 s = 0; s < n; s += 2 * w) {
      const i64 m = s + w < n ? s + w : n, e = m + w < n ? m + w : n;
      i64 i = s, j = m, k = s;
      while (i < m && j < e) {
        const sort_item x = a[i], y = a[j]; const i64 second = y < x;
        b[k++] = second ? y : x; j += second; i += 1 - second;
      }
      while (i < m) b[k++] = a[i++];
      while (j < e) b[k++] = a[j++];
    }
    sort_item *const other = a; a = b; b = other;
  }
  return a;
}
"""


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
    code, dims = Code(), DimTable()
    _head(code, x.dtype, descending, wide)
    with kernel_body(code, dims):
        start(kernel, dims, isa, code)
        outer = [(f"i{number}", n) for number, n in enumerate(x.shape) if number != axis]
        n, count = dims.text(extent), dims.text(wanted)
        # A part of its own for each of the two buffers, whatever rows a thread gets.
        room = dimension.ceildiv(extent * item_bytes, 64) * 64
        code.line("sort_item *const first = (sort_item *)args->scratch;")
        code.line(f"sort_item *const second = (sort_item *)((u8 *)args->scratch + {dims.text(room)});")
        thread_share(code, " * ".join(dims.text(e) for _, e in outer) or "1", "row", "row_end")
        with code.block("for (; row < row_end; row++)"):
            unit_indices(code, dims, "row", outer)
            names = [f"i{number}" for number in range(x.rank)]
            base = [*names[:axis], "0", *names[axis + 1 :]]
            step = dims.text(x.strides[axis])
            pointer = f"p{source}"
            code.line(f"const {memory_type(x.dtype)} *const from = {pointer} + {offset(dims, x, base)};")
            key = f"sort_key({get(x.dtype, 'from', f'i * {step}')})"
            item = f"((sort_item){key} << {64 if wide else 32}) | (sort_item)i"
            if root.op == "sort":
                code.line(f"for (i64 i = 0; i < {n}; i++) first[i] = {item};")
                code.line(f"const sort_item *const sorted = sort_items(first, second, {n});")
            else:
                code.line("sort_item *a = first, *b = second, limit = ~(sort_item)0;")
                code.line(f"const i64 most = {count} + ({count} > {SPARE} ? {count} : {SPARE});")
                code.line("i64 held = 0;")
                with code.block(f"for (i64 i = 0; i < {n}; i++)"):
                    code.line(f"const sort_item item = {item};")
                    with code.block("if (item < limit)"):
                        code.line("a[held++] = item;")
                        with code.block(f"if (held == most && {count} > 0)"):
                            code.line("sort_item *const sorted = sort_items(a, b, held);")
                            code.line("b = sorted == first ? second : first; a = sorted;")
                            code.line(f"held = {count}; limit = a[held - 1];")
                code.line("const sort_item *const sorted = sort_items(a, b, held);")
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


def _head(code: Code, dtype: DType, descending: bool, wide: bool) -> None:
    """The key of an element: an unsigned number in the order wanted; and the sorter of keys with places."""
    held = register_dtype(dtype)
    bits = 64 if wide else 32
    unsigned = f"u{bits}"
    top = "0x8000000000000000ULL" if wide else "0x80000000U"
    text = {
        "__unsigned_int__": "unsigned __int128" if wide else "u64",
        "__radix_least__": str(RADIX_LEAST),
        "__place_bits__": str(bits),
        "__item_bits__": str(2 * bits),
    }
    sorter = _SORTER
    for word, value in text.items():
        sorter = sorter.replace(word, value)
    code.line(sorter.rstrip())
    result = "~key" if descending else "key"
    if held.is_float:
        body = (
            f"union {{ {held.name} number; {unsigned} bits; }} u; u.number = x;\n"
            f"  if (x == 0) u.bits = 0;\n"
            f"  const {unsigned} key = x != x ? ~({unsigned})0 : u.bits ^ (u.bits >> {bits - 1} ? ~({unsigned})0 : {top});"
        )
    elif dtype.family == "int":
        body = f"const {unsigned} key = ({unsigned})(i{bits})x ^ {top};"
    else:
        body = f"const {unsigned} key = ({unsigned})x;"
    type_ = "i32" if dtype.is_bool else held.name
    code.line(f"static inline {unsigned} sort_key({type_} x) {{\n  {body}\n  return {result}; }}")
