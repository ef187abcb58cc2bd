// What kernels take without the cost of launching them: many of one in a graph of their own, between two events.
#include "session.h"

namespace aot {

namespace cuda {

namespace {

// What is made on the way, given back on every way out.
struct Made {
    const Driver &driver;
    Event start = nullptr, end = nullptr;
    Graph graph = nullptr;
    Executable executable = nullptr;
    ~Made() {
        drop();
        if (start) driver.event_destroy(start);
        if (end) driver.event_destroy(end);
    }
    void drop() {
        if (executable) driver.executable_destroy(executable);
        if (graph) driver.graph_destroy(graph);
        executable = nullptr, graph = nullptr;
    }
};

}  // namespace

// A graph runs twice, the first time to warm the caches and to keep the device busy until all of the second is queued.
void Launches::time(Stream stream, uint32_t repeats, aot_step_time *steps, uint32_t count, uint64_t *run_ns) {
    const Driver &driver = device_.device.driver;
    const char *where = model_.name.c_str();
    Made made{driver};
    const auto must = [&](Result code, const char *doing) { check(driver, code, where, doing); };
    must(driver.event_create(&made.start, 0), "making an event");
    must(driver.event_create(&made.end, 0), "making an event");
    // The mean of `repeats` after what `first` launches, where `again` launches them all.
    const auto mean_ns = [&](const auto &first, const auto &again) {
        first();
        must(driver.event_record(made.start, stream), "recording an event");
        again();
        must(driver.event_record(made.end, stream), "recording an event");
        must(driver.event_synchronize(made.end), "running a kernel repeatedly");
        float milliseconds = 0;
        must(driver.event_elapsed(&milliseconds, made.start, made.end), "taking the time of a step");
        return static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6 / repeats + 0.5);
    };
    *run_ns = mean_ns([&] { launch_graph(stream); },
                      [&] { for (uint32_t i = 0; i < repeats; ++i) launch_graph(stream); });
    for (const Launch &launch : launches_) {
        if (launch.step >= count) break;
        const bool early = launch.repeats_early && driver.graph_add_edges;
        must(driver.graph_create(&made.graph, 0), "making a graph");
        Node before = nullptr, node = nullptr;
        for (uint32_t i = 0; i < repeats; ++i, before = node) {
            const bool is_full = before && !early;
            Result code = driver.graph_add_kernel(&node, made.graph, is_full ? &before : nullptr, is_full, &launch.node);
            const Edge edge{kProgrammatic, 0, kProgrammatic, {}};
            if (code == result::OK && before && early) code = driver.graph_add_edges(made.graph, &before, &node, &edge, 1);
            if (code != result::OK) fail(code, launch, "putting it into a graph");
        }
        must(driver.graph_instantiate(&made.executable, made.graph, 0), "instantiating a graph of one kernel");
        const auto run = [&] {
            const Result code = driver.graph_launch(made.executable, stream);
            if (code != result::OK) fail(code, launch, "launching it");
        };
        steps[launch.step] = {mean_ns(run, run), launch.is_programmatic, 0};
        made.drop();
    }
}

void DeviceSession::time(Plan &plan, uint32_t repeats, aot_step_time *steps, uint32_t count, uint64_t *run_ns) {
    const Current current(device_);
    current.require(model_.name.c_str());
    wait_for_last_run();
    if (!own_stream_) {
        check(device_.driver, device_.driver.stream_create(&own_stream_, kNonBlocking), model_.name.c_str(), "making a stream");
    }
    plan.launches->time(own_stream_, repeats, steps, count, run_ns);
}

}  // namespace cuda

uint32_t Session::time_steps(uint32_t repeats, aot_step_time *steps, uint32_t count, uint64_t *run_ns) {
    if (!device_ || !last_plan_ || last_plan_->unit->entry->flow.count || !repeats) {
        throw Failure(AOT_ERROR_ARGUMENT, model_.name.c_str(), "Run the model first, on a GPU; repeat at least once.",
                      "there are no kernels to time");
    }
    for (uint32_t i = 0; i < count; ++i) steps[i] = {};
    device_->time(*last_plan_, repeats, steps, count, run_ns);
    return static_cast<uint32_t>(last_plan_->steps.size());
}

}  // namespace aot
