#include "cuda/launches.h"

#include <cstdio>

namespace aot::cuda {

using namespace format;

namespace {

constexpr uint32_t kNone = 0xffffffff;
// Blocks on each multiprocessor up to which an early start wins: measured on an H200, 1.9 of both kernels win (a
// perceptron at batch 256, 47 µs and not 56), 2.9 lose (BERT at batch 1, 615 µs and not 533).
constexpr uint64_t kEarlyBlocks = 2;

}  // namespace

Launches::Launches(const Model &model, const Memory &memory, Plan &plan, bool early)
    : model_(model), device_(*model.device), unit_(plan.unit), launches_(Allocator<Launch>(memory)),
      parameters_(launches_.get_allocator()), launch_of_pointer_(launches_.get_allocator()),
      step_count_(static_cast<uint32_t>(plan.steps.size())) {
    const Artifact &a = model.artifact;
    const ProgramEntry &p = *plan.unit->entry;
    size_t count = 0;
    for (uint32_t i = 0; i < step_count_; ++i) {
        const StepEntry &step = a.steps[p.steps.first + i];
        count += step.arguments.count + step.dims.count + 2;
    }
    parameters_.reserve(count);
    launches_.reserve(step_count_);
    launch_of_pointer_.assign(plan.pointers.size(), kNone);
    bool follows_light = false;
    for (uint32_t i = 0; i < step_count_; ++i) {
        const StepEntry &step = a.steps[p.steps.first + i];
        const KernelEntry &kernel = a.kernels[p.kernels.first + step.kernel];
        const int64_t *grid = &plan.grids[3 * i];
        const uint64_t blocks = static_cast<uint64_t>(grid[0]) * static_cast<uint64_t>(grid[1]) * static_cast<uint64_t>(grid[2]);
        if (!blocks) continue;
        Launch launch{};
        launch.step = i;
        launch.node.function = device_.function(plan.unit->program, step.kernel);
        for (int axis = 0; axis < 3; ++axis) launch.node.grid[axis] = static_cast<unsigned>(grid[axis]);
        launch.node.block[0] = kernel.threads, launch.node.block[1] = launch.node.block[2] = 1;
        launch.node.shared_bytes = kernel.shared_bytes;
        launch.node.parameters = parameters_.data() + parameters_.size();
        void **buffers = plan.steps[i].buffers;
        for (uint32_t j = 0; j < step.arguments.count; ++j) {
            parameters_.push_back(buffers + j);
            launch_of_pointer_[static_cast<size_t>(buffers + j - plan.pointers.data())] = static_cast<uint32_t>(launches_.size());
        }
        // An integer of 32 bits is the lower half of the plan's, which the plan has checked.
        for (uint32_t j = 0; j < step.dims.count; ++j) parameters_.push_back(const_cast<int64_t *>(plan.steps[i].dims + j));
        parameters_.push_back(kernel.block_scratch_bytes ? &scratch_ : &nothing_);
        parameters_.push_back(&nothing_);
        const uint64_t few = kEarlyBlocks * static_cast<uint64_t>(device_.device.multiprocessors);
        const bool is_light = !(kernel.flags & kernel_flag::HEAVY) && blocks <= few;
        launch.repeats_early = early && device_.is_programmatic() && is_light;
        launch.is_programmatic = launch.repeats_early && follows_light;
        follows_light = is_light;
        launches_.push_back(launch);
    }
}

Launches::~Launches() {
    const Current current(device_.device);
    drop_graph();
}

void Launches::drop_graph() noexcept {
    // The driver frees a graph that still runs when it has ended.
    if (executable_) device_.device.driver.executable_destroy(executable_);
    if (graph_) device_.device.driver.graph_destroy(graph_);
    executable_ = nullptr;
    graph_ = nullptr;
}

void Launches::fail(Result code, const Launch &launch, const char *doing) const {
    const Artifact &a = model_.artifact;
    const StepEntry &step = a.steps[unit_->entry->steps.first + launch.step];
    const KernelEntry &kernel = a.kernels[unit_->entry->kernels.first + step.kernel];
    const uint32_t loc = step.locs.count ? static_cast<uint32_t>(a.integer(step.locs.first)) : 0;
    char where[160];
    snprintf(where, sizeof where, "kernel '%.60s' of %.80s", a.text(kernel.label),
             step.locs.count ? a.text(loc) : model_.name.c_str());
    throw driver_failure(device_.device.driver, code, where, doing);
}

void Launches::set(void **pointer, uint8_t *address, const Plan &plan) {
    if (*pointer == address) return;
    *pointer = address;
    const uint32_t launch = launch_of_pointer_[static_cast<size_t>(pointer - plan.pointers.data())];
    if (launch != kNone) launches_[launch].is_stale = true, is_stale_ = true;
}

void Launches::patch(Plan &plan, uint8_t *const *inputs, uint8_t *const *outputs, uint8_t *arena, Address scratch) {
    for (const Patch &p : plan.inputs) set(p.pointer, inputs[p.index] + p.offset_bytes, plan);
    for (const Patch &p : plan.outputs) set(p.pointer, outputs[p.index] + p.offset_bytes, plan);
    if (plan.arena_base != arena) {
        for (const Patch &p : plan.arena) set(p.pointer, arena + p.offset_bytes, plan);
        plan.arena_base = arena;
    }
    if (scratch_ != scratch) {
        scratch_ = scratch;
        for (Launch &launch : launches_) launch.is_stale = true;
        is_stale_ = true;
    }
}

void Launches::build() {
    if (executable_ || launches_.empty()) return;
    const Driver &driver = device_.device.driver;
    const char *where = model_.name.c_str();
    drop_graph();
    check(driver, driver.graph_create(&graph_, 0), where, "making a graph");
    try {
        Node before = nullptr;
        for (Launch &launch : launches_) {
            const bool starts_early = launch.is_programmatic && driver.graph_add_edges;
            const bool has_full_edge = before && !starts_early;
            const Result code = driver.graph_add_kernel(&launch.handle, graph_, has_full_edge ? &before : nullptr,
                                                        has_full_edge ? 1 : 0, &launch.node);
            if (code != result::OK) fail(code, launch, "putting it into a graph");
            if (starts_early) {
                const Edge edge{kProgrammatic, 0, kProgrammatic, {}};
                const Result edge_code = driver.graph_add_edges(graph_, &before, &launch.handle, &edge, 1);
                if (edge_code != result::OK) fail(edge_code, launch, "connecting it in a graph");
            }
            before = launch.handle;
            launch.is_stale = false;
        }
        char doing[80];
        snprintf(doing, sizeof doing, "instantiating a graph of %zu kernels", launches_.size());
        check(driver, driver.graph_instantiate(&executable_, graph_, 0), where, doing);
        is_stale_ = false;
    } catch (...) {
        drop_graph();
        throw;
    }
}

void Launches::launch_graph(Stream stream) {
    if (launches_.empty()) return;
    const Driver &driver = device_.device.driver;
    build();
    if (is_stale_) {
        for (Launch &launch : launches_) {
            if (!launch.is_stale) continue;
            const Result code = driver.executable_set_kernel(executable_, launch.handle, &launch.node);
            if (code != result::OK) fail(code, launch, "changing its addresses in a graph");
            launch.is_stale = false;
        }
        is_stale_ = false;
    }
    const Result code = driver.graph_launch(executable_, stream);
    if (code != result::OK) check(driver, code, model_.name.c_str(), "launching the graph of the model");
}

void Launches::launch_plain(Stream stream, bool programmatic, const Event *events) {
    const Driver &driver = device_.device.driver;
    uint32_t step = 0;
    auto record = [&](uint32_t until) {
        for (; events && step < until; ++step) {
            check(driver, driver.event_record(events[step], stream), model_.name.c_str(), "recording an event");
        }
    };
    for (Launch &launch : launches_) {
        record(launch.step + 1);
        launch_one(launch, stream, programmatic && launch.is_programmatic);
    }
    record(step_count_ + 1);
}

void Launches::launch_one(const Launch &launch, Stream stream, bool early) const {
    LaunchAttribute attribute{};
    attribute.id = kSerialization;
    attribute.value = 1;
    const KernelNode &node = launch.node;
    LaunchConfig config{{node.grid[0], node.grid[1], node.grid[2]},
                        {node.block[0], node.block[1], node.block[2]},
                        node.shared_bytes,
                        stream,
                        &attribute,
                        early ? 1u : 0u};
    const Result code = device_.device.driver.launch(&config, node.function, node.parameters, nullptr);
    if (code != result::OK) fail(code, launch, "launching it");
}

void Launches::launch_alone(Stream stream, uint32_t step) {
    for (const Launch &launch : launches_) {
        if (launch.step != step) continue;
        launch_one(launch, stream, false);
        const Result code = device_.device.driver.stream_synchronize(stream);
        if (code != result::OK) fail(code, launch, "running it");
    }
}

size_t Launches::held_bytes() const {
    return sizeof *this + launches_.capacity() * sizeof(Launch) + parameters_.capacity() * sizeof(void *) +
           launch_of_pointer_.capacity() * sizeof(uint32_t);
}

}  // namespace aot::cuda
