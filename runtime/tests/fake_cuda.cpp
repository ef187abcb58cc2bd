// A simulated CUDA driver for tests without a GPU: it has devices, memory and streams, checks every handle and the order
// of work, fails where it is told to, and runs kernels that it knows by name. Work is done at once, in the order of the
// calls; whether that order was promised is checked apart, by the knowledge that streams have of each other.
//
// A kernel's image is the text "FAKE <capability> <symbols>", or, as PTX, ".version <number> .target sm_<capability> <symbols>",
// of which a driver of CUDA 12.n knows the versions to 8.n and one of 13.n those to 9.n. Symbols begin with what they do:
// k_add(a, b, out, n) in f32, k_addscratch the same with scratch memory, k_copy(from, to, bytes with 64 bits).
// Or it is "FAKELIB <capability> <functions>", a line "<symbol> <inputs> <outputs> <dims>" for each, and a shared object
// whose functions the CPU backend made (aot_kernel_args): so models run whose kernels are made for tests.
#include "fake_cuda.h"

#include "fake_world.h"

extern "C" {

void fake_machine(int devices, int capability, int version, size_t bytes) {
    std::lock_guard<std::mutex> lock(world().mutex);
    World &w = world();
    w.devices = devices, w.capability = capability, w.version = version, w.limit = bytes;
    w.fail_after = -1, w.calls = 0, w.sticky = 0;
    w.counts.clear();
}

void fake_fail(long after, int code) {
    std::lock_guard<std::mutex> lock(world().mutex);
    world().calls = 0, world().fail_after = code ? after : -1, world().fail_code = code, world().sticky = 0, world().context_failed = false;
}

long fake_calls(void) {
    std::lock_guard<std::mutex> lock(world().mutex);
    return world().calls;
}

long fake_live(void) {
    std::lock_guard<std::mutex> lock(world().mutex);
    World &w = world();
    long contexts = 0;
    for (const FakeContext &context : w.contexts) contexts += context.holders;
    return contexts + static_cast<long>(w.pieces.size() + w.streams.size() + w.events.size() + w.modules.size() +
                                        w.graphs.size() + w.executables.size());
}

size_t fake_bytes(void) {
    std::lock_guard<std::mutex> lock(world().mutex);
    return world().used;
}

const char *fake_misuse(void) {
    std::lock_guard<std::mutex> lock(world().mutex);
    world().misuse_read.swap(world().misuse);
    world().misuse.clear();
    return world().misuse_read.c_str();
}

long fake_count(const char *what) {
    std::lock_guard<std::mutex> lock(world().mutex);
    return world().counts[what];
}

Result cuInit(unsigned) {
    BEGIN("cuInit");
    return w.devices ? 0 : result::NO_DEVICE;
}
Result cuDriverGetVersion(int *version) {
    BEGIN("cuDriverGetVersion");
    *version = w.version;
    return 0;
}
Result cuGetErrorName(Result code, const char **name) {
    *name = code == result::OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == result::ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_SOME";
    return 0;
}
Result cuGetErrorString(Result code, const char **text) {
    *text = code == result::ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "simulated";
    return 0;
}
Result cuDeviceGetCount(int *count) {
    BEGIN("cuDeviceGetCount");
    *count = w.devices;
    return 0;
}
Result cuDeviceGet(Ordinal *device, int ordinal) {
    BEGIN("cuDeviceGet");
    if (ordinal < 0 || ordinal >= w.devices) return 101;
    *device = ordinal;
    return 0;
}
Result cuDeviceGetName(char *name, int bytes, Ordinal) {
    BEGIN("cuDeviceGetName");
    snprintf(name, static_cast<size_t>(bytes), "Simulated GPU");
    return 0;
}
Result cuDeviceGetAttribute(int *value, int attribute, Ordinal device) {
    BEGIN("cuDeviceGetAttribute");
    if (device < 0 || device >= w.devices) return 101;
    *value = attribute == kCapabilityMajor ? w.capability / 10 : attribute == kCapabilityMinor ? w.capability % 10 : attribute == kMultiprocessors ? 4 : 0;
    return 0;
}
Result cuDevicePrimaryCtxRetain(Context *context, Ordinal device) {
    BEGIN("cuDevicePrimaryCtxRetain");
    if (device < 0 || device >= w.devices) return 101;
    w.contexts[device].device = device;
    ++w.contexts[device].holders;
    *context = reinterpret_cast<Context>(&w.contexts[device]);
    return 0;
}
Result cuDevicePrimaryCtxRelease_v2(Ordinal device) {
    ENTER("cuDevicePrimaryCtxRelease");
    if (--w.contexts[device].holders < 0) wrong("a context that is released too often");
    return failing;
}
Result cuCtxGetCurrent(Context *context) {
    BEGIN("cuCtxGetCurrent");
    *context = stack.empty() ? nullptr : reinterpret_cast<Context>(stack.back());
    return 0;
}
Result cuCtxPushCurrent_v2(Context context) {
    BEGIN("cuCtxPushCurrent");
    FakeContext *found = reinterpret_cast<FakeContext *>(context);
    if (found < w.contexts || found >= w.contexts + 8 || !found->holders) return result::INVALID_CONTEXT;
    stack.push_back(found);
    return 0;
}
Result cuCtxPopCurrent_v2(Context *context) {
    ENTER("cuCtxPopCurrent");
    if (stack.empty()) return wrong("a pop without a push"), result::INVALID_CONTEXT;
    *context = reinterpret_cast<Context>(stack.back());
    stack.pop_back();
    return failing;
}
Result cuCtxGetDevice(Ordinal *device) {
    BEGIN("cuCtxGetDevice");
    if (stack.empty()) return result::INVALID_CONTEXT;
    *device = stack.back()->device;
    return 0;
}
Result cuModuleLoadDataEx(Module *module, const void *image, unsigned count, const int *options, void *const *values) {
    BEGIN("cuModuleLoadDataEx");
    const char *text = static_cast<const char *>(image);
    if (reinterpret_cast<uintptr_t>(image) % 16) wrong("a misaligned image");
    int capability = 0, used = 0, major = 0, minor = 0, functions = 0;
    auto log = [&](const char *format, int first, int second) {
        for (unsigned i = 0; i + 1 < count; ++i) {
            if (options[i] != kJitErrorLog || options[i + 1] != kJitErrorLogBytes) continue;
            snprintf(static_cast<char *>(values[i]), reinterpret_cast<size_t>(values[i + 1]), format, first, second);
        }
    };
    if (sscanf(text, ".version %d.%d .target sm_%d %n", &major, &minor, &capability, &used) == 3) {
        if (10 * major + minor > 10 * (w.version / 1000 - 4) + w.version % 1000 / 10) {
            return log("ptxas fatal\nUnsupported .version %d.%d", major, minor), result::UNSUPPORTED_PTX;
        }
        if (capability > w.capability) return log("SM version sm_%d is above sm_%d", capability, w.capability), result::INVALID_PTX;
        ++w.counts["jit"];
    } else if (sscanf(text, "FAKELIB %d %d%n", &capability, &functions, &used) != 2 &&
               sscanf(text, "FAKE %d %n", &capability, &used) != 1) {
        return log("not an image", 0, 0), result::INVALID_IMAGE;
    } else if (capability / 10 != w.capability / 10 || capability > w.capability) {
        return result::NO_BINARY_FOR_GPU;
    }
    FakeContext *context = current();
    FakeModule *made = new FakeModule{context ? context->device : 0, {}};
    char symbol[64];
    if (functions) {
        if (!load_library(made, text + used + 1, functions)) {
            delete made;
            return log("no library", 0, 0), result::INVALID_IMAGE;
        }
    } else {
        for (const char *at = text + used; sscanf(at, "%63s %n", symbol, &used) == 1; at += used) made->symbols.insert(symbol);
    }
    w.modules.insert(made);
    *module = reinterpret_cast<Module>(made);
    return 0;
}
Result cuModuleUnload(Module module) {
    ENTER("cuModuleUnload");
    current();
    FakeModule *found = reinterpret_cast<FakeModule *>(module);
    if (!w.modules.erase(found)) return wrong("a module is unloaded twice"), result::INVALID_VALUE;
    for (size_t i = w.functions.size(); i-- > 0;) {
        if (w.functions[i]->module != found) continue;
        delete w.functions[i];
        w.functions.erase(w.functions.begin() + static_cast<long>(i));
    }
    if (found->library) dlclose(found->library);
    delete found;
    return failing;
}
Result cuModuleGetFunction(Function *function, Module module, const char *name) {
    BEGIN("cuModuleGetFunction");
    FakeModule *found = reinterpret_cast<FakeModule *>(module);
    if (!w.modules.count(found)) return wrong("a module that does not live"), result::INVALID_VALUE;
    if (!found->symbols.count(name)) return 500;
    w.functions.push_back(new FakeFunction{found, name});
    if (found->host.count(name)) w.functions.back()->host = found->host[name];
    *function = reinterpret_cast<Function>(w.functions.back());
    return 0;
}
Result cuFuncSetAttribute(Function function, int attribute, int value) {
    BEGIN("cuFuncSetAttribute");
    FakeFunction *found = function_of(function);
    if (!found || attribute != kDynamicShared || value > (228 << 10)) return result::INVALID_VALUE;
    found->shared_limit = value;
    return 0;
}
Result cuFuncLoad(Function function) {
    BEGIN("cuFuncLoad");
    return function_of(function) ? 0 : result::INVALID_VALUE;
}
Result cuMemAlloc_v2(Address *address, size_t bytes) {
    BEGIN("cuMemAlloc");
    FakeContext *context = current();
    if (!bytes) return result::INVALID_VALUE;
    for (FakeStream *stream : w.streams) {
        if (stream->capturing && capture_mode != kCaptureRelaxed) return result::CAPTURE_FIRST;
    }
    if (w.used + bytes > w.limit) return result::OUT_OF_MEMORY;
    void *made = nullptr;
    if (posix_memalign(&made, 256, bytes)) return result::OUT_OF_MEMORY;
    memset(made, 0xff, bytes);  // so that what was not written shows
    w.used += bytes;
    *address = reinterpret_cast<Address>(made);
    w.pieces[*address] = Piece{bytes, context ? context->device : 0, {}, {}};
    return 0;
}
Result cuMemFree_v2(Address address) {
    ENTER("cuMemFree");
    current();
    auto found = w.pieces.find(address);
    if (found == w.pieces.end()) return wrong("memory is freed twice"), result::INVALID_VALUE;
    w.used -= found->second.bytes;
    w.pieces.erase(found);
    free(reinterpret_cast<void *>(address));
    if (w.pieces.empty() && w.streams.empty()) {  // nothing is left to know of
        w.host.clear(), w.null_stream.knows.clear();
        for (FakeStream *stream : w.ended) delete stream;
        w.ended.clear();
    }
    return failing;
}
Result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    BEGIN("cuMemGetInfo");
    *free_bytes = w.limit - w.used, *total_bytes = w.limit;
    return 0;
}
Result cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) {
    BEGIN("cuMemcpyHtoD");
    current();
    w.counts["copy_in"] += static_cast<long>(bytes);
    copy(&w.null_stream, reinterpret_cast<void *>(to), from, bytes, true, false);
    learn(w.host, w.null_stream.knows);
    return 0;
}
Result cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) {
    BEGIN("cuMemcpyDtoH");
    current();
    copy(&w.null_stream, to, reinterpret_cast<void *>(from), bytes, false, true);
    learn(w.host, w.null_stream.knows);
    return 0;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Stream stream) {
    BEGIN("cuMemcpyHtoDAsync");
    current();
    w.counts["copy_in"] += static_cast<long>(bytes);
    copy(stream_of(stream), reinterpret_cast<void *>(to), from, bytes, true, false);
    return 0;
}
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Stream stream) {
    BEGIN("cuMemcpyDtoHAsync");
    current();
    w.counts["copy_out"] += static_cast<long>(bytes);
    copy(stream_of(stream), to, reinterpret_cast<void *>(from), bytes, false, true);
    return 0;
}
Result cuMemcpyAsync(Address to, Address from, size_t bytes, Stream stream) {
    BEGIN("cuMemcpyAsync");
    current();
    void *target = reinterpret_cast<void *>(to), *source = reinterpret_cast<void *>(from);
    copy(stream_of(stream), target, source, bytes, is_device(target), is_device(source));
    return 0;
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Stream stream) {
    BEGIN("cuMemsetD8Async");
    current();
    w.counts["set_bytes"] += static_cast<long>(bytes);
    const std::vector<unsigned char> values(bytes, value);
    copy(stream_of(stream), reinterpret_cast<void *>(to), values.data(), bytes, true, false);
    return 0;
}
Result cuPointerGetAttributes(unsigned count, const int *attributes, void *const *values, Address pointer) {
    BEGIN("cuPointerGetAttributes");
    auto above = w.pieces.upper_bound(pointer);
    const Piece *piece = nullptr;
    if (above != w.pieces.begin() && pointer < std::prev(above)->first + std::prev(above)->second.bytes) piece = &std::prev(above)->second;
    for (unsigned i = 0; i < count; ++i) {
        const int value = !piece ? (attributes[i] == kDeviceOrdinal ? -2 : 0)
                          : attributes[i] == kMemoryType ? kDeviceMemory : attributes[i] == kDeviceOrdinal ? piece->device : 0;
        memcpy(values[i], &value, sizeof value);
    }
    return 0;
}
Result cuStreamCreate(Stream *stream, unsigned flags) {
    BEGIN("cuStreamCreate");
    FakeContext *context = current();
    FakeStream *made = new FakeStream;
    made->blocking = !(flags & kNonBlocking);
    made->device = context ? context->device : 0;
    w.streams.insert(made);
    *stream = reinterpret_cast<Stream>(made);
    return 0;
}
Result cuStreamDestroy_v2(Stream stream) {
    ENTER("cuStreamDestroy");
    FakeStream *found = stream_of(stream);
    if (found && found != &w.null_stream) {
        w.streams.erase(found);
        w.ended.push_back(found);
        for (FakeNode *node : found->captured) delete node;
        found->captured.clear();
    }
    return failing;
}
Result cuStreamSynchronize(Stream stream) {
    BEGIN("cuStreamSynchronize");
    ++w.counts["wait"];
    FakeStream *found = stream_of(stream);
    if (found && found->capturing) return result::CAPTURE_FIRST;
    if (found) step(found), learn(w.host, found->knows);
    return 0;
}
Result cuStreamWaitEvent(Stream stream, Event event, unsigned) {
    BEGIN("cuStreamWaitEvent");
    FakeStream *found = stream_of(stream);
    if (!w.events.count(event)) return wrong("an event that does not live"), result::INVALID_VALUE;
    if (found && found->capturing) return result::CAPTURE_FIRST + 5;
    if (found) learn(found->knows, w.events[event]);
    return 0;
}
Result cuStreamIsCapturing(Stream stream, int *status) {
    BEGIN("cuStreamIsCapturing");
    FakeStream *found = stream_of(stream);
    *status = found && found->capturing;
    return found ? 0 : result::INVALID_VALUE;
}
Result cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER("cuThreadExchangeStreamCaptureMode");
    if (failing && *mode == kCaptureRelaxed) return failing;
    std::swap(*mode, capture_mode);
    return failing;
}
Result cuStreamBeginCapture_v2(Stream stream, int) {
    BEGIN("cuStreamBeginCapture");
    stream_of(stream)->capturing = true;
    return 0;
}
Result cuStreamEndCapture(Stream stream, Graph *graph) {
    BEGIN("cuStreamEndCapture");
    FakeStream *found = stream_of(stream);
    found->capturing = false;
    FakeGraph *made = new FakeGraph{std::move(found->captured)};
    found->captured.clear();
    w.graphs.insert(made);
    *graph = reinterpret_cast<Graph>(made);
    return 0;
}
Result cuEventCreate(Event *event, unsigned) {
    BEGIN("cuEventCreate");
    current();
    char *made = new char;
    w.events[made] = {};
    *event = reinterpret_cast<Event>(made);
    return 0;
}
Result cuEventDestroy_v2(Event event) {
    ENTER("cuEventDestroy");
    if (!w.events.erase(event)) return wrong("an event is destroyed twice"), result::INVALID_VALUE;
    delete reinterpret_cast<char *>(event);
    return failing;
}
Result cuEventRecord(Event event, Stream stream) {
    BEGIN("cuEventRecord");
    if (!w.events.count(event)) return wrong("an event that does not live"), result::INVALID_VALUE;
    FakeStream *found = stream_of(stream);
    if (found) step(found), w.events[event] = found->knows;
    return 0;
}
Result cuEventQuery(Event event) {
    BEGIN("cuEventQuery");
    for (const auto &[stream, done] : w.events[event]) {
        auto seen = w.host.find(stream);
        if (seen == w.host.end() || seen->second < done) return result::NOT_READY;
    }
    return 0;
}
Result cuEventSynchronize(Event event) {
    BEGIN("cuEventSynchronize");
    if (!w.events.count(event)) return wrong("an event that does not live"), result::INVALID_VALUE;
    learn(w.host, w.events[event]);
    return 0;
}
Result cuEventElapsedTime(float *milliseconds, Event, Event) {
    BEGIN("cuEventElapsedTime");
    *milliseconds = 0.5f;
    return 0;
}
Result cuLaunchKernelEx(const LaunchConfig *config, Function function, void **parameters, void **) {
    BEGIN("cuLaunchKernelEx");
    current();
    FakeFunction *found = function_of(function);
    FakeStream *stream = stream_of(config->stream);
    if (!found || !stream) return result::INVALID_VALUE;
    FakeNode *node = new FakeNode{};
    node->kernel.function = function;
    memcpy(node->kernel.grid, config->grid, sizeof config->grid);
    memcpy(node->kernel.block, config->block, sizeof config->block);
    node->kernel.shared_bytes = config->shared_bytes;
    node->kernel.parameters = parameters;
    take_values(*node, *found);
    if (config->attribute_count) ++w.counts["early"];
    if (stream->capturing) {
        ++w.counts["captured"];
        if (!stream->captured.empty()) node->before.push_back(stream->captured.back());
        stream->captured.push_back(node);
        return 0;
    }
    step(stream);
    execute(*node, stream);
    delete node;
    return 0;
}
Result cuGraphCreate(Graph *graph, unsigned) {
    BEGIN("cuGraphCreate");
    FakeGraph *made = new FakeGraph;
    w.graphs.insert(made);
    *graph = reinterpret_cast<Graph>(made);
    return 0;
}
Result cuGraphDestroy(Graph graph) {
    ENTER("cuGraphDestroy");
    FakeGraph *found = reinterpret_cast<FakeGraph *>(graph);
    if (!w.graphs.erase(found)) return wrong("a graph is destroyed twice"), result::INVALID_VALUE;
    drop(found);
    return failing;
}
Result cuGraphAddKernelNode_v2(Node *node, Graph graph, const Node *before, size_t count, const KernelNode *kernel) {
    BEGIN("cuGraphAddKernelNode");
    FakeGraph *found = reinterpret_cast<FakeGraph *>(graph);
    FakeFunction *function = function_of(kernel->function);
    if (!w.graphs.count(found) || !function) return wrong("a graph or kernel that does not live"), result::INVALID_VALUE;
    FakeNode *made = new FakeNode{*kernel, {}, {}};
    take_values(*made, *function);
    for (size_t i = 0; i < count; ++i) made->before.push_back(reinterpret_cast<FakeNode *>(before[i]));
    found->nodes.push_back(made);
    *node = reinterpret_cast<Node>(made);
    return 0;
}
Result cuGraphAddDependencies_v2(Graph, const Node *from, const Node *to, const Edge *edges, size_t count) {
    BEGIN("cuGraphAddDependencies");
    for (size_t i = 0; i < count; ++i) {
        reinterpret_cast<FakeNode *>(to[i])->before.push_back(reinterpret_cast<FakeNode *>(from[i]));
        if (edges && edges[i].type != edges[i].from_port) wrong("an edge of a kind that does not exist");
        if (edges && edges[i].type == kProgrammatic) ++w.counts["early"];
    }
    return 0;
}
Result cuGraphInstantiateWithFlags(Executable *executable, Graph graph, unsigned long long) {
    BEGIN("cuGraphInstantiate");
    FakeGraph *found = reinterpret_cast<FakeGraph *>(graph);
    if (!w.graphs.count(found)) return wrong("a graph that does not live"), result::INVALID_VALUE;
    ++w.counts["instantiate"];
    FakeGraph *made = new FakeGraph;
    std::map<FakeNode *, FakeNode *> twin;
    for (FakeNode *node : found->nodes) {
        made->nodes.push_back(twin[node] = new FakeNode(*node));
        made->nodes.back()->kernel.extra = reinterpret_cast<void **>(node);  // which it is a copy of
        for (FakeNode *&before : made->nodes.back()->before) before = twin[before];
    }
    w.executables.insert(made);
    *executable = reinterpret_cast<Executable>(made);
    return 0;
}
Result cuGraphExecDestroy(Executable executable) {
    ENTER("cuGraphExecDestroy");
    FakeGraph *found = reinterpret_cast<FakeGraph *>(executable);
    if (!w.executables.erase(found)) return wrong("an executable is destroyed twice"), result::INVALID_VALUE;
    drop(found);
    return failing;
}
Result cuGraphExecKernelNodeSetParams_v2(Executable executable, Node node, const KernelNode *kernel) {
    BEGIN("cuGraphExecKernelNodeSetParams");
    FakeGraph *found = reinterpret_cast<FakeGraph *>(executable);
    if (!w.executables.count(found)) return wrong("an executable that does not live"), result::INVALID_VALUE;
    for (FakeNode *each : found->nodes) {
        if (each->kernel.extra != reinterpret_cast<void **>(node)) continue;
        ++w.counts["set"];
        each->kernel = *kernel;
        each->kernel.extra = reinterpret_cast<void **>(node);
        take_values(*each, *function_of(kernel->function));
        return 0;
    }
    return wrong("a node of another graph"), result::INVALID_VALUE;
}
Result cuGraphLaunch(Executable executable, Stream stream) {
    BEGIN("cuGraphLaunch");
    current();
    FakeGraph *found = reinterpret_cast<FakeGraph *>(executable);
    FakeStream *queue = stream_of(stream);
    if (!w.executables.count(found) || !queue) return wrong("an executable that does not live"), result::INVALID_VALUE;
    if (queue->capturing) return result::CAPTURE_FIRST;
    ++w.counts["graph_launch"];
    check_order(*found);
    step(queue);
    for (const FakeNode *node : found->nodes) execute(*node, queue);
    return 0;
}

}  // extern "C"
