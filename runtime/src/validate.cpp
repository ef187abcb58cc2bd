#include "validate.h"

#include "dims.h"

namespace aot {

using namespace format;

namespace {

// The generated `visit` calls one of these per field: every reference stays inside its section.
struct Fields {
    const Artifact &artifact;
    const char *file;
    const Offsets &offsets;
    uint32_t kind = 0;
    size_t record = 0;

    [[noreturn]] void fail(const char *field, const char *what) const {
        throw damaged(file, section_name(kind), offsets.section[kind], "record %zu: %s %s", record, field, what);
    }
    void string(const char *field, uint32_t offset) const {
        if (offset >= artifact.strings.size()) fail(field, "is outside the strings");
    }
    void dim(const char *field, uint32_t index) const {
        if (index >= artifact.dims.size()) fail(field, "is not a dimension");
    }
    void zero(const char *field, uint64_t value) const {
        if (value) fail(field, "is not zero");
    }
    void run(const char *field, Run r, uint32_t section) const {
        if (uint64_t{r.first} + r.count > count(section)) fail(field, "is outside its section");
    }
    void integers(const char *field, Run r) const { run(field, r, section::INTEGERS); }
    void strings(const char *field, Run r) const {
        integers(field, r);
        for (uint32_t i = 0; i < r.count; ++i) {
            const int64_t value = artifact.integer(r.first + i);
            if (value < 0 || value >= static_cast<int64_t>(artifact.strings.size())) fail(field, "is outside the strings");
        }
    }
    void dims(const char *field, Run r) const {
        integers(field, r);
        for (uint32_t i = 0; i < r.count; ++i) {
            const int64_t value = artifact.integer(r.first + i);
            if (value < 0 || value >= static_cast<int64_t>(artifact.dims.size())) fail(field, "is not a dimension");
        }
    }
    size_t count(uint32_t section) const {
        switch (section) {
            case section::INTEGERS: return artifact.integers.size();
            case section::DIM_CODE: return artifact.dim_code.size();
            case section::DIMS: return artifact.dims.size();
            case section::SYMBOLS: return artifact.symbols.size();
            case section::PORTS: return artifact.ports.size();
            case section::GUARDS: return artifact.guards.size();
            case section::SOURCES: return artifact.sources.size();
            case section::RECIPES: return artifact.recipes.size();
            case section::CONSTANTS: return artifact.constants.size();
            case section::BUFFERS: return artifact.buffers.size();
            case section::KERNELS: return artifact.kernels.size();
            case section::ARGUMENTS: return artifact.arguments.size();
            case section::STEPS: return artifact.steps.size();
            case section::FLOW: return artifact.flow.size();
            case section::HOST: return artifact.host.size();
            case section::TENSORS: return artifact.tensors.size();
            default: return 0;
        }
    }
};

template <class T> void visit_all(const Vector<T> &records, Fields &fields) {
    fields.kind = section_of(static_cast<const T *>(nullptr));
    for (fields.record = 0; fields.record < records.size(); ++fields.record) visit(records[fields.record], fields);
}

// The rules within one program.
class ProgramRules {
public:
    ProgramRules(const Artifact &artifact, const ProgramEntry &program, const Vector<uint8_t> &is_host, const char *file,
                 const Offsets &offsets)
        : a_(artifact), p_(program), is_host_(is_host), file_(file), offsets_(offsets),
          bound_(program.symbols.count, 0, Allocator<uint8_t>(artifact.memory)) {}

