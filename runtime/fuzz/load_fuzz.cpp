// The loader, sessions, plans and runs on any bytes. Kernels do nothing (no_code.cpp): what is tested is everything
// that reads a file, not the code in it. Built with sanitizers; LLVMFuzzerTestOneInput is what a fuzzer calls.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dims.h"
#include "model.h"
#include "mutate.h"
#include "plan.h"

using namespace aot;
using namespace aot::format;
using aot::fuzz::Random;

struct aot_model : Model {
    using Model::Model;
};

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t *left, size_t left_size, const uint8_t *right,
                                            size_t right_size, uint8_t *out, size_t max_size, unsigned seed);
extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

namespace {

constexpr size_t kLargestBlock = 256 << 10;  // a file of a few kilobytes may ask for terabytes: refused, as by a system

constexpr uint64_t kRunNs = 200'000;

uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

#define MUST(condition)                                                             \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

// Memory of one execution: blocks one behind the other, never used twice, so that giving one out is a few
// instructions. AddressSanitizer knows the gaps, the bytes that were not asked for, and what was released.
class Arena {
public:
    void *allocate(size_t bytes, size_t alignment) {
        if (bytes > kLargestBlock) return nullptr;
        const size_t start = (end_ + kGap + alignment - 1) / alignment * alignment;
        if (start + bytes + kGap > sizeof memory_) return nullptr;
        end_ = start + bytes;
        ++live_;
        ASAN_UNPOISON_MEMORY_REGION(memory_ + start, bytes);
        return memory_ + start;
    }
    void release(void *pointer, size_t bytes) {
        ASAN_POISON_MEMORY_REGION(pointer, bytes);
        --live_;
    }
    void start() {
        if (end_ == 0) ASAN_POISON_MEMORY_REGION(memory_, sizeof memory_);
        end_ = 1;
    }
    bool empty() const { return live_ == 0; }

private:
    static constexpr size_t kGap = 16;
    alignas(4096) uint8_t memory_[16 << 20];
    size_t end_ = 0;
    size_t live_ = 0;
};
Arena arena;

void *allocate(void *, size_t bytes, size_t alignment) { return arena.allocate(bytes, alignment); }
void release(void *, void *pointer, size_t bytes) { arena.release(pointer, bytes); }

const aot_allocator kAllocator = {sizeof kAllocator, nullptr, allocate, release};

// Made from a private key of zeros, which signed some of the seeds.
constexpr uint8_t kTrustedKey[32] = {0x3b, 0x6a, 0x27, 0xbc, 0xce, 0xb6, 0xa4, 0x2d, 0x62, 0xa3, 0xa8,
                                     0xd0, 0x2a, 0x6f, 0x0d, 0x73, 0x65, 0x32, 0x15, 0x77, 0x1d, 0xe2,
                                     0x43, 0xa6, 0x3a, 0xc0, 0x48, 0xa1, 0x8b, 0x59, 0xda, 0x29};

// Reads every byte, so that a sanitizer sees what may not be read.
volatile unsigned touched;
void touch(const void *data, size_t bytes) {
    unsigned sum = 0;
    for (size_t i = 0; i < bytes; ++i) sum += static_cast<const uint8_t *>(data)[i];
    touched = sum;
}

void touch(const char *text) {
    if (text) touch(text, strlen(text));
}

// A file of zeros, for artifacts with external weights.
const char *weights_file() {
    static char path[64];
    if (!*path) {
        const int descriptor = memfd_create("weights", 0);
        if (descriptor < 0 || ftruncate(descriptor, 4096) != 0) return nullptr;
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    }
    return path;
}

// The weights that an artifact without weights asks for, all bytes small.
struct Given {
    std::vector<std::vector<uint8_t>> data;
    std::vector<std::vector<int64_t>> shapes;
    std::vector<aot_tensor> tensors;
    std::vector<aot_named_tensor> named;
    std::vector<std::string> names;

