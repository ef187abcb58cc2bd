"""Programs to artifact bytes. The same programs give the same bytes on any machine, at any time."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np

from aot import dtypes, recipe
from aot.artifacts import dim_code, layout, safetensors, texts
from aot.artifacts.images import shared_images
from aot.artifacts.kept_sources import constant_bytes, kept_sources, packing_key
from aot.artifacts.layout import (
    ConstantFlag,
    FlowFlag,
    KernelFlag,
    Section,
    SectionFlag,
    StepFlag,
    SymbolFlag,
    WeightsMode,
)
from aot.dims import Dim, Symbol
from aot.errors import CompilerError, OptionError
from aot.ir import Array, Const
from aot.program import Constant, FlowStep, Image, KernelCode, Port, Program, RecipeOp, RecipeStep, StepResult

Weights = Literal["embedded", "packed", "external", "none"]
_MODES = {
    "embedded": WeightsMode.EMBEDDED,
    "packed": WeightsMode.EMBEDDED,
    "external": WeightsMode.EXTERNAL,
    "none": WeightsMode.NONE,
}


def write(
    programs: Sequence[Program],
    *,
    meta: Mapping[str, Any],
    weights: Weights = "embedded",
    debug: Mapping[str, str] | None = None,
    self_test: Mapping[str, Array] | None = None,
    external_name: str = "",
) -> tuple[bytes, str, bytes]:
    """The artifact's bytes, and the name and bytes of its external weights file ("" and b"" without one).

    `programs` are tried in order when the artifact is loaded. `meta` is JSON for people. `debug` maps
    names to texts (IR dumps); with None the debug section, and with it the kernel sources and what is known of the
    tensors that steps write, is left out.
    `weights`: "embedded" holds every weight once, where programs of several targets pack it differently as the model
    has it; "packed" holds each packing, ready for the loader.
    `external_name` is the file name that the artifact will look for beside itself; by default it
    is made from the digest of the weights. Raises OptionError for a weights mode that does not exist.
    """
    if weights not in _MODES:
        raise OptionError(f"weights must be embedded, packed, external or none, not {weights!r}")
    if not programs:
        raise CompilerError("an artifact needs at least one program")
    external = b""
    offsets: dict[str, int] = {}
    if weights == "external":
        external, offsets = safetensors.write(_needed_sources(programs))
        external_name = external_name or f"weights-{hashlib.sha256(external).hexdigest()[:16]}.safetensors"
    else:
        external_name = ""
    programs = shared_images(programs)
    tables = _Tables(_MODES[weights], external_name, offsets, has_results=debug is not None)
    if weights == "embedded":
        tables.keep(kept_sources(programs))
    for number, block in enumerate(_blocks(programs), len(programs)):
        tables.block_numbers[id(block)] = number
    for program in programs:
        tables.add_program(program)
        tables.add_host_steps(program)
    for program in programs:
        for block, environment in zip(*_called(program), strict=True):
            tables.add_program(block, environment)
    sections = tables.sections()
    sections[Section.META] = write_json(meta)
    if self_test is not None:
        sections[Section.SELF_TEST] = safetensors.write(self_test)[0]
    if debug is not None:
        stored = (*programs, *_blocks(programs))
        sources = [{kernel.symbol: kernel.source for kernel in program.kernels} for program in stored]
        sections[Section.DEBUG] = texts.encode(sources, debug)
    return assemble(sections), external_name, external


def _called(program: Program) -> tuple[tuple[Program, ...], tuple[tuple[int, ...], ...]]:
    """The blocks of a program's flow, and their environments."""
    return (program.flow.blocks, program.flow.environments) if program.flow is not None else ((), ())


def _blocks(programs: Sequence[Program]) -> tuple[Program, ...]:
    """The blocks of all programs, in the order in which they are stored behind the programs."""
    return tuple(block for program in programs for block in _called(program)[0])


