#include "statistics.h"

#include <ctime>

namespace aot {

namespace {

uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

RunCounts::RunCounts() : loaded_ticks_(RunCounter::ticks()), loaded_ns_(now_ns()) {}

void RunCounts::add(RunCounter &counter) {
    std::lock_guard<std::mutex> lock(mutex_);
    counter.next_ = first_;
    if (first_) first_->before_ = &counter;
    first_ = &counter;
}

void RunCounts::remove(RunCounter &counter) {
    std::lock_guard<std::mutex> lock(mutex_);
    (counter.before_ ? counter.before_->next_ : first_) = counter.next_;
    if (counter.next_) counter.next_->before_ = counter.before_;
    collect(counter, gone_);
}

void RunCounts::read(aot_statistics &out) {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t size = out.struct_size;
    out = gone_;
    out.struct_size = size;
    for (const RunCounter *counter = first_; counter; counter = counter->next_) {
        ++out.sessions;
        collect(*counter, out);
    }
    // Until here run_ns are ticks; how long one lasts, the time since the model was loaded says.
    const uint64_t ticks = RunCounter::ticks() - loaded_ticks_, ns = now_ns() - loaded_ns_;
    out.run_ns = ticks ? static_cast<uint64_t>(static_cast<double>(out.run_ns) * static_cast<double>(ns) / static_cast<double>(ticks)) : 0;
}

void RunCounts::collect(const RunCounter &counter, aot_statistics &out) {
    out.run_ns += counter.run_ticks_.load(std::memory_order_relaxed);
    for (size_t i = 0; i < counter.by_status_.size(); ++i) out.by_status[i] += counter.by_status_[i].load(std::memory_order_relaxed);
    for (size_t i = 0; i < counter.by_reason_.size(); ++i) out.by_reason[i] += counter.by_reason_[i].load(std::memory_order_relaxed);
}

}  // namespace aot
