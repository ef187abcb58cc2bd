// Threads that run the steps of a program together (SPMD): one wake per run, spinning, then parked.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace aot {

class Pool {
public:
    // `thread_count` includes the thread that calls run.
    explicit Pool(uint32_t thread_count);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    // Calls task(context, thread) in threads 0..count-1, thread 0 being the caller. One run at a time: others wait.
    void run(void (*task)(void *, uint32_t), void *context, uint32_t count);
    // Starts threads until a run may have `thread_count`.
    void grow(uint32_t thread_count);
    uint32_t thread_count();

    // The pool of this process; never destroyed, since its threads may outlive every destructor.
    static Pool &process();

private:
    struct State;
    State &state();
    void finish();

    std::atomic<State *> state_;
    std::atomic<uint32_t> wanted_;
};

// A barrier for the threads of one run. The last to arrive calls `last` before it releases the others.
class Barrier {
public:
    template <class F> void wait(uint32_t count, F &&last) {
        const uint32_t generation = generation_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
            arrived_.store(0, std::memory_order_relaxed);
            last();
            generation_.store(generation + 1, std::memory_order_release);
        } else {
            spin_while(generation);
        }
    }

private:
    void spin_while(uint32_t generation) const;

    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> generation_{0};
};

}  // namespace aot
