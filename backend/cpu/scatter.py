"""SCATTER kernels: the data, copied where it is not overwritten in place, and the updates in index order.

Every thread owns a range of the first scattered axis of the data: it copies that range, walks all indices
and applies those that fall into it. So each element gets its updates from one thread, in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.backend.base import Emitted
from aot.backend.cpu.code import Code, DimTable, memory_type, register_dtype
from aot.backend.cpu.frame import kernel_body, thread_share
from aot.backend.cpu.functions import get, put
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.owned import loops, need, offset, owned_root, start
from aot.dims import Dim
from aot.dtypes import DType
from aot.ir import TensorType
from aot.kernel import Kernel
from aot.ops.helpers import dims_attr, int_attr


def emit_scatter(kernel: Kernel, isa: Isa) -> Emitted:
    """C for a `scatter_elements` or `scatter_nd`."""
    root = owned_root(kernel)
    return _Scatter(kernel, isa, root.op == "scatter_nd").emit()


class _Scatter:
    def __init__(self, kernel: Kernel, isa: Isa, by_tuples: bool) -> None:
        root = owned_root(kernel)
        self.kernel, self.isa, self.by_tuples = kernel, isa, by_tuples
        self.numbers = [need(kernel, number) for number in root.operands]
        self.data, self.indices, self.updates = (kernel.inputs[number].type for number in self.numbers)
        self.out = kernel.outputs[0].type
        self.target = f"p{len(kernel.inputs)}"
        self.axis = 0 if by_tuples else int_attr(root.attrs, "axis") % self.data.rank
        self.reduction = str(root.attrs["reduction"])
        self.starts = (() if by_tuples else dims_attr(root.attrs, "starts")) or (0,) * self.data.rank
        self.dims, self.code = DimTable(), Code()

    def emit(self) -> Emitted:
        code, dims = self.code, self.dims
        with kernel_body(code, dims):
            start(self.kernel, dims, self.isa, code)
            thread_share(code, dims.text(self.data.shape[self.axis]), "lo", "hi")
            self._copy()
            if self.by_tuples:
                self._tuples()
            else:
                self._elements()
        return Emitted(
            code.text(), dims.dims, f"updates in order, {self.reduction}", flops=self.updates.elements,
            bytes_moved=self.indices.bytes + 2 * self.updates.bytes,
        )  # fmt: skip

    def _copy(self) -> None:
        """The owned range of the data, unless it is there already."""
        code, dims = self.code, self.dims
        source = f"p{self.numbers[0]}"
        names = [f"c{number}" for number in range(self.data.rank)]
        *outer, inner = self.out.order
        with code.block(f"if ((const void *){self.target} != (const void *){source})"):
            dense = not self.data.layout and not self.out.layout
            if dense and all(extent == 1 for extent in self.data.shape[: self.axis]):
                step = dims.text(self.data.strides[self.axis])
                code.line(f"for (i64 i = lo * {step}; i < hi * {step}; i++) {self.target}[i] = {source}[i];")
                return
            heads = []
            for number in (*outer, inner):
                low, high = ("lo", "hi") if number == self.axis else ("0", dims.text(self.data.shape[number]))
                heads.append((names[number], low, high, number))
            self._nest(heads, names, source)

    def _nest(self, heads: Sequence[tuple[str, str, str, int]], names: list[str], source: str) -> None:
        code, dims = self.code, self.dims
        (name, low, high, number), *rest = heads
        if rest:
            with code.block(f"for (i64 {name} = {low}; {name} < {high}; {name}++)"):
                self._nest(rest, names, source)
            return
        places = [*names[:number], "0", *names[number + 1 :]]
        element = memory_type(self.data.dtype)
        code.line(f"const {element} *const from = {source} + {offset(dims, self.data, places)};")
        code.line(f"{element} *const to = {self.target} + {offset(dims, self.out, places)};")
        steps = [self._step(type_, number) for type_ in (self.out, self.data)]
        code.line(f"for (i64 i = {low}; i < {high}; i++) to[i{steps[0]}] = from[i{steps[1]}];")

    def _step(self, type_: TensorType, axis: int) -> str:
        stride = type_.strides[axis]
        return "" if stride == 1 else f" * {self.dims.text(stride)}"

    # Updates.

    def _elements(self) -> None:
        code, dims = self.code, self.dims
        names = [f"i{number}" for number in range(self.data.rank)]
        extents = self.indices.shape
        order = self.out.order
        inner = order[-1]
        along = inner != self.axis and (self.indices.strides[inner] == 0 or extents[inner] == 1)
        outer = [a for a in order if not (along and a == inner)]
        with loops(code, dims, [(names[a], extents[a]) for a in outer]):
            places = [n if a in outer else "0" for a, n in enumerate(names)]
            self._index("at", offset(dims, self.indices, places), self.data.shape[self.axis])
            code.line("if (at < lo || at >= hi) continue;")
            begun = [
                place if begin == 0 else dims.text(begin) if place == "0" else f"({dims.text(begin)} + {place})"
                for begin, place in zip(self.starts, places, strict=True)
            ]
            target = [*begun[: self.axis], "at", *begun[self.axis + 1 :]]
            runs = [(extents[inner], self.out.strides[inner], self.updates.strides[inner])] if along else []
            self._apply(offset(dims, self.out, target), offset(dims, self.updates, places), runs)

    def _tuples(self) -> None:
        code, dims = self.code, self.dims
        depth = self.indices.shape[-1]
        assert isinstance(depth, int)
        lead = self.indices.rank - 1
        names = [f"i{number}" for number in range(lead)]
        count: list[tuple[str, Dim]] = [(name, self.indices.shape[a]) for a, name in enumerate(names)]
        with loops(code, dims, count or [("once", 1)]):
            for number in range(depth):
                self._index(f"at{number}", offset(dims, self.indices, [*names, str(number)]), self.data.shape[number])
                low, high = ("lo", "hi") if number == 0 else ("0", dims.text(self.data.shape[number]))
                code.line(f"if (at{number} < {low} || at{number} >= {high}) continue;")
            inside = [a for a in self.out.order if a >= depth]
            boxes = [(f"c{a}", self.data.shape[a]) for a in inside[:-1]]
            runs = []
            if inside:
                last = inside[-1]
                runs = [(self.data.shape[last], self.out.strides[last], self.updates.strides[lead + last - depth])]
            with loops(code, dims, boxes):
                part = [f"c{a}" if a in inside[:-1] else "0" for a in range(depth, self.data.rank)]
                target = [*(f"at{number}" for number in range(depth)), *part]
                self._apply(offset(dims, self.out, target), offset(dims, self.updates, [*names, *part]), runs)

    def _index(self, name: str, place: str, extent: Dim) -> None:
        """Declares an index, counted from the end where it is negative."""
        self.code.line(f"i64 {name} = p{self.numbers[1]}[{place}];")
        self.code.line(f"{name} += {name} < 0 ? {self.dims.text(extent)} : 0;")

    def _apply(self, target: str, update: str, runs: Sequence[tuple[Dim, Dim, Dim]]) -> None:
        """One update, or a run of them (extent, stride in the result, stride in the updates)."""
        code, dims = self.code, self.dims
        dtype = self.data.dtype
        element = memory_type(dtype)
        code.line(f"{element} *const to = {self.target} + {target};")
        code.line(f"const {element} *const new = p{self.numbers[2]} + {update};")
        if not runs:
            code.line(self._one("0", "0"))
            return
        ((extent, out_stride, update_stride),) = runs
        n = dims.text(extent)
        if out_stride != 1 or update_stride != 1 or (isinstance(extent, int) and extent < self.isa.lanes):
            steps = [f"k * {dims.text(stride)}" for stride in (out_stride, update_stride)]
            code.line(f"for (i64 k = 0; k < {n}; k++) {{ {self._one(*steps)} }}")
            return
        name, lanes = dtype.name, self.isa.lanes
        code.line("i64 k = 0;")
        with code.block(f"for (; k + {lanes} <= {n}; k += {lanes})"):
            value = self._joined(dtype, f"load_{name}(to + k)", f"load_{name}(new + k)")
            code.line(f"store_{name}(to + k, {value});")
        if not isinstance(extent, int) or extent % lanes:
            with code.block(f"if (k < {n})"):
                value = self._joined(dtype, f"loadn_{name}(to + k, {n} - k)", f"loadn_{name}(new + k, {n} - k)")
                code.line(f"storen_{name}(to + k, {value}, {n} - k);")

    def _joined(self, dtype: DType, old: str, new: str) -> str:
        """The text of two blocks combined."""
        if self.reduction == "none":
            return new
        if self.reduction in ("max", "min"):
            return f"{self.reduction}_{register_dtype(dtype).name}({old}, {new})"
        return f"{old} {'+' if self.reduction == 'add' else '*'} {new}"

    def _one(self, to: str, new: str) -> str:
        """The statement that applies one update."""
        dtype = self.data.dtype
        value, old = get(dtype, "new", new), get(dtype, "to", to)
        if self.reduction in ("max", "min"):
            value = f"join_{self.reduction}_{register_dtype(dtype).name}({old}, {value})"
        elif self.reduction != "none":
            value = f"({register_dtype(dtype).name})({old} {'+' if self.reduction == 'add' else '*'} {value})"
        return put(dtype, "to", to, value)
