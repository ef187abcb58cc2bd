// The state of the simulated driver, what it checks, and how it runs kernels. Part of fake_cuda.cpp alone.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "aot/runtime.h"
#include "cuda/driver.h"

using namespace aot::cuda;

namespace {

// How far the work of each stream is known to be done. Stream 0 is the default one, which waits for the others.
using Knowledge = std::map<const void *, long>;

void learn(Knowledge &to, const Knowledge &from) {
    for (const auto &[stream, step] : from) to[stream] = std::max(to[stream], step);
}

struct Access {
    const void *stream;
    long step;
};

struct Piece {
    size_t bytes;
    int device;
    std::vector<Access> reads;
    Access write{nullptr, 0};
};

struct FakeStream {
    bool blocking = true;
    int device = 0;
    long step = 0;
    Knowledge knows;
    std::vector<struct FakeNode *> captured;
    bool capturing = false;
};

struct FakeNode {
    KernelNode kernel;
    std::vector<std::vector<uint8_t>> values;  // of the parameters
    std::vector<FakeNode *> before;
};

// A function of a shared object: its pointers are first those that it reads, then those that it writes.
struct HostFunction {
    size_t inputs = 0, outputs = 0, dims = 0;
    void (*code)(const aot_kernel_args *) = nullptr;
    size_t arguments() const { return inputs + outputs + dims + 2; }
};

struct FakeModule {
    int device;
    std::set<std::string> symbols;
    std::map<std::string, HostFunction> host;
    void *library = nullptr;
};

struct FakeFunction {
    FakeModule *module;
    std::string symbol;
    int shared_limit = 48 << 10;
    HostFunction host{};
};

struct FakeGraph {
    std::vector<FakeNode *> nodes;
};

struct FakeContext {
    int device = 0;
    int holders = 0;
};

struct World {
    std::mutex mutex;
    int devices = 1, capability = 90, version = 13000;
    size_t limit = size_t{1} << 30, used = 0;
    long calls = 0, fail_after = -1;
    int fail_code = 0, sticky = 0;
    bool context_failed = false;  // then there may be no current one where there should be
    std::string misuse, misuse_read;
    std::map<std::string, long> counts;
    FakeContext contexts[8];
    std::map<Address, Piece> pieces;
    std::set<FakeStream *> streams;
    std::vector<FakeStream *> ended;  // what is known of them stays true
    FakeStream null_stream;
    std::map<void *, Knowledge> events;
    std::set<FakeModule *> modules;
    std::vector<FakeFunction *> functions;
    std::set<FakeGraph *> graphs, executables;
    Knowledge host;
};

World &world() {
    static World *const made = new World;
    return *made;
}

thread_local std::vector<FakeContext *> stack;
thread_local int capture_mode = 0;

void wrong(const char *format, ...) {
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (world().misuse.empty()) world().misuse = text;
}

// Counts a call; the code that it must fail with, or 0.
Result call(const char *name) {
    World &w = world();
    const long number = w.calls++;
    const bool failing = w.sticky || (w.fail_after >= 0 && number == w.fail_after);
    if (failing && strncmp(name, "cuCtx", 5) == 0) w.context_failed = true;
    if (w.sticky) return w.sticky;
    if (w.fail_after < 0 || number != w.fail_after) return 0;
    if (w.fail_code >= 700 && w.fail_code < 800) w.sticky = w.fail_code;
    return w.fail_code;
}

#define ENTER(name)                                      \
    std::lock_guard<std::mutex> lock_(world().mutex);    \
    World &w = world();                                  \
    (void)w;                                             \
    const Result failing = call(name)
#define BEGIN(name) \
    ENTER(name);    \
    if (failing) return failing

FakeContext *current() {
    if (stack.empty()) {
        if (!world().context_failed) wrong("a call without a current context");
        return nullptr;
    }
    if (!stack.back()->holders) wrong("a call in a context that was released");
    return stack.back();
}

FakeStream *stream_of(Stream handle) {
    World &w = world();
    if (!handle || reinterpret_cast<uintptr_t>(handle) <= 2) return &w.null_stream;
    FakeStream *found = reinterpret_cast<FakeStream *>(handle);
    if (w.streams.count(found)) return found;
    wrong("a stream that does not live");
    return nullptr;
}

// The stream takes up another piece of work, which knows what the host and the default stream know.
void step(FakeStream *stream) {
    World &w = world();
    learn(stream->knows, w.host);
    if (stream == &w.null_stream) {
        for (FakeStream *other : w.streams) {
            if (other->blocking) learn(stream->knows, other->knows);
        }
    } else if (stream->blocking) {
        learn(stream->knows, w.null_stream.knows);
    }
    stream->knows[stream] = ++stream->step;
}

bool known(FakeStream *stream, const Access &access) {
    if (!access.step || access.stream == stream) return true;
    auto found = stream->knows.find(access.stream);
    return found != stream->knows.end() && found->second >= access.step;
}

Piece *piece_of(Address address, size_t bytes, const char *what) {
    World &w = world();
    auto above = w.pieces.upper_bound(address);
    if (above != w.pieces.begin()) {
        --above;
        if (address >= above->first && address + bytes <= above->first + above->second.bytes) return &above->second;
    }
    if (bytes) wrong("%s outside of device memory: %zu bytes at %llx", what, bytes, address);
    return nullptr;
}

void touch(FakeStream *stream, Address address, size_t bytes, bool writes, const char *what) {
    Piece *piece = bytes ? piece_of(address, bytes, what) : nullptr;
    if (!piece) return;
    if (!known(stream, piece->write)) wrong("%s: not ordered behind a write on another stream", what);
    for (const Access &read : piece->reads) {
        if (writes && !known(stream, read)) wrong("%s: not ordered behind a read on another stream", what);
    }
    if (writes) piece->write = {stream, stream->step}, piece->reads.clear();
    else piece->reads.push_back({stream, stream->step});
    if (piece->reads.size() > 64) piece->reads.erase(piece->reads.begin());
}

FakeFunction *function_of(Function handle) {
    FakeFunction *found = reinterpret_cast<FakeFunction *>(handle);
    for (FakeFunction *each : world().functions) {
        if (each == found && world().modules.count(each->module)) return found;
    }
    wrong("a kernel whose module does not live");
    return nullptr;
}

struct Range {
    Address address;
    size_t bytes;
    bool writes;
};

template <class T> T value_of(const FakeNode &node, size_t index) {
    T value{};
    if (index < node.values.size()) memcpy(&value, node.values[index].data(), sizeof value);
    return value;
}

bool is_copy(const FakeFunction &function) { return function.symbol.compare(0, 6, "k_copy") == 0; }

void take_values(FakeNode &node, const FakeFunction &function) {
    node.values.clear();
    const bool copy = is_copy(function);
    const size_t count = function.host.code ? function.host.arguments() : copy ? 5 : 6;
    for (size_t i = 0; i < count; ++i) {
        const size_t bytes = !function.host.code && !copy && i == 3 ? 4 : 8;
        const uint8_t *from = static_cast<const uint8_t *>(node.kernel.parameters[i]);
        node.values.emplace_back(from, from + bytes);
    }
}

// Of a function of a shared object, all that lies behind a pointer in its piece of memory; NULL, or its end, is for nothing.
std::vector<Range> ranges_of(const FakeNode &node, const FakeFunction &function) {
    if (function.host.code) {
        std::vector<Range> ranges;
        for (size_t i = 0; i < function.host.inputs + function.host.outputs; ++i) {
            const Address address = value_of<Address>(node, i);
            auto above = world().pieces.upper_bound(address);
            const Address end = above == world().pieces.begin() ? 0 : std::prev(above)->first + std::prev(above)->second.bytes;
            const size_t bytes = !address ? 0 : address <= end ? end - address : 1;
            ranges.push_back({address, bytes, i >= function.host.inputs});
        }
        return ranges;
    }
    if (is_copy(function)) {
        const size_t bytes = static_cast<size_t>(value_of<int64_t>(node, 2));
        return {{value_of<Address>(node, 0), bytes, false}, {value_of<Address>(node, 1), bytes, true}};
    }
    const size_t bytes = 4 * static_cast<size_t>(value_of<int32_t>(node, 3));
    std::vector<Range> ranges{{value_of<Address>(node, 0), bytes, false},
                              {value_of<Address>(node, 1), bytes, false},
                              {value_of<Address>(node, 2), bytes, true}};
    if (function.symbol.compare(0, 12, "k_addscratch") == 0) {
        ranges.push_back({value_of<Address>(node, 4), size_t{128} * node.kernel.grid[0], true});
    } else if (value_of<Address>(node, 4)) {
        wrong("scratch memory for a kernel without");
    }
    if (value_of<Address>(node, 5)) wrong("profile scratch");
    return ranges;
}

bool check_kernel(const FakeNode &node, FakeFunction *function) {
    const KernelNode &k = node.kernel;
    if (!function) return false;
    if (!k.grid[0] || !k.grid[1] || !k.grid[2]) wrong("a grid without blocks");
    if (k.block[0] != 128 || k.block[1] != 1 || k.block[2] != 1) wrong("%u threads instead of 128", k.block[0]);
    if (k.shared_bytes > static_cast<unsigned>(function->shared_limit)) wrong("more shared memory than was asked for");
    return true;
}

void execute(const FakeNode &node, FakeStream *stream) {
    FakeFunction *function = function_of(node.kernel.function);
    if (!check_kernel(node, function)) return;
    ++world().counts["launch"];
    bool inside = true;
    for (const Range &range : ranges_of(node, *function)) {
        if (range.bytes && !piece_of(range.address, range.bytes, function->symbol.c_str())) inside = false;
        touch(stream, range.address, range.bytes, range.writes, function->symbol.c_str());
    }
    if (!inside) return;
    if (function->host.code) {
        static std::vector<uint8_t> scratch(size_t{8} << 20);
        const HostFunction &host = function->host;
        std::vector<void *> buffers;
        std::vector<int64_t> dims;
        for (size_t i = 0; i < host.inputs + host.outputs; ++i) buffers.push_back(value_of<void *>(node, i));
        for (size_t i = 0; i < host.dims; ++i) dims.push_back(value_of<int64_t>(node, host.inputs + host.outputs + i));
        uint8_t *const aligned = scratch.data() + (-reinterpret_cast<uintptr_t>(scratch.data()) & 127);
        const aot_kernel_args arguments{buffers.data(), dims.data(), aligned, 0, 1};
        return host.code(&arguments);
    }
    if (is_copy(*function)) {
        memmove(reinterpret_cast<void *>(value_of<Address>(node, 1)), reinterpret_cast<void *>(value_of<Address>(node, 0)),
                static_cast<size_t>(value_of<int64_t>(node, 2)));
        return;
    }
    const float *a = reinterpret_cast<float *>(value_of<Address>(node, 0)), *b = reinterpret_cast<float *>(value_of<Address>(node, 1));
    float *out = reinterpret_cast<float *>(value_of<Address>(node, 2));
    for (int32_t i = 0; i < value_of<int32_t>(node, 3); ++i) out[i] = a[i] + b[i];
}

bool overlap(const Range &a, const Range &b) {
    return (a.writes || b.writes) && a.address < b.address + b.bytes && b.address < a.address + a.bytes;
}

// Nodes that are not ordered by edges must not touch the same bytes, unless both read.
void check_order(const FakeGraph &graph) {
    std::map<const FakeNode *, std::set<const FakeNode *>> behind;
    for (const FakeNode *node : graph.nodes) {
        for (const FakeNode *before : node->before) {
            behind[node].insert(before);
            behind[node].insert(behind[before].begin(), behind[before].end());
        }
    }
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
            if (behind[graph.nodes[i]].count(graph.nodes[j])) continue;
            const FakeFunction *first = function_of(graph.nodes[i]->kernel.function), *second = function_of(graph.nodes[j]->kernel.function);
            if (!first || !second) continue;
            for (const Range &a : ranges_of(*graph.nodes[i], *first)) {
                for (const Range &b : ranges_of(*graph.nodes[j], *second)) {
                    if (overlap(a, b)) wrong("kernels %s and %s are not ordered and overlap", first->symbol.c_str(), second->symbol.c_str());
                }
            }
        }
    }
}

