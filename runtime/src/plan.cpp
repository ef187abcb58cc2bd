#include "plan.h"

#include "cuda/launches.h"
#include "dims.h"

namespace aot {

using namespace format;

namespace {

constexpr int64_t kArenaAlign = 64;
// Floating-point operations and bytes that one thread does while threads wake each other, and at every barrier.
constexpr double kWorkOfWaking = 1 << 17;
constexpr double kWorkOfBarrier = 1 << 13;
constexpr int64_t kMaxBytes = int64_t{1} << 46;  // no machine has more; keeps sums far from overflow

class Maker {
public:
    Maker(const Model &model, const Memory &memory, const Variant &unit, const int64_t *symbols)
        : model_(model), a_(model.artifact), p_(*unit.entry),
          symbols_(symbols), plan_(memory), values_(a_.dims.size(), 0, Allocator<int64_t>(memory)),
          known_(a_.dims.size(), 0, Allocator<uint8_t>(memory)), starts_(p_.buffers.count, 0, Allocator<int64_t>(memory)),
          sizes_(p_.buffers.count, 0, Allocator<int64_t>(memory)) {
        plan_.unit = &unit;
        plan_.symbols.assign(symbols, symbols + p_.symbols.count);
    }

    Plan make() {
        if (p_.is_block) symbols();
        ports();
        buffers();
        steps();
        return std::move(plan_);
    }

private:
    [[noreturn]] void fail(const char *what) const {
        throw Failure(AOT_ERROR_GUARD, model_.name.c_str(),
                      "Use inputs of other sizes: these are too large or too small for the model.",
                      "for these shapes, %s", what)
            .because(AOT_REASON_SIZE);
    }
    [[noreturn]] void inconsistent(const char *what) const {
        throw Failure(AOT_ERROR_INTERNAL, model_.name.c_str(), "Build the artifact again; if that does not help, report it.",
                      "the plan contradicts itself: %s", what);
    }

    int64_t value(uint32_t dim) {
        if (!known_[dim]) {
            const Run code = a_.dims[dim].code;
            if (!evaluate_dim(a_.dim_code.data() + code.first, code.count, symbols_, &values_[dim])) {
                fail("a size overflows 64 bits");
            }
            known_[dim] = 1;
        }
        return values_[dim];
    }

    int64_t bytes(uint32_t dim) {
        const int64_t result = value(dim);
        if (result < 0 || result > kMaxBytes) fail("a buffer would be impossibly large");
        return result;
    }

    // An estimate that no result depends on; large where it cannot be computed.
    double estimate(uint32_t dim) const {
        const Run code = a_.dims[dim].code;
        int64_t result = 0;
        if (!evaluate_dim(a_.dim_code.data() + code.first, code.count, symbols_, &result)) return 1e18;
        return result > 0 ? static_cast<double>(result) : 0;
    }

    // Guards check what inputs give to the symbols of a program; a block has them from the steps of its flow.
    void symbols() const {
        for (uint32_t i = 0; i < p_.symbols.count; ++i) {
            const SymbolEntry &symbol = a_.symbols[p_.symbols.first + i];
            if (symbols_[i] < symbol.lo || ((symbol.flags & symbol_flag::HAS_HI) && symbols_[i] > symbol.hi) ||
                symbols_[i] % symbol.divisor) {
                inconsistent("a size of a block is outside its bounds");
            }
        }
    }

    void ports() {
        const uint32_t count = p_.inputs.count + (p_.flow.count ? 0 : p_.outputs.count);
        size_t extents = 0;
        for (uint32_t i = 0; i < count; ++i) extents += port(i).shape.count;
        plan_.shapes.reserve(extents);
        for (uint32_t i = 0; i < count; ++i) {
            const PortEntry &entry = port(i);
            plan_.shape_of_port.push_back(plan_.shapes.data() + plan_.shapes.size());
            int64_t total = item_bytes(*find_dtype(entry.dtype));
            for (uint32_t axis = 0; axis < entry.shape.count; ++axis) {
                const int64_t extent = value(static_cast<uint32_t>(a_.integer(entry.shape.first + axis)));
                if (extent < 0 || !checked_mul(total, extent, &total) || total > kMaxBytes) {
                    fail("an input or output would have an impossible size");
                }
                plan_.shapes.push_back(extent);
            }
            plan_.port_bytes.push_back(total);
        }
    }

    const PortEntry &port(uint32_t i) const {
        return a_.ports[i < p_.inputs.count ? p_.inputs.first + i : p_.outputs.first + (i - p_.inputs.count)];
    }

    void buffers() {
        int64_t arena = 0;
        for (uint32_t i = 0; i < p_.buffers.count; ++i) {
            const BufferEntry &buffer = a_.buffers[p_.buffers.first + i];
            sizes_[i] = bytes(buffer.size_bytes);
            switch (buffer.space) {
                case space::ARENA: {
                    int64_t start = static_cast<int64_t>(buffer.offset_bytes);
                    if (buffer.offset_bytes > static_cast<uint64_t>(kMaxBytes)) inconsistent("an offset is too large");
                    if (buffer.below.count) start = 0;
                    for (uint32_t j = 0; j < buffer.below.count; ++j) {
                        const size_t other = static_cast<size_t>(a_.integer(buffer.below.first + j));
                        const int64_t end = round_up_64(starts_[other] + sizes_[other]);
                        if (end > start) start = end;
                    }
                    starts_[i] = start;
                    if (start + sizes_[i] > kMaxBytes) fail("the arena would be impossibly large");
                    if (start + sizes_[i] > arena) arena = start + sizes_[i];
                    break;
                }
                case space::CONST:
                    if (sizes_[i] > static_cast<int64_t>(a_.constants[p_.constants.first + buffer.index].bytes)) {
                        inconsistent("a buffer is larger than its constant");
                    }
                    break;
                default: {
                    const uint32_t number = buffer.space == space::INPUT ? buffer.index : p_.inputs.count + buffer.index;
                    if (sizes_[i] > plan_.port_bytes[number]) inconsistent("a buffer is larger than its tensor");
                }
            }
        }
        plan_.arena_bytes = static_cast<size_t>(round_up_64(arena));
    }

