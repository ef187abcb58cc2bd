// The memory of tensors between blocks: on the host, and where a model runs on a GPU, on the device.
#pragma once

#include "plan.h"

namespace aot {

enum Place : int { kHost = 0, kDevice = 1 };

// Memory of one place, and how the blocks run whose tensors lie there. What it does is done in the order of the calls;
// on a GPU it may be done later, until `wait` returns.
class Space {
public:
    virtual ~Space() = default;
    virtual uint8_t *allocate(size_t bytes) = 0;  // throws
    virtual void release(uint8_t *data, size_t bytes) noexcept = 0;
    virtual void copy(uint8_t *to, const uint8_t *from, size_t bytes) = 0;      // within the place
    virtual void copy_in(uint8_t *to, const uint8_t *host, size_t bytes) = 0;
    virtual void copy_out(uint8_t *host, const uint8_t *from, size_t bytes) = 0;
    virtual void wait() = 0;
    // Runs a block; `first_step` numbers its steps among those of all blocks.
    virtual void launch(Plan &plan, uint32_t first_step, uint8_t *const *inputs, uint8_t *const *outputs,
                        const aot_run_options &options) = 0;
};

// Storages of tensors. One is where it was written, and on demand in the other place too; both are the same bytes.
class FlowMemory {
public:
    FlowMemory(const Memory &memory, Space &host, Space *device);
    ~FlowMemory();
    FlowMemory(const FlowMemory &) = delete;
    FlowMemory &operator=(const FlowMemory &) = delete;

    Space &space(Place place) { return *spaces_[place]; }
    bool has_device() const { return spaces_[kDevice] != nullptr; }
    // Before a run: nobody uses any storage.
    void begin();
    // A storage of the caller's memory, or one of `bytes` with room for `capacity`. Used once.
    int32_t borrow(Place place, uint8_t *data, size_t bytes);
    int32_t take(Place place, size_t bytes, size_t capacity);
    void share(int32_t storage) { ++of(storage).users; }
    void leave(int32_t storage) { --of(storage).users; }
    bool is_at(int32_t storage, Place place) const { return of(storage).copies[place].valid; }
    // The address in a place, to read from; on the host not before `settle`.
    uint8_t *at(int32_t storage, Place place) {
        const Copy &copy = of(storage).copies[place];
        return copy.valid ? copy.data : brought(storage, place);
    }
    void settle() {
        if (pending_) wait();
    }
    void waited();  // when the device is known to have done all
    // Bytes on the host, to read at once. Of large tensors only what is near them is copied there, and forgotten soon.
    const uint8_t *peek(int32_t storage, size_t offset, size_t bytes) {
        const Copy &copy = of(storage).copies[kHost];
        return copy.valid && !pending_ ? copy.data + offset : peeked(storage, offset, bytes);
    }
    void forget() { window_storage_ = -1; }
    // Appends to a storage, or, where others use it, to a copy; returns which it is then.
    int32_t append(int32_t storage, size_t bytes, int32_t from, size_t from_bytes);
    // The storage, or a copy of it where it is the caller's memory.
    int32_t detached(int32_t storage);
    // Puts a tensor into the caller's memory; of host memory it is there after `settle`.
    void store(int32_t storage, size_t bytes, uint8_t *to, Place place);
    size_t held_bytes() const;

private:
    struct Copy {
        uint8_t *data;  // in use: `own`, or the caller's
        uint8_t *own;
        size_t capacity;
        bool valid;
        bool busy;  // of host memory: a copy to the device may not have been done yet
    };
    struct Storage {
        Copy copies[2];
        size_t bytes;
        uint32_t users;
    };

    Storage &of(int32_t storage) { return storages_[static_cast<size_t>(storage)]; }
    const Storage &of(int32_t storage) const { return storages_[static_cast<size_t>(storage)]; }
    uint8_t *brought(int32_t storage, Place place);
    const uint8_t *peeked(int32_t storage, size_t offset, size_t bytes);
    int32_t free_one(Place place, size_t capacity);
    void reserve(Copy &copy, Place place, size_t capacity);
    void wait();

    Space *spaces_[2];
    Vector<Storage> storages_;
    Vector<uint8_t> window_;  // of a large tensor, from byte `window_first_`
    int32_t window_storage_ = -1;
    size_t window_first_ = 0;
    uint32_t busy_ = 0;
    bool pending_ = false;  // copies to the host may not have been done yet
};

}  // namespace aot
