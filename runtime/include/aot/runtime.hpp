// C++17 over aot/runtime.h: handles that free themselves, failures as exceptions, shapes as vectors. Header-only.
//
// Model and Pool are cheap to copy: copies share one handle, and a Session keeps both alive. What aot/runtime.h says of
// threads holds: a Model for any number of threads, a Session for one at a time.
#ifndef AOT_RUNTIME_HPP
#define AOT_RUNTIME_HPP

#include <aot/runtime.h>

#include <array>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace aot {
inline namespace cpp1 {

// A failed call, in the names of the user's model.
class Error : public std::runtime_error {
public:
    Error(int32_t status, std::string where, std::string message, std::string hint, int32_t reason = AOT_REASON_NONE)
        : std::runtime_error((where.empty() ? "" : where + ": ") + message + (hint.empty() ? "" : "\n  hint: " + hint)),
          status_(status), reason_(reason), where_(std::move(where)), message_(std::move(message)), hint_(std::move(hint)) {}
    explicit Error(const aot_error &error) : Error(error.status, error.where, error.message, error.hint, error.reason) {}

    int32_t status() const noexcept { return status_; }  // an aot_status
    int32_t reason() const noexcept { return reason_; }  // an aot_reason
    int32_t advice() const noexcept { return aot_status_advice(status_, reason_); }  // an aot_advice
    const std::string &where() const noexcept { return where_; }
    const std::string &message() const noexcept { return message_; }
    const std::string &hint() const noexcept { return hint_; }

private:
    int32_t status_, reason_;
    std::string where_, message_, hint_;
};

namespace detail {

template <class T> T sized() {
    T result{};
    result.struct_size = sizeof(T);
    return result;
}

// Calls f(&error) and throws what it reports.
template <class F> void check(F &&f) {
    aot_error error = sized<aot_error>();
    if (f(&error) != AOT_OK) throw Error(error);
}

inline void check_index(int32_t status) {
    if (status != AOT_OK) throw Error(AOT_ERROR_ARGUMENT, "", "there is no such index, or nothing was run", "");
}

inline const char *text_or_null(const std::string &text) { return text.empty() ? nullptr : text.c_str(); }

template <class T> constexpr uint8_t dtype_code() {
    static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8, "name other element types by their DLPack code and bits");
    return std::is_same_v<T, bool> ? 6 : std::is_floating_point_v<T> ? 2 : std::is_signed_v<T> ? 0 : 1;
}

}  // namespace detail

// Memory of the caller with a type and a shape; row-major. Owns the shape, borrows the data.
class Tensor {
public:
    // Of constant memory: for inputs and weights.
    template <class T> Tensor(const T *data, std::vector<int64_t> shape)
        : Tensor(const_cast<T *>(data), detail::dtype_code<T>(), sizeof(T) * 8, std::move(shape)) {
        writable_ = false;
    }
    template <class T> Tensor(T *data, std::vector<int64_t> shape)
        : Tensor(data, detail::dtype_code<T>(), sizeof(T) * 8, std::move(shape)) {}
    // Any element type: `code` and `bits` as in aot_tensor.
    Tensor(void *data, uint8_t code, uint8_t bits, std::vector<int64_t> shape)
        : data_(data), code_(code), bits_(bits), shape_(std::move(shape)) {}

    // The same, of data that lies in the memory of a GPU.
    Tensor on_device(int32_t ordinal = 0) const {
        Tensor moved = *this;
        moved.device_ = ordinal;
        return moved;
    }

    const std::vector<int64_t> &shape() const noexcept { return shape_; }
    bool writable() const noexcept { return writable_; }

    // As the C functions take it; points into this object.
    aot_tensor c_tensor() const noexcept {
        aot_tensor tensor{};
        tensor.data = data_;
        tensor.device_type = device_ < 0 ? 1 : 2;
        tensor.device_id = device_ < 0 ? 0 : device_;
        tensor.rank = static_cast<int32_t>(shape_.size());
        tensor.dtype_code = code_;
        tensor.dtype_bits = bits_;
        tensor.dtype_lanes = 1;
        tensor.shape = shape_.data();
        return tensor;
    }

private:
    void *data_;
    uint8_t code_, bits_;
    bool writable_ = true;
    int32_t device_ = -1;  // -1: host memory
    std::vector<int64_t> shape_;
};

// An output of the last run: borrowed until the session is used again.
class Output {
public:
    explicit Output(const aot_tensor &tensor) : tensor_(tensor) {}

