#include "flow.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "dims.h"
#include "session.h"
#include "tensor.h"

namespace aot {

using namespace format;

namespace {

constexpr int64_t kLargest = int64_t{1} << 46;  // bytes of one tensor, as in plans

}  // namespace

uint8_t *Flow::HostSpace::allocate(size_t bytes) { return static_cast<uint8_t *>(session_.memory().allocate(bytes, 64)); }

void Flow::HostSpace::release(uint8_t *data, size_t bytes) noexcept { session_.memory().release(data, bytes); }

void Flow::HostSpace::launch(Plan &plan, uint32_t first_step, uint8_t *const *inputs, uint8_t *const *outputs,
                             const aot_run_options &options) {
    session_.launch(plan, first_step, inputs, outputs, options);
}

Flow::Flow(Session &session, Space *device)
    : session_(session), model_(session.model()), host_space_(session), memory_(session.memory(), host_space_, device),
      symbols_(Allocator<int64_t>(session.memory())),
      extents_(symbols_.get_allocator()), extents_aside_(symbols_.get_allocator()),
      block_symbols_(symbols_.get_allocator()),
      slots_(Allocator<Slot>(session.memory())), moved_(slots_.get_allocator()),
      block_inputs_(Allocator<uint8_t *>(session.memory())),
      block_outputs_(block_inputs_.get_allocator()), block_storages_(Allocator<int32_t>(session.memory())) {
    size_t symbols = 0, slots = 0, extents = 0, block_symbols = 0, inputs = 0, outputs = 0;
    auto most = [](size_t &so_far, size_t one) { so_far = one > so_far ? one : so_far; };
    for (const Variant &variant : model_.variants) {
        most(symbols, variant.entry->symbols.count);
        most(slots, variant.entry->slots.count);
        size_t total = 0;
        for (uint32_t i = 0; i < variant.entry->slots.count; ++i) {
            total += model_.artifact.ports[variant.entry->slots.first + i].shape.count;
        }
        most(extents, total);
    }
    for (const Variant &block : model_.blocks) {
        most(block_symbols, block.entry->symbols.count);
        most(inputs, block.entry->inputs.count);
        most(outputs, block.entry->outputs.count);
    }
    symbols_.resize(symbols);
    slots_.reserve(slots);
    moved_.reserve(slots);
    extents_.resize(extents);
    extents_aside_.resize(extents);
    block_symbols_.resize(block_symbols + 1);
    block_inputs_.resize(inputs);
    block_outputs_.resize(outputs);
    block_storages_.resize(outputs);
}

void Flow::run(const Variant &variant, const int64_t *symbols, const aot_tensor *const *inputs,
               const aot_run_options &options) {
    variant_ = &variant;
    options_ = &options;
    memory_.begin();
    symbols_.assign(symbols, symbols + variant.entry->symbols.count);
    slots_.clear();
    int64_t *shape = extents_.data();
    for (uint32_t i = 0; i < variant.entry->slots.count; ++i) {
        slots_.push_back(Slot{0, shape, -1, false});
        shape += port(i).shape.count;
    }
    for (uint32_t i = 0; i < variant.entry->inputs.count; ++i) {
        Slot &slot = slots_[i];
        int64_t bytes = item_bytes(*find_dtype(port(i).dtype));
        for (uint32_t axis = 0; axis < port(i).shape.count; ++axis) {
            slot.shape[axis] = inputs[i]->shape[axis];
            bytes *= slot.shape[axis];
        }
        const Place place = memory_.has_device() && cuda::is_device_memory(*inputs[i]) ? kDevice : kHost;
        slot.storage = memory_.borrow(place, data_of(*inputs[i]), static_cast<size_t>(bytes));
        slot.bytes = static_cast<size_t>(bytes);
        slot.live = true;
    }
    steps(variant.entry->flow);
    for (uint32_t i = 0; i < variant.entry->outputs.count; ++i) {
        if (!slots_[result(i)].live) {
            throw Failure(AOT_ERROR_INTERNAL, model_.name.c_str(),
                          "Build the artifact again; if that does not help, report it.",
                          "the flow gives output %u no value", i);
        }
    }
}

void Flow::steps(Run run) {
    for (uint32_t i = 0; i < run.count; ++i) {
        const FlowEntry &entry = model_.artifact.flow[run.first + i];
        step(entry);
        for (uint32_t j = 0; j < entry.drops.count; ++j) drop(number(entry.drops, j));
    }
}

void Flow::step(const FlowEntry &entry) {
    if (entry.op != flow_op::READ) memory_.forget();
    switch (entry.op) {
        case flow_op::CALL: return call(entry);
        case flow_op::READ: return read(entry);
        case flow_op::CHECK: return check(entry);
        case flow_op::ALIAS: return alias(entry);
        case flow_op::MOVE: return move(entry);
        case flow_op::MATCH: return match(entry);
        case flow_op::CLEAR: return clear(entry);
        case flow_op::APPEND: return append(entry);
        case flow_op::IF: return steps(holds(entry, number(entry.inputs, 0)) ? entry.first : entry.second);
        case flow_op::LOOP: return loop(entry);
        default: inconsistent(entry, "unknown step");
    }
}

void Flow::call(const FlowEntry &entry) {
    const Variant &block = model_.blocks[variant_->first_block + entry.block];
    const ProgramEntry &program = *block.entry;
    for (uint32_t i = 0; i < program.environment.count; ++i) {
        block_symbols_[i] = symbols_[number(program.environment, i)];
    }
    Plan &plan = plan_of(entry, block);
    const Place place = block.on_device ? kDevice : kHost;
    for (uint32_t i = 0; i < program.inputs.count; ++i) {
        const Slot &slot = input(entry, i);
        const uint32_t rank = port(number(entry.inputs, i)).shape.count;
        if (rank && memcmp(slot.shape, plan.shape_of_port[i], rank * sizeof(int64_t)) != 0) {
            inconsistent(entry, "a tensor does not have the shape that its block expects");
        }
        block_inputs_[i] = memory_.at(slot.storage, place);
    }
    // The storages of what the slots held before may be among the inputs, so none is given back before all are taken.
    for (uint32_t i = 0; i < program.outputs.count; ++i) {
        const size_t bytes = static_cast<size_t>(plan.port_bytes[program.inputs.count + i]);
        block_storages_[i] = memory_.take(place, bytes, bytes);
        block_outputs_[i] = memory_.at(block_storages_[i], place);
    }
    for (uint32_t i = 0; i < program.outputs.count; ++i) {
        const uint32_t at = program.inputs.count + i, slot = number(entry.outputs, i);
        drop(slot);
        Slot &to = slots_[slot];
        const uint32_t rank = port(slot).shape.count;
        for (uint32_t axis = 0; axis < rank; ++axis) to.shape[axis] = plan.shape_of_port[at][axis];
        to.bytes = static_cast<size_t>(plan.port_bytes[at]);
        to.storage = block_storages_[i];
        to.live = true;
    }
    if (place == kHost) memory_.settle();
    else session_.look(*options_);
    host_steps_ += memory_.has_device() && place == kHost;
    memory_.space(place).launch(plan, block.first_step, block_inputs_.data(), block_outputs_.data(), *options_);
}

Plan &Flow::plan_of(const FlowEntry &entry, const Variant &block) {
    try {
        return session_.find_plan(block, block_symbols_.data());
    } catch (Failure &failure) {
        if (!failure.where[0]) copy_text(failure.where, sizeof failure.where, model_.artifact.text(entry.where));
        throw;
    }
}

// A number that is read, as a message begins: by the tensor's name, where the model gives it one.
Flow::Label Flow::label(const FlowEntry &entry) const {
    Label label;
    const char *name = model_.artifact.text(port(number(entry.inputs, 0)).name);
    if (*name) {
        snprintf(label.text, sizeof label.text, "element %u of '%.150s'", entry.element, name);
    } else {
        snprintf(label.text, sizeof label.text, "a size that is computed here");
    }
    return label;
}

void Flow::read(const FlowEntry &entry) {
    const int64_t found = element(entry, number(entry.inputs, 0), entry.element);
    if (entry.symbols.count == 0) {
        const uint32_t dim = number(entry.dims, 0);
        const int64_t expected = value(entry, dim);
        if (found != expected && (entry.flags & flow_flag::EXACT)) {
            refuse(entry, "Check the inputs.", "this assertion of the model does not hold");
        }
        if (found != expected) {
            char known[24];
            snprintf(known, sizeof known, "%lld", static_cast<long long>(expected));
            const char *text = model_.artifact.text(model_.artifact.dims[dim].text);
            const bool plain = strcmp(text, known) == 0;
            refuse(entry, "Check what the model computes this size from.", "%s must be %.80s%s%s, it is %lld",
                   label(entry).text, text, plain ? "" : " = ", plain ? "" : known, static_cast<long long>(found));
        }
        return;
    }
    const uint32_t index = number(entry.symbols, 0);
    const SymbolEntry &symbol = model_.artifact.symbols[variant_->entry->symbols.first + index];
    int64_t taken = found;
    if (taken < symbol.lo) taken = symbol.lo;
    if ((symbol.flags & symbol_flag::HAS_HI) && taken > symbol.hi) taken = symbol.hi;
    if (taken != found && !(entry.flags & flow_flag::CLAMP)) {
        refuse(entry, "Check what the model computes this size from.",
               "%s must be %s %lld, it is %lld", label(entry).text, taken > found ? "at least" : "at most",
               static_cast<long long>(taken), static_cast<long long>(found));
    }
    symbols_[index] = taken;
}

void Flow::check(const FlowEntry &entry) {
    const uint32_t left = number(entry.dims, 0), right = number(entry.dims, 1);
    const int64_t a = value(entry, left), b = value(entry, right);
    const bool exact = entry.flags & flow_flag::EXACT;
    if (exact ? a == b : a >= b) return;
    const Artifact &artifact = model_.artifact;
    const Run code = artifact.dims[left].code;
    if (!exact && code.count == 1 && artifact.dim_code[code.first].op == dim_op::CONSTANT) {
        refuse(entry, "Check what the model computes this size from.", "%s must be at most %lld, it is %lld",
               artifact.text(artifact.dims[right].text), static_cast<long long>(a), static_cast<long long>(b));
    }
    refuse(entry, "Check the sizes that the model computes here.", "%s (%lld) must be %s %s (%lld)",
           artifact.text(artifact.dims[left].text), static_cast<long long>(a), exact ? "equal to" : "at least",
           artifact.text(artifact.dims[right].text), static_cast<long long>(b));
}

void Flow::alias(const FlowEntry &entry) {
    const Slot from = input(entry, 0);
    const uint32_t to = number(entry.outputs, 0);
    int64_t shape[kMaxRank];
    const size_t bytes = declared(entry, to, shape);
    if (entry.flags & flow_flag::EXACT ? bytes != from.bytes : bytes > from.bytes) {
        char text[200] = "";
        size_t used = 0;
        for (uint32_t axis = 0; axis < port(to).shape.count && used + 24 < sizeof text; ++axis) {
            const int written = snprintf(text + used, sizeof text - used, "%s%lld", axis ? ", " : "",
                                         static_cast<long long>(shape[axis]));
            used += static_cast<size_t>(written);
        }
        const size_t unit = item_bytes(*find_dtype(port(to).dtype));
        refuse(entry, "Check the shape that the model computes here.",
               "the tensor has %zu elements, the shape [%s] that is computed for it needs %zu", from.bytes / unit, text,
               bytes / unit);
    }
    share(to, from);
    Slot &slot = slots_[to];
    for (uint32_t axis = 0; axis < port(to).shape.count; ++axis) slot.shape[axis] = shape[axis];
    slot.bytes = bytes;
}

void Flow::move(const FlowEntry &entry) {
    // All are read before any is written: a loop may swap two tensors. Shapes lie in the slots, so they are set aside.
    moved_.clear();
    size_t extents = 0;
    for (uint32_t i = 0; i < entry.inputs.count; ++i) {
        moved_.push_back(input(entry, i));
        memory_.share(moved_[i].storage);
        extents += port(number(entry.inputs, i)).shape.count;
    }
    if (extents_aside_.size() < extents) extents_aside_.resize(extents);
    int64_t *aside = extents_aside_.data();
    for (uint32_t i = 0; i < entry.inputs.count; ++i) {
        const uint32_t rank = port(number(entry.inputs, i)).shape.count;
        for (uint32_t axis = 0; axis < rank; ++axis) aside[axis] = moved_[i].shape[axis];
        moved_[i].shape = aside;
        aside += rank;
    }
    for (uint32_t i = 0; i < entry.inputs.count; ++i) {
        const uint32_t to = number(entry.outputs, i);
        share(to, moved_[i]);
        for (uint32_t axis = 0; axis < port(to).shape.count; ++axis) slots_[to].shape[axis] = moved_[i].shape[axis];
    }
    for (const Slot &slot : moved_) memory_.leave(slot.storage);
}

void Flow::match(const FlowEntry &entry) {
    const Slot &slot = input(entry, 0);
    const PortEntry &type = port(number(entry.inputs, 0));
    for (uint32_t axis = 0; axis < type.shape.count; ++axis) {
        const int64_t symbol = model_.artifact.integer(entry.symbols.first + axis);
        if (symbol >= 0) symbols_[static_cast<size_t>(symbol)] = slot.shape[axis];
    }
    for (uint32_t axis = 0; axis < type.shape.count; ++axis) {
        const int64_t expected = value(entry, static_cast<uint32_t>(model_.artifact.integer(type.shape.first + axis)));
        if (slot.shape[axis] != expected) {
            refuse(entry, "Check the sizes that the model computes here.", "dimension %u of '%s' must be %lld, it is %lld",
                   axis, model_.artifact.text(type.name), static_cast<long long>(expected),
                   static_cast<long long>(slot.shape[axis]));
        }
    }
}

// The extents of an entry are declared; the first entry that is appended says what they are.
void Flow::clear(const FlowEntry &entry) {
    const uint32_t slot = number(entry.outputs, 0);
    const Run shape = port(slot).shape;
    own(slot, 0);
    slots_[slot].shape[0] = 0;
    for (uint32_t axis = 1; axis < shape.count; ++axis) {
        const int64_t extent = value(entry, number(shape, axis));
        slots_[slot].shape[axis] = extent < 0 ? 0 : extent;
    }
}

void Flow::append(const FlowEntry &entry) {
    const Slot &from = input(entry, 0);
    const uint32_t number_to = number(entry.outputs, 0);
    Slot &to = slots_[number_to];
    if (!to.live) inconsistent(entry, "something is appended to nothing");
    const uint32_t rank = port(number_to).shape.count - 1;
    for (uint32_t axis = 0; axis < rank; ++axis) {
        if (to.shape[0] == 0) to.shape[axis + 1] = from.shape[axis];
        if (to.shape[axis + 1] != from.shape[axis]) {
            refuse(entry, "Every iteration must give a result of the same shape.",
                   "dimension %u of '%s' was %lld in an earlier iteration, it is %lld", axis,
                   model_.artifact.text(port(number(entry.inputs, 0)).name), static_cast<long long>(to.shape[axis + 1]),
                   static_cast<long long>(from.shape[axis]));
        }
    }
    const size_t bytes = to.bytes + from.bytes;
    if (bytes > static_cast<size_t>(kLargest)) refuse(entry, "Use fewer iterations.", "the result would be impossibly large");
    to.storage = memory_.append(to.storage, to.bytes, from.storage, from.bytes);
    to.bytes = bytes;
    ++to.shape[0];
}

void Flow::loop(const FlowEntry &entry) {
    const int64_t trip_slot = model_.artifact.integer(entry.inputs.first);
    const int64_t condition = model_.artifact.integer(entry.inputs.first + 1);
    const int64_t counter = model_.artifact.integer(entry.outputs.first);
    const int64_t trips = trip_slot >= 0 ? element(entry, static_cast<uint32_t>(trip_slot), 0) : INT64_MAX;
    for (int64_t i = 0; i < trips; ++i) {
        if (condition >= 0 && !holds(entry, static_cast<uint32_t>(condition))) break;
        session_.look(*options_);
        if (counter >= 0) {
            const uint32_t slot = static_cast<uint32_t>(counter);
            uint8_t *const data = own(slot, sizeof i);
            for (uint32_t axis = 0; axis < port(slot).shape.count; ++axis) slots_[slot].shape[axis] = 1;
            memcpy(data, &i, sizeof i);
        }
        steps(entry.first);
    }
}

void Flow::refuse(const FlowEntry &entry, const char *hint, const char *format, ...) const {
    char message[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    throw Failure(AOT_ERROR_GUARD, model_.artifact.text(entry.where), hint, "%s", message).because(AOT_REASON_DATA);
}

void Flow::inconsistent(const FlowEntry &entry, const char *what) const {
    throw Failure(AOT_ERROR_INTERNAL, model_.artifact.text(entry.where),
                  "Build the artifact again; if that does not help, report it.", "the flow contradicts itself: %s", what);
}

int64_t Flow::value(const FlowEntry &entry, uint32_t dim) const {
    const Run code = model_.artifact.dims[dim].code;
    int64_t result = 0;
    if (!evaluate_dim(model_.artifact.dim_code.data() + code.first, code.count, symbols_.data(), &result)) {
        refuse(entry, "Use smaller inputs.", "a size overflows 64 bits, or is divided by zero");
    }
    return result;
}

size_t Flow::declared(const FlowEntry &entry, uint32_t slot, int64_t *shape) const {
    const PortEntry &type = port(slot);
    int64_t bytes = item_bytes(*find_dtype(type.dtype));
    for (uint32_t axis = 0; axis < type.shape.count; ++axis) {
        shape[axis] = value(entry, static_cast<uint32_t>(model_.artifact.integer(type.shape.first + axis)));
        if (shape[axis] < 0 || !checked_mul(bytes, shape[axis], &bytes) || bytes > kLargest) {
            refuse(entry, "Check the sizes that the model computes here.",
                   "dimension %u of '%s' would be %lld, which no tensor can have", axis,
                   model_.artifact.text(type.name), static_cast<long long>(shape[axis]));
        }
    }
    return static_cast<size_t>(bytes);
}

int64_t Flow::element(const FlowEntry &entry, uint32_t slot, uint64_t index) {
    const Slot &from = slots_[slot];
    const DType &dtype = *find_dtype(port(slot).dtype);
    const uint32_t unit = item_bytes(dtype);
    if (!from.live) inconsistent(entry, "a tensor is read before it has a value");
    if (index >= from.bytes / unit) {
        refuse(entry, "", "'%s' has %zu elements; number %llu is needed here", model_.artifact.text(port(slot).name),
               from.bytes / unit, static_cast<unsigned long long>(index));
    }
    uint64_t bits = 0;
    memcpy(&bits, memory_.peek(from.storage, static_cast<size_t>(index * unit), unit), unit);  // little-endian, as the artifact is
    const uint32_t unused = 64 - 8 * unit;
    const bool has_sign = dtype.dlpack_code == 0;
    return has_sign ? static_cast<int64_t>(bits << unused) >> unused : static_cast<int64_t>(bits);
}

const PortEntry &Flow::port(uint32_t slot) const { return model_.artifact.ports[variant_->entry->slots.first + slot]; }

uint32_t Flow::result(uint32_t output) const { return number(variant_->entry->results, output); }

uint32_t Flow::number(Run run, uint32_t index) const {
    return static_cast<uint32_t>(model_.artifact.integer(run.first + index));
}

Flow::Slot &Flow::input(const FlowEntry &entry, uint32_t index) {
    Slot &slot = slots_[number(entry.inputs, index)];
    if (!slot.live) inconsistent(entry, "a tensor is read before it has a value");
    return slot;
}

void Flow::drop(uint32_t slot) {
    Slot &held = slots_[slot];
    if (held.live) memory_.leave(held.storage);
    held.storage = -1;
    held.live = false;
}

void Flow::share(uint32_t slot, const Slot &from) {
    const Slot held = from;  // `from` may be the slot itself
    memory_.share(held.storage);
    drop(slot);
    Slot &to = slots_[slot];
    to.bytes = held.bytes;
    to.storage = held.storage;
    to.live = true;
}

uint8_t *Flow::own(uint32_t slot, size_t bytes) {
    drop(slot);
    Slot &to = slots_[slot];
    to.storage = memory_.take(kHost, bytes, bytes);
    to.bytes = bytes;
    to.live = true;
    return memory_.at(to.storage, kHost);
}

void Flow::detach(uint32_t output) {
    Slot &slot = slots_[result(output)];
    slot.storage = memory_.detached(slot.storage);
}

void Flow::store(uint32_t output, uint8_t *to, Place place) {
    const Slot &slot = slots_[result(output)];
    memory_.store(slot.storage, slot.bytes, to, place);
}

uint64_t Flow::held_bytes() const {
    return slots_.capacity() * sizeof(Slot) + extents_.capacity() * sizeof(int64_t) + memory_.held_bytes();
}

}  // namespace aot
