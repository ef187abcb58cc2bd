"""SCATTER kernels: the data, copied where it is not overwritten in place, and the updates in the order of indices.

A program owns a block of columns: places of all axes but the scattered ones. It copies them, walks all indices and
applies the updates, so that each element gets its updates from one program, in order, without atomics.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cuda.code import (
    Code,
    DimTable,
    memory_type,
    offset_at,
    register_dtype,
    register_type,
    split_places,
)
from aot.backend.cuda.frame import Tiling, finish, power_of_two
from aot.backend.cuda.functions import convert
from aot.backend.cuda.render import LARGEST_INDEX
from aot.dims import Dim, typical
from aot.errors import CompilerError
from aot.ir import TensorType
from aot.kernel import Kernel, OwnedRoot
from aot.ops.helpers import dims_attr, int_attr
from aot.target import Target

_COMBINE = {"add": "({0} + {1})", "mul": "({0} * {1})", "max": "maximum({0}, {1})", "min": "minimum({0}, {1})"}
_COMBINE_INTEGERS = {**_COMBINE, "max": "tl.maximum({0}, {1})", "min": "tl.minimum({0}, {1})"}


def emit_scatter(kernel: Kernel, target: Target) -> Emitted:
    """Triton for a `scatter_elements` or `scatter_nd`."""
    root = kernel.root
    if not isinstance(root, OwnedRoot):
        raise CompilerError(f"{kernel.name}: not a scatter")
    return _Scatter(kernel, root).emit()


class _Scatter:
    def __init__(self, kernel: Kernel, root: OwnedRoot) -> None:
        self.kernel = kernel
        self.numbers = [number for number in root.operands if number is not None]
        self.data, self.indices, self.updates = (kernel.inputs[number].type for number in self.numbers)
        self.out = kernel.outputs[0].type
        self.target = f"p{len(kernel.inputs)}"
        self.by_tuples = root.op == "scatter_nd"
        self.reduction = str(root.attrs["reduction"])
        rank = self.data.rank
        if self.by_tuples:
            depth = self.indices.shape[-1]
            if not isinstance(depth, int):
                raise CompilerError(f"{kernel.name}: indices of unknown length")
            self.scattered = tuple(range(depth))
            self.starts: tuple[Dim, ...] = (0,) * rank
        else:
            self.scattered = (int_attr(root.attrs, "axis") % rank,)
            self.starts = dims_attr(root.attrs, "starts") or (0,) * rank
        self.columns = [a for a in self.out.order if a not in self.scattered]
        self.dims, self.code = DimTable(), Code(1)
        sizes = [dimension.bounds(o.type.elements)[1] for o in (*kernel.inputs, *kernel.outputs)]
        self.is_wide = any(size > LARGEST_INDEX for size in sizes)

    def emit(self) -> Emitted:
        code, dims = self.code, self.dims
        total = dimension.product(self.data.shape[a] for a in self.columns)
        block = min(max(power_of_two(max(typical(total), 1)), 32), 256)
        tiling = Tiling(code, dims)
        with tiling.programs(dimension.ceildiv(total, block)) as program:
            start = f"({program} + tl.full((), 0, tl.int64))" if self.is_wide else program
            code.line(f"column = {start} * {block} + tl.arange(0, {block})")
            code.line(f"inside = column < {dims.text(total)}")
            self.places = dict(
                zip(self.columns, self._split("column", self.columns, self.data.shape, "i"), strict=True)
            )
            self.zeros = f"tl.zeros(({block},), tl.int32)"
            self._copy()
            if self.by_tuples:
                self._tuples()
            else:
                self._elements()
        moved = self.indices.bytes + 2 * self.updates.bytes
        made = finish(
            self.kernel, tiling, warps=max(block // 128, 1), stages=1, schedule=f"updates in order, {block} columns",
            flops=self.updates.elements,
        )  # fmt: skip
        return Emitted(made.source, made.dims, made.schedule, flops=made.flops, bytes_moved=moved, grid=made.grid)

    def _offset(self, type_: TensorType, places: Sequence[str]) -> str:
        return offset_at(self.dims, type_, places, self.zeros)

    def _all_places(self, scattered: Sequence[str]) -> list[str]:
        found = dict(self.places)
        found.update(zip(self.scattered, scattered, strict=True))
        return [found[a] for a in range(self.data.rank)]

    def _split(self, flat: str, axes: Sequence[int], shape: Sequence[Dim], prefix: str) -> list[str]:
        """Indices of axes from a flat position, written as lines."""
        return split_places(self.code, self.dims, flat, [shape[a] for a in axes], prefix)

    def _copy(self) -> None:
        code = self.code
        rows = dimension.product(self.data.shape[a] for a in self.scattered)
        source = f"p{self.numbers[0]}"
        with (
            code.block(f"if {source}.to(tl.int64) != {self.target}.to(tl.int64)"),
            code.block(f"for row in range(0, {self.dims.text(rows)})"),
        ):
            places = self._all_places(self._split("row", self.scattered, self.data.shape, "r"))
            code.line(f"held = tl.load({source} + {self._offset(self.data, places)}, mask=inside, other=0)")
            code.line(f"tl.store({self.target} + {self._offset(self.out, places)}, held, mask=inside)")
        # What one thread copied, another may be the one to update.
        code.line("tl.debug_barrier()")

    def _elements(self) -> None:
        code, dims = self.code, self.dims
        axis = self.scattered[0]
        own: dict[int, str] = {}
        code.line("updated = inside")
        for a in self.columns:
            begin = self.starts[a]
            own[a] = self.places[a] if begin == 0 else f"({self.places[a]} - {dims.text(begin)})"
            if self.indices.shape[a] != self.data.shape[a]:
                code.line(f"updated = updated & ({own[a]} >= 0) & ({own[a]} < {dims.text(self.indices.shape[a])})")
        with code.block(f"for step in range(0, {dims.text(self.indices.shape[axis])})"):
            places = [own[a] if a != axis else "step" for a in range(self.data.rank)]
            self._index("at", self._offset(self.indices, places), self.data.shape[axis], "updated")
            self._apply(self._all_places(["at"]), self._offset(self.updates, places), "at_inside")

    def _tuples(self) -> None:
        code = self.code
        lead = list(range(self.indices.rank - 1))
        count = dimension.product(self.indices.shape[a] for a in lead)
        with code.block(f"for step in range(0, {self.dims.text(count)})"):
            tuples = self._split("step", lead, self.indices.shape, "s") if lead else []
            mask = "inside"
            for number in self.scattered:
                place = self._offset(self.indices, [*tuples, str(number)])
                self._index(f"at{number}", place, self.data.shape[number], mask)
                mask = f"at{number}_inside"
            columns = [self.places[a] for a in range(len(self.scattered), self.data.rank)]
            self._apply(
                self._all_places([f"at{number}" for number in self.scattered]),
                self._offset(self.updates, [*tuples, *columns]), mask,
            )  # fmt: skip

    def _index(self, name: str, offset: str, extent: Dim, mask: str) -> None:
        """Reads an index; `name`_inside says where it is one."""
        code, size = self.code, self.dims.text(extent)
        code.line(f"{name} = tl.load(p{self.numbers[1]} + {offset}, mask={mask}, other=0).to(tl.int64)")
        code.line(f"{name} = tl.where({name} < 0, {name} + {size}, {name})")
        code.line(f"{name}_inside = {mask} & ({name} >= 0) & ({name} < {size})")

    def _apply(self, places: Sequence[str], update: str, mask: str) -> None:
        code, dtype = self.code, self.data.dtype
        target = f"{self.target} + {self._offset(self.out, places)}"
        code.line(f"new = tl.load(p{self.numbers[2]} + {update}, mask={mask}, other=0)")
        if self.reduction != "none":
            table = _COMBINE if dtype.is_float else _COMBINE_INTEGERS
            code.line(f"old = tl.load({target}, mask={mask}, other=0)")
            kind = register_type(dtype)
            joined = table[self.reduction].format(f"old.to({kind})", f"new.to({kind})")
            code.line(f"new = {joined}")
            if register_dtype(dtype) != dtype:
                code.line(f"new = {convert(register_dtype(dtype), dtype, 'new')}")
        code.line(f"tl.store({target}, new.to({memory_type(dtype)}), mask={mask})")
        code.line("tl.debug_barrier()")