    std::vector<int64_t> shape() const { return {tensor_.shape, tensor_.shape + tensor_.rank}; }
    int64_t size() const noexcept {
        int64_t elements = 1;
        for (int32_t axis = 0; axis < tensor_.rank; ++axis) elements *= tensor_.shape[axis];
        return elements;
    }
    // Whether the elements are in a GPU's memory: then they are not to be looked at from here.
    bool on_device() const noexcept { return tensor_.device_type == 2; }
    // The elements; throws Error where T is not their type.
    template <class T> const T *data() const {
        if (tensor_.dtype_code != detail::dtype_code<T>() || tensor_.dtype_bits != sizeof(T) * 8) {
            throw Error(AOT_ERROR_ARGUMENT, "", "the output has elements of another type", "See Model::outputs().");
        }
        return reinterpret_cast<const T *>(static_cast<const char *>(tensor_.data) + tensor_.byte_offset);
    }
    const aot_tensor &c_tensor() const noexcept { return tensor_; }

private:
    aot_tensor tensor_;
};

// An extent: its text, such as "batch", and its value where it is the same in every run.
struct Dim {
    std::string text;
    std::optional<int64_t> value;
};

// An input or output of a model.
struct Port {
    std::string name, dtype;
    std::vector<Dim> shape;
};

// A named extent that varies: lo to hi (inclusive; none: no bound), multiples of divisor.
struct Symbol {
    std::string name;
    int64_t lo;
    std::optional<int64_t> hi;
    int64_t divisor;
};

// As aot_state_info.
struct State {
    uint32_t input;
    uint32_t output;
    bool has_initial;
};

// As aot_load_options. `weights` are borrowed for the call.
struct LoadOptions {
    std::string target;  // empty: what fits this machine best
    bool map_weights = false;
    bool any_weights = false;
    bool own_weights = false;                              // share none with other models of the process
    std::vector<std::array<uint8_t, 32>> trusted_keys;     // raw Ed25519 public keys; empty: any artifact is loaded
    std::vector<std::pair<std::string, Tensor>> weights;
    std::string weights_path;         // empty: beside the artifact
    std::string temporary_directory;  // empty: none
    const aot_allocator *allocator = nullptr;
    int32_t device = 0;       // of programs that run on a GPU
    void *context = nullptr;  // a CUcontext; NULL: the device's primary one
};

// A loaded artifact.
class Model {
public:
    explicit Model(const std::string &path, const LoadOptions &options = {}) {
        load(options, [&](const aot_load_options *given, aot_model **out, aot_error *error) {
            return aot_model_load_file(path.c_str(), given, out, error);
        });
    }
    Model(const void *bytes, size_t size, const LoadOptions &options = {}) {
        load(options, [&](const aot_load_options *given, aot_model **out, aot_error *error) {
            return aot_model_load_memory(bytes, size, given, out, error);
        });
    }

