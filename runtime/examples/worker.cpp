// A serving worker: two threads take requests from a bounded queue and run them on the stable artifact, or, where that
// cannot serve one, on the fallback.
//
//     worker STABLE.aot [--fallback OTHER.aot] [--trusted-key KEY.raw] [--queue 64] [--timeout-ms 1000] < requests
//
// Each line of standard input is a request: values of the model's named extents, such as "batch=4 width=32". Inputs are
// filled with numbers made from their place. Every request gets one line, in order, then come the statistics:
//
//     0 ok stable sum=12.5
//     1 ok fallback (stable: guard, range) sum=40
//     2 refused (stable: guard, range; fallback: guard, range)
//     3 refused (queue full)
//     stable: 1 runs, 0.012 ms each; guard 2; range 2
//     fallback: 1 runs, 0.034 ms each; guard 1; range 1
//     weights: 2100224 bytes, of which 1996800 are shared
//
//     c++ -std=c++17 -O2 worker.cpp -pthread $(pkg-config --cflags --libs aot_runtime) -o worker
#include <aot/runtime.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Request {
    size_t number = 0;
    std::map<std::string, int64_t> extents;
    Clock::time_point deadline;
};

// At most `limit` requests wait; more are refused at once, since they would only be late.
class Queue {
public:
    explicit Queue(size_t limit) : limit_(limit) {}

    bool push(Request request) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (waiting_.size() >= limit_) return false;
            waiting_.push_back(std::move(request));
        }
        filled_.notify_one();
        return true;
    }

    // False when the queue is closed and empty.
    bool pop(Request &request) {
        std::unique_lock<std::mutex> lock(mutex_);
        filled_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
        if (waiting_.empty()) return false;
        request = std::move(waiting_.front());
        waiting_.pop_front();
        return true;
    }

    void close() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            closed_ = true;
        }
        filled_.notify_all();
    }

private:
    const size_t limit_;
    std::mutex mutex_;
    std::condition_variable filled_;
    std::deque<Request> waiting_;
    bool closed_ = false;
};

// One of the artifacts that may serve, in the order in which they are tried.
struct Link {
    std::string name;
    aot::Model model;
    std::atomic<bool> is_lost{false};  // its GPU is gone until the process is started anew

    Link(std::string given, aot::Model loaded) : name(std::move(given)), model(std::move(loaded)) {}
};

// Arrays for the inputs of a request. Throws aot::Error where the model has an element type or an extent that a line of
// text cannot give.
class Inputs {
public:
    Inputs(const aot::Model &model, const std::map<std::string, int64_t> &extents) {
        for (const aot::Port &port : model.inputs()) {
            if (port.dtype != "f32") throw aot::Error(AOT_ERROR_ARGUMENT, port.name, "this example fills inputs of f32 alone", "");
            std::vector<int64_t> shape;
            size_t elements = 1;
            for (const aot::Dim &dim : port.shape) {
                const auto given = extents.find(dim.text);
                if (!dim.value && given == extents.end()) {
                    throw aot::Error(AOT_ERROR_ARGUMENT, port.name, "the request gives no value for " + dim.text, "");
                }
                shape.push_back(dim.value ? *dim.value : given->second);
                elements *= static_cast<size_t>(shape.back());
            }
            std::vector<float> values(elements);
            for (size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(i % 7) * 0.125f;
            values_.push_back(std::move(values));
            tensors.emplace_back(values_.back().data(), std::move(shape));
        }
    }

    std::vector<aot::Tensor> tensors;

private:
    std::deque<std::vector<float>> values_;
};

double sum_of(const aot::Output &output) {
    double sum = 0;
    const float *values = output.data<float>();
    for (int64_t i = 0; i < output.size(); ++i) sum += static_cast<double>(values[i]);
    return sum;
}

// What one thread has: a session with each artifact.
class Worker {
public:
    explicit Worker(std::vector<Link *> links) : links_(std::move(links)) {
        aot::SessionOptions options;
        options.thread_count = 1;  // requests run side by side, each on one thread
        for (Link *link : links_) sessions_.emplace_back(link->model, options);
    }

    std::string serve(const Request &request) {
        std::string failures;
        for (size_t i = 0; i < links_.size(); ++i) {
            if (links_[i]->is_lost) continue;
            for (bool again : {true, false}) {
                try {
                    const double sum = run(i, request);
                    std::ostringstream text;
                    text << "ok " << links_[i]->name << failures << (failures.empty() ? "" : ")") << " sum=" << sum;
                    return text.str();
                } catch (const aot::Error &error) {
                    if (again && error.advice() == AOT_ADVICE_RETRY) continue;
                    failures += (failures.empty() ? " (" : "; ") + links_[i]->name + ": " + aot_status_name(error.status());
                    if (error.reason()) failures += std::string(", ") + aot_reason_name(error.reason());
                    if (error.advice() == AOT_ADVICE_RESTART) links_[i]->is_lost = true;
                    if (error.advice() == AOT_ADVICE_GIVE_UP) return "refused" + failures + ")";
                    break;  // the next artifact may serve it
                }
            }
        }
        return "refused" + (failures.empty() ? " (nothing is left that serves)" : failures + ")");
    }

private:
    double run(size_t index, const Request &request) {
        aot::RunOptions limits;
        limits.timeout = std::max(Clock::duration::zero(), request.deadline - Clock::now());
        const Inputs inputs(links_[index]->model, request.extents);
        sessions_[index].run(inputs.tensors, limits);
        return sum_of(sessions_[index].output());
    }