    static int64_t round_up_64(int64_t value) { return (value + kArenaAlign - 1) / kArenaAlign * kArenaAlign; }

    void steps() {
        size_t pointer_count = 0, dim_count = 0;
        double work = 0;
        for (uint32_t i = 0; i < p_.steps.count; ++i) {
            const StepEntry &step = a_.steps[p_.steps.first + i];
            pointer_count += step.arguments.count;
            dim_count += step.dims.count;
        }
        plan_.pointers.reserve(pointer_count);
        plan_.dims.reserve(dim_count);
        plan_.steps.reserve(p_.steps.count);
        for (uint32_t i = 0; i < p_.steps.count; ++i) {
            const StepEntry &step = a_.steps[p_.steps.first + i];
            PlannedStep planned{plan_.unit->on_device ? nullptr : plan_.unit->kernels[step.kernel], plan_.pointers.data() + plan_.pointers.size(),
                                plan_.dims.data() + plan_.dims.size(), (step.flags & step_flag::BARRIER) != 0};
            for (uint32_t j = 0; j < step.arguments.count; ++j) argument(a_.arguments[step.arguments.first + j]);
            for (uint32_t j = 0; j < step.dims.count; ++j) {
                plan_.dims.push_back(value(static_cast<uint32_t>(a_.integer(step.dims.first + j))));
            }
            const size_t scratch = plan_.unit->on_device ? launch(step, planned.dims) : static_cast<size_t>(bytes(step.scratch_bytes));
            if (scratch > plan_.scratch_bytes) plan_.scratch_bytes = scratch;
            work += estimate(step.flops) + estimate(step.bytes_moved);
            plan_.steps.push_back(planned);
        }
        // 0: the artifact does not say.
        plan_.is_small = work > 0 && work < kWorkOfWaking + kWorkOfBarrier * static_cast<double>(plan_.steps.size());
        // Threads must not write to one cache line, nor to the pair that is fetched together.
        plan_.scratch_bytes = round_up(plan_.scratch_bytes, 128);
    }

    // The grid of a GPU's launch, and whether its integers fit; returns the bytes of its scratch memory.
    size_t launch(const StepEntry &step, const int64_t *dims) {
        const KernelEntry &kernel = a_.kernels[p_.kernels.first + step.kernel];
        for (uint32_t i = 0; i < step.dims.count; ++i) {
            const bool is_wide = i < 64 && (kernel.wide_integers >> i & 1);
            if (!is_wide && dims[i] != static_cast<int32_t>(dims[i])) fail("a number of a kernel exceeds 32 bits");
        }
        int64_t blocks = 1;
        for (uint32_t axis = 0; axis < 3; ++axis) {
            const int64_t extent = value(static_cast<uint32_t>(a_.integer(step.grid.first + axis)));
            if (extent < 0 || extent > (axis ? 65535 : INT32_MAX)) fail("a kernel would have an impossible number of blocks");
            plan_.grids.push_back(extent);
            blocks *= extent;  // below 2^63
        }
        int64_t scratch = 0;
        if (!checked_mul(blocks, kernel.block_scratch_bytes, &scratch) || scratch > kMaxBytes) {
            fail("scratch memory would be impossibly large");
        }
        return static_cast<size_t>(scratch);
    }

    void argument(const ArgumentEntry &argument) {
        const BufferEntry &buffer = a_.buffers[p_.buffers.first + argument.buffer];
        const int64_t offset = value(argument.offset_bytes);
        if (offset < 0 || offset > sizes_[argument.buffer]) inconsistent("an argument lies outside its buffer");
        plan_.pointers.push_back(nullptr);
        void **pointer = plan_.pointers.data() + plan_.pointers.size() - 1;
        switch (buffer.space) {
            case space::INPUT: plan_.inputs.push_back({pointer, buffer.index, offset}); break;
            case space::OUTPUT: plan_.outputs.push_back({pointer, buffer.index, offset}); break;
            case space::ARENA: plan_.arena.push_back({pointer, 0, starts_[argument.buffer] + offset}); break;
            default: {
                *pointer = model_.constant_address(*plan_.unit, buffer.index) + offset;
            }
        }
    }

    const Model &model_;
    const Artifact &a_;
    const ProgramEntry &p_;
    const int64_t *symbols_;
    Plan plan_;
    Vector<int64_t> values_;
    Vector<uint8_t> known_;
    Vector<int64_t> starts_;
    Vector<int64_t> sizes_;
};

}  // namespace

size_t Plan::held_bytes() const {
    return symbols.capacity() * sizeof(int64_t) + steps.capacity() * sizeof(PlannedStep) +
           pointers.capacity() * sizeof(void *) + dims.capacity() * sizeof(int64_t) +
           (inputs.capacity() + outputs.capacity() + arena.capacity()) * sizeof(Patch) +
           (grids.capacity() + shapes.capacity() + port_bytes.capacity()) * sizeof(int64_t) +
           shape_of_port.capacity() * sizeof(const int64_t *) + (launches ? launches->held_bytes() : 0);
}

Plan make_plan(const Model &model, const Memory &memory, const Variant &unit, const int64_t *symbols) {
    return Maker(model, memory, unit, symbols).make();
}

}  // namespace aot
