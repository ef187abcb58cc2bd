// A program with concrete shapes: every size, offset and argument as a number.
#pragma once

#include "model.h"

namespace aot {

namespace cuda {
class Launches;
}

// One launch, ready: `buffers` and `dims` point into the plan.
struct PlannedStep {
    Kernel kernel;  // NULL on a GPU
    void **buffers;
    const int64_t *dims;
    bool barrier;
};

// A pointer of a step that depends on something outside the plan.
struct Patch {
    void **pointer;
    uint32_t index;   // of the input or output
    int64_t offset_bytes;
};

struct Plan {
    Plan(const Memory &memory)
        : symbols(Allocator<int64_t>(memory)), steps(Allocator<PlannedStep>(memory)),
          pointers(Allocator<void *>(memory)), dims(Allocator<int64_t>(memory)), inputs(Allocator<Patch>(memory)),
          outputs(Allocator<Patch>(memory)), arena(Allocator<Patch>(memory)), grids(Allocator<int64_t>(memory)),
          shapes(Allocator<int64_t>(memory)),
          shape_of_port(Allocator<const int64_t *>(memory)), port_bytes(Allocator<int64_t>(memory)) {}

    const Variant *unit = nullptr;  // the program, or the block of one
    Vector<int64_t> symbols;
    Vector<PlannedStep> steps;
    Vector<void *> pointers;
    Vector<int64_t> dims;
    Vector<Patch> inputs, outputs, arena;
    Vector<int64_t> grids;  // on a GPU: three numbers of blocks for each step
    Vector<int64_t> shapes;
    Vector<const int64_t *> shape_of_port;  // inputs, then outputs
    Vector<int64_t> port_bytes;
    size_t arena_bytes = 0;
    size_t scratch_bytes = 0;  // of one thread; on a GPU, of a whole launch
    bool is_small = false;     // one thread is done before others would have begun
    const uint8_t *arena_base = nullptr;
    uint64_t last_use = 0;
    std::shared_ptr<cuda::Launches> launches;  // on a GPU

    size_t held_bytes() const;
};

// Evaluates a program, or a block of one, for values of its symbols; of a program with a flow, its inputs only. Throws a Failure on overflow or impossible sizes.
Plan make_plan(const Model &model, const Memory &memory, const Variant &unit, const int64_t *symbols);

}  // namespace aot
