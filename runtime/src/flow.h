// Runs a program of blocks: the tensors between them, the symbols that data gives, branches and loops.
#pragma once

#include "flow_memory.h"

namespace aot {

class Session;

class Flow {
public:
    // `device`: where blocks run whose code is for a GPU, or NULL.
    Flow(Session &session, Space *device);

    // Runs the flow of a variant whose inputs were checked and whose input symbols are in `symbols`.
    void run(const Variant &variant, const int64_t *symbols, const aot_tensor *const *inputs,
             const aot_run_options &options);

    // After a run: an output's extents, which stay valid until the next run, and bytes.
    const int64_t *shape(uint32_t output) const { return slots_[result(output)].shape; }
    size_t bytes(uint32_t output) const { return slots_[result(output)].bytes; }
    // Moves an output that lies in an input's memory into memory of the flow.
    void detach(uint32_t output);
    // Puts an output where the caller wants it. On a GPU it is there when the device is done.
    void store(uint32_t output, uint8_t *to, Place place);
    // When all that a run began has been done.
    void waited() { memory_.waited(); }
    uint64_t held_bytes() const;
    // Blocks that ran on the CPU while the others run on a GPU, in all runs so far.
    uint64_t host_steps() const { return host_steps_; }

private:
    // A tensor between blocks: the start of a storage, which slots may share.
    struct Slot {
        size_t bytes;
        int64_t *shape;
        int32_t storage;
        bool live;
    };
    // The session's memory, and its threads.
    class HostSpace final : public Space {
    public:
        explicit HostSpace(Session &session) : session_(session) {}
        uint8_t *allocate(size_t bytes) override;
        void release(uint8_t *data, size_t bytes) noexcept override;
        void copy(uint8_t *to, const uint8_t *from, size_t bytes) override { memmove(to, from, bytes); }
        void copy_in(uint8_t *to, const uint8_t *host, size_t bytes) override { memmove(to, host, bytes); }
        void copy_out(uint8_t *host, const uint8_t *from, size_t bytes) override { memmove(host, from, bytes); }
        void wait() override {}
        void launch(Plan &plan, uint32_t first_step, uint8_t *const *inputs, uint8_t *const *outputs,
                    const aot_run_options &options) override;

    private:
        Session &session_;
    };

    void steps(format::Run run);
    void step(const format::FlowEntry &entry);
    void call(const format::FlowEntry &entry);
    Plan &plan_of(const format::FlowEntry &entry, const Variant &block);
    struct Label {
        char text[200];
    };
    Label label(const format::FlowEntry &entry) const;
    void read(const format::FlowEntry &entry);
    void check(const format::FlowEntry &entry);
    void alias(const format::FlowEntry &entry);
    void move(const format::FlowEntry &entry);
    void match(const format::FlowEntry &entry);
    void clear(const format::FlowEntry &entry);
    void append(const format::FlowEntry &entry);
    void loop(const format::FlowEntry &entry);

    [[noreturn]] void refuse(const format::FlowEntry &entry, const char *hint, const char *format, ...) const
        __attribute__((format(printf, 4, 5)));
    [[noreturn]] void inconsistent(const format::FlowEntry &entry, const char *what) const;
    int64_t value(const format::FlowEntry &entry, uint32_t dim) const;
    // The dimensions of a slot as declared, and its bytes.
    size_t declared(const format::FlowEntry &entry, uint32_t slot, int64_t *shape) const;
    int64_t element(const format::FlowEntry &entry, uint32_t slot, uint64_t index);
    bool holds(const format::FlowEntry &entry, uint32_t slot) { return element(entry, slot, 0) != 0; }

    const format::PortEntry &port(uint32_t slot) const;
    uint32_t result(uint32_t output) const;
    uint32_t number(format::Run run, uint32_t index) const;
    Slot &input(const format::FlowEntry &entry, uint32_t index);
    void drop(uint32_t slot);
    void share(uint32_t slot, const Slot &from);
    // Gives a slot host memory of its own.
    uint8_t *own(uint32_t slot, size_t bytes);

    Session &session_;
    const Model &model_;
    HostSpace host_space_;
    FlowMemory memory_;
    uint64_t host_steps_ = 0;
    const Variant *variant_ = nullptr;
    const aot_run_options *options_ = nullptr;
    Vector<int64_t> symbols_;
    Vector<int64_t> extents_;
    Vector<int64_t> extents_aside_;
    Vector<int64_t> block_symbols_;
    Vector<Slot> slots_;
    Vector<Slot> moved_;
    Vector<uint8_t *> block_inputs_, block_outputs_;
    Vector<int32_t> block_storages_;
};

}  // namespace aot