void drop(FakeGraph *graph) {
    for (FakeNode *node : graph->nodes) delete node;
    delete graph;
}

void copy(FakeStream *stream, void *to, const void *from, size_t bytes, bool to_device, bool from_device) {
    if (!stream) return;
    step(stream);
    if (to_device) touch(stream, reinterpret_cast<Address>(to), bytes, true, "a copy");
    if (from_device) touch(stream, reinterpret_cast<Address>(from), bytes, false, "a copy");
    if (to_device && !piece_of(reinterpret_cast<Address>(to), bytes, "a copy")) return;
    if (from_device && !piece_of(reinterpret_cast<Address>(from), bytes, "a copy")) return;
    memmove(to, from, bytes);
}

// Loads what follows "FAKELIB <capability> <functions>\n" in an image; false where it is no such thing.
bool load_library(FakeModule *module, const char *text, int functions) {
    for (int i = 0; i < functions; ++i) {
        char symbol[80];
        HostFunction found;
        int used = 0;
        if (sscanf(text, "%79s %zu %zu %zu%n", symbol, &found.inputs, &found.outputs, &found.dims, &used) != 4) return false;
        text += used + 1;
        module->symbols.insert(symbol);
        module->host[symbol] = found;
    }
    size_t bytes = 0;
    int used = 0;
    if (sscanf(text, "%zu%n", &bytes, &used) != 1) return false;
    char path[] = "/tmp/fake_cuda_XXXXXX";  // dlopen knows files by their names, so each needs one of its own
    const int file = mkstemp(path);
    const bool written = write(file, text + used + 1, bytes) == static_cast<ssize_t>(bytes);
    close(file);
    module->library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    unlink(path);
    for (auto &[symbol, function] : module->host) {
        void *const code = module->library ? dlsym(module->library, symbol.c_str()) : nullptr;
        if (!code) return false;
        function.code = reinterpret_cast<void (*)(const aot_kernel_args *)>(code);
    }
    return true;
}

bool is_device(const void *pointer) {
    auto above = world().pieces.upper_bound(reinterpret_cast<Address>(pointer));
    if (above == world().pieces.begin()) return false;
    --above;
    return reinterpret_cast<Address>(pointer) < above->first + above->second.bytes;
}

}  // namespace