    void check() {
        guards();
        if (p_.is_block > 1 || p_.unbacked > p_.symbols.count) fail(section::PROGRAMS, 0, "its symbols contradict each other");
        // What a flow reads from data, and the environment of a block, bind symbols as well.
        if (p_.is_block || p_.flow.count) bound_.assign(bound_.size(), 1);
        for (size_t i = 0; i < bound_.size(); ++i) {
            const size_t record = p_.symbols.first + i;
            if (!bound_[i]) fail(section::SYMBOLS, record, "no input gives this symbol its value");
            if (a_.symbols[record].divisor < 1) fail(section::SYMBOLS, record, "the divisor is not positive");
        }
        ports(p_.inputs);
        dims_of_ports(p_.inputs);
        ports(p_.outputs);
        dims_of_ports(p_.outputs);
        state();
        sources();
        constants();
        buffers();
        kernels();
        steps();
        flow();
        dim(section::PROGRAMS, 0, p_.peak_bytes);
        dim(section::PROGRAMS, 0, p_.lower_bound_bytes);
        if (p_.driver > INT32_MAX) fail(section::PROGRAMS, 0, "an impossible driver");
        if (p_.weights > weights_mode::NONE) fail(section::PROGRAMS, 0, "unknown weights mode");
        if (p_.code_offset > a_.code.size() || p_.code_bytes > a_.code.size() - p_.code_offset) {
            fail(section::PROGRAMS, 0, "the code is outside its section");
        }
    }

private:
    [[noreturn]] void fail(uint32_t kind, size_t record, const char *what) const {
        throw damaged(file_, section_name(kind), offsets_.section[kind], "record %zu: %s", record, what);
    }

    // Only symbols that an earlier guard has bound may be used.
    void dim(uint32_t kind, size_t record, uint32_t index) const {
        const Run code = a_.dims[index].code;
        for (uint32_t i = 0; i < code.count; ++i) {
            const DimCode &instruction = a_.dim_code[code.first + i];
            if (instruction.op != dim_op::SYMBOL) continue;
            if (instruction.symbol >= bound_.size() || !bound_[instruction.symbol]) {
                fail(kind, record, "a dimension uses a symbol without a value");
            }
        }
    }
    void dim_run(uint32_t kind, size_t record, Run run) const {
        for (uint32_t i = 0; i < run.count; ++i) dim(kind, record, static_cast<uint32_t>(a_.integer(run.first + i)));
    }

    void ports(Run run) const {
        for (uint32_t i = 0; i < run.count; ++i) {
            const PortEntry &port = a_.ports[run.first + i];
            if (!find_dtype(port.dtype)) fail(section::PORTS, run.first + i, "unknown element type");
            if (port.shape.count > kMaxRank) fail(section::PORTS, run.first + i, "too many dimensions");
        }
    }
    void dims_of_ports(Run run) const {
        for (uint32_t i = 0; i < run.count; ++i) dim_run(section::PORTS, run.first + i, a_.ports[run.first + i].shape);
    }

    // Whether an input is of integers or bools, so that a guard may ask for the one that it holds.
    static bool holds_one_integer(const PortEntry &port) {
        const DType *dtype = find_dtype(port.dtype);
        return dtype && (dtype->dlpack_code == 0 || dtype->dlpack_code == 1 || dtype->dlpack_code == 6) && dtype->bits >= 8;
    }

    void guards() {
        for (uint32_t i = 0; i < p_.guards.count; ++i) {
            const size_t record = p_.guards.first + i;
            const GuardEntry &guard = a_.guards[record];
            if (guard.kind >= guard_kind::AT_LEAST && guard.kind <= guard_kind::ABOVE) {
                dim(section::GUARDS, record, guard.expected);
                dim(section::GUARDS, record, guard.other);
                continue;
            }
            if (guard.port >= p_.inputs.count) fail(section::GUARDS, record, "no such input");
            const PortEntry &port = a_.ports[p_.inputs.first + guard.port];
            const bool value = guard.kind == guard_kind::VALUE || guard.kind == guard_kind::OTHER_VALUE;
            if (value ? guard.axis != 0 || !holds_one_integer(port) : guard.axis >= port.shape.count) {
                fail(section::GUARDS, record, value ? "no such value" : "no such axis");
            }
            if (guard.divisor < 1) fail(section::GUARDS, record, "the divisor is not positive");
            if (guard.kind == guard_kind::BIND || guard.kind == guard_kind::SOLVE) {
                if (guard.symbol >= bound_.size()) fail(section::GUARDS, record, "no such symbol");
                bound_[guard.symbol] = 1;
                if (guard.kind == guard_kind::SOLVE) dim(section::GUARDS, record, guard.expected);
            } else if (guard.kind == guard_kind::EQUAL || value) {
                dim(section::GUARDS, record, guard.expected);
            } else {
                fail(section::GUARDS, record, "unknown kind");
            }
        }
    }

