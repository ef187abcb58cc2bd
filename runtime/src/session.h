// What one thread needs to run a model: plans of recent shapes, the arena, scratch memory, outputs.
#pragma once

#include "cuda/run.h"
#include "flow.h"
#include "pool.h"
#include "trace.h"

namespace aot {

class Session {
public:
    Session(const Model &model, const aot_session_options &options);

    void run(const aot_tensor *const *inputs, uint32_t input_count, const aot_tensor *const *outputs,
             uint32_t output_count, const aot_run_options &options);
    // A run that tells of each step (trace.cpp).
    void trace(const aot_tensor *const *inputs, uint32_t input_count, const aot_tensor *const *outputs,
               uint32_t output_count, const aot_run_options &options, aot_trace_function function, void *user);
    void prepare(const aot_tensor *const *inputs, uint32_t input_count);
    void reserve(const aot_dim_value *dims, uint32_t count);
    bool output(uint32_t index, aot_tensor *out) const;
    uint64_t arena_bytes() const { return device_ ? device_->arena_bytes() : arena_.bytes(); }
    uint64_t memory_bytes() const;
    uint32_t thread_count() const { return thread_count_; }
    uint32_t profile(uint64_t *out_ns, uint32_t count, uint32_t *out_program) const;
    uint64_t host_steps() const { return flow_.host_steps(); }
    // On a GPU; gives the number of steps (cuda/times.cpp).
    uint32_t time_steps(uint32_t repeats, aot_step_time *steps, uint32_t count, uint64_t *run_ns);

    // For the flow of a program.
    const Model &model() const { return model_; }
    const Memory &memory() const { return memory_; }
    Plan &find_plan(const Variant &unit, const int64_t *symbols);
    // Runs a plan on the CPU; `first_step` numbers its steps among those of all blocks. Throws when it was stopped.
    void launch(Plan &plan, uint32_t first_step, uint8_t *const *inputs, uint8_t *const *outputs,
                const aot_run_options &options);
    // Throws when the run is to stop.
    void look(const aot_run_options &options) const;

private:
    // What the threads of one run share.
    struct Job {
        Session *session;
        const Plan *plan;
        uint32_t threads;
        const volatile int32_t *cancel;
        uint64_t deadline_ns;
        bool stop;  // written only by the last thread at a barrier, so that all threads leave at the same step
        uint64_t mark_ns;
        uint64_t *step_ns;  // of the plan's steps, where the session profiles
        uint32_t first, end;  // the steps to run

        void look();
    };

    [[noreturn]] void stopped(const aot_run_options &options) const;
    Plan &plan_for_inputs(const aot_tensor *const *inputs, uint32_t input_count, const ElementReader *reader);
    void run_on_device(const aot_tensor *const *inputs, uint32_t input_count, const aot_tensor *const *outputs,
                       const aot_run_options &options);
    void grow(const Plan &plan);
    uint32_t step_count(const Variant &unit) const;
    void bind_outputs(const Plan &plan, const aot_tensor *const *inputs, const aot_tensor *const *outputs,
                      const aot_run_options &options);
    void check_overlap(const Plan &plan, const aot_tensor *const *inputs) const;
    void bind_output(uint32_t index, const int64_t *shape, size_t bytes, const aot_tensor *const *outputs,
                     const aot_run_options &options);
    // `call`: of a run on a GPU, else NULL.
    void deliver(const Plan &plan, const aot_tensor *const *inputs, const aot_tensor *const *outputs,
                 const aot_run_options &options, cuda::DeviceSession::Call *call);
    void patch(Plan &plan, uint8_t *const *inputs, uint8_t *const *outputs);
    static void work(void *job, uint32_t thread);
    void launch_traced(Job &job, uint32_t first_step);

    const Model &model_;
    const Memory memory_;
    Pool *pool_ = nullptr;
    uint32_t thread_count_;
    uint32_t plan_limit_;
    bool profiling_;
    bool all_threads_;
    bool flow_ran_ = false;
    Trace *trace_ = nullptr;  // of the run in progress, where it is traced
    uint64_t clock_ = 0;
    Vector<Plan> plans_;
    Plan *last_plan_ = nullptr;
    Block arena_;
    Block scratch_;
    Vector<int64_t> symbols_;
    Vector<uint8_t *> input_data_;
    Vector<uint8_t *> output_data_;
    Vector<size_t> output_bytes_;
    Vector<Block> own_outputs_;
    Vector<uint64_t> step_ns_;
    Barrier barrier_;
    std::unique_ptr<cuda::DeviceSession> device_;  // of a model on a GPU
    Flow flow_;  // its memory goes before the device's session does
};

}  // namespace aot
