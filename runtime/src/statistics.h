// How runs ended, counted without a lock: each session counts its own, and who asks adds them up.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include <x86intrin.h>

#include "base.h"

namespace aot {

class RunCounter;

// Of all sessions of a model.
class RunCounts {
public:
    RunCounts();
    void add(RunCounter &counter);
    // Keeps what it counted.
    void remove(RunCounter &counter);
    void read(aot_statistics &out);

private:
    static void collect(const RunCounter &counter, aot_statistics &out);

    std::mutex mutex_;
    RunCounter *first_ = nullptr;
    aot_statistics gone_{};
    uint64_t loaded_ticks_, loaded_ns_;  // when counting began, by both clocks
};

// Of one session: written by one thread at a time, read by any.
class RunCounter {
public:
    explicit RunCounter(RunCounts &counts) : counts_(counts) { counts_.add(*this); }
    ~RunCounter() { counts_.remove(*this); }
    RunCounter(const RunCounter &) = delete;
    RunCounter &operator=(const RunCounter &) = delete;

    // The CPU's own clock: the system's would take a fifth of the time of the shortest runs.
    static uint64_t ticks() { return __rdtsc(); }

    void add(int32_t status, int32_t reason, uint64_t start_ticks) {
        bump(by_status_[static_cast<uint32_t>(status) % by_status_.size()], 1);
        if (status == AOT_OK) bump(run_ticks_, ticks() - start_ticks);
        else bump(by_reason_[static_cast<uint32_t>(reason) % by_reason_.size()], 1);
    }

private:
    friend class RunCounts;
    using Count = std::atomic<uint64_t>;

    // One writer: no instruction that locks the bus.
    static void bump(Count &count, uint64_t by) {
        count.store(count.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
    }

    Count run_ticks_{};
    std::array<Count, 16> by_status_{};
    std::array<Count, 64> by_reason_{};
    RunCounts &counts_;
    RunCounter *next_ = nullptr, *before_ = nullptr;
};

}  // namespace aot