    void state() const {
        if (p_.state.count % 2) fail(section::PROGRAMS, 0, "state is not made of pairs");
        for (uint32_t i = 0; i < p_.state.count; ++i) {
            const uint32_t limit = i % 2 ? p_.outputs.count : p_.inputs.count;
            const int64_t value = a_.integer(p_.state.first + i);
            if (value < 0 || value >= limit) fail(section::PROGRAMS, 0, "state names no input or output");
        }
        if (p_.initial.count % 2) fail(section::PROGRAMS, 0, "initial values are not pairs");
        for (uint32_t i = 0; i < p_.initial.count; i += 2) {
            const int64_t input = a_.integer(p_.initial.first + i), constant = a_.integer(p_.initial.first + i + 1);
            if (input < 0 || input >= p_.inputs.count || constant < 0 || constant >= p_.constants.count) {
                fail(section::PROGRAMS, 0, "an initial value names no input or constant");
            }
            const PortEntry &port = a_.ports[p_.inputs.first + static_cast<uint32_t>(input)];
            const ConstantEntry &held = a_.constants[p_.constants.first + static_cast<uint32_t>(constant)];
            const DType *dtype = find_dtype(port.dtype);
            const int64_t bytes = port_bytes(port, *dtype);
            const bool fits = held.dtype == port.dtype && bytes >= 0 && dtype->bits >= 8 &&
                              (held.bytes == dtype->bits / 8u || held.bytes == static_cast<uint64_t>(bytes));
            if (!fits) fail(section::PROGRAMS, 0, "an initial value does not fit its input");
        }
    }

    // Of a tensor whose extents are fixed; else -1.
    int64_t port_bytes(const PortEntry &port, const DType &dtype) const {
        int64_t total = item_bytes(dtype);
        for (uint32_t axis = 0; axis < port.shape.count; ++axis) {
            const Run code = a_.dims[static_cast<size_t>(a_.integer(port.shape.first + axis))].code;
            const DimCode &first = a_.dim_code[code.first];
            if (code.count != 1 || first.op != dim_op::CONSTANT || first.value < 0) return -1;
            if (!checked_mul(total, first.value, &total)) return -1;
        }
        return total;
    }

    bool fits_shape(Run shape, uint32_t dtype, uint64_t bytes) const {
        const int64_t needed = shape_bytes(a_, shape, dtype);
        return shape.count <= kMaxRank && needed >= 0 && static_cast<uint64_t>(needed) == bytes;
    }

    void sources() const {
        for (uint32_t i = 0; i < p_.sources.count; ++i) {
            const SourceEntry &source = a_.sources[p_.sources.first + i];
            if (!fits_shape(source.shape, source.dtype, source.bytes)) {
                fail(section::SOURCES, p_.sources.first + i, "bytes do not fit dtype and shape");
            }
        }
    }

    void constants() const {
        for (uint32_t i = 0; i < p_.constants.count; ++i) {
            const size_t record = p_.constants.first + i;
            const ConstantEntry &constant = a_.constants[record];
            if (!fits_shape(constant.shape, constant.dtype, constant.bytes)) {
                fail(section::CONSTANTS, record, "bytes do not fit dtype and shape");
            }
            if (constant.flags & constant_flag::EMBEDDED) {
                in_weights(section::CONSTANTS, record, constant.offset, constant.bytes);
            }
            const bool made_here = !(constant.flags & constant_flag::EMBEDDED) && p_.weights == weights_mode::EMBEDDED;
            for (uint32_t j = 0; j < constant.recipe.count; ++j) recipe(constant.recipe.first + j, made_here);
        }
    }

