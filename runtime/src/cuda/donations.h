// State that sessions update in place on a GPU: two runs that no stream orders must not update the same memory.
#pragma once

#include <atomic>

#include "cuda/device.h"

namespace aot::cuda {

// Of a session: the pieces of state that its last run updated in place.
class Donations {
public:
    explicit Donations(const Memory &memory) : pieces_(Allocator<const uint8_t *>(memory)) {}
    ~Donations() { clear(); }
    Donations(const Donations &) = delete;
    Donations &operator=(const Donations &) = delete;

    // Before a run: `next` holds the pieces. Returns one that another session's unfinished run on another stream has,
    // or NULL; then the pieces are this session's. `done` is the event that ends its runs.
    const uint8_t *claim(const Driver &driver, const Vector<const uint8_t *> &next, Stream stream, Event done);
    // When `done` has been recorded.
    void launched() noexcept { is_launching_.store(false, std::memory_order_release); }
    void clear() noexcept;

private:
    Vector<const uint8_t *> pieces_;
    Stream stream_ = nullptr;
    Event done_ = nullptr;
    uint64_t epoch_ = 0;
    std::atomic<bool> is_launching_{false};
};

}  // namespace aot::cuda