def write_json(value: Any) -> bytes:
    """What the metadata section holds."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1).encode()


def _needed_sources(programs: Sequence[Program]) -> dict[str, Array]:
    """The source tensors that recipes of non-embedded constants read, by name."""
    found: dict[str, Array] = {}
    digests: dict[str, str] = {}
    for program in (*programs, *_blocks(programs)):
        for constant in program.constants:
            if constant.always_embedded:
                continue
            for step in constant.recipe:
                if step.op == RecipeOp.SOURCE:
                    source = program.sources[step.operands[0]]
                    if digests.setdefault(source.name, source.const.digest) != source.const.digest:
                        raise CompilerError(f"two different weights are named {source.name!r}")
                    if source.name not in found:
                        found[source.name] = source.const.array()
    return found


class _Tables:
    """Collects the records of all programs. Strings stay Python strings until all are known."""

    def __init__(
        self, mode: WeightsMode, external_name: str, external_offsets: Mapping[str, int], *, has_results: bool
    ) -> None:
        self.mode = mode
        self.has_results = has_results
        self.external_name = external_name
        self.external_offsets = external_offsets
        self.rows: dict[Section, list[tuple[Any, ...]]] = {
            record.section: [] for record in layout.RECORDS if record.section
        }
        self.dims: dict[tuple[dim_code.Code, str], int] = {}
        self.numbers: dict[Symbol, int] = {}
        self.weights = bytearray()
        self.weight_offsets: dict[bytes, int] = {}
        self.packed: dict[Hashable, int | None] = {}
        self.kept: dict[str, int] = {}  # offsets of sources that are there as they are
        self.code = bytearray()
        self.code_offsets: dict[bytes, int] = {}
        self.source_hashes: dict[str, bytes] = {}
        self.block_numbers: dict[int, int] = {}  # by identity: two blocks may be equal

    def keep(self, sources: Mapping[str, Const]) -> None:
        """Stores sources as they are; what is packed from them is left to the loader."""
        for digest, const in sources.items():
            self.kept[digest] = self._stored(np.ascontiguousarray(const.array()))

    def add(self, section: Section, rows: Iterable[tuple[Any, ...]]) -> tuple[int, int]:
        """Appends records; returns the run that holds them."""
        table = self.rows[section]
        first = len(table)
        table.extend(rows)
        return first, len(table) - first

    def dim(self, dim: Dim) -> int:
        code = dim_code.encode(dim, self.numbers)
        key = (code, str(dim))
        if key not in self.dims:
            self.dims[key] = len(self.dims)
            self.rows[Section.DIMS].append((self.add(Section.DIM_CODE, code), str(dim), 0))
        return self.dims[key]

    def dim_list(self, dims: Iterable[Dim]) -> tuple[int, ...]:
        return tuple(map(self.dim, dims))

    def add_program(self, program: Program, environment: tuple[int, ...] | None = None) -> None:
        """Adds a program; `environment` is given for a block."""
        self.numbers = {symbol: number for number, symbol in enumerate(program.symbols)}
        symbols = self.add(
            Section.SYMBOLS,
            [
                (s.name, s.origin, s.lo, s.hi or 0, s.divisor, SymbolFlag.HAS_HI if s.hi is not None else 0, 0)
                for s in program.symbols
            ],
        )
        inputs = self.add(Section.PORTS, map(self._port, program.inputs))
        outputs = self.add(Section.PORTS, map(self._port, program.outputs))
        guards = self.add(
            Section.GUARDS,
            [
                (g.kind, g.port, g.axis, g.symbol, g.lo, g.hi, g.divisor, self.dim(g.expected), self.dim(g.other))
                for g in program.guards
            ],
        )
        sources = self.add(Section.SOURCES, [self._source(program, number) for number in range(len(program.sources))])
        constants = self.add(Section.CONSTANTS, [self._constant(program, constant) for constant in program.constants])
        buffers = self.add(
            Section.BUFFERS,
            [
                (b.space, b.index, b.offset_bytes, b.below, self.dim(b.size_bytes), b.first_step, b.last_step, b.name)
                for b in program.buffers
            ],
        )
        kernels = self.add(Section.KERNELS, map(_kernel_row, program.kernels))
        steps = []
        for step in program.steps:
            arguments = self.add(Section.ARGUMENTS, [(a.buffer, self.dim(a.offset_bytes)) for a in step.arguments])
            flags = StepFlag.BARRIER if step.barrier else 0
            counts = (self.dim(step.scratch_bytes), self.dim(step.flops), self.dim(step.bytes_moved))
            grid = self.dim_list(step.grid)
            results = self.add(Section.TENSORS, map(self._result, step.results if self.has_results else ()))
            steps.append(
                (step.kernel, flags, arguments, self.dim_list(step.dims), *counts, 0, step.locs, grid, results)
            )
        flow = program.flow
        called = tuple(self.block_numbers[id(block)] for block in _called(program)[0])
        self.add(
            Section.PROGRAMS,
            [
                (
                    program.target,
                    program.variant,
                    program.planner,
                    self.mode,
                    self.external_name,
                    self.dim(program.peak_bytes),
                    self.dim(program.lower_bound_bytes),
                    0,
                    symbols,
                    inputs,
                    outputs,
                    tuple(number for pair in program.state for number in pair),
                    guards,
                    sources,
                    constants,
                    buffers,
                    kernels,
                    self.add(Section.STEPS, steps),
                    self._code(program.code),
                    len(program.code),
                    self._flow(flow.steps) if flow is not None else (0, 0),
                    self.add(Section.PORTS, map(self._port, flow.slots if flow is not None else ())),
                    flow.results if flow is not None else (),
                    called,
                    environment or (),
                    flow.unbacked if flow is not None else 0,
                    int(environment is not None),
                    tuple(number for pair in program.initial for number in pair),
                    program.driver,
                    0,
                )
            ],
        )

    def add_host_steps(self, program: Program) -> None:
        """Names the blocks of a program that are for a CPU while it is for a GPU."""
        blocks = _called(program)[0]
        rows = [(self.block_numbers[id(blocks[s.block])], s.op, s.why, s.locs, 0) for s in program.host_steps]
        self.add(Section.HOST, rows)

    def _flow(self, steps: Sequence[FlowStep]) -> tuple[int, int]:
        """The records of a flow's steps; those of a body come before the step that has it."""
        rows = []
        for step in steps:
            bodies = [self._flow(body) for body in step.bodies]
            first, second = (*bodies, (0, 0), (0, 0))[:2]
            flags = (FlowFlag.EXACT if step.exact else 0) | (FlowFlag.CLAMP if step.clamp else 0)
            numbers = (step.inputs, step.outputs, step.symbols, self.dim_list(step.dims))
            rows.append((step.op, flags, step.block, step.element, *numbers, first, second, step.drops, step.where, 0))
        return self.add(Section.FLOW, rows)

    def _result(self, result: StepResult) -> tuple[Any, ...]:
        extents = (self.dim_list(result.shape), self.dim_list(result.strides))
        return (result.name, result.dtype.number, result.argument, self.dim(result.origin_elements), *extents)

    def _port(self, port: Port) -> tuple[Any, ...]:
        if port.type.layout:
            raise CompilerError(f"input or output {port.name} must be row-major, not {port.type}")
        return (port.name, port.type.dtype.number, self.dim_list(port.type.shape))

    def _code(self, code: bytes) -> int:
        if code not in self.code_offsets:
            self.code.extend(bytes(-len(self.code) % layout.SECTION_ALIGN_BYTES))
            self.code_offsets[code] = len(self.code)
            self.code.extend(code)
        return self.code_offsets[code]

    def _source(self, program: Program, number: int) -> tuple[Any, ...]:
        source = program.sources[number]
        const = source.const
        sha256 = bytes(32)
        if self.mode != WeightsMode.EMBEDDED:
            if const.digest not in self.source_hashes:
                array = np.ascontiguousarray(const.array())
                self.source_hashes[const.digest] = hashlib.sha256(array.reshape(-1).view(np.uint8).data).digest()
            sha256 = self.source_hashes[const.digest]
        offset = self.kept.get(const.digest, self.external_offsets.get(source.name, 0))
        names = (source.name, const.source, const.digest, const.dtype.number)
        return (*names, const.shape, const.bytes, offset, sha256)

    def _constant(self, program: Program, constant: Constant) -> tuple[Any, ...]:
        offset, size = 0, constant_bytes(constant)
        embedded = constant.always_embedded or self.mode == WeightsMode.EMBEDDED
        if embedded:
            place = self._packed(program, constant)
            embedded, offset = place is not None, place or 0
        flags = (ConstantFlag.EMBEDDED if embedded else 0) | (
            ConstantFlag.ALWAYS_EMBEDDED if constant.always_embedded else 0
        )
        steps = self.add(Section.RECIPES, map(_recipe_row, constant.recipe))
        return (constant.name, constant.dtype, constant.shape, steps, flags, 0, offset, size)

    def _packed(self, program: Program, constant: Constant) -> int | None:
        """Where the constant's bytes are; None: a load makes it. Equal bytes are stored, equal recipes run once."""
        key = packing_key(program, constant)
        if key in self.packed:
            return self.packed[key]
        sources = [program.sources[step.operands[0]].const for step in constant.recipe if step.op == RecipeOp.SOURCE]
        is_made = any(source.digest in self.kept for source in sources)
        # Only what has the bytes of a source may be there already: others need not be packed to know that they are not.
        if is_made and (len(sources) != 1 or sources[0].bytes != constant_bytes(constant)):
            self.packed[key] = None
            return None
        array = recipe.run(constant.recipe, program.sources)
        if array.shape != constant.shape or dtypes.from_numpy(array.dtype).number != constant.dtype:
            found = f"{array.dtype}{list(array.shape)}"
            raise CompilerError(f"constant {constant.name} should be {constant.shape}, its recipe gives {found}")
        self.packed[key] = self._stored(array, only_known=is_made)
        return self.packed[key]

    @overload
    def _stored(self, array: Array) -> int: ...

    @overload
    def _stored(self, array: Array, only_known: bool) -> int | None: ...

    def _stored(self, array: Array, only_known: bool = False) -> int | None:
        """Where an array's bytes lie in the weights; None: nowhere, and `only_known` forbids to add them."""
        data = array.reshape(-1).view(np.uint8).data if array.size else b""
        digest = hashlib.sha256(data).digest() + len(data).to_bytes(8, "little")
        if digest not in self.weight_offsets:
            if only_known:
                return None
            self.weights.extend(bytes(-len(self.weights) % layout.CONSTANT_ALIGN_BYTES))
            self.weight_offsets[digest] = len(self.weights)
            self.weights.extend(data)
        return self.weight_offsets[digest]

    def sections(self) -> dict[Section, bytes | bytearray]:
        """Every section of tables and bytes, as stored."""
        strings = self._string_offsets()
        integers = _Pool()
        result: dict[Section, bytes | bytearray] = {}
        for record in layout.RECORDS:
            if record.section is None or record.section == Section.INTEGERS:
                continue
            packing = record.struct
            rows = []
            for row in self.rows[record.section]:
                values: list[Any] = []
                for field, value in zip(record.fields, row, strict=True):
                    if field.kind == "str":
                        values.append(strings[value])
                    elif field.kind == "strings":
                        values.extend(integers.add(tuple(strings[text] for text in value)))
                    elif field.kind in ("integers", "dims"):
                        values.extend(integers.add(tuple(value)))
                    elif field.is_run:
                        values.extend(value)
                    else:
                        values.append(value)
                try:
                    rows.append(packing.pack(*values))
                except struct.error as error:
                    raise CompilerError(f"{record.name} {row}: {error}") from error
            result[record.section] = b"".join(rows)
        result[Section.INTEGERS] = integers.data()
        result[Section.STRINGS] = b"".join(text.encode() + b"\0" for text in strings)
        for section in layout.LATER_SECTIONS:
            if not result[section]:
                del result[section]
        result[Section.CODE] = self.code
        result[Section.WEIGHTS] = self.weights
        return result

    def _string_offsets(self) -> dict[str, int]:
        """Every string in sorted order (the empty one is first), with its offset."""
        found = {""}
        for record in layout.RECORDS:
            for number, field in enumerate(record.fields):
                if field.kind == "str" and record.section is not None:
                    found.update(row[number] for row in self.rows[record.section])
                elif field.kind == "strings" and record.section is not None:
                    found.update(text for row in self.rows[record.section] for text in row[number])
        offsets = {}
        position = 0
        for text in sorted(found):
            if "\0" in text:
                raise CompilerError(f"name {text!r} has a NUL character")
            offsets[text] = position
            position += len(text.encode()) + 1
        return offsets