    void in_weights(uint32_t kind, size_t record, uint64_t offset, uint64_t bytes) const {
        if (offset > a_.weights.bytes || bytes > a_.weights.bytes - offset || offset % kConstantAlignBytes) {
            fail(kind, record, "it is outside the weights, or misaligned");
        }
    }

    // `made_here`: of sources that are in the weights section.
    void recipe(size_t record, bool made_here) const {
        const RecipeEntry &step = a_.recipes[record];
        if (step.op > recipe_op::CONCAT) fail(section::RECIPES, record, "unknown op");
        if (step.shape.count > kMaxRank) fail(section::RECIPES, record, "too many dimensions");
        if (step.op == recipe_op::SOURCE) {
            const int64_t source = step.operands.count == 1 ? a_.integer(step.operands.first) : -1;
            if (source < 0 || source >= p_.sources.count) fail(section::RECIPES, record, "no such source");
            const size_t number = p_.sources.first + static_cast<uint32_t>(source);
            const SourceEntry &entry = a_.sources[number];
            if (made_here) in_weights(section::SOURCES, number, entry.external_offset, entry.bytes);
        }
        if (step.op == recipe_op::CONCAT) {
            const bool has_both = step.operands.count == 2;
            if (!has_both || a_.integer(step.operands.first) < 0 || a_.integer(step.operands.first + 1) < 1) {
                fail(section::RECIPES, record, "it must name an axis and a number of tensors");
            }
        }
    }

    void buffers() const {
        for (uint32_t i = 0; i < p_.buffers.count; ++i) {
            const size_t record = p_.buffers.first + i;
            const BufferEntry &buffer = a_.buffers[record];
            uint32_t limit = UINT32_MAX;
            if (buffer.space == space::INPUT) limit = p_.inputs.count;
            else if (buffer.space == space::OUTPUT) limit = p_.outputs.count;
            else if (buffer.space == space::CONST) limit = p_.constants.count;
            else if (buffer.space != space::ARENA) fail(section::BUFFERS, record, "unknown space");
            if (buffer.space != space::ARENA && buffer.index >= limit) fail(section::BUFFERS, record, "bad index");
            for (uint32_t j = 0; j < buffer.below.count; ++j) {
                const int64_t other = a_.integer(buffer.below.first + j);
                if (other < 0 || other >= i) fail(section::BUFFERS, record, "it lies on a buffer that is not before it");
            }
            dim(section::BUFFERS, record, buffer.size_bytes);
        }
    }

    // A GPU's kernels lie in the program's code, each for itself; a library's have no place of their own.
    void kernels() const {
        for (uint32_t i = 0; i < p_.kernels.count; ++i) {
            const size_t record = p_.kernels.first + i;
            const KernelEntry &kernel = a_.kernels[record];
            if (kernel.image_offset > p_.code_bytes || kernel.image_bytes > p_.code_bytes - kernel.image_offset) {
                fail(section::KERNELS, record, "its machine code is outside the program's code");
            }
            if ((kernel.image_bytes != 0) != (strncmp(a_.text(p_.target), "cuda:", 5) == 0)) {
                fail(section::KERNELS, record, "machine code of its own is for a GPU, and a library for a CPU");
            }
            if (kernel.image_bytes ? kernel.threads == 0 || kernel.threads > 1024 || kernel.threads % 32 : kernel.threads) {
                fail(section::KERNELS, record, "bad number of threads");
            }
        }
    }

    void steps() const {
        for (uint32_t i = 0; i < p_.steps.count; ++i) {
            const size_t record = p_.steps.first + i;
            const StepEntry &step = a_.steps[record];
            if (step.kernel >= p_.kernels.count) fail(section::STEPS, record, "no such kernel");
            for (uint32_t j = 0; j < step.arguments.count; ++j) {
                const ArgumentEntry &argument = a_.arguments[step.arguments.first + j];
                if (argument.buffer >= p_.buffers.count) {
                    fail(section::ARGUMENTS, step.arguments.first + j, "no such buffer");
                }
                dim(section::ARGUMENTS, step.arguments.first + j, argument.offset_bytes);
            }
            dim_run(section::STEPS, record, step.dims);
            dim_run(section::STEPS, record, step.grid);
            const KernelEntry &kernel = a_.kernels[p_.kernels.first + step.kernel];
            if (step.grid.count != (kernel.image_bytes ? 3 : 0)) fail(section::STEPS, record, "bad grid");
            dim(section::STEPS, record, step.scratch_bytes);
            dim(section::STEPS, record, step.flops);
            dim(section::STEPS, record, step.bytes_moved);
            for (uint32_t j = 0; j < step.results.count; ++j) result(step.results.first + j, step.arguments.count);
        }
    }

