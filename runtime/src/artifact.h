// The tables of an artifact, checked completely before anything is used.
#pragma once

#include "base.h"
#include "format.h"
#include "signature.h"
#include "source.h"

namespace aot {

inline constexpr uint32_t kSectionKinds = format::section::SIGNATURE + 1;  // sections that this reader knows, and 0

struct SectionPlace {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint32_t flags = 0;
    bool present = false;
    format::SectionEntry entry{};
};

// Every table of the file, as records of this version: fields that the file lacks are zero.
struct Artifact {
    explicit Artifact(const Memory &memory);

    Memory memory;
    Vector<char> strings;
    Vector<format::Integer> integers;
    Vector<format::DimCode> dim_code;
    Vector<format::DimEntry> dims;
    Vector<format::SymbolEntry> symbols;
    Vector<format::PortEntry> ports;
    Vector<format::GuardEntry> guards;
    Vector<format::SourceEntry> sources;
    Vector<format::RecipeEntry> recipes;
    Vector<format::ConstantEntry> constants;
    Vector<format::BufferEntry> buffers;
    Vector<format::KernelEntry> kernels;
    Vector<format::ArgumentEntry> arguments;
    Vector<format::StepEntry> steps;
    Vector<format::FlowEntry> flow;
    Vector<format::HostEntry> host;
    Vector<format::TensorEntry> tensors;
    Vector<format::ProgramEntry> programs;
    Vector<format::SignatureEntry> signatures;
    Vector<uint8_t> code;
    Vector<char> meta;
    SectionPlace weights;  // their hash is checked when they are copied

    const char *text(uint32_t offset) const { return strings.data() + offset; }
    int64_t integer(uint32_t index) const { return integers[index].value; }
};

// Parses and checks everything but the bytes of the weights. Where keys are given, a signature by one of them is
// verified before anything but header, section table and signatures is looked at. Throws a Failure.
void read_artifact(const ByteSource &source, const TrustedKeys &trusted, Artifact &out);

// A Failure that says the file is damaged, and where.
Failure damaged(const char *file, const char *section, uint64_t offset, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

const format::DType *find_dtype(uint32_t number);
inline uint32_t item_bytes(const format::DType &dtype) { return dtype.bits < 8 ? 1 : dtype.bits / 8; }
// Elements of a shape times bytes of an element; -1 where that is negative or overflows.
int64_t shape_bytes(const Artifact &artifact, format::Run shape, uint32_t dtype);

}  // namespace aot
