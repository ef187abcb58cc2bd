// What one thread needs to run a model: plans of recent shapes, the arena, scratch memory, outputs.
#pragma once

#include "plan.h"
#include "pool.h"

namespace aot {

class Session {
public:
    Session(const Model &model, const aot_session_options &options);

    void run(const aot_tensor *const *inputs, uint32_t input_count, const aot_tensor *const *outputs,
             uint32_t output_count, const aot_run_options &options);
    void prepare(const aot_tensor *const *inputs, uint32_t input_count);
    void reserve(const aot_dim_value *dims, uint32_t count);
    bool output(uint32_t index, aot_tensor *out) const;
    uint64_t arena_bytes() const { return arena_.bytes(); }
    uint64_t memory_bytes() const;
    uint32_t thread_count() const { return thread_count_; }
    uint32_t profile(uint64_t *out_ns, uint32_t count, uint32_t *out_program) const;

private:
    struct Job;

    Plan &plan_for_inputs(const aot_tensor *const *inputs, uint32_t input_count);
    Plan &find_plan(uint32_t variant, const int64_t *symbols);
    void grow(const Plan &plan);
    void bind_outputs(const Plan &plan, const aot_tensor *const *inputs, const aot_tensor *const *outputs,
                      const aot_run_options &options);
    void check_overlap(const Plan &plan, const aot_tensor *const *inputs) const;
    void patch(Plan &plan, const aot_tensor *const *inputs);
    static void work(void *job, uint32_t thread);

    const Model &model_;
    const Memory memory_;
    Pool *pool_ = nullptr;
    uint32_t thread_count_;
    uint32_t plan_limit_;
    bool profiling_;
    uint64_t clock_ = 0;
    Vector<Plan> plans_;
    Plan *last_plan_ = nullptr;
    Block arena_;
    Block scratch_;
    Vector<int64_t> symbols_;
    Vector<uint8_t *> output_data_;
    Vector<Block> own_outputs_;
    Vector<uint64_t> step_ns_;
    Barrier barrier_;
};

}  // namespace aot