    void result(size_t record, uint32_t arguments) const {
        const TensorEntry &tensor = a_.tensors[record];
        if (!find_dtype(tensor.dtype)) fail(section::TENSORS, record, "unknown element type");
        if (tensor.argument >= arguments) fail(section::TENSORS, record, "no such argument");
        if (tensor.shape.count != tensor.strides.count || tensor.shape.count > kMaxRank) {
            fail(section::TENSORS, record, "shape and strides do not fit each other");
        }
        dim(section::TENSORS, record, tensor.origin);
        dim_run(section::TENSORS, record, tensor.shape);
        dim_run(section::TENSORS, record, tensor.strides);
    }

    void flow() {
        if (p_.is_block ? p_.environment.count != p_.symbols.count || p_.flow.count : p_.environment.count != 0) {
            fail(section::PROGRAMS, 0, "its environment contradicts itself");
        }
        if (p_.flow.count == 0) {
            if (p_.blocks.count || p_.slots.count) fail(section::PROGRAMS, 0, "it has blocks without a flow");
            return;
        }
        ports(p_.slots);
        dims_of_ports(p_.slots);
        if (p_.slots.count < p_.inputs.count || p_.results.count != p_.outputs.count || p_.steps.count ||
            p_.buffers.count) {
            fail(section::PROGRAMS, 0, "the flow does not fit its program");
        }
        for (uint32_t i = 0; i < p_.inputs.count; ++i) fits(section::PROGRAMS, 0, i, a_.ports[p_.inputs.first + i]);
        for (uint32_t i = 0; i < p_.outputs.count; ++i) {
            fits(section::PROGRAMS, 0, slot(section::PROGRAMS, 0, a_.integer(p_.results.first + i)),
                 a_.ports[p_.outputs.first + i]);
        }
        for (uint32_t i = 0; i < p_.blocks.count; ++i) block(a_.integer(p_.blocks.first + i));
        visited_ = 0;
        flow_steps(p_.flow, a_.flow.size(), 0);
    }

    void block(int64_t number) const {
        if (number < 0 || number >= static_cast<int64_t>(a_.programs.size())) fail(section::PROGRAMS, 0, "no such block");
        const ProgramEntry &block = a_.programs[static_cast<size_t>(number)];
        const bool fits = is_host_[static_cast<size_t>(number)] ? strncmp(a_.text(p_.target), "cuda:", 5) == 0
                                                                : strcmp(a_.text(block.target), a_.text(p_.target)) == 0;
        if (block.is_block != 1 || !fits) {
            fail(section::PROGRAMS, static_cast<size_t>(number), "it is not a block of this program");
        }
        for (uint32_t i = 0; i < block.environment.count; ++i) {
            const int64_t symbol = a_.integer(block.environment.first + i);
            if (symbol < 0 || symbol >= p_.symbols.count) fail(section::PROGRAMS, static_cast<size_t>(number), "no such symbol");
        }
    }

