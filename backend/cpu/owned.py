"""What the emitters of whole ops share: addresses, loops over axes, and which emitter an op has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aot.backend.cpu.code import Code, DimTable
from aot.backend.cpu.frame import fill_halos
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.render import Renderer
from aot.dims import Dim
from aot.errors import CompilerError
from aot.ir import TensorType
from aot.kernel import Kernel, OwnedRoot


def owned_root(kernel: Kernel) -> OwnedRoot:
    """The kernel's root, of this kind."""
    if not isinstance(kernel.root, OwnedRoot):
        raise CompilerError(f"{kernel.name}: not an op that owns its loops")
    return kernel.root


def need(kernel: Kernel, number: int | None) -> int:
    """The number of an operand that must be given."""
    if number is None:
        raise CompilerError(f"{kernel.name}: an operand is missing")
    return number


def start(kernel: Kernel, dims: DimTable, isa: Isa, code: Code) -> None:
    """Declares the operands as p0, p1, … (inputs, then outputs) and fills the outputs' halos."""
    renderer = Renderer(kernel, dims, isa, code)
    if any(any(map(any, output.type.halo)) for output in kernel.outputs):
        with code.block():
            fill_halos(renderer)


def offset(dims: DimTable, type_: TensorType, indices: Sequence[str]) -> str:
    """C text of an element's offset; `indices` are C texts, one per axis, "0" for none."""
    terms = []
    origin = type_.origin_elements
    if origin != 0:
        terms.append(dims.text(origin))
    for index, stride, extent in zip(indices, type_.strides, type_.shape, strict=True):
        if index != "0" and stride != 0 and extent != 1:
            terms.append(index if stride == 1 else f"{index} * {dims.text(stride)}")
    return f"({' + '.join(terms)})" if terms else "0"


@contextmanager
def loops(code: Code, dims: DimTable, axes: Sequence[tuple[str, Dim]]) -> Iterator[None]:
    """Nested loops, the first outermost, around what is written inside."""
    if not axes:
        yield
        return
    (name, extent), *rest = axes
    with code.block(f"for (i64 {name} = 0; {name} < {dims.text(extent)}; {name}++)"), loops(code, dims, rest):
        yield


def unit_indices(code: Code, dims: DimTable, unit: str, axes: Sequence[tuple[str, Dim]]) -> None:
    """Declares the index of each axis at row-major position `unit`."""
    code.line(f"i64 rest = {unit};")
    for name, extent in reversed(axes):
        text = dims.text(extent)
        code.line(f"const i64 {name} = rest % {text}; rest /= {text};")
