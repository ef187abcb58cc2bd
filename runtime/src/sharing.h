// Constants in host memory, once per process however many models hold them.
#pragma once

#include <memory>

#include "base.h"

namespace aot {

#ifndef AOT_SHARED_BYTES
#define AOT_SHARED_BYTES (16 << 10)
#endif
// Smaller constants are copied: four pages, so that few bytes are lost at the two ends of one that goes alone.
inline constexpr size_t kSharedBytes = AOT_SHARED_BYTES;

// Memory of constants, of one model or of several. Goes with the last that holds it.
class Slab {
public:
    Slab(const Memory &memory, size_t bytes, size_t alignment) : block_(memory, bytes, alignment), memory_(memory) {}
    uint8_t *data() const { return block_.data(); }
    size_t bytes() const { return block_.bytes(); }
    // Gives whole pages of a part that nobody reads any more back to the system; nothing of a caller's memory.
    void discard(const uint8_t *data, size_t bytes) const noexcept;

private:
    Block block_;
    Memory memory_;
};

// One that models hold, known by its size and its first bytes until it is compared.
struct SharedConstant {
    SharedConstant *next;
    uint64_t bytes;
    uint64_t head;
    const uint8_t *data;
    Memory memory;
    std::shared_ptr<Slab> slab;
    uint32_t holders;
};

// The constants that one model holds and others may hold too. They are equal byte by byte, which is compared and not
// concluded from a digest; memory of one allocator is only shared by models that have that allocator.
class SharedConstants {
public:
    explicit SharedConstants(const Memory &memory) : memory_(memory), held_(Allocator<SharedConstant *>(memory)) {}
    ~SharedConstants() { release(); }
    SharedConstants(const SharedConstants &) = delete;
    SharedConstants &operator=(const SharedConstants &) = delete;

    // A constant of `bytes` that begins with `size` bytes at `data`, the first or all 64 of them; NULL where there is
    // none. With `last`: that begins as it does for `before` bytes and goes on with those at `data`.
    SharedConstant *find(uint64_t bytes, const uint8_t *data, size_t size, const SharedConstant *last, size_t before);
    // Holds what `find` found, and says where it is.
    const uint8_t *keep(SharedConstant *found);
    // Offers a finished constant to others. Where another model has finished the same meanwhile, gives its address.
    const uint8_t *offer(const std::shared_ptr<Slab> &slab, const uint8_t *data, uint64_t bytes);
    // Lets go of one that `find` found.
    static void let_go(SharedConstant *constant) noexcept;
    uint64_t bytes() const;
    // Bytes of those that other models hold as well at this moment.
    uint64_t shared_bytes() const;
    void release() noexcept;

private:
    bool has(const SharedConstant *constant) const;

    Memory memory_;
    Vector<SharedConstant *> held_;
};

}  // namespace aot
