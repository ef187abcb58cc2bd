// A session's half on a GPU: its device memory, its stream, and the way of a run through them.
#pragma once

#include "cuda/donations.h"
#include "cuda/launches.h"
#include "flow_memory.h"
#include "guards.h"
#include "trace.h"

namespace aot::cuda {

// What a run gives and gets, as the session keeps it for every output.
struct Outputs {
    Vector<uint8_t *> &data;
    Vector<size_t> &bytes;
};

class DeviceSession {
public:
    DeviceSession(const Model &model, const Memory &memory, uint32_t flags);
    ~DeviceSession();
    DeviceSession(const DeviceSession &) = delete;
    DeviceSession &operator=(const DeviceSession &) = delete;

    // A call of the session: the context is current, and a stream that the caller captures tolerates allocations.
    class Call : public ElementReader {
    public:
        // Of a run; without options, of a call that only plans.
        Call(DeviceSession &session, const aot_tensor *const *inputs, uint32_t count, const aot_run_options *options);
        ~Call() override;
        // Copies an element of a device tensor to host memory, in the order of the stream.
        void read(const uint8_t *from, void *to, size_t bytes) const override;

    private:
        friend class DeviceSession;
        DeviceSession &session_;
        const Current current_;
        Stream stream_ = nullptr;
        bool all_host_ = true;   // the inputs
        bool on_host_ = true;    // outputs that nobody bound
        bool capturing_ = false;
        bool ordered_ = false;  // the stream waits for the session's last run
        int mode_ = kCaptureRelaxed;
    };

    // Makes the launches of a new plan, and memory for it.
    void adopt(Plan &plan);
    void grow(const Plan &plan);
    // Makes the graph of a plan ahead of its first run.
    void prepare(Plan &plan);
    void bind_outputs(Call &call, const Plan &plan, const aot_tensor *const *inputs, const aot_tensor *const *outputs,
                      const aot_run_options &options, Outputs &out);
    // `step_ns`: where the session profiles, the time of each step.
    void run(Call &call, Plan &plan, const aot_tensor *const *inputs, const Outputs &outputs, uint64_t *step_ns);

    // Where an output of the caller's, or a new one, lies.
    uint8_t *bind_output(Call &call, uint32_t index, const int64_t *shape, size_t bytes, const aot_tensor *const *outputs,
                         const aot_run_options &options);

    // A run of a flow: blocks go into its stream, and what they read and write lies in `space()`.
    class FlowRun {
    public:
        // `step_ns`: as in `run`.
        FlowRun(DeviceSession &session, Call &call, const Plan &plan, const aot_tensor *const *inputs,
                const aot_tensor *const *outputs, const aot_run_options &options, uint64_t *step_ns);
        ~FlowRun();
        FlowRun(const FlowRun &) = delete;
        FlowRun &operator=(const FlowRun &) = delete;
        // When all has been put into the stream, the outputs too. Waits where anything of the caller's is host memory:
        // returns whether it did.
        bool finish();

    private:
        DeviceSession &session_;
        Call &call_;
        const Driver &driver_;
        bool any_host_ = false;
        bool done_ = false;
    };
    Space &space() { return space_; }

    // Of the run that comes: put kernels into the stream one by one, and tell of each (../trace.h). NULL: no more.
    void set_trace(Trace *trace) { trace_ = trace; }

    // Times the launches of a plan that has run (times.cpp).
    void time(Plan &plan, uint32_t repeats, aot_step_time *steps, uint32_t count, uint64_t *run_ns);

    // Whether a run has the arrays of the last one, which were found to lie apart.
    bool is_repeated(const Plan &plan, const aot_tensor *const *inputs, const Outputs &outputs) const;
    int32_t output_device_type(uint32_t index) const { return outputs_[index].device_type; }
    int32_t ordinal() const { return device_.ordinal; }
    size_t arena_bytes() const { return arena_.bytes(); }
    size_t memory_bytes() const;

private:
    struct Port {
        uint8_t *address = nullptr;  // that the kernels get
        int32_t device_type = 1;     // of the caller's tensor
        const uint8_t *checked = nullptr;  // the last device pointer that the driver was asked about
        DeviceBlock staged;
        Block host;  // of an output that nobody bound
    };

    // Device memory of tensors between blocks. Outside of a run it can only be given back.
    class FlowSpace final : public Space {
    public:
        explicit FlowSpace(DeviceSession &session) : session_(session) {}
        uint8_t *allocate(size_t bytes) override;
        void release(uint8_t *data, size_t bytes) noexcept override;
        void copy(uint8_t *to, const uint8_t *from, size_t bytes) override;
        void copy_in(uint8_t *to, const uint8_t *host, size_t bytes) override;
        void copy_out(uint8_t *host, const uint8_t *from, size_t bytes) override;
        void wait() override;
        void launch(Plan &plan, uint32_t first_step, uint8_t *const *inputs, uint8_t *const *outputs,
                    const aot_run_options &options) override;

    private:
        DeviceSession &session_;
    };

    void put_traced(Plan &plan, const Call &call);
    void put(Plan &plan, uint8_t *const *inputs, uint8_t *const *outputs, const Call &call, bool timed);
    void choose_stream(Call &call, bool any_device);
    void end_run(Stream stream);
    void fill(Stream stream, Address address, size_t bytes);
    void check_pointer(const char *what, const char *name, const uint8_t *pointer, size_t bytes, Port &port);
    uint8_t *device_memory(DeviceBlock &block, size_t bytes, const char *name, const char *purpose);
    void wait_for_last_run();
    void order(Call &call);
    void claim_state(const Call &call, const Plan &plan, const Outputs &outputs);
    void claim_donated(const Call &call, const Plan &plan);
    void poison(Stream stream, const Outputs &outputs);
    void take_times(uint32_t count, uint64_t *step_ns);

    const Model &model_;
    const Memory memory_;
    const Device &device_;
    const bool plain_;
    const bool early_;
    const bool profiling_;
    const bool poisoning_;
    DeviceBlock arena_, scratch_;
    Vector<DeviceBlock> retired_;  // what a graph that the caller captured may still use
    Vector<Port> inputs_, outputs_;
    Vector<uint8_t *> input_addresses_, output_addresses_;
    Vector<uint8_t *> last_inputs_, last_outputs_;  // the caller's, of the last run
    const Plan *last_plan_ = nullptr;
    Vector<Event> events_;  // of a profiling session
    Stream own_stream_ = nullptr;
    Stream last_stream_ = nullptr;
    Event done_ = nullptr;  // the end of the last run
    Donations donations_;
    Vector<const uint8_t *> donated_;  // by the run in progress
    FlowSpace space_{*this};
    Call *flow_call_ = nullptr;      // of the flow in progress
    uint64_t *flow_step_ns_ = nullptr;
    Trace *trace_ = nullptr;
    bool has_run_ = false;
    bool was_captured_ = false;
};

inline bool is_device_memory(const aot_tensor &tensor) { return tensor.device_type == 2 || tensor.device_type == 13; }

}  // namespace aot::cuda
