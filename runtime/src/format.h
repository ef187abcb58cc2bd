// Made by `python -m aot.artifacts.gen_header` from artifacts/layout.py. Do not edit.
#pragma once

#include <cstdint>

namespace aot::format {

inline constexpr uint8_t kMagic[8] = {0x41, 0x4f, 0x54, 0x43, 0x0d, 0x0a, 0x1a, 0x0a};
inline constexpr uint32_t kMajor = 1;
inline constexpr uint32_t kMinor = 6;
inline constexpr uint32_t kConstantAlignBytes = 64;
inline constexpr uint32_t kTreeChunkBytes = 65536;
inline constexpr uint32_t kMaxRank = 64;

struct Run {
    uint32_t first;
    uint32_t count;
};

namespace section {
enum : uint32_t {
    STRINGS = 1,
    INTEGERS = 2,
    DIM_CODE = 3,
    DIMS = 4,
    SYMBOLS = 5,
    PORTS = 6,
    GUARDS = 7,
    SOURCES = 8,
    RECIPES = 9,
    CONSTANTS = 10,
    BUFFERS = 11,
    KERNELS = 12,
    ARGUMENTS = 13,
    STEPS = 14,
    PROGRAMS = 15,
    CODE = 16,
    WEIGHTS = 17,
    META = 18,
    SELF_TEST = 19,
    DEBUG = 20,
    FLOW = 21,
    HOST = 22,
    TENSORS = 23,
    SIGNATURE = 24,
};
}

namespace section_flag {
enum : uint32_t {
    REQUIRED = 1,
    TREE = 2,
};
}

namespace dim_op {
enum : uint32_t {
    CONSTANT = 0,
    SYMBOL = 1,
    ADD = 2,
    MUL = 3,
    FLOORDIV = 4,
    MOD = 5,
    MIN = 6,
    MAX = 7,
};
}

namespace weights_mode {
enum : uint32_t {
    EMBEDDED = 0,
    EXTERNAL = 1,
    NONE = 2,
};
}

namespace constant_flag {
enum : uint32_t {
    EMBEDDED = 1,
    ALWAYS_EMBEDDED = 2,
};
}

namespace step_flag {
enum : uint32_t {
    BARRIER = 1,
};
}

namespace kernel_flag {
enum : uint32_t {
    HEAVY = 1,
};
}

namespace symbol_flag {
enum : uint32_t {
    HAS_HI = 1,
};
}

namespace signature_algorithm {
enum : uint32_t {
    ED25519 = 1,
};
}

namespace flow_flag {
enum : uint32_t {
    EXACT = 1,
    CLAMP = 2,
};
}

namespace space {
enum : uint32_t {
    INPUT = 0,
    OUTPUT = 1,
    CONST = 2,
    ARENA = 3,
};
}

namespace guard_kind {
enum : uint32_t {
    BIND = 0,
    EQUAL = 1,
    VALUE = 2,
    OTHER_VALUE = 3,
    AT_LEAST = 4,
    SAME = 5,
    DIFFERENT = 6,
    ABOVE = 7,
    SOLVE = 8,
};
}

namespace recipe_op {
enum : uint32_t {
    SOURCE = 0,
    SCALAR = 1,
    ADD = 2,
    SUB = 3,
    MUL = 4,
    DIV = 5,
    NEG = 6,
    SQRT = 7,
    CAST = 8,
    RESHAPE = 9,
    PACK = 10,
    WINOGRAD = 11,
    CONCAT = 12,
};
}

namespace flow_op {
enum : uint32_t {
    CALL = 0,
    READ = 1,
    CHECK = 2,
    ALIAS = 3,
    MOVE = 4,
    MATCH = 5,
    CLEAR = 6,
    APPEND = 7,
    IF = 8,
    LOOP = 9,
};
}

inline const char *section_name(uint32_t kind) {
    switch (kind) {
    case 1: return "strings";
    case 2: return "integers";
    case 3: return "dim_code";
    case 4: return "dims";
    case 5: return "symbols";
    case 6: return "ports";
    case 7: return "guards";
    case 8: return "sources";
    case 9: return "recipes";
    case 10: return "constants";
    case 11: return "buffers";
    case 12: return "kernels";
    case 13: return "arguments";
    case 14: return "steps";
    case 15: return "programs";
    case 16: return "code";
    case 17: return "weights";
    case 18: return "meta";
    case 19: return "self_test";
    case 20: return "debug";
    case 21: return "flow";
    case 22: return "host";
    case 23: return "tensors";
    case 24: return "signature";
    default: return "unknown section";
    }
}

// Bytes of a record of a section; 0 for a section of plain bytes.
inline uint32_t entry_bytes(uint32_t kind) {
    switch (kind) {
    case 2: return 8;
    case 3: return 16;
    case 4: return 16;
    case 5: return 40;
    case 6: return 16;
    case 7: return 48;
    case 8: return 72;
    case 9: return 40;
    case 10: return 48;
    case 11: return 40;
    case 12: return 72;
    case 13: return 8;
    case 14: return 64;
    case 15: return 192;
    case 21: return 80;
    case 22: return 24;
    case 23: return 32;
    case 24: return 104;
    default: return 0;
    }
}

struct DType {
    uint32_t number;
    const char *name;
    uint32_t bits;
    uint8_t dlpack_code;
    uint8_t dlpack_bits;
};
inline constexpr DType kDTypes[] = {
    {1, "bool", 8, 6, 8},
    {2, "i8", 8, 0, 8},
    {3, "i16", 16, 0, 16},
    {4, "i32", 32, 0, 32},
    {5, "i64", 64, 0, 64},
    {6, "u8", 8, 1, 8},
    {7, "u16", 16, 1, 16},
    {8, "u32", 32, 1, 32},
    {9, "u64", 64, 1, 64},
    {10, "f16", 16, 2, 16},
    {11, "bf16", 16, 4, 16},
    {12, "f32", 32, 2, 32},
    {13, "f64", 64, 2, 64},
    {14, "f8e4m3", 8, 10, 8},
    {15, "f8e5m2", 8, 12, 8},
    {16, "i4", 4, 0, 4},
    {17, "u4", 4, 1, 4},
};
inline constexpr uint32_t kDTypeCount = 17;

struct Header {
    uint64_t magic;  // MAGIC, as bytes
    uint32_t version;  // major in the low 16 bits, minor in the high 16
    uint32_t header_bytes;  // at least 80
    uint64_t file_bytes;
    uint64_t table_offset;  // where the section table starts
    uint8_t digest[32];  // SHA-256 of bytes 0..32, bytes 64..header_bytes and the section table; never moves
    uint32_t section_count;
    uint32_t section_entry_bytes;
    uint64_t reserved;
};
static_assert(sizeof(Header) == 80, "layout");

struct SectionEntry {
    uint32_t kind;
    uint32_t flags;
    uint64_t offset;
    uint64_t bytes;
    uint32_t count;  // records; 0 in a section of plain bytes
    uint32_t entry_bytes;  // size of a record; 0 in a section of plain bytes
    uint32_t alignment;
    uint32_t reserved;
    uint8_t digest[32];
};
static_assert(sizeof(SectionEntry) == 72, "layout");

struct Integer {
    int64_t value;
};
static_assert(sizeof(Integer) == 8, "layout");
template <class V> void visit(const Integer &r, V &v) {
    (void)r, (void)v;
}
inline constexpr uint32_t section_of(const Integer *) {
    return section::INTEGERS;
}

struct DimCode {
    uint32_t op;
    uint32_t symbol;
    int64_t value;
};
static_assert(sizeof(DimCode) == 16, "layout");
template <class V> void visit(const DimCode &r, V &v) {
    (void)r, (void)v;
}
inline constexpr uint32_t section_of(const DimCode *) {
    return section::DIM_CODE;
}

struct DimEntry {
    Run code;
    uint32_t text;  // the expression as people write it
    uint32_t reserved;
};
static_assert(sizeof(DimEntry) == 16, "layout");
template <class V> void visit(const DimEntry &r, V &v) {
    v.run("code", r.code, section::DIM_CODE);
    v.string("text", r.text);
    v.zero("reserved", r.reserved);
}
inline constexpr uint32_t section_of(const DimEntry *) {
    return section::DIMS;
}

struct SymbolEntry {
    uint32_t name;
    uint32_t origin;
    int64_t lo;
    int64_t hi;  // inclusive, where flags has HAS_HI
    int64_t divisor;
    uint32_t flags;
    uint32_t reserved;
};
static_assert(sizeof(SymbolEntry) == 40, "layout");
template <class V> void visit(const SymbolEntry &r, V &v) {
    v.string("name", r.name);
    v.string("origin", r.origin);
    v.zero("reserved", r.reserved);
}
inline constexpr uint32_t section_of(const SymbolEntry *) {
    return section::SYMBOLS;
}

struct PortEntry {
    uint32_t name;
    uint32_t dtype;
    Run shape;
};
static_assert(sizeof(PortEntry) == 16, "layout");
template <class V> void visit(const PortEntry &r, V &v) {
    v.string("name", r.name);
    v.dims("shape", r.shape);
}
inline constexpr uint32_t section_of(const PortEntry *) {
    return section::PORTS;
}

struct GuardEntry {
    uint32_t kind;
    uint32_t port;
    uint32_t axis;
    uint32_t symbol;
    int64_t lo;
    int64_t hi;  // 0: no bound
    int64_t divisor;
    uint32_t expected;
    uint32_t other;  // of relations
};
static_assert(sizeof(GuardEntry) == 48, "layout");
template <class V> void visit(const GuardEntry &r, V &v) {
    v.dim("expected", r.expected);
    v.dim("other", r.other);
}
inline constexpr uint32_t section_of(const GuardEntry *) {
    return section::GUARDS;
}

struct SourceEntry {
    uint32_t name;
    uint32_t origin;  // where the model keeps it, for people
    uint32_t digest;  // the compiler's digest of dtype, shape and bytes
    uint32_t dtype;
    Run shape;
    uint64_t bytes;
    uint64_t external_offset;  // in the external file, where the weights mode is EXTERNAL; in the weights section, where it is EMBEDDED and a constant that is made from the source is not
    uint8_t sha256[32];  // of the row-major bytes; zero where the weights are embedded
};
static_assert(sizeof(SourceEntry) == 72, "layout");
template <class V> void visit(const SourceEntry &r, V &v) {
    v.string("name", r.name);
    v.string("origin", r.origin);
    v.string("digest", r.digest);
    v.integers("shape", r.shape);
}
inline constexpr uint32_t section_of(const SourceEntry *) {
    return section::SOURCES;
}

struct RecipeEntry {
    uint32_t op;
    uint32_t dtype;
    Run operands;
    Run shape;
    Run coefficients;  // row by row, a row per axis of the source
    double scalar;
};
static_assert(sizeof(RecipeEntry) == 40, "layout");
template <class V> void visit(const RecipeEntry &r, V &v) {
    v.integers("operands", r.operands);
    v.integers("shape", r.shape);
    v.integers("coefficients", r.coefficients);
}
inline constexpr uint32_t section_of(const RecipeEntry *) {
    return section::RECIPES;
}

struct ConstantEntry {
    uint32_t name;
    uint32_t dtype;
    Run shape;
    Run recipe;
    uint32_t flags;
    uint32_t reserved;
    uint64_t offset;  // in the weights section, where embedded
    uint64_t bytes;
};
static_assert(sizeof(ConstantEntry) == 48, "layout");
template <class V> void visit(const ConstantEntry &r, V &v) {
    v.string("name", r.name);
    v.integers("shape", r.shape);
    v.run("recipe", r.recipe, section::RECIPES);
    v.zero("reserved", r.reserved);
}
inline constexpr uint32_t section_of(const ConstantEntry *) {
    return section::CONSTANTS;
}

struct BufferEntry {
    uint32_t space;
    uint32_t index;
    uint64_t offset_bytes;
    Run below;
    uint32_t size_bytes;
    uint32_t first_step;
    uint32_t last_step;
    uint32_t name;
};
static_assert(sizeof(BufferEntry) == 40, "layout");
template <class V> void visit(const BufferEntry &r, V &v) {
    v.integers("below", r.below);
    v.dim("size_bytes", r.size_bytes);
    v.string("name", r.name);
}
inline constexpr uint32_t section_of(const BufferEntry *) {
    return section::BUFFERS;
}

struct KernelEntry {
    uint32_t symbol;
    uint32_t kind;
    uint32_t label;
    uint32_t schedule;
    Run locs;
    uint64_t image_offset;  // of a GPU kernel's machine code, in the program's code
    uint64_t image_bytes;  // 0: the code is one library, which has the symbol
    uint64_t wide_integers;  // bit i: integer argument i has 64 bits, else 32
    uint32_t threads;  // of a block
    uint32_t shared_bytes;  // of a block
    uint32_t block_scratch_bytes;  // of device memory, for each block
    uint32_t registers;  // of a thread, for people
    uint32_t spilled_bytes;  // of a thread, for people
    uint32_t flags;
};
static_assert(sizeof(KernelEntry) == 72, "layout");
template <class V> void visit(const KernelEntry &r, V &v) {
    v.string("symbol", r.symbol);
    v.string("kind", r.kind);
    v.string("label", r.label);
    v.string("schedule", r.schedule);
    v.strings("locs", r.locs);
}
inline constexpr uint32_t section_of(const KernelEntry *) {
    return section::KERNELS;
}

struct ArgumentEntry {
    uint32_t buffer;
    uint32_t offset_bytes;
};
static_assert(sizeof(ArgumentEntry) == 8, "layout");
template <class V> void visit(const ArgumentEntry &r, V &v) {
    v.dim("offset_bytes", r.offset_bytes);
}
inline constexpr uint32_t section_of(const ArgumentEntry *) {
    return section::ARGUMENTS;
}

struct StepEntry {
    uint32_t kernel;
    uint32_t flags;
    Run arguments;
    Run dims;
    uint32_t scratch_bytes;
    uint32_t flops;
    uint32_t bytes_moved;
    uint32_t reserved;
    Run locs;
    Run grid;  // blocks of threads along three axes; empty on a CPU
    Run results;  // what the step writes; empty in a file without debug information
};
static_assert(sizeof(StepEntry) == 64, "layout");
template <class V> void visit(const StepEntry &r, V &v) {
    v.run("arguments", r.arguments, section::ARGUMENTS);
    v.dims("dims", r.dims);
    v.dim("scratch_bytes", r.scratch_bytes);
    v.dim("flops", r.flops);
    v.dim("bytes_moved", r.bytes_moved);
    v.zero("reserved", r.reserved);
    v.strings("locs", r.locs);
    v.dims("grid", r.grid);
    v.run("results", r.results, section::TENSORS);
}
inline constexpr uint32_t section_of(const StepEntry *) {
    return section::STEPS;
}

struct ProgramEntry {
    uint32_t target;
    uint32_t variant;
    uint32_t planner;
    uint32_t weights;  // WeightsMode
    uint32_t external_file;  // name of the external weights file, beside the artifact
    uint32_t peak_bytes;
    uint32_t lower_bound_bytes;
    uint32_t reserved;
    Run symbols;
    Run inputs;
    Run outputs;
    Run state;  // input, output, input, output, …
    Run guards;
    Run sources;
    Run constants;
    Run buffers;
    Run kernels;
    Run steps;
    uint64_t code_offset;  // in the code section
    uint64_t code_bytes;
    Run flow;  // empty: the program's own steps run
    Run slots;  // of the flow; the first are the inputs
    Run results;  // the slot of each output
    Run blocks;  // the programs that the flow calls
    Run environment;  // of a block: which symbols of its flow's program are its own
    uint32_t unbacked;  // how many symbols, at the end, no input binds
    uint32_t is_block;  // 1: only a flow runs it
    Run initial;  // input, constant, …: what state holds at first; one element means all of them
    uint32_t driver;  // of a GPU: the oldest driver that takes the code, as CUDA's version, such as 12040; 0: any
    uint32_t reserved_2;
};
static_assert(sizeof(ProgramEntry) == 192, "layout");
template <class V> void visit(const ProgramEntry &r, V &v) {
    v.string("target", r.target);
    v.string("variant", r.variant);
    v.string("planner", r.planner);
    v.string("external_file", r.external_file);
    v.dim("peak_bytes", r.peak_bytes);
    v.dim("lower_bound_bytes", r.lower_bound_bytes);
    v.zero("reserved", r.reserved);
    v.run("symbols", r.symbols, section::SYMBOLS);
    v.run("inputs", r.inputs, section::PORTS);
    v.run("outputs", r.outputs, section::PORTS);
    v.integers("state", r.state);
    v.run("guards", r.guards, section::GUARDS);
    v.run("sources", r.sources, section::SOURCES);
    v.run("constants", r.constants, section::CONSTANTS);
    v.run("buffers", r.buffers, section::BUFFERS);
    v.run("kernels", r.kernels, section::KERNELS);
    v.run("steps", r.steps, section::STEPS);
    v.run("flow", r.flow, section::FLOW);
    v.run("slots", r.slots, section::PORTS);
    v.integers("results", r.results);
    v.integers("blocks", r.blocks);
    v.integers("environment", r.environment);
    v.integers("initial", r.initial);
    v.zero("reserved_2", r.reserved_2);
}
inline constexpr uint32_t section_of(const ProgramEntry *) {
    return section::PROGRAMS;
}

struct FlowEntry {
    uint32_t op;  // FlowOp
    uint32_t flags;  // FlowFlag
    uint32_t block;
    uint32_t element;
    Run inputs;  // slots
    Run outputs;  // slots
    Run symbols;  // -1: none
    Run dims;
    Run first;  // bodies lie before the step that has them
    Run second;
    Run drops;  // slots
    uint32_t where;
    uint32_t reserved;
};
static_assert(sizeof(FlowEntry) == 80, "layout");
template <class V> void visit(const FlowEntry &r, V &v) {
    v.integers("inputs", r.inputs);
    v.integers("outputs", r.outputs);
    v.integers("symbols", r.symbols);
    v.dims("dims", r.dims);
    v.run("first", r.first, section::FLOW);
    v.run("second", r.second, section::FLOW);
    v.integers("drops", r.drops);
    v.string("where", r.where);
    v.zero("reserved", r.reserved);
}
inline constexpr uint32_t section_of(const FlowEntry *) {
    return section::FLOW;
}

struct HostEntry {
    uint32_t block;  // the program whose code is for a CPU, while that of the flow is for a GPU
    uint32_t op;
    uint32_t why;
    Run locs;
    uint32_t reserved;
};
static_assert(sizeof(HostEntry) == 24, "layout");
template <class V> void visit(const HostEntry &r, V &v) {
    v.string("op", r.op);
    v.string("why", r.why);
    v.strings("locs", r.locs);
    v.zero("reserved", r.reserved);
}
inline constexpr uint32_t section_of(const HostEntry *) {
    return section::HOST;
}

struct TensorEntry {
    uint32_t name;  // in the user's model; empty where it has none
    uint32_t dtype;
    uint32_t argument;  // of the step: the pointer
    uint32_t origin;  // elements from the pointer to the first element
    Run shape;
    Run strides;  // in elements
};
static_assert(sizeof(TensorEntry) == 32, "layout");
template <class V> void visit(const TensorEntry &r, V &v) {
    v.string("name", r.name);
    v.dim("origin", r.origin);
    v.dims("shape", r.shape);
    v.dims("strides", r.strides);
}
inline constexpr uint32_t section_of(const TensorEntry *) {
    return section::TENSORS;
}

struct SignatureEntry {
    uint32_t algorithm;  // SignatureAlgorithm; a reader skips one that it does not know
    uint32_t reserved;
    uint8_t key[32];  // SHA-256 of the 32 bytes of the public key
    uint8_t signature[64];
};
static_assert(sizeof(SignatureEntry) == 104, "layout");
template <class V> void visit(const SignatureEntry &r, V &v) {
    v.zero("reserved", r.reserved);
}
inline constexpr uint32_t section_of(const SignatureEntry *) {
    return section::SIGNATURE;
}

}  // namespace aot::format
