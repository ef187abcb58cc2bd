#include "pool.h"

#include <climits>
#include <ctime>
#include <system_error>

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"

namespace aot {
namespace {

constexpr uint64_t kSpinNs = 100'000;      // then a worker parks
constexpr int kSpinsBeforeYield = 2000;    // a waiting thread then gives its CPU away, for the case that they are few
constexpr uint32_t kCountBits = 10;        // of the job word; the rest is the job's number
constexpr uint32_t kMaxThreads = (1u << kCountBits) - 1;

std::atomic<uint32_t> forks{0};

uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

// All that threads share. After a fork the child starts a new one: its threads are gone, and a mutex may be held.
struct Pool::State {
    // Number of the job and how many threads take part: one word, so that a worker that comes late never mixes two jobs.
    alignas(64) std::atomic<uint32_t> job{0};
    std::atomic<uint32_t> sleepers{0};
    std::atomic<bool> stop{false};
    alignas(64) std::atomic<uint32_t> running{0};
    void (*task)(void *, uint32_t) = nullptr;
    void *context = nullptr;
    unsigned rounding = 0;
    std::mutex turn;
    std::vector<std::thread> threads;
    uint32_t born = forks.load();

    void work(uint32_t thread, uint32_t seen);
    uint32_t next_job(uint32_t seen);
};

uint32_t Pool::State::next_job(uint32_t seen) {
    const uint64_t until = now_ns() + kSpinNs;
    for (uint32_t spin = 1;; ++spin) {
        uint32_t word = job.load(std::memory_order_acquire);
        if (word != seen) return word;
        _mm_pause();
        if (spin % 64 == 0 && now_ns() > until) break;
    }
    for (;;) {
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        syscall(SYS_futex, &job, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        sleepers.fetch_sub(1, std::memory_order_seq_cst);
        uint32_t word = job.load(std::memory_order_acquire);
        if (word != seen) return word;
    }
}

void Pool::State::work(uint32_t thread, uint32_t seen) {
    for (;;) {
        seen = next_job(seen);
        if (stop.load(std::memory_order_acquire)) return;
        if (thread >= (seen & kMaxThreads)) continue;
        _mm_setcsr(rounding);
        task(context, thread);
        running.fetch_sub(1, std::memory_order_acq_rel);
    }
}

Pool::Pool(uint32_t thread_count) : state_(nullptr), wanted_(1) {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
    (void)registered;
    state_.store(new State);
    try {
        grow(thread_count);
    } catch (...) {
        finish();
        throw;
    }
}

Pool::~Pool() { finish(); }

void Pool::finish() {
    State *state = state_.load();
    if (state->born == forks.load()) {
        state->stop.store(true, std::memory_order_release);
        state->job.fetch_add(1u << kCountBits, std::memory_order_seq_cst);
        syscall(SYS_futex, &state->job, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
        for (std::thread &thread : state->threads) thread.join();
        delete state;
    }
    // In a forked child the threads do not exist: their handles can be neither joined nor destroyed.
}

Pool::State &Pool::state() {
    State *state = state_.load(std::memory_order_acquire);
    while (state->born != forks.load(std::memory_order_relaxed)) {
        State *fresh = new State;
        if (state_.compare_exchange_strong(state, fresh)) {
            state = fresh;
        } else {
            delete fresh;
        }
    }
    return *state;
}

uint32_t Pool::thread_count() { return wanted_.load(); }

void Pool::grow(uint32_t thread_count) {
    if (thread_count > kMaxThreads) thread_count = kMaxThreads;
    uint32_t wanted = wanted_.load();
    while (wanted < thread_count && !wanted_.compare_exchange_weak(wanted, thread_count)) {
    }
    State &state = this->state();
    std::lock_guard<std::mutex> lock(state.turn);
    while (state.threads.size() + 1 < thread_count) {
        const uint32_t number = static_cast<uint32_t>(state.threads.size()) + 1;
        const uint32_t seen = state.job.load();
        try {
            state.threads.emplace_back([&state, number, seen] { state.work(number, seen); });
        } catch (const std::system_error &error) {
            throw Failure(AOT_ERROR_MEMORY, "threads", "Use fewer threads, or raise the limits of processes and memory.",
                          "the system refuses to start thread %u: %s", number + 1, error.what());
        }
    }
}

void Pool::run(void (*task)(void *, uint32_t), void *context, uint32_t count) {
    if (count > kMaxThreads) count = kMaxThreads;
    State *state = &this->state();
    if (state->threads.size() + 1 < count) {  // the first run after a fork
        grow(count);
        state = &this->state();
    }
    std::lock_guard<std::mutex> lock(state->turn);
    state->task = task;
    state->context = context;
    state->rounding = _mm_getcsr();
    state->running.store(count - 1, std::memory_order_relaxed);
    const uint32_t number = (state->job.load(std::memory_order_relaxed) >> kCountBits) + 1;
    state->job.store(number << kCountBits | count, std::memory_order_seq_cst);
    if (state->sleepers.load(std::memory_order_seq_cst)) {
        syscall(SYS_futex, &state->job, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
    task(context, 0);
    for (int spin = 0; state->running.load(std::memory_order_acquire); ++spin) {
        if (spin < kSpinsBeforeYield) _mm_pause();
        else sched_yield();
    }
}

Pool &Pool::process() {
    static Pool *const pool = new Pool(1);
    return *pool;
}

void Barrier::spin_while(uint32_t generation) const {
    for (int spin = 0; generation_.load(std::memory_order_acquire) == generation; ++spin) {
        if (spin < kSpinsBeforeYield) _mm_pause();
        else sched_yield();
    }
}

}  // namespace aot
