// The launches of a plan on a GPU: as one graph, whose addresses are patched, or one by one.
#pragma once

#include "cuda/loaded.h"
#include "plan.h"

namespace aot::cuda {

class Launches {
public:
    // Parameters point into `plan`, which must not move its tables. Throws a Failure.
    // `early`: kernels may start before those ahead of them have ended.
    Launches(const Model &model, const Memory &memory, Plan &plan, bool early);
    ~Launches();
    Launches(const Launches &) = delete;
    Launches &operator=(const Launches &) = delete;

    // Puts addresses into the plan's pointers; `arena` and `scratch` are the session's.
    void patch(Plan &plan, uint8_t *const *inputs, uint8_t *const *outputs, uint8_t *arena, Address scratch);
    // Makes the graph, unless it is there.
    void build();
    void launch_graph(Stream stream);
    // Launches one by one; `events`, one more than steps, are recorded around each step where given.
    void launch_plain(Stream stream, bool programmatic, const Event *events);
    // Launches a step, if these shapes want it at all, and waits for it.
    void launch_alone(Stream stream, uint32_t step);
    // Nanoseconds of one launch of each of `count` steps and of a whole run, as means of `repeats` in a row (times.cpp).
    void time(Stream stream, uint32_t repeats, aot_step_time *steps, uint32_t count, uint64_t *run_ns);
    size_t held_bytes() const;

private:
    struct Launch {
        KernelNode node;
        Node handle;
        uint32_t step;
        bool is_programmatic;  // it may start before the one ahead of it has ended
        bool repeats_early;    // so it may where it follows itself
        bool is_stale;         // its parameters in the graph are old ones
    };

    [[noreturn]] void fail(Result code, const Launch &launch, const char *doing) const;
    void launch_one(const Launch &launch, Stream stream, bool early) const;
    void drop_graph() noexcept;
    void set(void **pointer, uint8_t *address, const Plan &plan);

    const Model &model_;
    const DeviceModel &device_;
    const Variant *unit_;
    Vector<Launch> launches_;
    Vector<void *> parameters_;
    Vector<uint32_t> launch_of_pointer_;  // of each of the plan's pointers; NONE: of no launch
    uint32_t step_count_;
    Address scratch_ = 0;
    Address nothing_ = 0;
    Executable executable_ = nullptr;
    Graph graph_ = nullptr;  // kept: nodes are known by those of the graph they were made in
    bool is_stale_ = true;
};

}  // namespace aot::cuda
