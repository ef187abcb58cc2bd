"""The artifact format as one table: sections, records, fields. docs/format.md explains it to people.

`write.py` and `read.py` use the table directly; `gen_header.py` prints it as runtime/src/format.h.
Invariant: fields are only ever appended to a record, and zero in a new field means the old meaning.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

MAGIC = b"AOTC\r\n\x1a\n"  # as PNG does: a transfer that rewrites line ends is caught at once
MAJOR = 1
MINOR = 6
WEIGHTS_ALIGN_BYTES = 4096
SECTION_ALIGN_BYTES = 64
CONSTANT_ALIGN_BYTES = 64
TREE_CHUNK_BYTES = 65536
NONE = 0xFFFFFFFF
MAX_RANK = 64


class Section(IntEnum):
    """Section kinds. Numbers never change; a new one is appended."""

    STRINGS = 1
    INTEGERS = 2
    DIM_CODE = 3
    DIMS = 4
    SYMBOLS = 5
    PORTS = 6
    GUARDS = 7
    SOURCES = 8
    RECIPES = 9
    CONSTANTS = 10
    BUFFERS = 11
    KERNELS = 12
    ARGUMENTS = 13
    STEPS = 14
    PROGRAMS = 15
    CODE = 16
    WEIGHTS = 17
    META = 18
    SELF_TEST = 19
    DEBUG = 20
    FLOW = 21
    HOST = 22
    TENSORS = 23
    SIGNATURE = 24


class SectionFlag(IntEnum):
    """REQUIRED: a reader that does not know the section must refuse the file.

    TREE: the digest is SHA-256 over the SHA-256 digests of the 64 KiB chunks, so that a loader may
    hash several chunks at once.
    """

    REQUIRED = 1
    TREE = 2


class DimOp(IntEnum):
    """Stack code of dimensions, over signed 64-bit integers. Division rounds down."""

    CONSTANT = 0  # push value
    SYMBOL = 1  # push the program's symbol number `symbol`
    ADD = 2  # pop b, a; push a + b; likewise below
    MUL = 3
    FLOORDIV = 4
    MOD = 5
    MIN = 6
    MAX = 7


class WeightsMode(IntEnum):
    """Where the packed constants of a program come from."""

    EMBEDDED = 0
    EXTERNAL = 1  # made at load from a safetensors file beside the artifact
    NONE = 2  # made at load from tensors that the caller gives by name


class ConstantFlag(IntEnum):
    EMBEDDED = 1  # the packed bytes are in the weights section
    ALWAYS_EMBEDDED = 2  # not a weight of the user's model


class StepFlag(IntEnum):
    BARRIER = 1


class KernelFlag(IntEnum):
    HEAVY = 1  # overlaps neither the kernel before it nor the one behind it


class FlowFlag(IntEnum):
    EXACT = 1
    CLAMP = 2


class SymbolFlag(IntEnum):
    HAS_HI = 1


class SignatureAlgorithm(IntEnum):
    ED25519 = 1


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record.

    Kinds: u32, u64, i64, f64, sha256, ed25519 (64 bytes of a signature); str (offset of a
    NUL-terminated string); dim (index of a dimension); integers, dims, strings (first, count: a run of
    the integers section, whose entries are plain, dimension indices, string offsets); or a Section
    (first, count: a run of its records).
    """

    name: str
    kind: str | Section
    doc: str = ""

    @property
    def is_run(self) -> bool:
        """Whether the field is a (first, count) pair."""
        return isinstance(self.kind, Section) or self.kind in ("integers", "dims", "strings")

    @property
    def format(self) -> str:
        """The struct format of the field."""
        return "II" if self.is_run else _FORMATS[str(self.kind)]


_FORMATS = {"u32": "I", "u64": "Q", "i64": "q", "f64": "d", "sha256": "32s", "ed25519": "64s", "str": "I", "dim": "I"}


@dataclass(frozen=True, slots=True)
class Record:
    """A fixed-size entry of a section. `name` is the C struct's."""

    name: str
    section: Section | None
    fields: tuple[Field, ...]

    @property
    def struct(self) -> struct.Struct:
        """The packing of one entry: little-endian, without padding."""
        return struct.Struct("<" + "".join(field.format for field in self.fields))

    @property
    def size_bytes(self) -> int:
        return self.struct.size


def _record(name: str, section: Section | None, *fields: tuple[Any, ...]) -> Record:
    return Record(name, section, tuple(Field(*field) for field in fields))