    void ask(const Artifact &artifact, Random &random) {
        for (const SourceEntry &source : artifact.sources) {
            const DType *dtype = find_dtype(source.dtype);
            const int64_t size = shape_bytes(artifact, source.shape, source.dtype);
            if (size < 0 || size > static_cast<int64_t>(kLargestBlock) || random.one_in(40)) continue;
            std::vector<uint8_t> bytes(static_cast<size_t>(size));
            for (size_t at = 0; at < bytes.size(); at += 3) bytes[at] = static_cast<uint8_t>(random.next());
            std::vector<int64_t> shape;
            for (uint32_t i = 0; i < source.shape.count; ++i) shape.push_back(artifact.integer(source.shape.first + i));
            aot_tensor tensor{nullptr, 1, 0, static_cast<int32_t>(shape.size()), dtype->dlpack_code, dtype->dlpack_bits,
                              1, nullptr, nullptr, 0};
            data.push_back(std::move(bytes)), shapes.push_back(std::move(shape)), tensors.push_back(tensor);
            names.emplace_back(artifact.text(source.name));
        }
        for (size_t i = 0; i < tensors.size(); ++i) {
            tensors[i].data = data[i].data(), tensors[i].shape = shapes[i].data();
            named.push_back({names[i].c_str(), &tensors[i]});
        }
    }
};

void describe(const aot_model *model) {
    for (uint32_t i = 0; i <= aot_model_program_count(model); ++i) {
        aot_program_info info = {};
        info.struct_size = sizeof info;
        if (aot_model_program(model, i, &info) != AOT_OK) continue;
        touch(info.target), touch(info.variant), touch(info.planner);
        for (uint32_t step = 0; step < info.step_count; ++step) {
            aot_step_info found = {};
            found.struct_size = sizeof found;
            if (aot_model_program_step(model, i, step, &found) != AOT_OK) continue;
            touch(found.label), touch(found.kind), touch(found.symbol), touch(found.schedule);
            for (uint32_t loc = 0; loc <= found.loc_count && loc < 100; ++loc) {
                touch(aot_model_program_step_loc(model, i, step, loc));
            }
        }
    }
    for (int side = 0; side < 2; ++side) {
        const uint32_t count = side ? aot_model_output_count(model) : aot_model_input_count(model);
        for (uint32_t i = 0; i <= count; ++i) {
            aot_port_info port = {};
            port.struct_size = sizeof port;
            if ((side ? aot_model_output(model, i, &port) : aot_model_input(model, i, &port)) != AOT_OK) continue;
            touch(port.name), touch(port.dtype);
            for (uint32_t axis = 0; axis <= port.rank; ++axis) {
                aot_dim_info dim = {};
                dim.struct_size = sizeof dim;
                const int32_t status = side ? aot_model_output_dim(model, i, axis, &dim)
                                            : aot_model_input_dim(model, i, axis, &dim);
                if (status == AOT_OK) touch(dim.text);
            }
        }
    }
    for (uint32_t i = 0; i <= aot_model_symbol_count(model); ++i) {
        aot_symbol_info symbol = {};
        symbol.struct_size = sizeof symbol;
        if (aot_model_symbol(model, i, &symbol) == AOT_OK) touch(symbol.name);
    }
    size_t bytes = 0;
    const char *meta = aot_model_meta(model, &bytes);
    touch(meta, bytes);
    for (const Variant &variant : model->variants) {
        const Run constants = variant.entry->constants;
        for (uint32_t i = 0; i < constants.count; ++i) {
            touch(model->weights.constant(variant.program, i),
                  static_cast<size_t>(model->artifact.constants[constants.first + i].bytes));
        }
    }
}

// Values for the symbols of a program that its guards allow, if small ones do.
std::vector<int64_t> values_for(const Artifact &artifact, const ProgramEntry &program, Random &random) {
    std::vector<int64_t> values(program.symbols.count + 1, 0);
    for (uint32_t i = 0; i < program.symbols.count; ++i) {
        const SymbolEntry &symbol = artifact.symbols[program.symbols.first + i];
        int64_t value = static_cast<int64_t>(random.below(9));
        if (random.one_in(16)) value = static_cast<int64_t>(random.next() >> random.below(64));
        if (symbol.lo > value) value = symbol.lo;
        const int64_t rest = value % symbol.divisor;
        if (rest > 0 && value < INT64_MAX - symbol.divisor) value += symbol.divisor - rest;
        values[i] = value;
    }
    return values;
}

// What the plan says must hold: every pointer stays inside the memory that it is made of.
void check_plan(const Model &model, const Variant &unit, const int64_t *symbols) {
    try {
        const Plan plan = make_plan(model, Memory(&kAllocator), unit, symbols);
        for (const Patch &p : plan.arena) MUST(p.offset_bytes >= 0 && static_cast<size_t>(p.offset_bytes) <= plan.arena_bytes);
        for (const Patch &p : plan.inputs) MUST(p.offset_bytes >= 0 && p.offset_bytes <= plan.port_bytes[p.index]);
        for (const Patch &p : plan.outputs) {
            MUST(p.offset_bytes >= 0 && p.offset_bytes <= plan.port_bytes[unit.entry->inputs.count + p.index]);
        }
        MUST(plan.steps.size() == unit.entry->steps.count);
    } catch (const Failure &) {
    } catch (const std::bad_alloc &) {
    }
}

struct Inputs {
    std::vector<std::vector<uint8_t>> data;
    std::vector<std::vector<int64_t>> shapes;
    std::vector<aot_tensor> tensors;
    std::vector<const aot_tensor *> pointers;