    std::vector<Link *> links_;
    std::deque<aot::Session> sessions_;
};

void print(const Link &link) {
    const aot_statistics found = link.model.statistics();
    const uint64_t runs = found.by_status[AOT_OK];
    std::printf("%s: %llu runs, %.3f ms each", link.name.c_str(), static_cast<unsigned long long>(runs),
                runs ? static_cast<double>(found.run_ns) * 1e-6 / static_cast<double>(runs) : 0.0);
    for (int32_t i = 1; i < 16; ++i) {
        if (found.by_status[i]) std::printf("; %s %llu", aot_status_name(i), static_cast<unsigned long long>(found.by_status[i]));
    }
    for (int32_t i = 1; i < 64; ++i) {
        if (found.by_reason[i]) std::printf("; %s %llu", aot_reason_name(i), static_cast<unsigned long long>(found.by_reason[i]));
    }
    std::printf("\n");
}

struct Options {
    std::vector<std::string> paths;
    aot::LoadOptions load;
    size_t queue = 64;
    std::chrono::milliseconds timeout{1000};
};

bool parse(int argc, char **argv, Options &options) {
    for (int i = 1; i < argc; ++i) {
        const std::string text = argv[i];
        if (text.rfind("--", 0) != 0) {
            options.paths.insert(options.paths.begin(), text);
            continue;
        }
        if (i + 1 == argc) return false;
        const std::string value = argv[++i];
        if (text == "--fallback") {
            options.paths.push_back(value);
        } else if (text == "--queue") {
            options.queue = std::stoul(value);
        } else if (text == "--timeout-ms") {
            options.timeout = std::chrono::milliseconds(std::stol(value));
        } else if (text == "--trusted-key") {
            std::array<uint8_t, 32> key{};
            std::ifstream(value, std::ios::binary).read(reinterpret_cast<char *>(key.data()), key.size());
            options.load.trusted_keys.push_back(key);
        } else {
            return false;
        }
    }
    return !options.paths.empty();
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    if (!parse(argc, argv, options)) {
        std::fprintf(stderr, "usage: worker STABLE.aot [--fallback OTHER.aot] [--trusted-key KEY.raw] [--queue N] [--timeout-ms N]\n");
        return 2;
    }
    // An artifact that cannot be loaded here is left out, and the other one serves.
    std::deque<Link> links;
    for (size_t i = 0; i < options.paths.size(); ++i) {
        try {
            links.emplace_back(i ? "fallback" : "stable", aot::Model(options.paths[i], options.load));
        } catch (const aot::Error &error) {
            std::fprintf(stderr, "%s error: %s\n", aot_status_name(error.status()), error.what());
        }
    }
    if (links.empty()) return 1;

    Queue queue(options.queue);
    std::mutex mutex;
    std::map<size_t, std::string> answers;
    const auto answer = [&](size_t number, std::string text) {
        std::lock_guard<std::mutex> lock(mutex);
        answers[number] = std::move(text);
    };
    std::vector<Link *> pointers;
    for (Link &link : links) pointers.push_back(&link);
    const auto work = [&](Worker &worker) {
        Request request;
        while (queue.pop(request)) {
            try {
                answer(request.number, worker.serve(request));
            } catch (const std::exception &error) {  // no memory for the inputs, for one
                answer(request.number, std::string("refused (") + error.what() + ")");
            }
        }
    };
    std::deque<Worker> workers;
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) workers.emplace_back(pointers);
    for (Worker &worker : workers) threads.emplace_back(work, std::ref(worker));

    std::string line;
    for (size_t number = 0; std::getline(std::cin, line); ++number) {
        Request request;
        request.number = number;
        request.deadline = Clock::now() + options.timeout;
        std::istringstream words(line);
        for (std::string word; words >> word;) {
            const size_t sign = word.find('=');
            if (sign != std::string::npos) request.extents[word.substr(0, sign)] = std::atoll(word.c_str() + sign + 1);
        }
        if (!queue.push(std::move(request))) answer(number, "refused (queue full)");
    }
    queue.close();
    for (std::thread &thread : threads) thread.join();

    for (const auto &[number, text] : answers) std::printf("%zu %s\n", number, text.c_str());
    for (const Link &link : links) print(link);
    std::printf("weights: %llu bytes, of which %llu are shared\n", static_cast<unsigned long long>(links[0].model.weight_bytes()),
                static_cast<unsigned long long>(links[0].model.shared_weight_bytes()));
    return 0;
}