    std::vector<Port> inputs() const {
        return ports(aot_model_input_count(handle()), aot_model_input, aot_model_input_dim);
    }
    std::vector<Port> outputs() const {
        return ports(aot_model_output_count(handle()), aot_model_output, aot_model_output_dim);
    }
    std::vector<Symbol> symbols() const {
        std::vector<Symbol> found;
        for (uint32_t i = 0; i < aot_model_symbol_count(handle()); ++i) {
            aot_symbol_info info = detail::sized<aot_symbol_info>();
            aot_model_symbol(handle(), i, &info);
            found.push_back({info.name, info.lo, info.hi < 0 ? std::nullopt : std::optional(info.hi), info.divisor});
        }
        return found;
    }
    // The target whose code runs, such as "cpu:x86-64-v3".
    std::string target() const {
        for (uint32_t i = 0; i < aot_model_program_count(handle()); ++i) {
            aot_program_info info = detail::sized<aot_program_info>();
            aot_model_program(handle(), i, &info);
            if (info.selected) return info.target;
        }
        return {};
    }
    // Inputs that a run replaces. One piece of memory given for both sides of a pair is updated in place.
    std::vector<State> state() const {
        std::vector<State> found;
        for (uint32_t i = 0; i < aot_model_state_count(handle()); ++i) {
            aot_state_info info = detail::sized<aot_state_info>();
            aot_model_state(handle(), i, &info);
            found.push_back({info.input, info.output, info.has_initial != 0});
        }
        return found;
    }
    // Writes what the input of pair `index` holds before the first run; false where the model does not know, or
    // `bytes` is not the size of that input.
    bool initial_state(uint32_t index, void *data, size_t bytes) const {
        return aot_model_initial_state(handle(), index, data, bytes) == AOT_OK;
    }
    // What the build recorded, as JSON.
    std::string meta() const {
        size_t bytes = 0;
        const char *text = aot_model_meta(handle(), &bytes);
        return {text, bytes};
    }
    // Throws Error where a guard refuses the inputs, as a run would; needs no session.
    void check(const std::vector<Tensor> &inputs) const {
        std::vector<aot_tensor> tensors;
        std::vector<const aot_tensor *> pointers;
        for (const Tensor &tensor : inputs) tensors.push_back(tensor.c_tensor());
        for (const aot_tensor &tensor : tensors) pointers.push_back(&tensor);
        detail::check([&](aot_error *error) {
            return aot_model_check(handle(), pointers.data(), static_cast<uint32_t>(pointers.size()), error);
        });
    }
    // What the runs of all its sessions came to.
    aot_statistics statistics() const noexcept {
        aot_statistics found = detail::sized<aot_statistics>();
        aot_model_statistics(handle(), &found);
        return found;
    }
    uint64_t weight_bytes() const noexcept { return aot_model_weight_bytes(handle()); }
    // Of these, bytes that other models of the process hold too.
    uint64_t shared_weight_bytes() const noexcept { return aot_model_shared_weight_bytes(handle()); }
    // The GPU that it runs on; none: the CPU.
    std::optional<int32_t> device() const noexcept {
        const int32_t ordinal = aot_model_device(handle());
        return ordinal < 0 ? std::nullopt : std::optional(ordinal);
    }
    const aot_model *handle() const noexcept { return handle_.get(); }

private:
    template <class F> void load(const LoadOptions &options, F &&call) {
        aot_load_options given = detail::sized<aot_load_options>();
        given.allocator = options.allocator;
        given.target = detail::text_or_null(options.target);
        if (options.map_weights) given.flags |= AOT_LOAD_MAP_WEIGHTS;
        if (options.any_weights) given.flags |= AOT_LOAD_ANY_WEIGHTS;
        if (options.own_weights) given.flags |= AOT_LOAD_OWN_WEIGHTS;
        given.trusted_keys = options.trusted_keys.empty() ? nullptr : options.trusted_keys[0].data();
        given.trusted_key_count = static_cast<uint32_t>(options.trusted_keys.size());
        std::vector<aot_tensor> tensors;
        std::vector<aot_named_tensor> named;
        for (const auto &weight : options.weights) tensors.push_back(weight.second.c_tensor());
        for (size_t i = 0; i < tensors.size(); ++i) named.push_back({options.weights[i].first.c_str(), &tensors[i]});
        given.weight_count = static_cast<uint32_t>(named.size());
        given.weights = named.empty() ? nullptr : named.data();
        given.weights_path = detail::text_or_null(options.weights_path);
        given.temporary_directory = detail::text_or_null(options.temporary_directory);
        given.device = options.device;
        given.context = options.context;
        aot_model *made = nullptr;
        detail::check([&](aot_error *error) { return call(&given, &made, error); });
        handle_.reset(made, aot_model_unload);
    }

    template <class Get, class GetDim> std::vector<Port> ports(uint32_t count, Get get, GetDim get_dim) const {
        std::vector<Port> found;
        for (uint32_t i = 0; i < count; ++i) {
            aot_port_info info = detail::sized<aot_port_info>();
            get(handle(), i, &info);
            Port port{info.name, info.dtype, {}};
            for (uint32_t axis = 0; axis < info.rank; ++axis) {
                aot_dim_info dim = detail::sized<aot_dim_info>();
                get_dim(handle(), i, axis, &dim);
                port.shape.push_back({dim.text, dim.value < 0 ? std::nullopt : std::optional(dim.value)});
            }
            found.push_back(std::move(port));
        }
        return found;
    }

    std::shared_ptr<aot_model> handle_;
};

// Threads that sessions share; 0 is the default count.
class Pool {
public:
    explicit Pool(uint32_t thread_count = 0) {
        aot_pool *made = nullptr;
        detail::check([&](aot_error *error) { return aot_pool_create(thread_count, &made, error); });
        handle_.reset(made, aot_pool_destroy);
    }
    const std::shared_ptr<aot_pool> &handle() const noexcept { return handle_; }

private:
    std::shared_ptr<aot_pool> handle_;
};

// As aot_session_options.
struct SessionOptions {
    uint32_t thread_count = 0;
    std::optional<Pool> pool;  // none: the pool of the process
    uint32_t plan_cache_size = 0;
    bool profile = false;
    const aot_allocator *allocator = nullptr;
    bool graphs = true;       // on a GPU: false launches kernel by kernel
    bool early_start = true;  // on a GPU: false starts no kernel before the one ahead of it has ended
    bool poison = false;      // on a GPU: fills intermediate values and results with NaN before each run, for tests
};

// As aot_run_options.
struct RunOptions {
    std::optional<std::chrono::nanoseconds> timeout;  // from now
    const volatile int32_t *cancel = nullptr;
    void *stream = nullptr;  // a CUstream
    uint32_t flags = 0;      // AOT_RUN_...
};

