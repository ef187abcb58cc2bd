"""Convolutions of groups, or of few outputs: tensor cores would have nothing to share, or next to nothing to do.

A tile is places times channels, channels innermost, as channels-last memory has them. A program makes the same tile at
several places of one spatial axis, one below the other: what a line of the input holds is read once and added to every
place that its taps reach. The order of every sum follows from shapes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from aot import dims as dimension
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cuda.code import Code, DimTable, register_type
from aot.backend.cuda.frame import Tiling, finish, power_of_two
from aot.backend.cuda.render import Renderer, Scope, TileDim
from aot.backend.nest import flatten
from aot.dims import Dim, typical
from aot.errors import CompilerError
from aot.expr import cast
from aot.kernel import ContractRoot, Kernel
from aot.target import Target

WIDEST = 64
"""Channels of a tile."""

WARPS = 4
ELEMENTS = 512
"""Of a tile, where there are enough of them: 4 for each thread, a load of 8 bytes in half precision. More leave too few
programs, or threads, to hide the reads of a window (measured on an H200, 2026-11-30)."""

LEAST_ELEMENTS = 256

MOST_LINES = 4
"""Places of a program below each other: sums that are in registers at once."""

WANTED = 1.25
"""Programs for each multiprocessor below which tiles are made smaller."""

MOST_READS = 36
"""Reads of a program that are all written one after the other."""

LONGEST_UNROLLED = 16
"""Taps along the axis of a program's lines that are written one after the other."""


@dataclass(frozen=True, slots=True)
class Direct:
    """How the places are cut: of a tile, its channels, lines below each other, warps.

    With `is_unrolled`, all taps are written one after the other, so that all reads of a program are under way at once.
    """

    places: int
    channels: int
    lines: int
    warps: int
    is_unrolled: bool

    def __str__(self) -> str:
        form = ", unrolled" if self.is_unrolled else ""
        return f"{self.places} places x {self.channels} channels, {self.lines} lines, {self.warps} warps{form}"


@dataclass(frozen=True, slots=True)
class Lines:
    """The axis along which a program makes several places: a domain axis, that of its taps, their spacing."""

    axis: int
    tap: int
    stride: int
    dilation: int


def emit_direct(
    kernel: Kernel,
    target: Target,
    lines: Lines,
    packed: Mapping[int, PackedOperand],
    schedule: Direct | None = None,
) -> Emitted:
    """Triton for a kernel whose ContractRoot multiplies, at each place and channel, a few elements of both sides.

    `packed`: operands whose types are already those of a packing that is asked for.
    """
    return _Direct(kernel, target, lines, packed, schedule).emit()


