#include "cuda/run.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "tensor.h"

namespace aot::cuda {

using namespace format;

namespace {

constexpr uintptr_t kAlignBytes = 16;  // what kernels may count on

Failure wrong_tensor(int32_t reason, const char *what, const char *name, const char *hint, const char *message) {
    char where[160];
    snprintf(where, sizeof where, "%s '%.120s'", what, name);
    return Failure(AOT_ERROR_GUARD, where, hint, "%s", message).because(reason);
}

}  // namespace

DeviceSession::DeviceSession(const Model &model, const Memory &memory, uint32_t flags)
    : model_(model), memory_(memory), device_(model.device->device),
      plain_(flags & (AOT_SESSION_NO_GRAPH | AOT_SESSION_PROFILE)), early_(!(flags & AOT_SESSION_FULL_EDGES)), profiling_(flags & AOT_SESSION_PROFILE),
      poisoning_(flags & AOT_SESSION_POISON),
      retired_(Allocator<DeviceBlock>(memory)), inputs_(Allocator<Port>(memory)), outputs_(inputs_.get_allocator()),
      input_addresses_(Allocator<uint8_t *>(memory)), output_addresses_(input_addresses_.get_allocator()),
      last_inputs_(input_addresses_.get_allocator()), last_outputs_(input_addresses_.get_allocator()),
      events_(Allocator<Event>(memory)), donations_(memory), donated_(Allocator<const uint8_t *>(memory)) {
    donated_.reserve(model.output_count());
    inputs_.resize(model.input_count());
    outputs_.resize(model.output_count());
    input_addresses_.resize(model.input_count());
    output_addresses_.resize(model.output_count());
    last_inputs_.resize(model.input_count());
    last_outputs_.resize(model.output_count());
    const Current current(device_);
    current.require(model.name.c_str());
    check(device_.driver, device_.driver.event_create(&done_, kNoTiming), model.name.c_str(), "making an event");
}

DeviceSession::~DeviceSession() {
    const Current current(device_);
    const Driver &driver = device_.driver;
    if (has_run_) driver.event_synchronize(done_);
    donations_.clear();
    driver.event_destroy(done_);
    for (Event event : events_) driver.event_destroy(event);
    if (own_stream_) driver.stream_destroy(own_stream_);
    // Freed while the context is current.
    arena_ = DeviceBlock();
    scratch_ = DeviceBlock();
    retired_.clear();
    inputs_.clear();
    outputs_.clear();
}

DeviceSession::Call::Call(DeviceSession &session, const aot_tensor *const *inputs, uint32_t count,
                          const aot_run_options *options)
    : session_(session), current_(session.device_) {
    const char *where = session.model_.name.c_str();
    const Driver &driver = session.device_.driver;
    current_.require(where);
    for (uint32_t i = 0; inputs && i < count; ++i) {
        if (inputs[i] && is_device_memory(*inputs[i])) all_host_ = false;
    }
    const uint32_t flags = options ? options->flags : 0;
    on_host_ = (flags & AOT_RUN_HOST_OUTPUTS) || (all_host_ && !(flags & AOT_RUN_DEVICE_OUTPUTS));
    stream_ = options ? reinterpret_cast<Stream>(options->stream) : nullptr;
    if (stream_) {
        int status = kNotCapturing;
        check(driver, driver.stream_is_capturing(stream_, &status), where, "looking at the given stream");
        capturing_ = status != kNotCapturing;
    }
    // Allocations do no harm to a capture, but the driver forbids them unless told so.
    if (capturing_) check(driver, driver.exchange_capture_mode(&mode_), where, "entering a captured stream");
}

DeviceSession::Call::~Call() {
    if (capturing_) session_.device_.driver.exchange_capture_mode(&mode_);
}

void DeviceSession::Call::read(const uint8_t *from, void *to, size_t bytes) const {
    const char *where = session_.model_.name.c_str();
    const Driver &driver = session_.device_.driver;
    if (capturing_) {
        throw Failure(AOT_ERROR_GUARD, where, "Give that input in host memory.",
                      "an input chooses the program by what it holds, which a captured stream does not know yet")
            .because(AOT_REASON_CAPTURE);
    }
    check(driver, driver.copy_out_async(to, address_of(from), bytes, stream_), where, "reading an input's element");
    check(driver, driver.stream_synchronize(stream_), where, "reading an input's element");
}

void DeviceSession::adopt(Plan &plan) {
    last_plan_ = nullptr;  // the new one may take its place
    plan.launches = std::make_shared<Launches>(model_, memory_, plan, early_);
    grow(plan);
}

// And for what a flow in progress has put into its stream.
void DeviceSession::wait_for_last_run() {
    if (flow_call_) space_.wait();
    if (!has_run_) return;
    check(device_.driver, device_.driver.event_synchronize(done_), model_.name.c_str(), "waiting for the last run");
}

void DeviceSession::grow(const Plan &plan) {
    for (auto [block, bytes, purpose] : {std::make_tuple(&arena_, plan.arena_bytes, "intermediate values"),
                                         std::make_tuple(&scratch_, plan.scratch_bytes, "the kernels' scratch memory")}) {
        if (bytes <= block->bytes()) continue;
        if (was_captured_) {
            make_room(retired_);
            retired_.push_back(std::move(*block));
        } else {
            wait_for_last_run();
        }
        // The old one goes first: its bytes are of no use, and two would double the peak.
        *block = DeviceBlock();
        *block = DeviceBlock(device_, bytes, model_.name.c_str(), purpose);
    }
}

void DeviceSession::prepare(Plan &plan) {
    if (!plain_) plan.launches->build();
}

uint8_t *DeviceSession::device_memory(DeviceBlock &block, size_t bytes, const char *name, const char *purpose) {
    if (block.bytes() < bytes) {
        if (was_captured_) {
            make_room(retired_);
            retired_.push_back(std::move(block));
        } else {
            wait_for_last_run();
        }
        block = DeviceBlock();
        block = DeviceBlock(device_, bytes, name, purpose);
    }
    return pointer_of(block.address());
}

// The driver knows which memory a pointer is of; it is asked once for each pointer that a port gets in a row.
void DeviceSession::check_pointer(const char *what, const char *name, const uint8_t *pointer, size_t bytes, Port &port) {
    if (!bytes || pointer == port.checked) return;
    char message[240];
    if (reinterpret_cast<uintptr_t>(pointer) % kAlignBytes) {
        snprintf(message, sizeof message, "expected device memory aligned to %d bytes, got address %p",
                 static_cast<int>(kAlignBytes), static_cast<const void *>(pointer));
        throw wrong_tensor(AOT_REASON_ALIGNMENT, what, name, "Copy the tensor to memory of its own.", message);
    }
    unsigned type = 0, managed = 0;
    int ordinal = -1;
    const int attributes[] = {kMemoryType, kIsManaged, kDeviceOrdinal};
    void *const values[] = {&type, &managed, &ordinal};
    const Result code = device_.driver.pointer_attributes(3, attributes, values, address_of(pointer));
    if (code != result::OK && code != result::INVALID_VALUE) {
        check(device_.driver, code, name, "asking about a device pointer");
    }
    if (code == result::INVALID_VALUE || (type != kDeviceMemory && !managed)) {
        snprintf(message, sizeof message, "expected memory of device %d, got address %p, which the driver knows as %s",
                 device_.ordinal, static_cast<const void *>(pointer), type == 1 ? "host memory" : "no memory of a device");
        throw wrong_tensor(AOT_REASON_PLACE, what, name, "Give a tensor in device memory, or say that it is in host memory.", message);
    }
    if (ordinal != device_.ordinal && !managed) {
        snprintf(message, sizeof message, "expected memory of device %d, got memory of device %d", device_.ordinal, ordinal);
        throw wrong_tensor(AOT_REASON_PLACE, what, name, "Copy the tensor to the model's device, or load the model for that device.", message);
    }
    port.checked = pointer;
}

void DeviceSession::bind_outputs(Call &call, const Plan &plan, const aot_tensor *const *inputs,
                                 const aot_tensor *const *outputs, const aot_run_options &options, Outputs &out) {
    const uint32_t input_count = model_.input_count();
    for (uint32_t i = 0; i < input_count; ++i) {
        if (!is_device_memory(*inputs[i])) continue;
        check_pointer("input", model_.artifact.text(model_.input(i).name), data_of(*inputs[i]),
                      static_cast<size_t>(plan.port_bytes[i]), inputs_[i]);
    }
    for (uint32_t i = 0; i < model_.output_count(); ++i) {
        out.bytes[i] = static_cast<size_t>(plan.port_bytes[input_count + i]);
        out.data[i] = bind_output(call, i, plan.shape_of_port[input_count + i], out.bytes[i], outputs, options);
        if (call.capturing_ && outputs_[i].device_type == 1) {
            throw wrong_tensor(AOT_REASON_CAPTURE, "output", model_.artifact.text(model_.output(i).name), "Give device memory for the output.",
                               "host memory cannot be filled while a stream is captured");
        }
    }
    for (uint32_t i = 0; call.capturing_ && i < input_count; ++i) {
        if (is_device_memory(*inputs[i])) continue;
        throw wrong_tensor(AOT_REASON_CAPTURE, "input", model_.artifact.text(model_.input(i).name), "Copy the input to the device.",
                           "host memory cannot be read while a stream is captured");
    }
}

uint8_t *DeviceSession::bind_output(Call &call, uint32_t index, const int64_t *shape, size_t bytes,
                                    const aot_tensor *const *outputs, const aot_run_options &options) {
    const PortEntry &entry = model_.output(index);
    const char *name = model_.artifact.text(entry.name);
    const aot_tensor *given = outputs ? outputs[index] : nullptr;
    Port &port = outputs_[index];
    uint8_t *data = nullptr;
    port.device_type = call.on_host_ ? 1 : 2;
    if (given && (given->data || bytes == 0)) {
        check_tensor(model_, "output", entry, *given, shape);
        data = given->data ? data_of(*given) : nullptr;
        port.device_type = is_device_memory(*given) ? 2 : 1;
        if (port.device_type == 2) check_pointer("output", name, data, bytes, port);
    } else if (options.allocate_output) {
        const DType &dtype = *find_dtype(entry.dtype);
        const aot_tensor tensor{nullptr, port.device_type, port.device_type == 2 ? device_.ordinal : 0,
                                static_cast<int32_t>(entry.shape.count), dtype.dlpack_code, dtype.dlpack_bits, 1, shape,
                                nullptr, 0};
        data = static_cast<uint8_t *>(options.allocate_output(options.user, index, &tensor, bytes));
        if (!data && bytes) throw std::bad_alloc();
        if (port.device_type == 2) check_pointer("output", name, data, bytes, port);
    } else if (port.device_type == 1) {
        if (port.host.bytes() < bytes) port.host = Block(memory_, bytes, 64);
        data = port.host.data();
    } else {
        data = device_memory(port.staged, bytes, name, "an output");
    }
    return data;
}

// With nothing of the caller's on the device there is nothing to be in order with but this session.
void DeviceSession::choose_stream(Call &call, bool any_device) {
    if (call.stream_ || !call.all_host_ || any_device) return;
    if (!own_stream_) {
        check(device_.driver, device_.driver.stream_create(&own_stream_, kNonBlocking), model_.name.c_str(), "making a stream");
    }
    call.stream_ = own_stream_;
}

// The session's memory is used by one run at a time, also where runs are on several streams.
void DeviceSession::order(Call &call) {
    if (call.ordered_ || call.capturing_) return;
    call.ordered_ = true;
    if (!has_run_ || call.stream_ == last_stream_) return;
    check(device_.driver, device_.driver.stream_wait(call.stream_, done_, 0), model_.name.c_str(),
          "waiting for the last run, which was on another stream");
}

// Sessions may take turns with a cache, where a stream or the caller puts their runs in order.
void DeviceSession::claim_state(const Call &call, const Plan &plan, const Outputs &outputs) {
    const Artifact &a = model_.artifact;
    const Run state = plan.unit->entry->state;
    donated_.clear();
    for (uint32_t pair = 0; !call.capturing_ && pair < state.count; pair += 2) {
        const uint32_t input = static_cast<uint32_t>(a.integer(state.first + pair));
        const uint32_t output = static_cast<uint32_t>(a.integer(state.first + pair + 1));
        const bool in_place = outputs_[output].device_type == 2 && input_addresses_[input] == outputs.data[output];
        if (in_place && outputs.bytes[output]) donated_.push_back(outputs.data[output]);
    }
    claim_donated(call, plan);
}

void DeviceSession::claim_donated(const Call &call, const Plan &plan) {
    const Artifact &a = model_.artifact;
    const Run state = plan.unit->entry->state;
    const uint8_t *taken = donations_.claim(device_.driver, donated_, call.stream_, done_);
    if (!taken) return;
    donations_.launched();
    for (uint32_t pair = 0; pair < state.count; pair += 2) {
        const uint32_t input = static_cast<uint32_t>(a.integer(state.first + pair));
        if (input_addresses_[input] != taken) continue;
        throw wrong_tensor(AOT_REASON_OVERLAP, "input", a.text(model_.input(input).name),
                           "Put both runs into one stream, or wait for the other one first.",
                           "a run of another session, on another stream, is updating this state in place");
    }
}

bool DeviceSession::is_repeated(const Plan &plan, const aot_tensor *const *inputs, const Outputs &outputs) const {
    if (&plan != last_plan_ || outputs.data != last_outputs_) return false;
    for (uint32_t i = 0; i < model_.input_count(); ++i) {
        if (data_of(*inputs[i]) != last_inputs_[i]) return false;
    }
    return true;
}

void DeviceSession::run(Call &call, Plan &plan, const aot_tensor *const *inputs, const Outputs &outputs, uint64_t *step_ns) {
    const Driver &driver = device_.driver;
    const Artifact &a = model_.artifact;
    const char *where = model_.name.c_str();
    const uint32_t input_count = model_.input_count(), output_count = model_.output_count();
    for (uint32_t i = 0; i < input_count; ++i) last_inputs_[i] = data_of(*inputs[i]);
    std::copy(outputs.data.begin(), outputs.data.end(), last_outputs_.begin());
    last_plan_ = &plan;
    bool is_staged = false, any_device = false;
    for (uint32_t i = 0; i < output_count; ++i) any_device = any_device || outputs_[i].device_type == 2;
    choose_stream(call, any_device);
    order(call);
    // Copies that have begun must not outlive the call, nor the caller's memory with it.
    struct Wait {
        const Driver &driver;
        Donations &donations;
        Stream stream;
        bool wanted;
        ~Wait() {
            if (wanted) driver.stream_synchronize(stream);
            donations.launched();
        }
    } wait{driver, donations_, call.stream_, !call.capturing_};
    for (uint32_t i = 0; i < input_count; ++i) {
        if (is_device_memory(*inputs[i])) {
            input_addresses_[i] = data_of(*inputs[i]);
            continue;
        }
        const size_t bytes = static_cast<size_t>(plan.port_bytes[i]);
        input_addresses_[i] = device_memory(inputs_[i].staged, bytes, a.text(model_.input(i).name), "an input");
        if (!bytes) continue;
        is_staged = true;
        check(driver, driver.copy_in_async(address_of(input_addresses_[i]), data_of(*inputs[i]), bytes, call.stream_),
              a.text(model_.input(i).name), "copying an input to the device");
    }
    claim_state(call, plan, outputs);
    const Run state = plan.unit->entry->state;
    for (uint32_t i = 0; i < output_count; ++i) {
        output_addresses_[i] = outputs.data[i];
        if (outputs_[i].device_type == 2) continue;
        is_staged = true;
        uint8_t *in_place = nullptr;
        for (uint32_t pair = 0; pair < state.count; pair += 2) {
            const uint32_t input = static_cast<uint32_t>(a.integer(state.first + pair));
            const bool same = a.integer(state.first + pair + 1) == i && !is_device_memory(*inputs[input]) &&
                              outputs.data[i] == data_of(*inputs[input]);
            if (same) in_place = input_addresses_[input];
        }
        output_addresses_[i] = in_place ? in_place
                                        : device_memory(outputs_[i].staged, outputs.bytes[i], a.text(model_.output(i).name), "an output");
    }
    const bool timed = profiling_ && !call.capturing_;
    if (poisoning_) poison(call.stream_, outputs);
    if (trace_) trace_->first_step = 0;
    put(plan, input_addresses_.data(), output_addresses_.data(), call, timed);
    if (call.capturing_) {
        was_captured_ = true;
        return;
    }
    end_run(call.stream_);
    for (uint32_t i = 0; i < output_count; ++i) {
        if (outputs_[i].device_type == 2 || !outputs.bytes[i]) continue;
        check(driver, driver.copy_out_async(outputs.data[i], address_of(output_addresses_[i]), outputs.bytes[i], call.stream_),
              a.text(model_.output(i).name), "copying an output from the device");
    }
    wait.wanted = false;
    if (is_staged || timed) check(driver, driver.stream_synchronize(call.stream_), where, "running the model");
    if (timed) take_times(static_cast<uint32_t>(plan.steps.size()), step_ns);
}

// Puts the launches of a plan into the stream; with times, events around them.
void DeviceSession::put(Plan &plan, uint8_t *const *inputs, uint8_t *const *outputs, const Call &call, bool timed) {
    for (size_t i = events_.size(); timed && i <= plan.steps.size(); ++i) {
        make_room(events_);
        Event event = nullptr;
        check(device_.driver, device_.driver.event_create(&event, 0), model_.name.c_str(), "making an event");
        events_.push_back(event);
    }
    Launches &launches = *plan.launches;
    launches.patch(plan, inputs, outputs, pointer_of(arena_.address()), scratch_.address());
    if (trace_) return put_traced(plan, call);
    // An early start means nothing on the NULL stream, and between events there is none.
    if (plain_ || call.capturing_) launches.launch_plain(call.stream_, call.stream_ && !timed, timed ? events_.data() : nullptr);
    else launches.launch_graph(call.stream_);
}

void DeviceSession::put_traced(Plan &plan, const Call &call) {
    if (call.capturing_) {
        throw Failure(AOT_ERROR_ARGUMENT, model_.name.c_str(), "Trace the model outside of the capture.",
                      "a run cannot be traced while a stream is captured");
    }
    class DeviceReader final : public Trace::Reader {
    public:
        explicit DeviceReader(const Call &call) : call_(call) {}
        void read(const uint8_t *from, uint8_t *to, size_t bytes) override { call_.read(from, to, bytes); }

    private:
        const Call &call_;
    } reader(call);
    for (uint32_t i = 0; i < plan.steps.size(); ++i) {
        plan.launches->launch_alone(call.stream_, i);
        trace_->tell(plan, i, &reader);
    }
}

void DeviceSession::end_run(Stream stream) {
    has_run_ = false;  // where recording fails, the stream is waited for instead
    if (device_.driver.event_record(done_, stream) == result::OK) {
        has_run_ = true;
        last_stream_ = stream;
    } else {
        check(device_.driver, device_.driver.stream_synchronize(stream), model_.name.c_str(), "running the model");
    }
}

void DeviceSession::fill(Stream stream, Address address, size_t bytes) {
    if (!bytes) return;
    check(device_.driver, device_.driver.memory_set_async(address, 0xff, bytes, stream), model_.name.c_str(),
          "filling memory");
}

// What a kernel reads before one has written it is then no number, or a wild one.
void DeviceSession::poison(Stream stream, const Outputs &outputs) {
    fill(stream, arena_.address(), arena_.bytes());
    fill(stream, scratch_.address(), scratch_.bytes());
    for (uint32_t i = 0; i < model_.output_count(); ++i) {
        const bool in_place = std::find(input_addresses_.begin(), input_addresses_.end(), output_addresses_[i]) != input_addresses_.end();
        if (!in_place) fill(stream, address_of(output_addresses_[i]), outputs.bytes[i]);
    }
}

void DeviceSession::take_times(uint32_t count, uint64_t *step_ns) {
    for (uint32_t i = 0; i < count; ++i) {
        float milliseconds = 0;
        check(device_.driver, device_.driver.event_elapsed(&milliseconds, events_[i], events_[i + 1]), model_.name.c_str(),
              "taking the time of a step");
        step_ns[i] += static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
    }
}

size_t DeviceSession::memory_bytes() const {
    size_t total = arena_.bytes() + scratch_.bytes();
    for (const DeviceBlock &block : retired_) total += block.bytes();
    for (const Vector<Port> *ports : {&inputs_, &outputs_}) {
        for (const Port &port : *ports) total += port.staged.bytes() + port.host.bytes();
    }
    return total;
}

}  // namespace aot::cuda
