// Threads load, run, ask and unload several models at once, in every order; for ThreadSanitizer and AddressSanitizer.
//
//     models_test ROUNDS ARTIFACT...
//
// Artifacts whose constants are partly equal share them, so one thread's model may lie in the memory of another's that
// is being unloaded. Every result must be bit for bit what it was when the artifact was alone in the process.
#include <aot/runtime.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace {

#define MUST(condition)                                                                  \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                \
        }                                                                                \
    } while (0)

std::atomic<uint64_t> live_bytes{0};

void *allocate(void *, size_t bytes, size_t alignment) {
    void *pointer = nullptr;
    if (posix_memalign(&pointer, alignment < sizeof pointer ? sizeof pointer : alignment, bytes)) return nullptr;
    live_bytes += bytes;
    return pointer;
}

void release(void *, void *pointer, size_t bytes) {
    live_bytes -= bytes;
    std::free(pointer);
}

const aot_allocator kAllocator = {sizeof kAllocator, nullptr, allocate, release};

struct Case {
    std::string path;
    std::vector<char> bytes;
    std::vector<float> result;
};

std::vector<float> run(const aot::Model &model) {
    std::vector<std::vector<float>> data;
    std::vector<aot::Tensor> inputs;
    for (const aot::Port &port : model.inputs()) {
        std::vector<int64_t> shape;
        size_t elements = 1;
        for (const aot::Dim &dim : port.shape) {
            shape.push_back(dim.value.value_or(2));
            elements *= static_cast<size_t>(shape.back());
        }
        std::vector<float> values(elements);
        for (size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(i % 11) - 5;
        data.push_back(std::move(values));
        inputs.emplace_back(data.back().data(), shape);
    }
    aot::SessionOptions options;
    options.thread_count = 1;
    aot::Session session(model, options);
    model.check(inputs);
    session.run(inputs);
    const aot::Output output = session.output();
    return {output.data<float>(), output.data<float>() + output.size()};
}

aot::Model load(const Case &chosen, uint32_t way) {
    aot::LoadOptions options;
    options.own_weights = way % 5 == 0;
    if (way % 3 == 0) options.allocator = &kAllocator;
    if (way % 2) return aot::Model(chosen.bytes.data(), chosen.bytes.size(), options);
    options.map_weights = way % 7 == 0;
    return aot::Model(chosen.path, options);
}

void stress(const std::vector<Case> &cases, int rounds, uint32_t seed) {
    std::vector<std::pair<size_t, aot::Model>> held;
    for (int round = 0; round < rounds; ++round) {
        seed = seed * 1664525 + 1013904223;
        const size_t number = (seed >> 8) % cases.size();
        held.emplace_back(number, load(cases[number], seed >> 16));
        const aot::Model &model = held[(seed >> 4) % held.size()].second;
        MUST(model.shared_weight_bytes() <= model.weight_bytes());
        MUST(run(model) == cases[held[(seed >> 4) % held.size()].first].result);
        MUST(model.statistics().by_status[AOT_OK] >= 1);
        if (held.size() > 3) held.erase(held.begin() + static_cast<std::ptrdiff_t>((seed >> 12) % held.size()));
    }
}

}  // namespace

int main(int argc, char **argv) {
    MUST(argc >= 3);
    std::vector<Case> cases;
    for (int i = 2; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        Case made{argv[i], std::vector<char>(std::istreambuf_iterator<char>(file), {}), {}};
        made.result = run(aot::Model(made.path));
        cases.push_back(std::move(made));
    }
    // One model that all threads run, and that is asked while they do.
    const aot::Model common(cases[0].path);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
            stress(cases, std::atoi(argv[1]), 77 * i + 1);
            for (int round = 0; round < 20; ++round) MUST(run(common) == cases[0].result);
        });
    }
    while (common.statistics().by_status[AOT_OK] < 80) std::this_thread::yield();
    for (std::thread &thread : threads) thread.join();
    MUST(common.statistics().sessions == 0);
    MUST(live_bytes == 0);
    MUST(common.shared_weight_bytes() == 0);
    std::printf("ok\n");
    return 0;
}
