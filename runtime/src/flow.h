// Runs a program of blocks: the tensors between them, the symbols that data gives, branches and loops.
#pragma once

#include "plan.h"

namespace aot {

class Session;

class Flow {
public:
    explicit Flow(Session &session);

    // Runs the flow of a variant whose inputs were checked and whose input symbols are in `symbols`.
    void run(const Variant &variant, const int64_t *symbols, const aot_tensor *const *inputs,
             const aot_run_options &options);

    // After a run: an output's extents and bytes, which stay valid until the next run.
    const int64_t *shape(uint32_t output) const { return slots_[result(output)].shape; }
    const uint8_t *data(uint32_t output) const { return slots_[result(output)].data; }
    size_t bytes(uint32_t output) const { return slots_[result(output)].bytes; }
    // Moves an output that lies in an input's memory into memory of the flow.
    void detach(uint32_t output);
    uint64_t held_bytes() const;

private:
    // A tensor between blocks. `storage` is -1 for the caller's memory.
    struct Slot {
        uint8_t *data;
        size_t bytes;
        int64_t *shape;
        int32_t storage;
        bool live;
    };
    // Memory that slots share; free again when none does.
    struct Storage {
        Block block;
        uint32_t users;
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
    int64_t element(const format::FlowEntry &entry, uint32_t slot, uint64_t index) const;
    bool holds(const format::FlowEntry &entry, uint32_t slot) const { return element(entry, slot, 0) != 0; }

    const format::PortEntry &port(uint32_t slot) const;
    uint32_t result(uint32_t output) const;
    uint32_t number(format::Run run, uint32_t index) const;
    Slot &input(const format::FlowEntry &entry, uint32_t index);
    void drop(uint32_t slot);
    void share(uint32_t slot, const Slot &from);
    void own(uint32_t slot, size_t bytes, size_t capacity);
    int32_t take(size_t capacity);

    Session &session_;
    const Model &model_;
    const Variant *variant_ = nullptr;
    const aot_run_options *options_ = nullptr;
    Vector<int64_t> symbols_;
    Vector<int64_t> extents_;
    Vector<int64_t> extents_aside_;
    Vector<int64_t> block_symbols_;
    Vector<Slot> slots_;
    Vector<Slot> moved_;
    Vector<Storage> storages_;
    Vector<uint8_t *> block_inputs_, block_outputs_;
    Vector<int32_t> block_storages_;
};

}  // namespace aot