HEADER = _record(
    "Header",
    None,
    ("magic", "u64", "MAGIC, as bytes"),
    ("version", "u32", "major in the low 16 bits, minor in the high 16"),
    ("header_bytes", "u32", "at least 80"),
    ("file_bytes", "u64"),
    ("table_offset", "u64", "where the section table starts"),
    ("digest", "sha256", "SHA-256 of bytes 0..32, bytes 64..header_bytes and the section table; never moves"),
    ("section_count", "u32"),
    ("section_entry_bytes", "u32"),
    ("reserved", "u64"),
)

SECTION = _record(
    "SectionEntry",
    None,
    ("kind", "u32"),
    ("flags", "u32"),
    ("offset", "u64"),
    ("bytes", "u64"),
    ("count", "u32", "records; 0 in a section of plain bytes"),
    ("entry_bytes", "u32", "size of a record; 0 in a section of plain bytes"),
    ("alignment", "u32"),
    ("reserved", "u32"),
    ("digest", "sha256"),
)

RECORDS = (
    _record("Integer", Section.INTEGERS, ("value", "i64")),
    _record("DimCode", Section.DIM_CODE, ("op", "u32"), ("symbol", "u32"), ("value", "i64")),
    _record(
        "DimEntry",
        Section.DIMS,
        ("code", Section.DIM_CODE),
        ("text", "str", "the expression as people write it"),
        ("reserved", "u32"),
    ),
    _record(
        "SymbolEntry",
        Section.SYMBOLS,
        ("name", "str"),
        ("origin", "str"),
        ("lo", "i64"),
        ("hi", "i64", "inclusive, where flags has HAS_HI"),
        ("divisor", "i64"),
        ("flags", "u32"),
        ("reserved", "u32"),
    ),
    _record("PortEntry", Section.PORTS, ("name", "str"), ("dtype", "u32"), ("shape", "dims")),
    _record(
        "GuardEntry",
        Section.GUARDS,
        ("kind", "u32"),
        ("port", "u32"),
        ("axis", "u32"),
        ("symbol", "u32"),
        ("lo", "i64"),
        ("hi", "i64", "0: no bound"),
        ("divisor", "i64"),
        ("expected", "dim"),
        ("other", "dim", "of relations"),
    ),
    _record(
        "SourceEntry",
        Section.SOURCES,
        ("name", "str"),
        ("origin", "str", "where the model keeps it, for people"),
        ("digest", "str", "the compiler's digest of dtype, shape and bytes"),
        ("dtype", "u32"),
        ("shape", "integers"),
        ("bytes", "u64"),
        (
            "external_offset",
            "u64",
            "in the external file, where the weights mode is EXTERNAL; in the weights section, where it is EMBEDDED "
            "and a constant that is made from the source is not",
        ),
        ("sha256", "sha256", "of the row-major bytes; zero where the weights are embedded"),
    ),
    _record(
        "RecipeEntry",
        Section.RECIPES,
        ("op", "u32"),
        ("dtype", "u32"),
        ("operands", "integers"),
        ("shape", "integers"),
        ("coefficients", "integers", "row by row, a row per axis of the source"),
        ("scalar", "f64"),
    ),
    _record(
        "ConstantEntry",
        Section.CONSTANTS,
        ("name", "str"),
        ("dtype", "u32"),
        ("shape", "integers"),
        ("recipe", Section.RECIPES),
        ("flags", "u32"),
        ("reserved", "u32"),
        ("offset", "u64", "in the weights section, where embedded"),
        ("bytes", "u64"),
    ),
    _record(
        "BufferEntry",
        Section.BUFFERS,
        ("space", "u32"),
        ("index", "u32"),
        ("offset_bytes", "u64"),
        ("below", "integers"),
        ("size_bytes", "dim"),
        ("first_step", "u32"),
        ("last_step", "u32"),
        ("name", "str"),
    ),
    _record(
        "KernelEntry",
        Section.KERNELS,
        ("symbol", "str"),
        ("kind", "str"),
        ("label", "str"),
        ("schedule", "str"),
        ("locs", "strings"),
        ("image_offset", "u64", "of a GPU kernel's machine code, in the program's code"),
        ("image_bytes", "u64", "0: the code is one library, which has the symbol"),
        ("wide_integers", "u64", "bit i: integer argument i has 64 bits, else 32"),
        ("threads", "u32", "of a block"),
        ("shared_bytes", "u32", "of a block"),
        ("block_scratch_bytes", "u32", "of device memory, for each block"),
        ("registers", "u32", "of a thread, for people"),
        ("spilled_bytes", "u32", "of a thread, for people"),
        ("flags", "u32"),
    ),
    _record("ArgumentEntry", Section.ARGUMENTS, ("buffer", "u32"), ("offset_bytes", "dim")),
    _record(
        "StepEntry",
        Section.STEPS,
        ("kernel", "u32"),
        ("flags", "u32"),
        ("arguments", Section.ARGUMENTS),
        ("dims", "dims"),
        ("scratch_bytes", "dim"),
        ("flops", "dim"),
        ("bytes_moved", "dim"),
        ("reserved", "u32"),
        ("locs", "strings"),
        ("grid", "dims", "blocks of threads along three axes; empty on a CPU"),
        ("results", Section.TENSORS, "what the step writes; empty in a file without debug information"),
    ),
    _record(
        "ProgramEntry",
        Section.PROGRAMS,
        ("target", "str"),
        ("variant", "str"),
        ("planner", "str"),
        ("weights", "u32", "WeightsMode"),
        ("external_file", "str", "name of the external weights file, beside the artifact"),
        ("peak_bytes", "dim"),
        ("lower_bound_bytes", "dim"),
        ("reserved", "u32"),
        ("symbols", Section.SYMBOLS),
        ("inputs", Section.PORTS),
        ("outputs", Section.PORTS),
        ("state", "integers", "input, output, input, output, …"),
        ("guards", Section.GUARDS),
        ("sources", Section.SOURCES),
        ("constants", Section.CONSTANTS),
        ("buffers", Section.BUFFERS),
        ("kernels", Section.KERNELS),
        ("steps", Section.STEPS),
        ("code_offset", "u64", "in the code section"),
        ("code_bytes", "u64"),
        ("flow", Section.FLOW, "empty: the program's own steps run"),
        ("slots", Section.PORTS, "of the flow; the first are the inputs"),
        ("results", "integers", "the slot of each output"),
        ("blocks", "integers", "the programs that the flow calls"),
        ("environment", "integers", "of a block: which symbols of its flow's program are its own"),
        ("unbacked", "u32", "how many symbols, at the end, no input binds"),
        ("is_block", "u32", "1: only a flow runs it"),
        ("initial", "integers", "input, constant, …: what state holds at first; one element means all of them"),
        ("driver", "u32", "of a GPU: the oldest driver that takes the code, as CUDA's version, such as 12040; 0: any"),
        ("reserved_2", "u32"),
    ),
    _record(
        "FlowEntry",
        Section.FLOW,
        ("op", "u32", "FlowOp"),
        ("flags", "u32", "FlowFlag"),
        ("block", "u32"),
        ("element", "u32"),
        ("inputs", "integers", "slots"),
        ("outputs", "integers", "slots"),
        ("symbols", "integers", "-1: none"),
        ("dims", "dims"),
        ("first", Section.FLOW, "bodies lie before the step that has them"),
        ("second", Section.FLOW),
        ("drops", "integers", "slots"),
        ("where", "str"),
        ("reserved", "u32"),
    ),
    _record(
        "HostEntry",
        Section.HOST,
        ("block", "u32", "the program whose code is for a CPU, while that of the flow is for a GPU"),
        ("op", "str"),
        ("why", "str"),
        ("locs", "strings"),
        ("reserved", "u32"),
    ),
    _record(
        "TensorEntry",
        Section.TENSORS,
        ("name", "str", "in the user's model; empty where it has none"),
        ("dtype", "u32"),
        ("argument", "u32", "of the step: the pointer"),
        ("origin", "dim", "elements from the pointer to the first element"),
        ("shape", "dims"),
        ("strides", "dims", "in elements"),
    ),
    _record(
        "SignatureEntry",
        Section.SIGNATURE,
        ("algorithm", "u32", "SignatureAlgorithm; a reader skips one that it does not know"),
        ("reserved", "u32"),
        ("key", "sha256", "SHA-256 of the 32 bytes of the public key"),
        ("signature", "ed25519"),
    ),
)
RECORD_OF = {record.section: record for record in RECORDS}

OPTIONAL_SECTIONS = frozenset({Section.META, Section.SELF_TEST, Section.DEBUG, Section.TENSORS, Section.SIGNATURE})
LATER_SECTIONS = frozenset(
    {Section.FLOW, Section.HOST, Section.TENSORS, Section.SIGNATURE}
)  # absent from files that do not need them, so older readers take those
TREE_SECTIONS = frozenset({Section.CODE, Section.WEIGHTS, Section.SELF_TEST, Section.DEBUG})  # the large ones
BYTE_SECTIONS = frozenset(
    {Section.STRINGS, Section.CODE, Section.WEIGHTS, Section.META, Section.SELF_TEST, Section.DEBUG}
)
