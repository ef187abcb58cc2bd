"""Prints runtime/src/format.h from the table in layout.py: `python -m aot.artifacts.gen_header`.

With `--check` it writes nothing and fails when the header in the tree is stale.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from pathlib import Path

from aot import dtypes
from aot.artifacts import layout
from aot.artifacts.layout import Field, Record, Section
from aot.program import FlowOp, GuardKind, RecipeOp, Space

PATH = Path(__file__).resolve().parent.parent / "runtime" / "src" / "format.h"
_C_TYPES = {
    "u32": "uint32_t",
    "u64": "uint64_t",
    "i64": "int64_t",
    "f64": "double",
    "str": "uint32_t",
    "dim": "uint32_t",
}
_BYTES = {"sha256": 32, "ed25519": 64}


def _enum(name: str, values: type[IntEnum]) -> str:
    rows = "".join(f"    {value.name} = {value.value},\n" for value in values)
    return f"namespace {name} {{\nenum : uint32_t {{\n{rows}}};\n}}\n"


def _member(field: Field) -> str:
    note = f"  // {field.doc}" if field.doc else ""
    if field.kind in _BYTES:
        return f"    uint8_t {field.name}[{_BYTES[str(field.kind)]}];{note}\n"
    return f"    {'Run' if field.is_run else _C_TYPES[str(field.kind)]} {field.name};{note}\n"


def _check(field: Field) -> str | None:
    if isinstance(field.kind, Section):
        return f'v.run("{field.name}", r.{field.name}, section::{field.kind.name});'
    if field.kind in ("integers", "dims", "strings", "str", "dim"):
        return f'v.{ {"str": "string"}.get(field.kind, field.kind) }("{field.name}", r.{field.name});'
    if field.name.startswith("reserved"):
        return f'v.zero("{field.name}", r.{field.name});'
    return None


def _struct(record: Record) -> str:
    members = "".join(map(_member, record.fields))
    text = f"struct {record.name} {{\n{members}}};\n"
    text += f'static_assert(sizeof({record.name}) == {record.size_bytes}, "layout");\n'
    if record.section is not None:
        checks = "".join(f"    {line}\n" for line in map(_check, record.fields) if line)
        text += f"template <class V> void visit(const {record.name} &r, V &v) {{\n"
        text += checks if checks else "    (void)r, (void)v;\n"
        text += f"}}\ninline constexpr uint32_t section_of(const {record.name} *) {{\n"
        text += f"    return section::{record.section.name};\n}}\n"
    return text


def header_text() -> str:
    """The whole of format.h."""
    names = "".join(f'    case {kind.value}: return "{kind.name.lower()}";\n' for kind in Section)
    rows = "".join(f'    {{{d.number}, "{d.name}", {d.bits}, {d.dlpack[0]}, {d.dlpack[1]}}},\n' for d in dtypes.ALL)
    records = "".join(f"    case {r.section.value}: return {r.size_bytes};\n" for r in layout.RECORDS if r.section)
    magic = ", ".join(f"0x{byte:02x}" for byte in layout.MAGIC)
    parts = [
        "// Made by `python -m aot.artifacts.gen_header` from artifacts/layout.py. Do not edit.\n#pragma once\n\n"
        "#include <cstdint>\n\nnamespace aot::format {\n",
        f"inline constexpr uint8_t kMagic[8] = {{{magic}}};\n"
        f"inline constexpr uint32_t kMajor = {layout.MAJOR};\ninline constexpr uint32_t kMinor = {layout.MINOR};\n"
        f"inline constexpr uint32_t kConstantAlignBytes = {layout.CONSTANT_ALIGN_BYTES};\n"
        f"inline constexpr uint32_t kTreeChunkBytes = {layout.TREE_CHUNK_BYTES};\n"
        f"inline constexpr uint32_t kMaxRank = {layout.MAX_RANK};\n",
        "struct Run {\n    uint32_t first;\n    uint32_t count;\n};\n",
        _enum("section", Section),
        _enum("section_flag", layout.SectionFlag),
        _enum("dim_op", layout.DimOp),
        _enum("weights_mode", layout.WeightsMode),
        _enum("constant_flag", layout.ConstantFlag),
        _enum("step_flag", layout.StepFlag),
        _enum("kernel_flag", layout.KernelFlag),
        _enum("symbol_flag", layout.SymbolFlag),
        _enum("signature_algorithm", layout.SignatureAlgorithm),
        _enum("flow_flag", layout.FlowFlag),
        _enum("space", Space),
        _enum("guard_kind", GuardKind),
        _enum("recipe_op", RecipeOp),
        _enum("flow_op", FlowOp),
        f"inline const char *section_name(uint32_t kind) {{\n    switch (kind) {{\n{names}"
        '    default: return "unknown section";\n    }\n}\n',
        f"// Bytes of a record of a section; 0 for a section of plain bytes.\n"
        f"inline uint32_t entry_bytes(uint32_t kind) {{\n    switch (kind) {{\n{records}"
        "    default: return 0;\n    }\n}\n",
        "struct DType {\n    uint32_t number;\n    const char *name;\n    uint32_t bits;\n    uint8_t dlpack_code;\n"
        f"    uint8_t dlpack_bits;\n}};\ninline constexpr DType kDTypes[] = {{\n{rows}}};\n"
        f"inline constexpr uint32_t kDTypeCount = {len(dtypes.ALL)};\n",
        *(_struct(record) for record in (layout.HEADER, layout.SECTION, *layout.RECORDS)),
        "}  // namespace aot::format\n",
    ]
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Writes the header, or with --check compares it. Returns the exit code."""
    text = header_text()
    if arguments == ["--check"]:
        return 0 if PATH.exists() and PATH.read_text() == text else 1
    PATH.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
