#include "guards.h"

#include <cstdio>
#include <cstring>

#include "cuda/run.h"
#include "dims.h"
#include "tensor.h"

namespace aot {

using namespace format;

namespace {

Failure guard(int32_t reason, const char *what, const char *name, const char *hint, const char *message) {
    char where[160];
    snprintf(where, sizeof where, "%s '%.120s'", what, name);
    return Failure(AOT_ERROR_GUARD, where, hint, "%s", message).because(reason);
}

#define AOT_GUARD(reason, hint, ...)                           \
    do {                                                       \
        char message_[400];                                    \
        snprintf(message_, sizeof message_, __VA_ARGS__);      \
        throw guard(AOT_REASON_##reason, what, name, hint, message_); \
    } while (0)

void shape_text(const Model &model, const PortEntry &port, char *to, size_t size) {
    size_t at = 0;
    to[0] = 0;
    for (uint32_t axis = 0; axis < port.shape.count && at + 1 < size; ++axis) {
        const DimEntry &dim = model.artifact.dims[static_cast<size_t>(model.artifact.integer(port.shape.first + axis))];
        int n = snprintf(to + at, size - at, "%s%s", axis ? ", " : "", model.artifact.text(dim.text));
        at += n > 0 ? static_cast<size_t>(n) : 0;
    }
}

// The words for a DLPack device type.
const char *device_name(int32_t type) {
    switch (type) {
        case 1: return "CPU";
        case 2: return "CUDA";
        case 3: return "pinned";
        case 4: return "OpenCL";
        case 7: return "Vulkan";
        case 8: return "Metal";
        case 10: return "ROCm";
        case 13: return "CUDA managed";
        case 14: return "oneAPI";
        default: return "another device's";
    }
}

void check_layout(const Model &model, const char *what, const PortEntry &port, const aot_tensor &tensor) {
    const char *name = model.artifact.text(port.name);
    const DType &dtype = *find_dtype(port.dtype);
    const bool on_host = tensor.device_type == 1 || tensor.device_type == 3;  // 3: pinned
    if (!model.device && !on_host) {
        AOT_GUARD(PLACE, "Copy the tensor to the CPU.", "expected a tensor in CPU memory, got one in %s memory (DLPack device type %d)",
                  device_name(tensor.device_type), tensor.device_type);
    }
    if (model.device && !on_host) {
        const int ordinal = model.device->device.ordinal;
        if (!cuda::is_device_memory(tensor)) {
            AOT_GUARD(PLACE, "Copy the tensor to the GPU or to the CPU.",
                      "expected a tensor in memory of a CUDA device or the CPU, got one in %s memory (DLPack device type %d)",
                      device_name(tensor.device_type), tensor.device_type);
        }
        if (tensor.device_id != ordinal) {
            AOT_GUARD(PLACE, "Copy the tensor to the model's device, or load the model for that device.",
                      "expected memory of device %d, got memory of device %d", ordinal, tensor.device_id);
        }
    }
    if (!same_dtype(tensor, port.dtype)) {
        AOT_GUARD(DTYPE, "Convert the array to that element type.", "expected element type %s, got %s", dtype.name,
                  dtype_name(tensor));
    }
    if (tensor.rank != static_cast<int32_t>(port.shape.count)) {
        char expected[200];
        shape_text(model, port, expected, sizeof expected);
        AOT_GUARD(RANK, "Add or remove dimensions.", "expected %u dimensions [%s], got %d", port.shape.count, expected,
                  tensor.rank);
    }
    if (tensor.rank && !tensor.shape) AOT_GUARD(MISSING, "", "the tensor has no shape");
    int64_t bytes = item_bytes(dtype);
    for (int32_t axis = 0; axis < tensor.rank; ++axis) {
        if (tensor.shape[axis] < 0 || !checked_mul(bytes, tensor.shape[axis], &bytes)) {
            AOT_GUARD(EXTENT, "", "dimension %d has the impossible extent %lld", axis, static_cast<long long>(tensor.shape[axis]));
        }
    }
    if (!is_dense(tensor)) {
        int64_t expected = 1;
        for (int32_t axis = tensor.rank; axis-- > 0;) {
            if (tensor.shape[axis] != 1 && tensor.strides[axis] != expected) {
                AOT_GUARD(LAYOUT, "Make the array contiguous first.",
                          "expected row-major elements without gaps: dimension %d should have stride %lld, got %lld", axis,
                          static_cast<long long>(expected), static_cast<long long>(tensor.strides[axis]));
            }
            expected *= tensor.shape[axis];
        }
    }
}

void check_data(const Model &model, const char *what, const PortEntry &port, const aot_tensor &tensor) {
    const char *name = model.artifact.text(port.name);
    for (int32_t axis = 0; axis < tensor.rank; ++axis) {
        if (tensor.shape[axis] == 0) return;
    }
    if (!tensor.data) AOT_GUARD(MISSING, "", "the tensor has no data (NULL)");
    const uint32_t unit = item_bytes(*find_dtype(port.dtype));
    if (reinterpret_cast<uintptr_t>(data_of(tensor)) % unit) {
        AOT_GUARD(ALIGNMENT, "Copy the data to an aligned address.", "expected data aligned to %u bytes, got address %p", unit,
                  static_cast<const void *>(data_of(tensor)));
    }
}

// The one element of a tensor of integers or bools; false where it has another number of elements.
bool only_element(const PortEntry &port, const aot_tensor &tensor, const ElementReader *reader, int64_t *value) {
    for (int32_t axis = 0; axis < tensor.rank; ++axis) {
        if (tensor.shape[axis] != 1) return false;
    }
    const DType &dtype = *find_dtype(port.dtype);
    const uint8_t *bytes = data_of(tensor);
    uint64_t bits = 0;
    // Little-endian, as the artifact is.
    if (reader && cuda::is_device_memory(tensor)) reader->read(bytes, &bits, item_bytes(dtype));
    else memcpy(&bits, bytes, item_bytes(dtype));
    const uint32_t unused = 64 - dtype.bits;
    const bool has_sign = dtype.dlpack_code == 0;
    *value = has_sign ? static_cast<int64_t>(bits << unused) >> unused : static_cast<int64_t>(bits);
    return true;
}

}  // namespace

void check_inputs(const Model &model, const aot_tensor *const *inputs, uint32_t count) {
    if (count != model.input_count() || (count && !inputs)) {
        throw Failure(AOT_ERROR_ARGUMENT, model.name.c_str(), "Give every input, in the order of the model.",
                      "expected %u inputs, got %u", model.input_count(), inputs ? count : 0);
    }
    for (uint32_t i = 0; i < count; ++i) {
        const PortEntry &port = model.input(i);
        const char *what = "input", *name = model.artifact.text(port.name);
        if (!inputs[i]) AOT_GUARD(MISSING, "Give every input.", "the input is missing");
        check_layout(model, what, port, *inputs[i]);
        check_data(model, what, port, *inputs[i]);
    }
}

namespace {

bool reads(const Artifact &a, uint32_t dim, uint32_t symbol) {
    const Run code = a.dims[dim].code;
    for (uint32_t i = 0; i < code.count; ++i) {
        const DimCode &instruction = a.dim_code[code.first + i];
        if (instruction.op == dim_op::SYMBOL && instruction.symbol == symbol) return true;
    }
    return false;
}

// Which extents of which inputs the symbols of a relation are.
void symbols_text(const Artifact &a, const ProgramEntry &p, const GuardEntry &rule, char *to, size_t size) {
    size_t at = 0;
    to[0] = 0;
    for (uint32_t i = 0; i < p.guards.count && at + 1 < size; ++i) {
        const GuardEntry &bind = a.guards[p.guards.first + i];
        if (bind.kind != guard_kind::BIND && bind.kind != guard_kind::SOLVE) continue;
        if (!reads(a, rule.expected, bind.symbol) && !reads(a, rule.other, bind.symbol)) continue;
        const PortEntry &port = a.ports[p.inputs.first + bind.port];
        const DimEntry &dim = a.dims[static_cast<size_t>(a.integer(port.shape.first + bind.axis))];
        const int n = snprintf(to + at, size - at, "%s%.40s is dimension %u of input '%.60s'", at ? ", " : "", a.text(dim.text),
                               bind.axis, a.text(port.name));
        at += n > 0 ? static_cast<size_t>(n) : 0;
    }
}

// Whether the sizes of the inputs meet a relation of the model.
bool holds(const Artifact &a, const ProgramEntry &p, const GuardEntry &rule, const int64_t *symbols, Failure *failure) {
    const DimEntry &left = a.dims[rule.expected], &right = a.dims[rule.other];
    int64_t found = 0, other = 0;
    const bool known = evaluate_dim(a.dim_code.data() + left.code.first, left.code.count, symbols, &found) &&
                       evaluate_dim(a.dim_code.data() + right.code.first, right.code.count, symbols, &other);
    const char *sign = "!=";
    bool meets = found != other;
    switch (rule.kind) {
        case guard_kind::AT_LEAST: sign = ">=", meets = found >= other; break;
        case guard_kind::ABOVE: sign = ">", meets = found > other; break;
        case guard_kind::SAME: sign = "==", meets = found == other; break;
        default: break;
    }
    if (known && meets) return true;
    char message[500], where[200], got[60] = "which have no value for these sizes";
    if (known) snprintf(got, sizeof got, "got %lld and %lld", static_cast<long long>(found), static_cast<long long>(other));
    symbols_text(a, p, rule, where, sizeof where);
    snprintf(message, sizeof message, "expected %.100s %s %.100s, %s (%s)", a.text(left.text), sign, a.text(right.text), got,
             where);
    *failure = Failure(AOT_ERROR_GUARD, "sizes of the inputs", "PyTorch found this rule when it exported the program: give inputs of such sizes, or export it again for these.", "%s", message).because(AOT_REASON_RELATION);
    return false;
}

// The value of the symbol for which a linear dimension is an extent; false where there is none.
bool solve(const Artifact &a, const GuardEntry &rule, int64_t extent, int64_t *symbols) {
    const DimEntry &form = a.dims[rule.expected];
    int64_t at[2], rest, step;
    for (int64_t value : {0, 1}) {
        symbols[rule.symbol] = value;
        if (!evaluate_dim(a.dim_code.data() + form.code.first, form.code.count, symbols, &at[value])) return false;
    }
    if (__builtin_sub_overflow(at[1], at[0], &step) || __builtin_sub_overflow(extent, at[0], &rest)) return false;
    if (step < 1 || rest % step) return false;
    symbols[rule.symbol] = rest / step;
    int64_t found = 0;  // a file may say that any form is linear
    return evaluate_dim(a.dim_code.data() + form.code.first, form.code.count, symbols, &found) && found == extent;
}

// Whether a value of a symbol is one of those that the model was built for.
bool in_range(const GuardEntry &rule, int64_t value) {
    return value >= rule.lo && (rule.hi == 0 || value <= rule.hi) && value % rule.divisor == 0;
}

}  // namespace

bool bind_symbols(const Model &model, const Variant &variant, const aot_tensor *const *inputs, int64_t *symbols,
                  const ElementReader *reader, Failure *failure) {
    const Artifact &a = model.artifact;
    const ProgramEntry &p = *variant.entry;
    const char *what = "input";
    for (uint32_t i = 0; i < p.guards.count; ++i) {
        const GuardEntry &rule = a.guards[p.guards.first + i];
        if (rule.kind >= guard_kind::AT_LEAST && rule.kind <= guard_kind::ABOVE) {
            if (holds(a, p, rule, symbols, failure)) continue;
            return false;
        }
        const PortEntry &port = a.ports[p.inputs.first + rule.port];
        if (rule.kind == guard_kind::VALUE || rule.kind == guard_kind::OTHER_VALUE) {
            const bool wants_equal = rule.kind == guard_kind::VALUE;
            const DimEntry &wanted = a.dims[rule.expected];
            int64_t expected = 0, held = 0;
            const bool known = evaluate_dim(a.dim_code.data() + wanted.code.first, wanted.code.count, symbols, &expected);
            const bool single = only_element(port, *inputs[rule.port], reader, &held);
            if (known && single && (held == expected) == wants_equal) continue;
            char message[160];
            if (single) {
                snprintf(message, sizeof message, "expected %s value %lld, got %lld", wants_equal ? "the" : "another",
                         static_cast<long long>(expected), static_cast<long long>(held));
            } else {
                snprintf(message, sizeof message, "expected one element");
            }
            // A program for another value is not the one whose sizes the user should hear of.
            if (failure->status != AOT_ERROR_GUARD) {
                *failure = guard(AOT_REASON_VALUE, what, a.text(port.name), "Give a value that the model has a branch for.", message);
            }
            return false;
        }
        const int64_t extent = inputs[rule.port]->shape[rule.axis];
        const DimEntry &dim = a.dims[static_cast<size_t>(a.integer(port.shape.first + rule.axis))];
        const char *name = a.text(port.name);
        char message[400];
        int32_t reason = AOT_REASON_RANGE;
        const char *hint = "Reshape or pad the input, or build the artifact for this size from a model that takes it.";
        if (rule.kind == guard_kind::BIND) {
            if (in_range(rule, extent)) {
                symbols[rule.symbol] = extent;
                continue;
            }
            if (rule.hi && (extent < rule.lo || extent > rule.hi)) {
                snprintf(message, sizeof message, "dimension %u (%s): expected %lld to %lld, got %lld", rule.axis,
                         a.text(dim.text), static_cast<long long>(rule.lo), static_cast<long long>(rule.hi),
                         static_cast<long long>(extent));
            } else if (extent < rule.lo) {
                snprintf(message, sizeof message, "dimension %u (%s): expected at least %lld, got %lld", rule.axis,
                         a.text(dim.text), static_cast<long long>(rule.lo), static_cast<long long>(extent));
            } else {
                snprintf(message, sizeof message, "dimension %u (%s): expected a multiple of %lld, got %lld", rule.axis,
                         a.text(dim.text), static_cast<long long>(rule.divisor), static_cast<long long>(extent));
            }
        } else if (rule.kind == guard_kind::SOLVE) {
            if (solve(a, rule, extent, symbols) && in_range(rule, symbols[rule.symbol])) continue;
            const char *symbol = a.text(a.symbols[p.symbols.first + rule.symbol].name);
            char most[48] = "", steps[48] = "";
            if (rule.hi) snprintf(most, sizeof most, " to %lld", static_cast<long long>(rule.hi));
            if (rule.divisor > 1) snprintf(steps, sizeof steps, ", a multiple of %lld", static_cast<long long>(rule.divisor));
            snprintf(message, sizeof message, "dimension %u: expected %.100s with %.60s %s %lld%s%s, got %lld", rule.axis,
                     a.text(dim.text), symbol, rule.hi ? "from" : "at least", static_cast<long long>(rule.lo), most, steps,
                     static_cast<long long>(extent));
        } else {
            const DimEntry &wanted = a.dims[rule.expected];
            int64_t expected = 0;
            const bool known = evaluate_dim(a.dim_code.data() + wanted.code.first, wanted.code.count, symbols, &expected);
            if (known && extent == expected) continue;
            const bool constant = wanted.code.count == 1 && a.dim_code[wanted.code.first].op == dim_op::CONSTANT;
            reason = constant ? AOT_REASON_EXTENT : AOT_REASON_RELATION;
            if (constant) {
                snprintf(message, sizeof message, "dimension %u: expected %lld, got %lld", rule.axis,
                         static_cast<long long>(expected), static_cast<long long>(extent));
            } else {
                snprintf(message, sizeof message, "dimension %u: expected %s = %lld, as other inputs say, got %lld",
                         rule.axis, a.text(wanted.text), static_cast<long long>(expected), static_cast<long long>(extent));
            }
        }
        *failure = guard(reason, what, name, hint, message);
        return false;
    }
    return true;
}

void check_guards(const Model &model, const aot_tensor *const *inputs, uint32_t count) {
    struct NoReader final : ElementReader {
        void read(const uint8_t *, void *, size_t) const override {
            throw Failure(AOT_ERROR_ARGUMENT, "", "Use aot_session_prepare, or give that input in host memory.",
                          "an input that chooses the program is in device memory, which is not read here");
        }
    };
    check_inputs(model, inputs, count);
    uint32_t most = 0;
    for (const Variant &variant : model.variants) most = most < variant.entry->symbols.count ? variant.entry->symbols.count : most;
    Vector<int64_t> symbols(most + 1, 0, Allocator<int64_t>(model.memory));
    const NoReader reader;
    Failure failure;
    for (const Variant &variant : model.variants) {
        if (bind_symbols(model, variant, inputs, symbols.data(), &reader, &failure)) return;
    }
    throw failure;
}

void check_tensor(const Model &model, const char *what, const PortEntry &port, const aot_tensor &tensor,
                  const int64_t *shape) {
    check_layout(model, what, port, tensor);
    const char *name = model.artifact.text(port.name);
    for (int32_t axis = 0; axis < tensor.rank; ++axis) {
        if (tensor.shape[axis] != shape[axis]) {
            AOT_GUARD(EXTENT, "Give a tensor of the expected shape.", "dimension %d: expected %lld, got %lld", axis,
                      static_cast<long long>(shape[axis]), static_cast<long long>(tensor.shape[axis]));
        }
    }
    check_data(model, what, port, tensor);
}

}  // namespace aot
