// aot/runtime.hpp against the artifact of tests/runtime/handmade.py: relu(x @ w + b), x f32 [batch, 5], y f32 [batch, 19].
//
//     runtime_hpp_test MODEL.aot WITHOUT_WEIGHTS.aot
#include <aot/runtime.hpp>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                           \
        }                                                                           \
    } while (0)

namespace {

constexpr int64_t K = 5, M = 19;

float w_at(int64_t c, int64_t j) { return static_cast<float>((c * M + j) * 7 % 23 - 11) / 8; }
float b_at(int64_t j) { return static_cast<float>(j * 5 % 11 - 5) / 4; }

std::vector<float> input(int64_t batch) {
    std::vector<float> x;
    for (int64_t i = 0; i < batch * K; ++i) x.push_back(static_cast<float>(i * 3 % 17 - 8) / 4);
    return x;
}

bool right(const std::vector<float> &x, const float *y, float weight_scale = 1) {
    for (size_t i = 0; i < x.size() / K; ++i) {
        for (int64_t j = 0; j < M; ++j) {
            float sum = b_at(j);
            for (int64_t c = 0; c < K; ++c) sum += x[i * K + static_cast<size_t>(c)] * w_at(c, j) * weight_scale;
            if (y[static_cast<int64_t>(i) * M + j] != (sum > 0 ? sum : 0)) return false;
        }
    }
    return true;
}

// The error that f throws.
template <class F> aot::Error error_of(F &&f) {
    try {
        f();
    } catch (const aot::Error &error) {
        return error;
    }
    return {AOT_OK, "", "nothing was thrown", ""};
}

void test_descriptions(const aot::Model &model) {
    const std::vector<aot::Port> inputs = model.inputs(), outputs = model.outputs();
    CHECK(inputs.size() == 1 && inputs[0].name == "x" && inputs[0].dtype == "f32" && inputs[0].shape.size() == 2);
    CHECK(inputs[0].shape[0].text == "batch" && !inputs[0].shape[0].value && inputs[0].shape[1].value == K);
    CHECK(outputs.size() == 1 && outputs[0].name == "y" && outputs[0].shape[1].value == M);
    const std::vector<aot::Symbol> symbols = model.symbols();
    CHECK(symbols.size() == 1 && symbols[0].name == "batch" && symbols[0].lo == 1 && symbols[0].hi == 4096);
    CHECK(symbols[0].divisor == 1 && model.target() == "cpu:x86-64" && !model.meta().empty());
}

void test_runs(const aot::Model &model) {
    aot::Session session(model);
    for (int64_t batch : {1, 7, 64, 7, 4096}) {
        const std::vector<float> x = input(batch);
        session.run({{x.data(), {batch, K}}});
        const aot::Output y = session.output();
        CHECK((y.shape() == std::vector<int64_t>{batch, M}) && y.size() == batch * M && right(x, y.data<float>()));
        std::vector<float> own(static_cast<size_t>(batch * M), -1);
        session.run({{x.data(), {batch, K}}}, {{own.data(), {batch, M}}});
        CHECK(right(x, own.data()) && session.output().data<float>() == own.data());
    }
    const std::vector<float> x = input(3);
    session.prepare({{x.data(), {3, K}}});
    CHECK(session.output().shape()[0] == 3 && session.output().c_tensor().data == nullptr);
    session.reserve({{"batch", 100}});
    CHECK(session.memory_bytes() > 0 && session.thread_count() >= 1);

    aot::Session moved(std::move(session));
    moved.run({{x.data(), {3, K}}});
    CHECK(right(x, moved.output().data<float>()) && moved.model().handle() == model.handle());
}

void test_errors(const aot::Model &model) {
    const aot::Error missing = error_of([] { aot::Model("no/such/file.aot"); });
    CHECK(missing.status() == AOT_ERROR_IO && missing.where() == "no/such/file.aot" && !missing.hint().empty());
    const std::string text = missing.what();
    CHECK(text == "no/such/file.aot: " + missing.message() + "\n  hint: " + missing.hint());
    CHECK(error_of([] { aot::Model("bytes", 5); }).status() == AOT_ERROR_DAMAGED);

    aot::Session session(model);
    const std::vector<float> x = input(2);
    CHECK(error_of([&] { session.output(); }).status() == AOT_ERROR_ARGUMENT);
    const aot::Error guard = error_of([&] { session.run({{x.data(), {1, 2 * K}}}); });
    CHECK(guard.status() == AOT_ERROR_GUARD && guard.where() == "input 'x'");
    const std::vector<double> wide(K);
    CHECK(error_of([&] { session.run({{wide.data(), {1, K}}}); }).status() == AOT_ERROR_GUARD);
    CHECK(error_of([&] { session.run({}); }).status() == AOT_ERROR_ARGUMENT);
    CHECK(error_of([&] { session.reserve({{"batch", 0}}); }).status() == AOT_ERROR_GUARD);
    CHECK(error_of([&] { session.reserve({}); }).status() == AOT_ERROR_ARGUMENT);
    const std::vector<float> constant(2 * M);
    CHECK(error_of([&] { session.run({{x.data(), {2, K}}}, {{constant.data(), {2, M}}}); }).status() ==
          AOT_ERROR_ARGUMENT);
    CHECK(error_of([&] { aot::LoadOptions o; o.target = "cpu:other"; aot::Model("/dev/null", o); }).status() != AOT_OK);

    session.run({{x.data(), {2, K}}});
    CHECK(error_of([&] { session.output().data<double>(); }).status() == AOT_ERROR_ARGUMENT);
    CHECK(error_of([&] { session.output().data<int32_t>(); }).status() == AOT_ERROR_ARGUMENT);
    CHECK(error_of([&] { session.output(1); }).status() == AOT_ERROR_ARGUMENT);
}

void test_limits(const aot::Model &model) {
    aot::Session session(model);
    const std::vector<float> x = input(2);
    aot::RunOptions limits;
    for (std::chrono::nanoseconds timeout : {std::chrono::nanoseconds(-1), std::chrono::nanoseconds(0)}) {
        limits.timeout = timeout;
        CHECK(error_of([&] { session.run({{x.data(), {2, K}}}, limits); }).status() == AOT_ERROR_CANCELLED);
    }
    for (std::chrono::nanoseconds timeout : {std::chrono::nanoseconds(std::chrono::minutes(1)), std::chrono::nanoseconds::max()}) {
        limits.timeout = timeout;
        session.run({{x.data(), {2, K}}}, limits);
        CHECK(right(x, session.output().data<float>()));
    }
    const volatile int32_t cancel = 1;
    limits.cancel = &cancel;
    CHECK(error_of([&] { session.run({{x.data(), {2, K}}}, limits); }).status() == AOT_ERROR_CANCELLED);
}

// A session keeps alive what it uses, and the model is for any number of threads.
void test_lifetimes(const char *path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    std::vector<std::thread> threads;
    {
        const aot::Model model(bytes.data(), bytes.size());
        aot::SessionOptions shared;
        shared.pool = aot::Pool(2);
        for (int i = 0; i < 4; ++i) {
            aot::SessionOptions alone;
            alone.thread_count = 1;
            threads.emplace_back([session = aot::Session(model, i % 2 ? shared : alone)]() mutable {
                for (int64_t batch = 1; batch <= 50; ++batch) {
                    const std::vector<float> x = input(batch);
                    session.run({{x.data(), {batch, K}}});
                    CHECK(right(x, session.output().data<float>()));
                }
            });
        }
    }
    for (std::thread &thread : threads) thread.join();
}

void test_weights(const char *path) {
    CHECK(error_of([&] { aot::Model{path}; }).status() == AOT_ERROR_WEIGHTS);
    std::vector<float> w, b;
    for (int64_t i = 0; i < K * M; ++i) w.push_back(w_at(i / M, i % M));
    for (int64_t j = 0; j < M; ++j) b.push_back(b_at(j));
    aot::LoadOptions options;
    options.weights = {{"layer.weight", {w.data(), {K, M}}}, {"layer.bias", {b.data(), {M}}}};
    const std::vector<float> x = input(3);
    aot::Session session(aot::Model(path, options));
    session.run({{x.data(), {3, K}}});
    CHECK(right(x, session.output().data<float>()));

    for (float &value : w) value *= 2;
    CHECK(error_of([&] { aot::Model(path, options); }).status() == AOT_ERROR_WEIGHTS);
    options.any_weights = true;
    aot::Session doubled(aot::Model(path, options));
    doubled.run({{x.data(), {3, K}}});
    CHECK(right(x, doubled.output().data<float>(), 2));
}

}  // namespace

int main(int argc, char **argv) {
    CHECK(argc == 3);
    const aot::Model model(argv[1]);
    test_descriptions(model);
    test_runs(model);
    test_errors(model);
    test_limits(model);
    test_lifetimes(argv[1]);
    test_weights(argv[2]);
    std::puts("ok");
}