    uint32_t slot(uint32_t kind, size_t record, int64_t number) const {
        if (number < 0 || number >= p_.slots.count) fail(kind, record, "no such slot");
        return static_cast<uint32_t>(number);
    }
    const PortEntry &slot_port(size_t record, Run run, uint32_t index) const {
        return a_.ports[p_.slots.first + slot(section::FLOW, record, a_.integer(run.first + index))];
    }
    void fits(uint32_t kind, size_t record, uint32_t slot, const PortEntry &port) const {
        const PortEntry &held = a_.ports[p_.slots.first + slot];
        if (held.dtype != port.dtype || held.shape.count != port.shape.count) fail(kind, record, "the types differ");
    }
    void whole_slots(size_t record, Run run) const {
        for (uint32_t i = 0; i < run.count; ++i) slot_port(record, run, i);
    }
    void need(size_t record, bool holds, const char *what) const {
        if (!holds) fail(section::FLOW, record, what);
    }
    // An optional slot that a branch or a loop reads: -1, or of this element type.
    void control(size_t record, int64_t number, const char *dtype) const {
        if (number == -1) return;
        const PortEntry &port = a_.ports[p_.slots.first + slot(section::FLOW, record, number)];
        need(record, strcmp(find_dtype(port.dtype)->name, dtype) == 0, "control reads a tensor of another type");
    }

    // A body lies before the step that has it, so none contains itself; sharing bodies is bounded by a count of visits.
    void flow_steps(Run run, size_t before, uint32_t depth) {
        if (uint64_t{run.first} + run.count > before || depth > kDeepestFlow) {
            fail(section::FLOW, run.first, "a body does not lie before its step, or is nested too deeply");
        }
        for (uint32_t i = 0; i < run.count; ++i) {
            const size_t record = run.first + i;
            if (++visited_ > kMostFlowSteps) fail(section::FLOW, record, "too many steps");
            flow_step(record, a_.flow[record], depth);
        }
    }

    void flow_step(size_t record, const FlowEntry &step, uint32_t depth) {
        const uint32_t in = step.inputs.count, out = step.outputs.count;
        dim_run(section::FLOW, record, step.dims);
        whole_slots(record, step.drops);
        if (step.op != flow_op::LOOP) whole_slots(record, step.inputs), whole_slots(record, step.outputs);
        for (uint32_t i = 0; i < step.symbols.count; ++i) {
            const int64_t symbol = a_.integer(step.symbols.first + i);
            need(record, symbol >= -1 && symbol < p_.symbols.count, "no such symbol");
        }
        switch (step.op) {
            case flow_op::CALL: {
                need(record, step.block < p_.blocks.count, "no such block");
                const ProgramEntry &block = a_.programs[static_cast<size_t>(a_.integer(p_.blocks.first + step.block))];
                need(record, in == block.inputs.count && out == block.outputs.count, "the block has other operands");
                for (uint32_t i = 0; i < in + out; ++i) {
                    const bool is_input = i < in;
                    const int64_t number = a_.integer(is_input ? step.inputs.first + i : step.outputs.first + i - in);
                    fits(section::FLOW, record, static_cast<uint32_t>(number),
                         a_.ports[is_input ? block.inputs.first + i : block.outputs.first + i - in]);
                }
                return;
            }
            case flow_op::READ:
                need(record, in == 1 && step.symbols.count + step.dims.count == 1, "it reads nothing");
                need(record, holds_one_integer(slot_port(record, step.inputs, 0)), "a size is read from another type");
                need(record, step.symbols.count == 0 || a_.integer(step.symbols.first) >= 0, "no such symbol");
                return;
            case flow_op::CHECK: return need(record, step.dims.count == 2, "it checks nothing");
            case flow_op::ALIAS:
                need(record, in == 1 && out == 1, "it names nothing");
                return need(record, slot_port(record, step.inputs, 0).dtype == slot_port(record, step.outputs, 0).dtype,
                            "the types differ");
            case flow_op::MOVE:
                need(record, in == out, "it moves nothing");
                for (uint32_t i = 0; i < in; ++i) {
                    fits(section::FLOW, record, static_cast<uint32_t>(a_.integer(step.inputs.first + i)),
                         slot_port(record, step.outputs, i));
                }
                return;
            case flow_op::MATCH:
                return need(record, in == 1 && step.symbols.count == slot_port(record, step.inputs, 0).shape.count,
                            "it matches nothing");
            case flow_op::CLEAR:
                return need(record, out == 1 && slot_port(record, step.outputs, 0).shape.count, "it clears nothing");
            case flow_op::APPEND: {
                need(record, in == 1 && out == 1, "it appends nothing");
                const PortEntry &from = slot_port(record, step.inputs, 0), &to = slot_port(record, step.outputs, 0);
                return need(record, from.dtype == to.dtype && from.shape.count + 1 == to.shape.count, "the types differ");
            }
            case flow_op::IF:
                need(record, in == 1, "it has no condition");
                control(record, a_.integer(step.inputs.first), "bool");
                flow_steps(step.first, record, depth + 1);
                return flow_steps(step.second, record, depth + 1);
            case flow_op::LOOP:
                need(record, in == 2 && out == 1, "it has no condition");
                control(record, a_.integer(step.inputs.first), "i64");
                control(record, a_.integer(step.inputs.first + 1), "bool");
                control(record, a_.integer(step.outputs.first), "i64");
                return flow_steps(step.first, record, depth + 1);
            default: fail(section::FLOW, record, "unknown op");
        }
    }