class _Pool:
    """The integers section; equal lists are stored once."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.found: dict[tuple[int, ...], int] = {}

    def add(self, values: tuple[int, ...]) -> tuple[int, int]:
        if not values:
            return 0, 0
        if values not in self.found:
            self.found[values] = len(self.values)
            self.values.extend(values)
        return self.found[values], len(values)

    def data(self) -> bytes:
        return struct.pack(f"<{len(self.values)}q", *self.values)


def _kernel_row(kernel: KernelCode) -> tuple[Any, ...]:
    image = kernel.image or Image(0, 0, 0)
    place = (image.offset_bytes, image.size_bytes, image.wide_integers, image.threads, image.shared_bytes)
    people = (image.scratch_bytes, image.registers, image.spilled_bytes)
    flags = KernelFlag.HEAVY if image.is_heavy else 0
    return (kernel.symbol, kernel.kind, kernel.label, kernel.schedule, kernel.locs, *place, *people, flags)


def _recipe_row(step: RecipeStep) -> tuple[Any, ...]:
    flat = tuple(factor for row in step.coefficients for factor in row)
    return (step.op, step.dtype, step.operands, step.shape, flat, step.scalar)


def section_digest(data: bytes | bytearray | memoryview, flags: int) -> bytes:
    """SHA-256 of a section; for TREE, of the digests of its chunks."""
    if not flags & SectionFlag.TREE:
        return hashlib.sha256(data).digest()
    view = memoryview(data)
    chunk = layout.TREE_CHUNK_BYTES
    leaves = b"".join(hashlib.sha256(view[i : i + chunk]).digest() for i in range(0, len(view), chunk))
    return hashlib.sha256(leaves).digest()


def header_digest(header: bytes, table: bytes) -> bytes:
    """The digest that the header carries: of itself without that field, and of the section table."""
    return hashlib.sha256(header[:32] + header[64:] + table).digest()


def alignment_of(kind: Section) -> int:
    """Of a section's offset."""
    return layout.WEIGHTS_ALIGN_BYTES if kind == Section.WEIGHTS else layout.SECTION_ALIGN_BYTES


