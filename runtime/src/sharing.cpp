#include "sharing.h"

#include <algorithm>
#include <mutex>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace aot {

namespace {

constexpr size_t kHeadBytes = 64;  // constants in files are aligned to as many, so a part of one is never smaller
constexpr uint32_t kMostTried = 8;  // of equal size and head; a hostile file must not make loading quadratic

// Not destroyed at exit: threads may still be running.
struct Registry {
    std::mutex mutex;
    SharedConstant *buckets[1024] = {};

    SharedConstant *&bucket(uint64_t head) { return buckets[head % 1024]; }
};

Registry &registry();

// A child gets the registry as it is between two changes, whatever other threads of its parent were doing.
void before_fork() { registry().mutex.lock(); }
void after_fork() { registry().mutex.unlock(); }

Registry &registry() {
    static Registry *const held = [] {
        pthread_atfork(before_fork, after_fork, after_fork);
        return new Registry;
    }();
    return *held;
}

uint64_t head_of(uint64_t bytes, const uint8_t *data) {
    uint64_t hash = bytes;
    for (size_t i = 0; i < kHeadBytes; i += sizeof hash) {
        uint64_t word;
        memcpy(&word, data + i, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 29;
    }
    return hash;
}

}  // namespace

void Slab::discard(const uint8_t *data, size_t bytes) const noexcept {
    if (!memory_.is_default()) return;
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t from = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const uintptr_t to = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
    if (from < to) madvise(reinterpret_cast<void *>(from), to - from, MADV_DONTNEED);  // where refused, it goes later
}

SharedConstant *SharedConstants::find(uint64_t bytes, const uint8_t *data, size_t size, const SharedConstant *last,
                                      size_t before) {
    const uint64_t head = last ? last->head : head_of(bytes, data);
    SharedConstant *tried[kMostTried], *found = nullptr;
    uint32_t count = 0;
    {
        std::lock_guard<std::mutex> lock(registry().mutex);
        for (SharedConstant *at = registry().bucket(head); at && count < kMostTried; at = at->next) {
            if (at->head != head || at->bytes != bytes || at == last || !(at->memory == memory_)) continue;
            ++at->holders;
            tried[count++] = at;
        }
    }
    for (uint32_t i = 0; i < count; ++i) {
        const bool fits = !found && (!before || memcmp(tried[i]->data, last->data, before) == 0) &&
                          memcmp(tried[i]->data + before, data, size) == 0;
        if (fits) found = tried[i];
        else let_go(tried[i]);
    }
    return found;
}

bool SharedConstants::has(const SharedConstant *constant) const {
    return std::find(held_.begin(), held_.end(), constant) != held_.end();
}

const uint8_t *SharedConstants::keep(SharedConstant *found) {
    if (has(found)) let_go(found);
    else held_.push_back(found);
    return found->data;
}

const uint8_t *SharedConstants::offer(const std::shared_ptr<Slab> &slab, const uint8_t *data, uint64_t bytes) {
    if (held_.size() == held_.capacity()) held_.reserve(2 * held_.size() + 16);
    const uint64_t head = head_of(bytes, data);
    auto made = std::make_unique<SharedConstant>(SharedConstant{nullptr, bytes, head, data, memory_, slab, 1});
    uint32_t tried = 0;
    std::lock_guard<std::mutex> lock(registry().mutex);
    SharedConstant *&first = registry().bucket(head);
    for (SharedConstant *at = first; at && tried < kMostTried; at = at->next) {
        if (at->head != head || at->bytes != bytes || !(at->memory == memory_)) continue;
        ++tried;
        if (memcmp(at->data, data, static_cast<size_t>(bytes)) != 0) continue;
        if (has(at)) return at->data;
        ++at->holders;
        held_.push_back(at);
        return at->data;
    }
    made->next = first;
    first = made.release();
    held_.push_back(first);
    return data;
}

void SharedConstants::let_go(SharedConstant *constant) noexcept {
    {
        std::lock_guard<std::mutex> lock(registry().mutex);
        if (--constant->holders) return;
        SharedConstant **at = &registry().bucket(constant->head);
        while (*at != constant) at = &(*at)->next;
        *at = constant->next;
    }
    if (constant->slab.use_count() > 1) constant->slab->discard(constant->data, static_cast<size_t>(constant->bytes));
    delete constant;  // a caller's allocator is called without the lock
}

uint64_t SharedConstants::bytes() const {
    uint64_t total = 0;
    for (const SharedConstant *constant : held_) total += constant->bytes;
    return total;
}

uint64_t SharedConstants::shared_bytes() const {
    std::lock_guard<std::mutex> lock(registry().mutex);
    uint64_t total = 0;
    for (const SharedConstant *constant : held_) total += constant->holders > 1 ? constant->bytes : 0;
    return total;
}

void SharedConstants::release() noexcept {
    for (SharedConstant *constant : held_) let_go(constant);
    held_.clear();
}

}  // namespace aot
