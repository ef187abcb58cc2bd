"""Artifact bytes to programs, for inspection and comparison. Checks everything before it trusts anything.

The runtime has its own reader (runtime/src/artifact.cpp) with the same rules. Every complaint names the
section and the file offset; only a file whose header digest holds can be *of another version*.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from aot import dtypes, recipe
from aot.artifacts import dim_code, layout, texts
from aot.artifacts.layout import (
    ConstantFlag,
    FlowFlag,
    KernelFlag,
    Record,
    Section,
    StepFlag,
    SymbolFlag,
    WeightsMode,
)
from aot.artifacts.table import View, damaged, read_entries
from aot.dims import Dim, Symbol
from aot.dtypes import DType
from aot.errors import ArtifactError
from aot.ir import Array, Const, TensorType
from aot.program import (
    RELATIONS,
    Argument,
    Buffer,
    Constant,
    Flow,
    FlowOp,
    FlowStep,
    Guard,
    GuardKind,
    HostStep,
    Image,
    KernelCode,
    Port,
    Program,
    RecipeOp,
    RecipeStep,
    Source,
    Space,
    Step,
    StepResult,
)


class Reader:
    """Parsed sections. `programs()` builds Program objects from them.

    `only`: the sections that are read and compared with their digests, of a View that shall not be read as a whole;
    the others are as if they were empty, and there are no programs to build.
    """

    def __init__(self, data: bytes | View, only: frozenset[Section] | None = None) -> None:
        self.data: View = memoryview(data) if isinstance(data, bytes | bytearray) else data
        self.entries = read_entries(self.data, only)
        self.only = only
        self.strings = bytes(self.section(Section.STRINGS))
        if not self.strings or self.strings[-1]:
            self.fail(Section.STRINGS, "the last string has no end")
        self.tables = {record.section: self._records(record) for record in layout.RECORDS if record.section}
        self.integers = [row["value"] for row in self.tables[Section.INTEGERS]]
        try:
            self.debug = texts.decode(self._json(Section.DEBUG))
        except ValueError as error:
            self.fail(Section.DEBUG, str(error))
        self.meta = self._json(Section.META)

    def section(self, kind: Section) -> memoryview:
        """The bytes of a section; empty where it is absent."""
        entry = self.entries.get(kind) if self.only is None or kind in self.only else None
        return self.data[entry.offset : entry.offset + entry.bytes] if entry else memoryview(b"")

    def fail(self, kind: Section, message: str) -> NoReturn:
        damaged(message, kind.name.lower(), self.entries[kind].offset)

    def _json(self, kind: Section) -> dict[str, Any]:
        raw = bytes(self.section(kind))
        if not raw:
            return {}
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            self.fail(kind, str(error))
        if not isinstance(value, dict):
            self.fail(kind, "not a JSON object")
        return value

    def _records(self, record: Record) -> list[dict[str, Any]]:
        """Every record of a section as a dict; runs become (first, count)."""
        assert record.section is not None
        if record.section not in self.entries or (self.only is not None and record.section not in self.only):
            return []
        entry, data = self.entries[record.section], self.section(record.section)
        packing = record.struct
        shared = min(packing.size, entry.entry_bytes)
        rows = []
        for number in range(entry.count):
            start = number * entry.entry_bytes
            raw = bytes(data[start : start + shared]).ljust(packing.size, b"\0")
            values: Iterator[Any] = iter(packing.unpack(raw))
            row: dict[str, Any] = {}
            for field in record.fields:
                row[field.name] = (next(values), next(values)) if field.is_run else next(values)
                self._check_field(record.section, number, field.name, field.kind, row[field.name])
            rows.append(row)
        return rows

    def _check_field(self, section: Section, number: int, name: str, kind: str | Section, value: Any) -> None:
        where = f"record {number}: {name}"
        if kind == "str" and value >= len(self.strings):
            self.fail(section, f"{where} {value} is outside the strings")
        if kind == "dim" and value >= self.entries[Section.DIMS].count:
            self.fail(section, f"{where} {value} is not a dimension")
        if isinstance(kind, Section) or kind in ("integers", "dims", "strings"):
            target = kind if isinstance(kind, Section) else Section.INTEGERS
            if value[0] + value[1] > (self.entries[target].count if target in self.entries else 0):
                self.fail(section, f"{where} {value} is outside section {target.name.lower()}")
        if name == "reserved" and value:
            self.fail(section, f"{where} is not zero")

    def text(self, offset: int) -> str:
        """The string at an offset."""
        if not 0 <= offset < len(self.strings):
            self.fail(Section.STRINGS, f"string offset {offset}")
        try:
            return self.strings[offset : self.strings.index(0, offset)].decode()
        except ValueError as error:
            self.fail(Section.STRINGS, str(error))

    def values(self, run: tuple[int, int]) -> tuple[int, ...]:
        """A run of integers."""
        return tuple(self.integers[run[0] : run[0] + run[1]])

    def run(self, section: Section, run: tuple[int, int]) -> list[dict[str, Any]]:
        """A run of records."""
        return self.tables[section][run[0] : run[0] + run[1]]

    def choice(self, section: Section, enum: Any, value: int) -> Any:
        """The member of an enumeration."""
        try:
            return enum(value)
        except ValueError as error:
            self.fail(section, str(error))

    def dtype(self, section: Section, number: int) -> DType:
        if number not in dtypes.BY_NUMBER:
            self.fail(section, f"unknown element type {number}")
        return dtypes.BY_NUMBER[number]

    def programs(self) -> tuple[Program, ...]:
        """Every program of the artifact, blocks inside the programs that call them."""
        rows = self.tables[Section.PROGRAMS]
        if not rows or rows[0]["is_block"]:
            self.fail(Section.PROGRAMS, "there is no program")
        return tuple(
            _ProgramReader(self, row, number).program() for number, row in enumerate(rows) if not row["is_block"]
        )

    def constant_bytes(self, row: dict[str, Any]) -> memoryview:
        """The packed bytes of an embedded constant."""
        return self.weight_bytes(Section.CONSTANTS, f"constant {self.text(row['name'])}", row["offset"], row["bytes"])

    def weight_bytes(self, section: Section, what: str, offset: int, size: int) -> memoryview:
        """Bytes of the weights section, of which a record of another section says where they are."""
        weights = self.section(Section.WEIGHTS)
        if offset > len(weights) or size > len(weights) - offset:
            self.fail(section, f"{what} is outside the weights")
        return weights[offset : offset + size]


class _ProgramReader:
    """Builds one Program, checking what its records say of each other."""

    def __init__(self, reader: Reader, row: dict[str, Any], number: int) -> None:
        self.reader = reader
        self.row = row
        self.number = number
        self.symbols = tuple(
            Symbol(
                reader.text(r["name"]),
                r["lo"],
                r["hi"] if r["flags"] & SymbolFlag.HAS_HI else None,
                r["divisor"],
                reader.text(r["origin"]),
            )
            for r in reader.run(Section.SYMBOLS, row["symbols"])
        )
        if any(symbol.divisor < 1 for symbol in self.symbols):
            reader.fail(Section.SYMBOLS, "a divisor is not positive")
        self.dims: dict[int, Dim] = {}

    def dim(self, index: int) -> Dim:
        if index not in self.dims:
            table = self.reader.tables[Section.DIMS]
            if not 0 <= index < len(table):
                self.reader.fail(Section.DIMS, f"dimension {index} does not exist")
            rows = self.reader.run(Section.DIM_CODE, table[index]["code"])
            code = [(r["op"], r["symbol"], r["value"]) for r in rows]
            place = f"dims at offset {self.reader.entries[Section.DIMS].offset}"
            self.dims[index] = dim_code.decode(code, self.symbols, place)
        return self.dims[index]

    def dim_list(self, run: tuple[int, int]) -> tuple[Dim, ...]:
        return tuple(map(self.dim, self.reader.values(run)))

    def index(self, section: Section, value: int, count: int, what: str) -> int:
        if value >= count:
            self.reader.fail(section, f"{what} {value} does not exist, there are {count}")
        return int(value)

    def ports(self, name: str) -> tuple[Port, ...]:
        return tuple(
            Port(
                self.reader.text(r["name"]),
                TensorType(self.reader.dtype(Section.PORTS, r["dtype"]), self.dim_list(r["shape"])),
            )
            for r in self.reader.run(Section.PORTS, self.row[name])
        )

    def program(self) -> Program:
        reader, row = self.reader, self.row
        code = reader.section(Section.CODE)
        if row["code_offset"] > len(code) or row["code_bytes"] > len(code) - row["code_offset"]:
            reader.fail(Section.PROGRAMS, "the code is outside its section")
        reader.choice(Section.PROGRAMS, WeightsMode, row["weights"])
        inputs, outputs = self.ports("inputs"), self.ports("outputs")
        state = reader.values(row["state"])
        if len(state) % 2:
            reader.fail(Section.PROGRAMS, "state is not made of pairs")
        for left, right in zip(state[::2], state[1::2], strict=True):
            self.index(Section.PROGRAMS, left, len(inputs), "input")
            self.index(Section.PROGRAMS, right, len(outputs), "output")
        constants = self.constants()
        initial = reader.values(row["initial"])
        if len(initial) % 2:
            reader.fail(Section.PROGRAMS, "initial values are not pairs")
        for left, right in zip(initial[::2], initial[1::2], strict=True):
            self.index(Section.PROGRAMS, left, len(inputs), "input")
            self.index(Section.PROGRAMS, right, len(constants), "constant")
        return Program(
            target=reader.text(row["target"]),
            variant=reader.text(row["variant"]),
            symbols=self.symbols,
            inputs=inputs,
            outputs=outputs,
            state=tuple(zip(state[::2], state[1::2], strict=True)),
            guards=tuple(self.guards(inputs)),
            sources=self.sources(),
            constants=constants,
            buffers=self.buffers(len(inputs), len(outputs)),
            kernels=self.kernels(),
            steps=self.steps(),
            code=bytes(code[row["code_offset"] : row["code_offset"] + row["code_bytes"]]),
            peak_bytes=self.dim(row["peak_bytes"]),
            lower_bound_bytes=self.dim(row["lower_bound_bytes"]),
            planner=reader.text(row["planner"]),
            flow=self.flow(len(inputs), len(outputs)) if row["flow"][1] else None,
            initial=tuple(zip(initial[::2], initial[1::2], strict=True)),
            driver=row["driver"],
        )

    def flow(self, input_count: int, output_count: int) -> Flow:
        """The flow, whose blocks are read with it."""
        slots = self.ports("slots")
        if len(slots) < input_count or self.row["unbacked"] > len(self.symbols) or self.row["is_block"]:
            self.reader.fail(Section.PROGRAMS, "the flow does not fit its program")
        results = self.reader.values(self.row["results"])
        if len(results) != output_count:
            self.reader.fail(Section.PROGRAMS, "not every output has a slot")
        self.slots_exist(results, len(slots))
        blocks, environments = [], []
        table = self.reader.tables[Section.PROGRAMS]
        for number in self.reader.values(self.row["blocks"]):
            if not 0 <= number < len(table) or not table[number]["is_block"]:
                self.reader.fail(Section.PROGRAMS, f"program {number} is no block")
            environment = self.reader.values(table[number]["environment"])
            for symbol in environment:
                if not 0 <= symbol < len(self.symbols):
                    self.reader.fail(Section.PROGRAMS, f"symbol {symbol} does not exist")
            blocks.append(_ProgramReader(self.reader, table[number], number).program())
            if len(blocks[-1].symbols) != len(environment):
                self.reader.fail(Section.PROGRAMS, "not every symbol of a block has a value")
            environments.append(environment)
        steps = self.flow_steps(self.row["flow"], len(self.reader.tables[Section.FLOW]), len(slots), blocks)
        host = self.host_steps(self.reader.values(self.row["blocks"]), blocks)
        return Flow(slots, steps, results, tuple(blocks), tuple(environments), self.row["unbacked"], host)

    def host_steps(self, numbers: Sequence[int], blocks: Sequence[Program]) -> tuple[HostStep, ...]:
        """The nodes that run as CPU code. A block of another target than the flow's is CPU code of a GPU's flow."""
        reader = self.reader
        place = {number: position for position, number in enumerate(numbers)}
        found = tuple(
            HostStep(
                place[r["block"]], reader.text(r["op"]), reader.text(r["why"]),
                tuple(map(reader.text, reader.values(r["locs"]))),
            )
            for r in reader.tables[Section.HOST]
            if r["block"] in place
        )  # fmt: skip
        named = {step.block for step in found}
        target = reader.text(self.row["target"])
        for number, block in enumerate(blocks):
            is_host = target.startswith("cuda:") and block.target.startswith("cpu:")
            if is_host != (number in named) or not (is_host or block.target == target):
                reader.fail(Section.PROGRAMS, f"block {number} is for {block.target}, its program for {target}")
        return found

    def slots_exist(self, numbers: Sequence[int], count: int) -> None:
        for number in numbers:
            if not -1 <= number < count:
                self.reader.fail(Section.FLOW, f"slot {number} does not exist, there are {count}")

    def flow_steps(
        self, run: tuple[int, int], before: int, slots: int, blocks: Sequence[Program]
    ) -> tuple[FlowStep, ...]:
        """The steps of a run of records. It must end before record `before`: no body may contain itself."""
        if run[1] and run[0] + run[1] > before:
            self.reader.fail(Section.FLOW, f"a body {run} does not lie before its step")
        found = []
        for number, r in enumerate(self.reader.run(Section.FLOW, run), run[0]):
            op = self.reader.choice(Section.FLOW, FlowOp, r["op"])
            inputs, outputs = self.reader.values(r["inputs"]), self.reader.values(r["outputs"])
            drops, symbols = self.reader.values(r["drops"]), self.reader.values(r["symbols"])
            self.slots_exist((*inputs, *outputs, *drops), slots)
            for symbol in symbols:
                if not -1 <= symbol < len(self.symbols):
                    self.reader.fail(Section.FLOW, f"symbol {symbol} does not exist")
            if op == FlowOp.CALL:
                self.index(Section.FLOW, r["block"], len(blocks), "block")
            bodies = tuple(
                self.flow_steps(body, number, slots, blocks)
                for body in (r["first"], r["second"])[: {FlowOp.IF: 2, FlowOp.LOOP: 1}.get(op, 0)]
            )
            flags, dims = r["flags"], self.dim_list(r["dims"])
            found.append(
                FlowStep(
                    op, inputs, outputs, r["block"], r["element"], symbols, dims, bool(flags & FlowFlag.EXACT),
                    bool(flags & FlowFlag.CLAMP), bodies, drops, self.reader.text(r["where"]),
                )
            )  # fmt: skip
        return tuple(found)

    def guards(self, inputs: Sequence[Port]) -> Iterator[Guard]:
        for r in self.reader.run(Section.GUARDS, self.row["guards"]):
            kind = self.reader.choice(Section.GUARDS, GuardKind, r["kind"])
            if kind in RELATIONS.values():
                yield Guard(kind, 0, 0, expected=self.dim(r["expected"]), other=self.dim(r["other"]))
                continue
            port = self.index(Section.GUARDS, r["port"], len(inputs), "input")
            holds_value = kind in (GuardKind.VALUE, GuardKind.OTHER_VALUE)
            axis = self.index(Section.GUARDS, r["axis"], 1 if holds_value else inputs[port].type.rank, "axis")
            if holds_value and (inputs[port].type.elements != 1 or inputs[port].type.dtype.is_float):
                self.reader.fail(Section.GUARDS, f"a value is expected of input {inputs[port].name!r}")
            if kind in (GuardKind.BIND, GuardKind.SOLVE):
                self.index(Section.GUARDS, r["symbol"], len(self.symbols), "symbol")
            if r["divisor"] < 1:
                self.reader.fail(Section.GUARDS, f"divisor {r['divisor']}")
            yield Guard(kind, port, axis, r["symbol"], r["lo"], r["hi"], r["divisor"], self.dim(r["expected"]))

    def sources(self) -> tuple[Source, ...]:
        found = []
        kept = self.kept()
        for number, r in enumerate(self.reader.run(Section.SOURCES, self.row["sources"])):
            name = self.reader.text(r["name"])
            dtype = self.reader.dtype(Section.SOURCES, r["dtype"])
            shape = self.reader.values(r["shape"])
            if _bytes_of(shape, dtype) != r["bytes"]:
                self.reader.fail(Section.SOURCES, f"{name}: {r['bytes']} bytes do not fit shape {list(shape)}")
            digest, origin = self.reader.text(r["digest"]), self.reader.text(r["origin"])
            load = _absent(name)
            if number in kept:
                if r["external_offset"] % layout.CONSTANT_ALIGN_BYTES:
                    self.reader.fail(Section.SOURCES, f"{name}: offset {r['external_offset']} is misaligned")
                data = self.reader.weight_bytes(Section.SOURCES, name, r["external_offset"], r["bytes"])
                load = _present(data, dtype, shape)
            found.append(Source(name, Const(digest, dtype, shape, origin, load)))
        return tuple(found)

    def kept(self) -> frozenset[int]:
        """The sources whose bytes are in the weights section: what a loader makes of them is not."""
        if self.row["weights"] != WeightsMode.EMBEDDED:
            return frozenset()
        return frozenset(
            number
            for r in self.reader.run(Section.CONSTANTS, self.row["constants"])
            if not r["flags"] & ConstantFlag.EMBEDDED
            for step in self.reader.run(Section.RECIPES, r["recipe"])
            if step["op"] == RecipeOp.SOURCE
            for number in self.reader.values(step["operands"])
        )

    def constants(self) -> tuple[Constant, ...]:
        found = []
        for r in self.reader.run(Section.CONSTANTS, self.row["constants"]):
            shape = self.reader.values(r["shape"])
            if _bytes_of(shape, self.reader.dtype(Section.CONSTANTS, r["dtype"])) != r["bytes"]:
                self.reader.fail(Section.CONSTANTS, f"{r['bytes']} bytes do not fit shape {list(shape)}")
            if r["flags"] & ConstantFlag.EMBEDDED:
                self.reader.constant_bytes(r)
                if r["offset"] % layout.CONSTANT_ALIGN_BYTES:
                    self.reader.fail(Section.CONSTANTS, f"offset {r['offset']} is misaligned")
            recipe = tuple(map(self.recipe_step, self.reader.run(Section.RECIPES, r["recipe"])))
            always = bool(r["flags"] & ConstantFlag.ALWAYS_EMBEDDED)
            found.append(Constant(self.reader.text(r["name"]), r["dtype"], shape, recipe, always))
        return tuple(found)

    def recipe_step(self, r: dict[str, Any]) -> RecipeStep:
        op = self.reader.choice(Section.RECIPES, RecipeOp, r["op"])
        operands, shape = self.reader.values(r["operands"]), self.reader.values(r["shape"])
        if op == RecipeOp.SOURCE and (len(operands) != 1 or not 0 <= operands[0] < self.row["sources"][1]):
            self.reader.fail(Section.RECIPES, f"source {list(operands)} does not exist")
        if op == RecipeOp.CONCAT and (len(operands) != 2 or operands[0] < 0 or operands[1] < 1):
            self.reader.fail(Section.RECIPES, f"an axis and a number of tensors are expected, not {list(operands)}")
        flat = self.reader.values(r["coefficients"])
        width = len(shape)
        if flat and (not width or len(flat) % width):
            self.reader.fail(Section.RECIPES, f"{len(flat)} coefficients do not fit rank {width}")
        rows = tuple(flat[i : i + width] for i in range(0, len(flat), width)) if width else ()
        return RecipeStep(op, operands, shape, rows, r["dtype"], r["scalar"])

    def buffers(self, input_count: int, output_count: int) -> tuple[Buffer, ...]:
        counts = {Space.INPUT: input_count, Space.OUTPUT: output_count, Space.CONST: self.row["constants"][1]}
        found = []
        for number, r in enumerate(self.reader.run(Section.BUFFERS, self.row["buffers"])):
            space = self.reader.choice(Section.BUFFERS, Space, r["space"])
            if space in counts:
                self.index(Section.BUFFERS, r["index"], counts[space], f"{space.name.lower()}")
            below = self.reader.values(r["below"])
            for other in below:
                if not 0 <= other < number:
                    self.reader.fail(Section.BUFFERS, f"buffer {number} lies on buffer {other}, which is not before it")
            size = self.dim(r["size_bytes"])
            lifetime = (r["first_step"], r["last_step"])
            name = self.reader.text(r["name"])
            found.append(Buffer(space, r["index"], size, r["offset_bytes"], below, *lifetime, name))
        return tuple(found)

    def kernels(self) -> tuple[KernelCode, ...]:
        sources = self.reader.debug.get("kernels", [])
        texts = sources[self.number] if isinstance(sources, list) and self.number < len(sources) else {}
        text = self.reader.text
        return tuple(
            KernelCode(
                text(r["symbol"]),
                text(r["kind"]),
                text(r["label"]),
                tuple(map(text, self.reader.values(r["locs"]))),
                text(r["schedule"]),
                str(texts.get(text(r["symbol"]), "")),
                _image(r),
            )
            for r in self.reader.run(Section.KERNELS, self.row["kernels"])
        )

    def steps(self) -> tuple[Step, ...]:
        found = []
        for r in self.reader.run(Section.STEPS, self.row["steps"]):
            kernel = self.index(Section.STEPS, r["kernel"], self.row["kernels"][1], "kernel")
            arguments = []
            for a in self.reader.run(Section.ARGUMENTS, r["arguments"]):
                buffer = self.index(Section.ARGUMENTS, a["buffer"], self.row["buffers"][1], "buffer")
                arguments.append(Argument(buffer, self.dim(a["offset_bytes"])))
            found.append(
                Step(
                    kernel,
                    tuple(arguments),
                    self.dim_list(r["dims"]),
                    self.dim(r["scratch_bytes"]),
                    self.dim(r["flops"]),
                    self.dim(r["bytes_moved"]),
                    bool(r["flags"] & StepFlag.BARRIER),
                    tuple(map(self.reader.text, self.reader.values(r["locs"]))),
                    self.dim_list(r["grid"]),
                    tuple(self.result(t, len(arguments)) for t in self.reader.run(Section.TENSORS, r["results"])),
                )
            )
        return tuple(found)

    def result(self, row: Mapping[str, Any], arguments: int) -> StepResult:
        """A tensor that a step of so many arguments writes."""
        shape, strides = self.dim_list(row["shape"]), self.dim_list(row["strides"])
        if len(shape) != len(strides) or len(shape) > layout.MAX_RANK:
            self.reader.fail(Section.TENSORS, "shape and strides do not fit each other")
        return StepResult(
            self.index(Section.TENSORS, row["argument"], arguments, "argument"),
            self.reader.text(row["name"]),
            self.reader.dtype(Section.TENSORS, row["dtype"]),
            shape,
            strides,
            self.dim(row["origin"]),
        )


def _image(row: Mapping[str, Any]) -> Image | None:
    if not row["image_bytes"]:
        return None
    return Image(
        row["image_offset"], row["image_bytes"], row["threads"], row["shared_bytes"], row["block_scratch_bytes"],
        row["wide_integers"], row["registers"], row["spilled_bytes"], bool(row["flags"] & KernelFlag.HEAVY),
    )  # fmt: skip


def _bytes_of(shape: Sequence[int], dtype: DType) -> int:
    total = dtype.itemsize_bytes
    for extent in shape:
        if extent < 0:
            return -1
        total *= extent
    return total


def _absent(name: str) -> Any:
    def load() -> Array:
        raise ArtifactError(f"the source weights {name!r} are not in the artifact", hint="Read them from the model.")

    return load


def _present(data: memoryview, dtype: DType, shape: Sequence[int]) -> Any:
    def load() -> Array:
        return np.frombuffer(data, np.uint8).view(dtype.numpy).reshape(shape)

    return load


def constant_arrays(reader: Reader, number: int) -> dict[str, Array]:
    """The packed constants of a program whose weights are in the file, by name; views of it where they are ready."""
    program = reader.tables[Section.PROGRAMS][number]
    parsed = _ProgramReader(reader, program, number)
    sources, constants = parsed.sources(), parsed.constants()
    found = {}
    for r, constant in zip(reader.run(Section.CONSTANTS, program["constants"]), constants, strict=True):
        if r["flags"] & ConstantFlag.EMBEDDED:
            dtype = dtypes.BY_NUMBER[r["dtype"]]
            found[constant.name] = _present(reader.constant_bytes(r), dtype, constant.shape)()
        elif program["weights"] == WeightsMode.EMBEDDED:
            found[constant.name] = recipe.run(constant.recipe, sources)
    return found