def section_row(kind: Section, data: bytes | bytearray, position: int = 0) -> bytes:
    """The entry of a section in the table."""
    flags = 0 if kind in layout.OPTIONAL_SECTIONS else int(SectionFlag.REQUIRED)
    flags |= SectionFlag.TREE if kind in layout.TREE_SECTIONS else 0
    entry_bytes = 0 if kind in layout.BYTE_SECTIONS else layout.RECORD_OF[kind].size_bytes
    count = len(data) // entry_bytes if entry_bytes else 0
    numbers = (position, len(data), count, entry_bytes, alignment_of(kind), 0)
    return layout.SECTION.struct.pack(kind, flags, *numbers, section_digest(data, flags))


def assemble(sections: Mapping[Section, bytes | bytearray]) -> bytes:
    """Header, section table and sections, in the order of their numbers with the weights last."""
    order = sorted(sections, key=lambda kind: (kind == Section.WEIGHTS, kind))
    table_offset = layout.HEADER.size_bytes
    position = table_offset + len(order) * layout.SECTION.size_bytes
    entries = []
    parts: list[bytes | bytearray] = []
    for kind in order:
        data = sections[kind]
        padding = -position % alignment_of(kind)
        parts.extend((bytes(padding), data))
        position += padding
        entries.append(section_row(kind, data, position))
        position += len(data)
    table = b"".join(entries)
    magic = int.from_bytes(layout.MAGIC, "little")
    version = layout.MAJOR | layout.MINOR << 16
    fields = (magic, version, layout.HEADER.size_bytes, position, table_offset)
    tail = (len(order), layout.SECTION.size_bytes, 0)
    header = layout.HEADER.struct.pack(*fields, bytes(32), *tail)
    header = layout.HEADER.struct.pack(*fields, header_digest(header, table), *tail)
    return b"".join([header, table, *parts])
