// Flows on a GPU: their blocks in one stream, and the device memory between them.
#include "cuda/run.h"
#include "tensor.h"

namespace aot::cuda {

using namespace format;

DeviceSession::FlowRun::FlowRun(DeviceSession &session, Call &call, const Plan &plan, const aot_tensor *const *inputs,
                                const aot_tensor *const *outputs, const aot_run_options &options, uint64_t *step_ns)
    : session_(session), call_(call), driver_(session.device_.driver) {
    DeviceSession &s = session;
    const Model &model = s.model_;
    if (call.capturing_) {
        throw Failure(AOT_ERROR_GUARD, model.name.c_str(), "Run the model outside of the capture.",
                      "the model looks at data while it runs (control flow, sizes from data, or host steps), which is not "
                      "there while a stream is captured")
            .because(AOT_REASON_CAPTURE);
    }
    any_host_ = (options.flags & AOT_RUN_HOST_OUTPUTS) != 0;
    for (uint32_t i = 0; i < model.input_count(); ++i) {
        s.input_addresses_[i] = data_of(*inputs[i]);
        if (!is_device_memory(*inputs[i])) {
            any_host_ = true;
            continue;
        }
        s.check_pointer("input", model.artifact.text(model.input(i).name), data_of(*inputs[i]),
                        static_cast<size_t>(plan.port_bytes[i]), s.inputs_[i]);
    }
    bool any_device = !call.on_host_;
    for (uint32_t i = 0; outputs && i < model.output_count(); ++i) {
        if (!outputs[i] || !outputs[i]->data) continue;
        if (is_device_memory(*outputs[i])) any_device = true;
        else any_host_ = true;
    }
    s.choose_stream(call, any_device);
    s.order(call);
    s.donated_.clear();
    const Run state = plan.unit->entry->state;
    for (uint32_t pair = 0; pair < state.count; pair += 2) {
        const size_t input = static_cast<size_t>(model.artifact.integer(state.first + pair));
        const aot_tensor *given = outputs ? outputs[model.artifact.integer(state.first + pair + 1)] : nullptr;
        const bool in_place = given && given->data && is_device_memory(*given) && data_of(*given) == s.input_addresses_[input];
        if (in_place && plan.port_bytes[input]) s.donated_.push_back(data_of(*given));
    }
    s.claim_donated(call, plan);
    s.flow_call_ = &call;
    s.flow_step_ns_ = step_ns;
}

DeviceSession::FlowRun::~FlowRun() {
    // Copies that have begun must not outlive the call, nor the caller's memory with it.
    if (!done_) driver_.stream_synchronize(call_.stream_);
    session_.donations_.launched();
    session_.flow_call_ = nullptr;
}

bool DeviceSession::FlowRun::finish() {
    session_.end_run(call_.stream_);
    if (any_host_) session_.space_.wait();
    done_ = true;
    return any_host_;
}

uint8_t *DeviceSession::FlowSpace::allocate(size_t bytes) {
    return pointer_of(DeviceBlock(session_.device_, bytes, session_.model_.name.c_str(), "tensors between blocks").give());
}

void DeviceSession::FlowSpace::release(uint8_t *data, size_t) noexcept {
    const Current current(session_.device_);
    const Driver &driver = session_.device_.driver;
    // What still uses it is this run, or the last one.
    if (session_.flow_call_) driver.stream_synchronize(session_.flow_call_->stream_);
    else if (session_.has_run_) driver.event_synchronize(session_.done_);
    driver.memory_free(address_of(data));
}

void DeviceSession::FlowSpace::copy(uint8_t *to, const uint8_t *from, size_t bytes) {
    const Driver &driver = session_.device_.driver;
    check(driver, driver.copy_any_async(address_of(to), address_of(from), bytes, session_.flow_call_->stream_),
          session_.model_.name.c_str(), "copying a tensor between blocks");
}

void DeviceSession::FlowSpace::copy_in(uint8_t *to, const uint8_t *host, size_t bytes) {
    const Driver &driver = session_.device_.driver;
    check(driver, driver.copy_in_async(address_of(to), host, bytes, session_.flow_call_->stream_),
          session_.model_.name.c_str(), "copying a tensor to the device");
}

void DeviceSession::FlowSpace::copy_out(uint8_t *host, const uint8_t *from, size_t bytes) {
    const Driver &driver = session_.device_.driver;
    check(driver, driver.copy_out_async(host, address_of(from), bytes, session_.flow_call_->stream_),
          session_.model_.name.c_str(), "copying a tensor from the device");
}

void DeviceSession::FlowSpace::wait() {
    const Driver &driver = session_.device_.driver;
    check(driver, driver.stream_synchronize(session_.flow_call_->stream_), session_.model_.name.c_str(), "running the model");
}

void DeviceSession::FlowSpace::launch(Plan &plan, uint32_t first_step, uint8_t *const *inputs, uint8_t *const *outputs,
                                      const aot_run_options &) {
    DeviceSession &s = session_;
    const Stream stream = s.flow_call_->stream_;
    if (s.poisoning_) {
        s.fill(stream, s.arena_.address(), s.arena_.bytes());
        s.fill(stream, s.scratch_.address(), s.scratch_.bytes());
        const uint32_t inputs_before = plan.unit->entry->inputs.count;
        for (uint32_t i = 0; i < plan.unit->entry->outputs.count; ++i) {
            s.fill(stream, address_of(outputs[i]), static_cast<size_t>(plan.port_bytes[inputs_before + i]));
        }
    }
    if (s.trace_) s.trace_->first_step = first_step;
    s.put(plan, inputs, outputs, *s.flow_call_, s.profiling_);
    if (!s.profiling_) return;
    wait();
    s.take_times(static_cast<uint32_t>(plan.steps.size()), s.flow_step_ns_ + first_step);
}

}  // namespace aot::cuda
