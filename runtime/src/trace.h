// Tells the caller of each step of a run and of what it wrote. Only runs that are traced come here.
#pragma once

#include "plan.h"

namespace aot {

class Trace {
public:
    Trace(const Model &model, const Memory &memory, aot_trace_function function, void *user)
        : model_(model), memory_(memory), function_(function), user_(user) {}

    // Copies what a kernel wrote to host memory.
    class Reader {
    public:
        virtual void read(const uint8_t *from, uint8_t *to, size_t bytes) = 0;

    protected:
        ~Reader() = default;
    };

    // Tells of a step that has ended. `reader`: of device memory, else NULL. Throws where the caller stops the run.
    void tell(const Plan &plan, uint32_t step, Reader *reader) const;

    uint32_t program = 0;     // that runs, or whose flow does
    uint32_t first_step = 0;  // of the plan's steps, among those of all blocks

private:
    const Model &model_;
    const Memory memory_;
    const aot_trace_function function_;
    void *const user_;
};

}  // namespace aot