class _Direct:
    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        lines: Lines,
        packed: Mapping[int, PackedOperand],
        schedule: Direct | None,
    ) -> None:
        if not isinstance(kernel.root, ContractRoot):
            raise CompilerError(f"{kernel.name}: not a convolution")
        self.source, self.target, self.lines, self.packed = kernel, target, lines, packed
        self.kernel = flatten(kernel, merge=False)
        assert isinstance(self.kernel.root, ContractRoot)
        self.root = self.kernel.root
        self.dims, self.code = DimTable(), Code(1)
        domain = [a for a in kernel.outputs[0].type.order if a < kernel.domain]
        self.channel = self.root.n
        self.place_axes = [a for a in domain if a != self.channel]
        self.summed = [a for a in (self.root.k, *self.root.taps) if self.kernel.axes[a].extent != 1]
        self.schedule = schedule or self._choose()

    def _extent(self, axes: Sequence[int]) -> Dim:
        return dimension.product(self.kernel.axes[a].extent for a in axes)

    def _blocks(self, lines: int) -> list[Dim]:
        """Blocks of places along each axis."""
        extents = []
        for a in self.place_axes:
            extent = self.kernel.axes[a].extent
            extents.append(dimension.ceildiv(extent, lines) if a == self.lines.axis else extent)
        return extents

    def _choose(self) -> Direct:
        """Tiles cut smaller, by lines and by places in turn, until there are programs enough."""
        channels = typical(self.kernel.axes[self.channel].extent)
        width = min(power_of_two(max(channels, 1)), WIDEST)
        wanted = WANTED * int(self.target.numbers["multiprocessors"])
        lines, elements = (MOST_LINES if self._taps() > 1 else 1), ELEMENTS

        def are_few() -> bool:
            blocks = typical(dimension.product(self._blocks(lines)))
            return -(-blocks // max(elements // width, 1)) * -(-channels // width) < wanted

        if lines > 2 and are_few():
            lines = 2
        if are_few():
            elements = LEAST_ELEMENTS
        if are_few():
            lines = 1
        reads = dimension.product((self._extent(self._looped()), self._taps() + lines - 1))
        is_unrolled = isinstance(reads, int) and reads <= MOST_READS
        return Direct(max(elements // width, 1), width, lines, WARPS, is_unrolled)

    def _looped(self) -> list[int]:
        """The summed axes that a loop runs over."""
        return [a for a in self.summed if a != self.lines.tap or self._taps() == 1]

    def _taps(self) -> int:
        """The taps along the axis of lines that are written one after the other; 1 where a loop runs over them."""
        extent = self.kernel.axes[self.lines.tap].extent
        return extent if isinstance(extent, int) and extent <= LONGEST_UNROLLED else 1

    def emit(self) -> Emitted:
        cut, code, dims, root = self.schedule, self.code, self.dims, self.root
        kind = register_type(root.accumulate)
        tiling = Tiling(code, dims)
        renderer = Renderer(self.kernel, dims, code)
        blocks = self._blocks(cut.lines)
        places, channels = dimension.product(blocks), self.kernel.axes[self.channel].extent
        across = dimension.ceildiv(channels, cut.channels)
        shape = f"({cut.places}, {cut.channels})"
        with tiling.programs(dimension.ceildiv(places, cut.places) * across) as program:
            code.line(f"across = {program} % {dims.text(across)}")
            code.line(f"down = {program} // {dims.text(across)}")
            code.line(f"m = ({renderer.index('down')} * {cut.places} + tl.arange(0, {cut.places}))[:, None]")
            inside = self._mask("m_inside", "m", places, cut.places)
            code.line(f"n = ({renderer.index('across')} * {cut.channels} + tl.arange(0, {cut.channels}))[None, :]")
            n_dim = TileDim(frozenset({self.channel}), self._mask("n_inside", "n", channels, cut.channels))
            at = self._split("m", self.place_axes, blocks)
            begun = at.get(self.lines.axis, "0 * m")
            scopes: list[Scope] = []
            for line in range(cut.lines):
                axes, mask = dict(at), inside
                if cut.lines > 1:
                    code.line(f"line{line} = {begun} * {cut.lines} + {line}")
                    axes[self.lines.axis] = f"line{line}"
                    mask = self._line_mask(line, inside)
                m_dim = TileDim(frozenset(self.place_axes), mask)
                axes[self.channel] = "n"
                roots = {0: f"acc{line}"}
                scopes.append(Scope(renderer, axes, [m_dim, n_dim], shape, roots=roots))
                code.line(f"acc{line} = tl.zeros({shape}, {kind})")
            for taps in self._steps():
                self._add(scopes, taps, kind)
            for scope in scopes:
                for store in self.kernel.stores:
                    scope.store(store)
        summed = self._extent(self.summed)
        made = finish(
            self.source, tiling, warps=cut.warps, stages=1, schedule=f"direct, {cut}",
            flops=self._extent(range(self.kernel.domain)) * summed * 2, features=self.target.features,
        )  # fmt: skip
        return replace(made, packed=self.packed)

    def _mask(self, name: str, text: str, extent: Dim, size: int) -> str | None:
        if isinstance(extent, int) and extent > 0 and extent % size == 0:
            return None
        self.code.line(f"{name} = {text} < {self.dims.text(extent)}")
        return name

    def _line_mask(self, line: int, inside: str | None) -> str | None:
        extent, lines = self.kernel.axes[self.lines.axis].extent, self.schedule.lines
        if line == 0 or (isinstance(extent, int) and extent % lines == 0):
            return inside
        also = f"{inside} & " if inside is not None else ""
        self.code.line(f"line{line}_inside = {also}(line{line} < {self.dims.text(extent)})")
        return f"line{line}_inside"

    def _split(self, flat: str, axes: Sequence[int], extents: Sequence[Dim]) -> dict[int, str]:
        """The indices of axes from a flat position, the last axis innermost; writes them."""
        found: dict[int, str] = {}
        wanted = [(a, extent) for a, extent in zip(axes, extents, strict=True) if extent != 1]
        for position, (number, extent) in reversed(list(enumerate(wanted))):
            if position == 0:
                found[number] = flat
                break
            self.code.line(f"axis{number} = {flat} % {self.dims.text(extent)}")
            self.code.line(f"rest{number} = {flat} // {self.dims.text(extent)}")
            found[number], flat = f"axis{number}", f"rest{number}"
        return found

    def _steps(self) -> Iterator[dict[int, str]]:
        """The loop over what is summed, but for the taps that are written out; gives the indices of its axes."""
        looped = self._looped()
        if not looped:
            yield {}
            return
        kind = "tl.static_range" if self.schedule.is_unrolled else "range"
        with self.code.block(f"for tap in {kind}(0, {self.dims.text(self._extent(looped))})"):
            yield self._split("tap", looped, [self.kernel.axes[a].extent for a in looped])

    def _add(self, scopes: Sequence[Scope], looped: Mapping[int, str], kind: str) -> None:
        """Adds what one place of the loop gives to every line: each line of the input is read once."""
        root, lines = self.root, self.lines
        taps = 1 if lines.tap in looped else self._taps()
        readers: dict[int, list[tuple[int, int]]] = {}
        for line in range(len(scopes)):
            for tap in range(taps):
                readers.setdefault(line * lines.stride + tap * lines.dilation, []).append((line, tap))
        weights: dict[int, str] = {}
        for _, pairs in sorted(readers.items()):
            # The first of the lines that read it is inside where any of them is.
            first, tap = pairs[0]
            x = self._inner(scopes[first], looped, tap).value(cast(root.a, root.accumulate))
            for line, tap in pairs:
                if tap not in weights:
                    weights[tap] = self._inner(scopes[0], looped, tap).value(cast(root.b, root.accumulate))
                self.code.line(f"acc{line} += ({x} * {weights[tap]}).to({kind})")

    def _inner(self, scope: Scope, looped: Mapping[int, str], tap: int) -> Scope:
        return scope.inner({**looped, self.lines.tap: looped.get(self.lines.tap, str(tap))})