// What one thread at a time runs a model with.
class Session {
public:
    explicit Session(Model model, const SessionOptions &options = {})
        : model_(std::move(model)), pool_(options.pool ? options.pool->handle() : nullptr) {
        aot_session_options given = detail::sized<aot_session_options>();
        given.allocator = options.allocator;
        given.thread_count = options.thread_count;
        given.plan_cache_size = options.plan_cache_size;
        given.pool = pool_.get();
        if (options.profile) given.flags |= AOT_SESSION_PROFILE;
        if (!options.graphs) given.flags |= AOT_SESSION_NO_GRAPH;
        if (options.poison) given.flags |= AOT_SESSION_POISON;
        if (!options.early_start) given.flags |= AOT_SESSION_FULL_EDGES;
        aot_session *made = nullptr;
        detail::check([&](aot_error *error) { return aot_session_create(model_.handle(), &given, &made, error); });
        handle_.reset(made);
    }

    // Runs with inputs in the order of the model; outputs are the session's own memory.
    void run(const std::vector<Tensor> &inputs, const RunOptions &options = {}) { run(inputs, {}, options); }
    // Runs into the caller's memory: one entry per output.
    void run(const std::vector<Tensor> &inputs, const std::vector<Tensor> &outputs, const RunOptions &options = {}) {
        aot_run_options given = detail::sized<aot_run_options>();
        given.cancel = options.cancel;
        given.stream = options.stream;
        given.flags = options.flags;
        if (options.timeout && *options.timeout < std::chrono::hours(24 * 365)) {  // a longer one is none
            const auto until = std::chrono::steady_clock::now() + *options.timeout;  // CLOCK_MONOTONIC
            const int64_t ns = std::chrono::nanoseconds(until.time_since_epoch()).count();
            given.deadline_ns = ns > 0 ? static_cast<uint64_t>(ns) : 1;
        }
        for (const Tensor &output : outputs) {
            if (!output.writable()) throw Error(AOT_ERROR_ARGUMENT, "", "an output is bound to constant memory", "");
        }
        inputs_.fill(inputs);
        outputs_.fill(outputs);
        detail::check([&](aot_error *error) {
            const aot_tensor *const *bound = outputs.empty() ? nullptr : outputs_.pointers.data();
            return aot_session_run(handle(), inputs_.pointers.data(), inputs_.count(), bound, outputs_.count(), &given,
                                   error);
        });
    }
    // Checks inputs and makes the plan for their shapes; outputs then have their shapes and no data.
    void prepare(const std::vector<Tensor> &inputs) {
        inputs_.fill(inputs);
        detail::check([&](aot_error *error) {
            return aot_session_prepare(handle(), inputs_.pointers.data(), inputs_.count(), error);
        });
    }
    // Makes the plan and the memory for values of all symbols ahead of time.
    void reserve(std::initializer_list<std::pair<const char *, int64_t>> dims) {
        std::vector<aot_dim_value> values;
        for (const auto &dim : dims) values.push_back({dim.first, dim.second});
        detail::check([&](aot_error *error) {
            return aot_session_reserve(handle(), values.data(), static_cast<uint32_t>(values.size()), error);
        });
    }
    // An output of the last run or prepare; throws Error where there is none.
    Output output(uint32_t index = 0) const {
        aot_tensor tensor{};
        detail::check_index(aot_session_output(handle(), index, &tensor));
        return Output(tensor);
    }

    uint32_t thread_count() const noexcept { return aot_session_thread_count(handle()); }
    uint64_t memory_bytes() const noexcept { return aot_session_memory_bytes(handle()); }
    // How often runs so far left the GPU for CPU code, of nodes that it has no kernel for.
    uint64_t host_steps() const noexcept { return aot_session_host_steps(handle()); }
    const Model &model() const noexcept { return model_; }
    aot_session *handle() const noexcept { return handle_.get(); }

private:
    // C tensors of a call; kept, so that a run with shapes that were seen before allocates nothing.
    struct Tensors {
        std::vector<aot_tensor> tensors;
        std::vector<const aot_tensor *> pointers;

        void fill(const std::vector<Tensor> &given) {
            tensors.clear();
            pointers.clear();
            for (const Tensor &tensor : given) tensors.push_back(tensor.c_tensor());
            for (const aot_tensor &tensor : tensors) pointers.push_back(&tensor);
        }
        uint32_t count() const noexcept { return static_cast<uint32_t>(tensors.size()); }
    };
    struct Destroy {
        void operator()(aot_session *session) const noexcept { aot_session_destroy(session); }
    };

    Model model_;
    std::shared_ptr<aot_pool> pool_;
    Tensors inputs_, outputs_;
    std::unique_ptr<aot_session, Destroy> handle_;  // the last member: it goes before what it uses
};

}  // namespace cpp1
}  // namespace aot

#endif
