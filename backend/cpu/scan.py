"""SCAN_AXIS kernels: a running sum or product along one axis.

Steps along the axis run in order; lanes are neighbours of another axis where there is one worth it.
"""

from __future__ import annotations

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cpu.code import Code, DimTable, literal, register_dtype, register_type, vector_type
from aot.backend.cpu.frame import bytes_moved, fill_halos, kernel_body, thread_share
from aot.backend.cpu.functions import splat
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.render import Renderer
from aot.backend.nest import flatten, lane_cost, loads_of
from aot.errors import CompilerError
from aot.expr import cast
from aot.kernel import Kernel, ScanRoot


def emit_scan(kernel: Kernel, isa: Isa) -> Emitted:
    """C for a kernel with a ScanRoot."""
    flat = flatten(kernel)
    root = flat.root
    if not isinstance(root, ScanRoot):
        raise CompilerError(f"{kernel.name}: not a scan")
    order = [a for a in kernel.outputs[0].type.order if a != root.axis and flat.axes[a].extent != 1]
    loads = loads_of([root.value, *(store.value for store in flat.stores)])
    costs = {a: lane_cost(flat, loads, flat.stores, a, isa.lanes) for a in order}
    vector = min(reversed(order), key=lambda a: costs[a]) if order else None
    if vector is not None and costs[vector] > 2.0:
        vector = None
    outer = [a for a in order if a != vector]
    code, dims = Code(), DimTable()
    dtype = register_dtype(root.accumulate)
    with kernel_body(code, dims):
        if any(any(map(any, output.type.halo)) for output in kernel.outputs):
            with code.block():
                fill_halos(Renderer(kernel, dims, isa, code))
        renderer = Renderer(flat, dims, isa, code)
        counts = [dims.text(flat.axes[a].extent) for a in outer]
        if vector is not None:
            counts.append(dims.text(dimension.ceildiv(flat.axes[vector].extent, isa.lanes)))
        thread_share(code, " * ".join(counts) or "1", "unit", "unit_end")
        with code.block("for (; unit < unit_end; unit++)"):
            code.line("i64 rest = unit;")
            names = [f"i{a}" for a in outer] + (["block"] if vector is not None else [])
            for name, count in reversed(list(zip(names, counts, strict=True))):
                code.line(f"const i64 {name} = rest % {count}; rest /= {count};")
            scope = renderer.scope({a: f"i{a}" for a in outer})

            def steps(count: str | None) -> None:
                first = literal(0 if root.function == "sum" else 1, dtype)
                if vector is None:
                    code.line(f"{register_type(dtype)} total = {first};")
                else:
                    code.line(f"{vector_type(dtype)} total = {splat(dtype, first)};")
                extent = dims.text(flat.axes[root.axis].extent)
                with code.block(f"for (i64 step = 0; step < {extent}; step++)"):
                    code.line(f"const i64 at = {f'{extent} - 1 - step' if root.reverse else 'step'};")
                    axes = {root.axis: "at"}
                    if vector is not None:
                        axes[vector] = "lane"
                    inner = renderer.scope(axes, vector, count, roots={0: "total"}, parent=scope)
                    value = inner.value(cast(root.value, root.accumulate))
                    sign = "+" if root.function == "sum" else "*"
                    if root.exclusive:
                        inner.code.line(f"{inner.type_of(dtype)} next = total {sign} {value};")
                    else:
                        inner.code.line(f"total = total {sign} {value};")
                    for store in flat.stores:
                        inner.store(store)
                    if root.exclusive:
                        inner.code.line("total = next;")

            if vector is None:
                steps(None)
            else:
                code.line(f"const i64 lane = block * {isa.lanes};")
                code.line(f"const i64 left = {dims.text(flat.axes[vector].extent)} - lane;")
                with code.block(f"if (left >= {isa.lanes})"):
                    steps(None)
                with code.block("else"):
                    steps("left")
    note = "one value at a time" if vector is None else f"lanes along {flat.axes[vector].name}"
    elements = dimension.product(a.extent for a in kernel.axes)
    return Emitted(code.text(), dims.dims, f"scan; {note}", flops=elements, bytes_moved=bytes_moved(kernel))
