#include "session.h"

#include <cstdio>
#include <ctime>

#include "cpu.h"
#include "guards.h"
#include "tensor.h"

namespace aot {

using namespace format;

namespace {

uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

Session::Session(const Model &model, const aot_session_options &options)
    : model_(model), memory_(options.allocator), thread_count_(options.thread_count),
      plan_limit_(options.plan_cache_size ? options.plan_cache_size : 8),
      profiling_(options.flags & AOT_SESSION_PROFILE), all_threads_(options.flags & AOT_SESSION_ALL_THREADS),
      plans_(Allocator<Plan>(memory_)),
      symbols_(Allocator<int64_t>(memory_)), input_data_(Allocator<uint8_t *>(memory_)),
      output_data_(input_data_.get_allocator()), output_bytes_(Allocator<size_t>(memory_)), own_outputs_(Allocator<Block>(memory_)),
      step_ns_(Allocator<uint64_t>(memory_)),
      device_(model.device ? std::make_unique<cuda::DeviceSession>(model, memory_, options.flags) : nullptr),
      flow_(*this, device_ ? &device_->space() : nullptr) {
    if (device_ && !model.host_block_count()) thread_count_ = 1;
    pool_ = reinterpret_cast<Pool *>(options.pool);
    if (thread_count_ == 0) thread_count_ = pool_ ? pool_->thread_count() : default_thread_count();
    if (pool_ && thread_count_ > pool_->thread_count()) thread_count_ = pool_->thread_count();
    if (thread_count_ > 1023) thread_count_ = 1023;
    if (thread_count_ > 1 && !pool_) {
        pool_ = &Pool::process();
        pool_->grow(thread_count_);
    }
    size_t most = 0;
    for (const Variant &variant : model.variants) {
        if (variant.entry->symbols.count > most) most = variant.entry->symbols.count;
    }
    symbols_.resize(most + 1);
    if (plan_limit_ > 4096) plan_limit_ = 4096;
    plans_.reserve(plan_limit_ * (1 + model.blocks.size()));
    input_data_.resize(model.input_count());
    output_data_.resize(model.output_count());
    output_bytes_.resize(model.output_count());
    own_outputs_.resize(model.output_count());
}

// The limit counts for the programs together, and for each block of a flow.
Plan &Session::find_plan(const Variant &unit, const int64_t *symbols) {
    const size_t count = unit.entry->symbols.count;
    Plan *oldest = nullptr;
    uint32_t held = 0;
    for (Plan &plan : plans_) {
        if (plan.unit == &unit && (count == 0 || memcmp(plan.symbols.data(), symbols, count * sizeof *symbols) == 0)) {
            plan.last_use = ++clock_;
            grow(plan);
            return plan;
        }
        if (unit.entry->is_block ? plan.unit != &unit : plan.unit->entry->is_block) continue;
        ++held;
        if (!oldest || plan.last_use < oldest->last_use) oldest = &plan;
    }
    Plan made = make_plan(model_, memory_, unit, symbols);
    made.last_use = ++clock_;
    if (unit.on_device) device_->adopt(made);
    grow(made);
    if (held < plan_limit_) {
        plans_.push_back(std::move(made));
        return plans_.back();
    }
    if (last_plan_ == oldest) last_plan_ = nullptr;
    *oldest = std::move(made);
    return *oldest;
}

void Session::grow(const Plan &plan) {
    if (plan.unit->on_device) return device_->grow(plan);
    if (plan.arena_bytes > arena_.bytes()) {
        // The old arena goes first: its bytes are of no use, and two would double the peak.
        arena_ = Block();
        arena_ = Block(memory_, plan.arena_bytes, 64);
    }
    const size_t scratch = plan.scratch_bytes * thread_count_;
    if (scratch > scratch_.bytes()) {
        scratch_ = Block();
        scratch_ = Block(memory_, scratch, 128);
    }
}

Plan &Session::plan_for_inputs(const aot_tensor *const *inputs, uint32_t input_count, const ElementReader *reader) {
    last_plan_ = nullptr;
    flow_ran_ = false;
    check_inputs(model_, inputs, input_count);
    Failure failure;
    for (uint32_t variant = 0; variant < model_.variants.size(); ++variant) {
        if (!bind_symbols(model_, model_.variants[variant], inputs, symbols_.data(), reader, &failure)) continue;
        const ProgramEntry &entry = *model_.variants[variant].entry;
        for (uint32_t i = entry.symbols.count - entry.unbacked; i < entry.symbols.count; ++i) symbols_[i] = 0;
        Plan &plan = find_plan(model_.variants[variant], symbols_.data());
        for (uint32_t i = 0; i < input_count; ++i) {
            const int64_t *shape = plan.shape_of_port[i];
            const PortEntry &port = model_.input(i);
            if (port.shape.count && memcmp(inputs[i]->shape, shape, port.shape.count * sizeof *shape) != 0) {
                check_tensor(model_, "input", port, *inputs[i], shape);
            }
        }
        return plan;
    }
    throw failure;
}

void Session::prepare(const aot_tensor *const *inputs, uint32_t input_count) {
    std::unique_ptr<cuda::DeviceSession::Call> call;
    if (device_) call = std::make_unique<cuda::DeviceSession::Call>(*device_, inputs, input_count, nullptr);
    Plan &plan = plan_for_inputs(inputs, input_count, call.get());
    if (device_) device_->prepare(plan);
    for (uint8_t *&data : output_data_) data = nullptr;
    last_plan_ = &plan;
}

void Session::reserve(const aot_dim_value *dims, uint32_t count) {
    std::unique_ptr<cuda::DeviceSession::Call> call;
    if (device_) call = std::make_unique<cuda::DeviceSession::Call>(*device_, nullptr, 0, nullptr);
    for (uint32_t variant = 0; variant < model_.variants.size(); ++variant) {
        Run symbols = model_.variants[variant].entry->symbols;
        for (uint32_t i = 0; i < symbols.count; ++i) symbols_[i] = 0;
        symbols.count -= model_.variants[variant].entry->unbacked;
        bool fits = true;
        for (uint32_t i = 0; i < symbols.count; ++i) {
            const SymbolEntry &symbol = model_.artifact.symbols[symbols.first + i];
            const char *name = model_.artifact.text(symbol.name);
            const aot_dim_value *found = nullptr;
            for (uint32_t j = 0; j < count; ++j) {
                if (dims[j].name && strcmp(dims[j].name, name) == 0) found = &dims[j];
            }
            if (!found) {
                throw Failure(AOT_ERROR_ARGUMENT, name, "Give a value for every symbol of the model.",
                              "no value was given for this dimension");
            }
            const bool inside = found->value >= symbol.lo && found->value % symbol.divisor == 0 &&
                                (!(symbol.flags & symbol_flag::HAS_HI) || found->value <= symbol.hi);
            if (!inside && variant + 1 == model_.variants.size()) {
                throw Failure(AOT_ERROR_GUARD, name, "Use a value that the artifact was built for.",
                              "%lld is outside what this dimension allows", static_cast<long long>(found->value))
                    .because(AOT_REASON_RANGE);
            }
            fits = fits && inside;
            symbols_[i] = found->value;
        }
        if (!fits) continue;
        Plan &plan = find_plan(model_.variants[variant], symbols_.data());
        if (device_) device_->prepare(plan);
    }
}

void Session::bind_outputs(const Plan &plan, const aot_tensor *const *inputs, const aot_tensor *const *outputs,
                           const aot_run_options &options) {
    const uint32_t input_count = model_.input_count();
    for (uint32_t i = 0; i < model_.output_count(); ++i) {
        bind_output(i, plan.shape_of_port[input_count + i], static_cast<size_t>(plan.port_bytes[input_count + i]),
                    outputs, options);
    }
    check_overlap(plan, inputs);
}

void Session::bind_output(uint32_t index, const int64_t *shape, size_t bytes, const aot_tensor *const *outputs,
                          const aot_run_options &options) {
    const PortEntry &port = model_.output(index);
    const aot_tensor *given = outputs ? outputs[index] : nullptr;
    output_bytes_[index] = bytes;
    if (given && (given->data || bytes == 0)) {
        check_tensor(model_, "output", port, *given, shape);
        output_data_[index] = given->data ? data_of(*given) : nullptr;
    } else if (options.allocate_output) {
        const DType &dtype = *find_dtype(port.dtype);
        const aot_tensor tensor{nullptr, 1, 0, static_cast<int32_t>(port.shape.count), dtype.dlpack_code,
                                dtype.dlpack_bits, 1, shape, nullptr, 0};
        output_data_[index] = static_cast<uint8_t *>(options.allocate_output(options.user, index, &tensor, bytes));
        if (!output_data_[index] && bytes) throw std::bad_alloc();
    } else {
        if (own_outputs_[index].bytes() < bytes) own_outputs_[index] = Block(memory_, bytes, 64);
        output_data_[index] = own_outputs_[index].data();
    }
}

// The outputs of a flow, whose shapes are known only now. All are checked before any is written.
void Session::deliver(const Plan &plan, const aot_tensor *const *inputs, const aot_tensor *const *outputs,
                      const aot_run_options &options, cuda::DeviceSession::Call *call) {
    const uint32_t count = model_.output_count();
    for (uint32_t i = 0; i < count; ++i) {
        if (!call) {
            bind_output(i, flow_.shape(i), flow_.bytes(i), outputs, options);
            continue;
        }
        output_bytes_[i] = flow_.bytes(i);
        output_data_[i] = device_->bind_output(*call, i, flow_.shape(i), flow_.bytes(i), outputs, options);
    }
    check_overlap(plan, inputs);
    // State is written where its input lies, which another output may be.
    for (uint32_t i = 0; plan.unit->entry->state.count && i < count; ++i) flow_.detach(i);
    for (uint32_t i = 0; i < count; ++i) {
        flow_.store(i, output_data_[i], call && device_->output_device_type(i) == 2 ? kDevice : kHost);
    }
    flow_ran_ = true;
}

void Session::check_overlap(const Plan &plan, const aot_tensor *const *inputs) const {
    const Artifact &a = model_.artifact;
    const Run state = plan.unit->entry->state;
    const uint32_t input_count = model_.input_count();
    for (uint32_t i = 0; i < model_.output_count(); ++i) {
        const uintptr_t start = reinterpret_cast<uintptr_t>(output_data_[i]);
        const uintptr_t end = start + output_bytes_[i];
        if (start == end) continue;
        for (uint32_t other = 0; other < input_count + i; ++other) {
            const bool is_input = other < input_count;
            const uintptr_t from = is_input ? reinterpret_cast<uintptr_t>(data_of(*inputs[other]))
                                            : reinterpret_cast<uintptr_t>(output_data_[other - input_count]);
            const uintptr_t to =
                from + (is_input ? static_cast<size_t>(plan.port_bytes[other]) : output_bytes_[other - input_count]);
            if (from >= end || start >= to || from == to) continue;
            bool paired = false;
            for (uint32_t pair = 0; is_input && pair < state.count; pair += 2) {
                paired = paired || (a.integer(state.first + pair) == other && a.integer(state.first + pair + 1) == i &&
                                    from == start);
            }
            if (paired) continue;
            char where[160];
            snprintf(where, sizeof where, "output '%.120s'", a.text(model_.output(i).name));
            throw Failure(AOT_ERROR_GUARD, where, "Give the output memory of its own.",
                          "its memory overlaps that of %s '%.200s'", is_input ? "input" : "output",
                          a.text(is_input ? model_.input(other).name : model_.output(other - input_count).name))
                .because(AOT_REASON_OVERLAP);
        }
    }
}

void Session::patch(Plan &plan, uint8_t *const *inputs, uint8_t *const *outputs) {
    for (const Patch &p : plan.inputs) *p.pointer = inputs[p.index] + p.offset_bytes;
    for (const Patch &p : plan.outputs) *p.pointer = outputs[p.index] + p.offset_bytes;
    if (plan.arena_base != arena_.data()) {
        for (const Patch &p : plan.arena) *p.pointer = arena_.data() + p.offset_bytes;
        plan.arena_base = arena_.data();
    }
}

void Session::Job::look() {
    if ((cancel && *cancel) || (deadline_ns && now_ns() >= deadline_ns)) stop = true;
}

void Session::work(void *context, uint32_t thread) {
    Job &job = *static_cast<Job *>(context);
    Session &session = *job.session;
    const Plan &plan = *job.plan;
    const uint32_t threads = job.threads;
    aot_kernel_args arguments{nullptr, nullptr, session.scratch_.data() + thread * plan.scratch_bytes,
                              static_cast<int32_t>(thread), static_cast<int32_t>(threads)};
    const uint32_t count = job.end;
    for (uint32_t i = job.first; i < count; ++i) {
        const PlannedStep &step = plan.steps[i];
        arguments.buffers = step.buffers;
        arguments.dims = step.dims;
        step.kernel(&arguments);
        if (threads > 1 && !step.barrier && !session.profiling_) continue;
        auto last = [&] {
            job.look();
            if (session.profiling_) {
                const uint64_t now = now_ns();
                job.step_ns[i] += now - job.mark_ns;
                job.mark_ns = now;
            }
        };
        if (threads == 1) last();
        else session.barrier_.wait(threads, last);
        if (job.stop && i + 1 < count) return;
    }
}

void Session::run(const aot_tensor *const *inputs, uint32_t input_count, const aot_tensor *const *outputs,
                  uint32_t output_count, const aot_run_options &options) {
    if (outputs && output_count != model_.output_count()) {
        throw Failure(AOT_ERROR_ARGUMENT, model_.name.c_str(), "Give an entry for every output; entries may be NULL.",
                      "expected %u outputs, got %u", model_.output_count(), output_count);
    }
    if (device_) return run_on_device(inputs, input_count, outputs, options);
    if (model_.weights.watch) model_.weights.watch->must_be_unchanged(model_.name.c_str());
    Plan &plan = plan_for_inputs(inputs, input_count, nullptr);
    const ProgramEntry &entry = *plan.unit->entry;
    if (trace_) trace_->program = plan.unit->program;
    if (profiling_) step_ns_.assign(step_count(*plan.unit), 0);
    if (entry.flow.count) {
        flow_.run(*plan.unit, symbols_.data(), inputs, options);
        deliver(plan, inputs, outputs, options, nullptr);
    } else {
        bind_outputs(plan, inputs, outputs, options);
        for (uint32_t i = 0; i < input_count; ++i) input_data_[i] = data_of(*inputs[i]);
        launch(plan, 0, input_data_.data(), output_data_.data(), options);
    }
    last_plan_ = &plan;
}

void Session::run_on_device(const aot_tensor *const *inputs, uint32_t input_count, const aot_tensor *const *outputs,
                            const aot_run_options &options) {
    cuda::DeviceSession::Call call(*device_, inputs, input_count, &options);
    Plan &plan = plan_for_inputs(inputs, input_count, &call);
    if (trace_) trace_->program = plan.unit->program;
    if (profiling_) step_ns_.assign(step_count(*plan.unit), 0);
    if (plan.unit->entry->flow.count) {
        look(options);
        cuda::DeviceSession::FlowRun run(*device_, call, plan, inputs, outputs, options, step_ns_.data());
        flow_.run(*plan.unit, symbols_.data(), inputs, options);
        deliver(plan, inputs, outputs, options, &call);
        if (run.finish()) flow_.waited();
        last_plan_ = &plan;
        return;
    }
    cuda::Outputs found{output_data_, output_bytes_};
    device_->bind_outputs(call, plan, inputs, outputs, options, found);
    if (!device_->is_repeated(plan, inputs, found)) check_overlap(plan, inputs);
    look(options);
    device_->run(call, plan, inputs, found, step_ns_.data());
    last_plan_ = &plan;
}

void Session::launch(Plan &plan, uint32_t first_step, uint8_t *const *inputs, uint8_t *const *outputs,
                     const aot_run_options &options) {
    patch(plan, inputs, outputs);
    const uint32_t threads = plan.is_small && !all_threads_ ? 1 : thread_count_;
    Job job{this, &plan, threads, options.cancel, options.deadline_ns, false, profiling_ ? now_ns() : 0,
            profiling_ ? step_ns_.data() + first_step : nullptr, 0, static_cast<uint32_t>(plan.steps.size())};
    job.look();
    if (!job.stop && !plan.steps.empty()) {
        if (trace_) launch_traced(job, first_step);
        else if (threads == 1) work(&job, 0);
        else pool_->run(work, &job, threads);
    }
    if (job.stop) stopped(options);
}

void Session::look(const aot_run_options &options) const {
    if ((options.cancel && *options.cancel) || (options.deadline_ns && now_ns() >= options.deadline_ns)) stopped(options);
}

void Session::stopped(const aot_run_options &options) const {
    const bool is_flag = options.cancel && *options.cancel;
    throw Failure(AOT_ERROR_CANCELLED, model_.name.c_str(), "Outputs hold nothing of use.", "the run was stopped by %s",
                  is_flag ? "its cancel flag" : "its deadline")
        .because(is_flag ? AOT_REASON_CANCEL_FLAG : AOT_REASON_DEADLINE);
}

// The steps of a program: its own, or those of its flow's blocks.
uint32_t Session::step_count(const Variant &unit) const {
    uint32_t count = unit.entry->steps.count;
    for (uint32_t i = 0; i < unit.entry->blocks.count; ++i) count += model_.blocks[unit.first_block + i].entry->steps.count;
    return count;
}

bool Session::output(uint32_t index, aot_tensor *out) const {
    if (!last_plan_ || index >= model_.output_count()) return false;
    const PortEntry &port = model_.output(index);
    const DType &dtype = *find_dtype(port.dtype);
    const bool has_flow = last_plan_->unit->entry->flow.count != 0;
    if (has_flow && !flow_ran_) return false;
    const int64_t *shape = has_flow ? flow_.shape(index) : last_plan_->shape_of_port[model_.input_count() + index];
    const bool on_device = device_ && device_->output_device_type(index) == 2;
    *out = aot_tensor{output_data_[index], on_device ? 2 : 1, on_device ? device_->ordinal() : 0, static_cast<int32_t>(port.shape.count), dtype.dlpack_code,
                      dtype.dlpack_bits, 1, shape, nullptr, 0};
    return true;
}

uint64_t Session::memory_bytes() const {
    uint64_t total = arena_.bytes() + scratch_.bytes() + plans_.capacity() * sizeof(Plan) + flow_.held_bytes();
    for (const Plan &plan : plans_) total += plan.held_bytes();
    for (const Block &block : own_outputs_) total += block.bytes();
    if (device_) total += device_->memory_bytes();
    return total;
}

uint32_t Session::profile(uint64_t *out_ns, uint32_t count, uint32_t *out_program) const {
    if (!profiling_ || !last_plan_) return 0;
    const uint32_t steps = static_cast<uint32_t>(step_ns_.size());
    for (uint32_t i = 0; out_ns && i < steps && i < count; ++i) out_ns[i] = step_ns_[i];
    if (out_program) *out_program = last_plan_->unit->program;
    return steps;
}

}  // namespace aot