    bool make(const Artifact &artifact, const ProgramEntry &program, const int64_t *symbols, Random &random) {
        for (uint32_t i = 0; i < program.inputs.count; ++i) {
            const PortEntry &port = artifact.ports[program.inputs.first + i];
            const DType &dtype = *find_dtype(port.dtype);
            int64_t bytes = item_bytes(dtype);
            std::vector<int64_t> shape;
            for (uint32_t axis = 0; axis < port.shape.count; ++axis) {
                const Run code = artifact.dims[static_cast<size_t>(artifact.integer(port.shape.first + axis))].code;
                int64_t extent = 0;
                if (!evaluate_dim(artifact.dim_code.data() + code.first, code.count, symbols, &extent)) return false;
                if (random.one_in(50)) extent = static_cast<int64_t>(random.below(4));
                shape.push_back(extent);
                if (extent < 0 || !checked_mul(bytes, extent, &bytes) || bytes > 1 << 13) return false;
            }
            data.emplace_back(static_cast<size_t>(bytes) + 64, uint8_t{0});
            std::vector<uint8_t> &made = data.back();
            // All zero, or small numbers here and there, or anything at all.
            if (random.one_in(2)) {
                for (size_t at = 0; at < made.size(); at += 8) made[at] = static_cast<uint8_t>(random.below(6));
            } else if (random.one_in(4)) {
                for (size_t at = 0; at + 8 <= made.size(); at += 8) {
                    const uint64_t word = random.next();
                    memcpy(made.data() + at, &word, sizeof word);
                }
            }
            shapes.push_back(std::move(shape));
            tensors.push_back({nullptr, 1, 0, static_cast<int32_t>(port.shape.count), dtype.dlpack_code,
                               dtype.dlpack_bits, 1, nullptr, nullptr, 0});
        }
        for (size_t i = 0; i < tensors.size(); ++i) {
            uint8_t *start = data[i].data();
            tensors[i].data = start + (64 - reinterpret_cast<uintptr_t>(start) % 64) % 64;
            tensors[i].shape = shapes[i].data();
            pointers.push_back(&tensors[i]);
        }
        return true;
    }
};

// Some of all that one can do with a model: each execution a part of it, so that there can be more of them.
void use(const aot_model *model, Random &random) {
    if (random.one_in(4)) describe(model);
    aot_session_options options = {};
    options.struct_size = sizeof options;
    options.allocator = &kAllocator;
    options.thread_count = 1;
    options.plan_cache_size = 1 + static_cast<uint32_t>(random.below(2));
    options.flags = random.one_in(4) ? static_cast<uint32_t>(AOT_SESSION_PROFILE) : 0u;
    aot_session *session = nullptr;
    aot_error error = {};
    error.struct_size = sizeof error;
    if (aot_session_create(model, &options, &session, &error) != AOT_OK) return;
    const Artifact &artifact = model->artifact;
    for (uint32_t number = 0; number < model->variants.size(); ++number) {
        const ProgramEntry &program = *model->variants[number].entry;
        const std::vector<int64_t> symbols = values_for(artifact, program, random);
        std::vector<aot_dim_value> dims;
        for (uint32_t i = 0; i < program.symbols.count; ++i) {
            dims.push_back({artifact.text(artifact.symbols[program.symbols.first + i].name), symbols[i]});
        }
        if (random.one_in(4)) {
            check_plan(*model, model->variants[number], symbols.data());
            continue;
        }
        if (random.one_in(4)) {
            const uint32_t count = static_cast<uint32_t>(dims.size());
            if (aot_session_reserve(session, dims.data(), count, &error) != AOT_OK) touch(error.message);
            continue;
        }
        Inputs inputs;
        if (!inputs.make(artifact, program, symbols.data(), random)) continue;
        const uint32_t count = static_cast<uint32_t>(inputs.pointers.size());
        if (random.one_in(4) && aot_session_prepare(session, inputs.pointers.data(), count, &error) != AOT_OK) continue;
        aot_run_options run = {};
        run.struct_size = sizeof run;
        run.deadline_ns = now_ns() + kRunNs;  // a loop without end is a program too
        if (aot_session_run(session, inputs.pointers.data(), count, nullptr, 0, &run, &error) != AOT_OK) continue;
        for (uint32_t i = 0; i < aot_model_output_count(model); ++i) {
            aot_tensor output = {};
            MUST(aot_session_output(session, i, &output) == AOT_OK);
            size_t elements = 1;
            for (int32_t axis = 0; axis < output.rank; ++axis) elements *= static_cast<size_t>(output.shape[axis]);
            if (elements) memset(output.data, 0, elements * (output.dtype_bits < 8 ? 1 : output.dtype_bits / 8));
        }
        uint64_t ns[4];
        aot_session_profile(session, ns, 4, nullptr);
    }
    for (const Variant &block : model->blocks) {
        if (random.one_in(4)) check_plan(*model, block, values_for(artifact, *block.entry, random).data());
    }
    aot_session_destroy(session);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t seed = size;
    if (size >= 72) memcpy(&seed, data + 32, sizeof seed);  // the digest: random, and fixed by the file
    Random random(seed);
    arena.start();
    aot_load_options options = {};
    options.struct_size = sizeof options;
    options.allocator = &kAllocator;
    options.flags = (random.one_in(4) ? static_cast<uint32_t>(AOT_LOAD_MAP_WEIGHTS) : 0u) |
                    (random.one_in(16) ? 0u : static_cast<uint32_t>(AOT_LOAD_ANY_WEIGHTS)) |
                    (random.one_in(4) ? static_cast<uint32_t>(AOT_LOAD_OWN_WEIGHTS) : 0u);
    const bool is_trusted_only = random.one_in(8);
    if (is_trusted_only) options.trusted_keys = kTrustedKey, options.trusted_key_count = 1;
    aot_error error = {};
    error.struct_size = sizeof error;
    aot_model *model = nullptr;
    Given given;
    int32_t status = aot_model_load_memory(data, size, &options, &model, &error);
    if (status == AOT_ERROR_WEIGHTS) {
        // Once more, with weights of the caller or a file of them.
        MUST(!model);
        if (random.one_in(8)) {
            options.weights_path = weights_file();
        } else {
            Artifact artifact{Memory(&kAllocator)};
            read_artifact(ByteSource(data, size), TrustedKeys(), artifact);
            given.ask(artifact, random);
            options.weights = given.named.data();
            options.weight_count = static_cast<uint32_t>(given.named.size());
        }
        status = aot_model_load_memory(data, size, &options, &model, &error);
    }
    MUST((status == AOT_OK) == (model != nullptr));
    if (model) {
        // A second one shares the constants of the first, which goes before it or after it.
        aot_model *again = nullptr;
        if (random.one_in(4) && aot_model_load_memory(data, size, &options, &again, &error) == AOT_OK && random.one_in(2)) {
            std::swap(model, again);
        }
        aot_model_unload(again);
        use(model, random);
        aot_model_unload(model);
    } else {
        MUST(status != AOT_ERROR_INTERNAL && status != AOT_ERROR_ARGUMENT && *error.message);
    }
    MUST(arena.empty());
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    return fuzz::mutate(data, size, max_size, seed, LLVMFuzzerMutate);
}

size_t LLVMFuzzerCustomCrossOver(const uint8_t *left, size_t left_size, const uint8_t *right, size_t right_size,
                                 uint8_t *out, size_t max_size, unsigned seed) {
    return fuzz::cross(left, left_size, right, right_size, out, max_size, seed);
}