    static constexpr uint32_t kDeepestFlow = 64;
    static constexpr uint32_t kMostFlowSteps = 1 << 20;

    const Artifact &a_;
    const ProgramEntry &p_;
    const Vector<uint8_t> &is_host_;  // of each program
    const char *file_;
    const Offsets &offsets_;
    Vector<uint8_t> bound_;
    uint32_t visited_ = 0;
};

}  // namespace

void validate(const Artifact &artifact, const char *file, const Offsets &offsets) {
    if (artifact.strings.empty() || artifact.strings.back() != 0) {
        throw damaged(file, "strings", offsets.section[section::STRINGS], "the last string has no end");
    }
    Fields fields{artifact, file, offsets};
    visit_all(artifact.dims, fields);
    visit_all(artifact.symbols, fields);
    visit_all(artifact.ports, fields);
    visit_all(artifact.guards, fields);
    visit_all(artifact.sources, fields);
    visit_all(artifact.recipes, fields);
    visit_all(artifact.constants, fields);
    visit_all(artifact.buffers, fields);
    visit_all(artifact.kernels, fields);
    visit_all(artifact.arguments, fields);
    visit_all(artifact.steps, fields);
    visit_all(artifact.flow, fields);
    visit_all(artifact.host, fields);
    visit_all(artifact.tensors, fields);
    visit_all(artifact.signatures, fields);
    visit_all(artifact.programs, fields);
    for (size_t i = 0; i < artifact.dims.size(); ++i) {
        const Run code = artifact.dims[i].code;
        if (const char *what = check_dim_code(artifact.dim_code.data() + code.first, code.count)) {
            throw damaged(file, "dims", offsets.section[section::DIMS], "record %zu: %s", i, what);
        }
    }
    if (artifact.programs.empty()) {
        throw damaged(file, "programs", offsets.section[section::PROGRAMS], "there is no program");
    }
    for (size_t i = 0; i < artifact.programs.size(); ++i) {
        const bool block = artifact.programs[i].is_block != 0;
        if (i == 0 ? block : block < (artifact.programs[i - 1].is_block != 0)) {
            throw damaged(file, "programs", offsets.section[section::PROGRAMS], "record %zu: blocks lie behind the programs", i);
        }
    }
    Vector<uint8_t> is_host(artifact.programs.size(), 0, Allocator<uint8_t>(artifact.memory));
    for (size_t i = 0; i < artifact.host.size(); ++i) {
        const size_t block = artifact.host[i].block;
        if (block >= is_host.size() || !artifact.programs[block].is_block ||
            strncmp(artifact.text(artifact.programs[block].target), "cpu:", 4) != 0) {
            throw damaged(file, "host", offsets.section[section::HOST], "record %zu: no block for a CPU", i);
        }
        is_host[block] = 1;
    }
    for (const ProgramEntry &program : artifact.programs) ProgramRules(artifact, program, is_host, file, offsets).check();
}

}  // namespace aot
