// The C functions of aot/runtime.h. Exceptions end here.
#include <algorithm>
#include <atomic>
#include <exception>

#include "cpu.h"
#include "guards.h"
#include "machine.h"
#include "model.h"
#include "session.h"
#include "statistics.h"

using namespace aot;
using namespace aot::format;

struct aot_model : Model {
    using Model::Model;
    mutable std::atomic<uint32_t> holders{1};  // the caller, sessions, and pieces of device memory
    mutable RunCounts counts;
};
struct aot_session : Session {
    aot_session(const aot_model &model, const aot_session_options &options)
        : Session(model, options), counter(model.counts), owner(&model) {
        owner->holders.fetch_add(1, std::memory_order_relaxed);
    }
    RunCounter counter;
    const aot_model *const owner;
};
struct aot_pool : Pool {
    using Pool::Pool;
};

namespace {

int32_t report(aot_error *error, const Failure &failure, int32_t *reason) {
    if (reason) *reason = failure.reason;
    if (error) {
        aot_error filled{};
        filled.struct_size = sizeof filled;
        filled.status = failure.status;
        filled.reason = failure.reason;
        memcpy(filled.where, failure.where, sizeof filled.where);
        memcpy(filled.message, failure.message, sizeof filled.message);
        memcpy(filled.hint, failure.hint, sizeof filled.hint);
        write_info(error, filled);
    }
    return failure.status;
}

// The status and the text of the exception that is being handled. One function, since every `guarded` needs it.
[[gnu::noinline, gnu::cold]] int32_t caught(aot_error *error, int32_t *reason = nullptr) noexcept {
    try {
        throw;
    } catch (const Failure &failure) {
        return report(error, failure, reason);
    } catch (const std::bad_alloc &) {
        return report(error, Failure(AOT_ERROR_MEMORY, "", "Free memory, or use smaller inputs.", "out of memory"), reason);
    } catch (const std::exception &exception) {
        return report(error, Failure(AOT_ERROR_INTERNAL, "", "Please report this.", "%s", exception.what()), reason);
    } catch (...) {
        return report(error, Failure(AOT_ERROR_INTERNAL, "", "Please report this.", "unknown exception"), reason);
    }
}

// Runs `f`, turning every exception into a status and a text.
template <class F> int32_t guarded(aot_error *error, F &&f) noexcept {
    try {
        f();
        return AOT_OK;
    } catch (...) {
        return caught(error);
    }
}

bool supported(const char *target) {
    std::string problem;
    return target_rank(target, 0, this_machine(is_gpu_target(target), 0, nullptr), &problem) > 0;
}

void require(bool condition, const char *what) {
    if (!condition) throw Failure(AOT_ERROR_ARGUMENT, "", "", "%s must not be NULL", what);
}

// Whether a program of the model is for one value of an input, or for the others.
bool chooses(const aot_model *model, uint32_t input) {
    for (const Variant &variant : model->variants) {
        const Run guards = variant.entry->guards;
        for (uint32_t i = 0; i < guards.count; ++i) {
            const GuardEntry &rule = model->artifact.guards[guards.first + i];
            const bool of_value = rule.kind == guard_kind::VALUE || rule.kind == guard_kind::OTHER_VALUE;
            if (of_value && rule.port == input) return true;
        }
    }
    return false;
}

int32_t port_info(const aot_model *model, const PortEntry &port, bool chooses, aot_port_info *out) {
    const DType &dtype = *find_dtype(port.dtype);
    aot_port_info info{sizeof info,       model->artifact.text(port.name), dtype.name,       dtype.dlpack_code,
                       dtype.dlpack_bits, 1,                               port.shape.count, chooses};
    write_info(out, info);
    return AOT_OK;
}

int32_t dim_info(const aot_model *model, const PortEntry &port, uint32_t axis, aot_dim_info *out) {
    if (axis >= port.shape.count) return AOT_ERROR_ARGUMENT;
    const DimEntry &dim = model->artifact.dims[static_cast<size_t>(model->artifact.integer(port.shape.first + axis))];
    const DimCode &first = model->artifact.dim_code[dim.code.first];
    const bool fixed = dim.code.count == 1 && first.op == dim_op::CONSTANT;
    aot_dim_info info{sizeof info, model->artifact.text(dim.text), fixed ? first.value : -1};
    write_info(out, info);
    return AOT_OK;
}

const Variant *variant_of(const aot_model *model, uint32_t program) {
    for (const Variant &variant : model->variants) {
        if (variant.program == program) return &variant;
    }
    return nullptr;
}

// A step of a program, or of its flow's blocks one after the other; `unit` becomes the one that has it.
const StepEntry *step_of(const aot_model *model, const Variant *&unit, uint32_t index) {
    if (!unit) return nullptr;
    const Variant *program = unit;
    for (uint32_t i = 0; i < program->entry->blocks.count; ++i) {
        const Variant &block = model->blocks[program->first_block + i];
        if (index < block.first_step + block.entry->steps.count) {
            unit = &block;
            return &model->artifact.steps[block.entry->steps.first + (index - block.first_step)];
        }
    }
    if (index >= program->entry->steps.count) return nullptr;
    return &model->artifact.steps[program->entry->steps.first + index];
}

uint32_t step_count(const Artifact &artifact, const ProgramEntry &program) {
    uint32_t count = program.steps.count;
    for (uint32_t i = 0; i < program.blocks.count; ++i) {
        count += artifact.programs[static_cast<size_t>(artifact.integer(program.blocks.first + i))].steps.count;
    }
    return count;
}

int32_t step_info(const aot_model *model, const Variant *variant, uint32_t index, aot_step_info *out) {
    const StepEntry *step = step_of(model, variant, index);
    if (!step || !out) return AOT_ERROR_ARGUMENT;
    const Artifact &a = model->artifact;
    const KernelEntry &kernel = a.kernels[variant->entry->kernels.first + step->kernel];
    aot_step_info info{sizeof info,           a.text(kernel.label),    a.text(kernel.kind),
                       a.text(kernel.symbol), a.text(kernel.schedule), step->locs.count};
    write_info(out, info);
    return AOT_OK;
}

const char *step_loc(const aot_model *model, const Variant *variant, uint32_t index, uint32_t loc) {
    const StepEntry *step = step_of(model, variant, index);
    if (!step || loc >= step->locs.count) return nullptr;
    return model->artifact.text(static_cast<uint32_t>(model->artifact.integer(step->locs.first + loc)));
}

// The constant that an input of state holds before the first run; null where the model does not know.
const ConstantEntry *initial_state(const aot_model *model, uint32_t input) {
    const ProgramEntry &entry = *model->variants.back().entry;
    for (uint32_t i = 0; i < entry.initial.count; i += 2) {
        if (model->artifact.integer(entry.initial.first + i) != input) continue;
        return &model->artifact.constants[entry.constants.first +
                                          static_cast<size_t>(model->artifact.integer(entry.initial.first + i + 1))];
    }
    return nullptr;
}

// One that held the model lets go of it.
void drop(const aot_model *model) {
    if (model && model->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete model;
}

const cuda::DeviceModel &device_of(const aot_model *model) {
    require(model, "model");
    if (!model->device) {
        throw Failure(AOT_ERROR_ARGUMENT, model->name.c_str(), "Ask which target was selected.", "the model runs on the CPU");
    }
    return *model->device;
}

int32_t load(const ByteSource &source, const aot_load_options *options, aot_model **out_model) {
    *out_model = new aot_model(source, read_options(options));
    return AOT_OK;
}

}  // namespace

extern "C" {

uint32_t aot_abi_version(void) { return AOT_ABI_VERSION; }

const char *aot_version(void) { return AOT_VERSION_STRING; }

const char *aot_status_name(int32_t status) {
    static const char *const names[] = {"ok",     "argument",  "damaged", "version", "target",  "guard",
                                        "memory", "cancelled", "io",      "weights", "internal", "device", "signature"};
    return status >= 0 && status <= AOT_ERROR_SIGNATURE ? names[status] : "unknown";
}

const char *aot_reason_name(int32_t reason) {
    static const char *const names[] = {"none",  "missing", "place",  "dtype",     "rank",    "extent", "range", "relation",
                                        "value", "layout",  "alignment", "overlap", "data", "capture", "size"};
    if (reason >= 0 && reason <= AOT_REASON_SIZE) return names[reason];
    switch (reason) {
        case AOT_REASON_CANCEL_FLAG: return "cancel flag";
        case AOT_REASON_DEADLINE: return "deadline";
        case AOT_REASON_DEVICE_LOST: return "device lost";
        default: return "unknown";
    }
}

int32_t aot_status_advice(int32_t status, int32_t reason) {
    switch (status) {
        case AOT_OK: return AOT_ADVICE_NONE;
        case AOT_ERROR_ARGUMENT: return AOT_ADVICE_GIVE_UP;
        case AOT_ERROR_CANCELLED: return AOT_ADVICE_GIVE_UP;
        case AOT_ERROR_MEMORY: return AOT_ADVICE_RETRY;
        case AOT_ERROR_DEVICE: return reason == AOT_REASON_DEVICE_LOST ? AOT_ADVICE_RESTART : AOT_ADVICE_OTHER;
        default: return AOT_ADVICE_OTHER;
    }
}

int32_t aot_target_supported(const char *target) {
    int32_t answer = 0;
    guarded(nullptr, [&] { answer = target && supported(target); });
    return answer;
}

void aot_this_machine(int32_t device, aot_machine *out_machine) {
    guarded(nullptr, [&] {
        if (!out_machine) return;
        const Machine found = this_machine(true, device, nullptr);
        write_info(out_machine, aot_machine{sizeof(aot_machine), found.cpu_level, found.capability, found.driver,
                                          found.cpu_extras});
    });
}

int32_t aot_target_rank(const char *target, int32_t lowest_driver, const aot_machine *machine, char *reason,
                        size_t reason_bytes) {
    int32_t rank = 0;
    guarded(nullptr, [&] {
        std::string problem = "no target was given";
        if (target) {
            Machine wanted;
            if (machine) {
                const aot_machine given = read_options(machine);
                wanted.cpu_level = std::clamp(given.cpu_level, 0, 4);
                wanted.cpu_extras = given.cpu_extras;
                wanted.capability = given.capability;
                wanted.driver = !given.capability ? 0 : given.driver ? given.driver : INT32_MAX;
                wanted.gpu_problem = "there is no GPU";
            } else {
                wanted = this_machine(is_gpu_target(target), 0, nullptr);
            }
            rank = target_rank(target, lowest_driver, wanted, &problem);
            if (rank) problem.clear();
        }
        if (reason && reason_bytes) copy_text(reason, reason_bytes, problem.c_str());
    });
    return rank;
}

uint32_t aot_default_thread_count(void) { return default_thread_count(); }

int32_t aot_model_load_file(const char *path, const aot_load_options *options, aot_model **out_model,
                            aot_error *error) {
    return guarded(error, [&] {
        require(path, "path"), require(out_model, "out_model");
        *out_model = nullptr;
        ByteSource source(path);
        load(source, options, out_model);
    });
}

int32_t aot_model_load_memory(const void *bytes, size_t size, const aot_load_options *options, aot_model **out_model,
                              aot_error *error) {
    return guarded(error, [&] {
        require(bytes || !size, "bytes"), require(out_model, "out_model");
        *out_model = nullptr;
        ByteSource source(bytes, size);
        load(source, options, out_model);
    });
}

void aot_model_unload(aot_model *model) { drop(model); }

uint32_t aot_model_program_count(const aot_model *model) {
    uint32_t count = 0;  // blocks of flows lie behind the programs
    for (const ProgramEntry &program : model->artifact.programs) count += program.is_block ? 0 : 1;
    return count;
}

int32_t aot_model_program(const aot_model *model, uint32_t index, aot_program_info *out_info) {
    if (!out_info || index >= aot_model_program_count(model)) return AOT_ERROR_ARGUMENT;
    const Artifact &a = model->artifact;
    const ProgramEntry &p = a.programs[index];
    uint32_t kernels = p.kernels.count, host_steps = 0;
    for (uint32_t i = 0; i < p.blocks.count; ++i) {
        const size_t block = static_cast<size_t>(a.integer(p.blocks.first + i));
        kernels += a.programs[block].kernels.count;
        for (const HostEntry &host : a.host) host_steps += host.block == block;
    }
    aot_program_info info{sizeof info,
                          a.text(p.target),
                          a.text(p.variant),
                          a.text(p.planner),
                          supported(a.text(p.target)),
                          variant_of(model, index) != nullptr,
                          kernels,
                          step_count(a, p),
                          p.code_bytes,
                          model->problems[index].c_str(),
                          host_steps,
                          0};
    write_info(out_info, info);
    return AOT_OK;
}

uint32_t aot_model_input_count(const aot_model *model) { return model->input_count(); }

uint32_t aot_model_output_count(const aot_model *model) { return model->output_count(); }

int32_t aot_model_input(const aot_model *model, uint32_t index, aot_port_info *out_info) {
    if (!out_info || index >= model->input_count()) return AOT_ERROR_ARGUMENT;
    return port_info(model, model->input(index), chooses(model, index), out_info);
}

int32_t aot_model_output(const aot_model *model, uint32_t index, aot_port_info *out_info) {
    if (!out_info || index >= model->output_count()) return AOT_ERROR_ARGUMENT;
    return port_info(model, model->output(index), false, out_info);
}

int32_t aot_model_input_dim(const aot_model *model, uint32_t index, uint32_t axis, aot_dim_info *out_info) {
    if (!out_info || index >= model->input_count()) return AOT_ERROR_ARGUMENT;
    return dim_info(model, model->input(index), axis, out_info);
}

int32_t aot_model_output_dim(const aot_model *model, uint32_t index, uint32_t axis, aot_dim_info *out_info) {
    if (!out_info || index >= model->output_count()) return AOT_ERROR_ARGUMENT;
    return dim_info(model, model->output(index), axis, out_info);
}

uint32_t aot_model_symbol_count(const aot_model *model) {
    const ProgramEntry &program = *model->variants.back().entry;
    return program.symbols.count - program.unbacked;
}

int32_t aot_model_symbol(const aot_model *model, uint32_t index, aot_symbol_info *out_info) {
    const Run symbols = model->variants.back().entry->symbols;
    if (!out_info || index >= aot_model_symbol_count(model)) return AOT_ERROR_ARGUMENT;
    const SymbolEntry &symbol = model->artifact.symbols[symbols.first + index];
    aot_symbol_info info{sizeof info, model->artifact.text(symbol.name), symbol.lo,
                         symbol.flags & symbol_flag::HAS_HI ? symbol.hi : -1, symbol.divisor};
    write_info(out_info, info);
    return AOT_OK;
}

uint32_t aot_model_state_count(const aot_model *model) { return model->variants.back().entry->state.count / 2; }

int32_t aot_model_state(const aot_model *model, uint32_t index, aot_state_info *out_info) {
    if (!out_info || index >= aot_model_state_count(model)) return AOT_ERROR_ARGUMENT;
    const Run state = model->variants.back().entry->state;
    aot_state_info info{sizeof info, static_cast<uint32_t>(model->artifact.integer(state.first + 2 * index)),
                        static_cast<uint32_t>(model->artifact.integer(state.first + 2 * index + 1)), 0};
    info.has_initial = initial_state(model, info.input) != nullptr;
    write_info(out_info, info);
    return AOT_OK;
}

int32_t aot_model_initial_state(const aot_model *model, uint32_t index, void *data, size_t bytes) {
    if (index >= aot_model_state_count(model)) return AOT_ERROR_ARGUMENT;
    const Variant &unit = model->variants.back();
    const uint32_t input = static_cast<uint32_t>(model->artifact.integer(unit.entry->state.first + 2 * index));
    const ConstantEntry *held = initial_state(model, input);
    if (!held) return AOT_ERROR_ARGUMENT;
    const PortEntry &port = model->input(input);
    size_t item = item_bytes(*find_dtype(port.dtype)), size = item;
    for (uint32_t axis = 0; axis < port.shape.count; ++axis) {
        const DimEntry &dim = model->artifact.dims[static_cast<size_t>(model->artifact.integer(port.shape.first + axis))];
        size *= static_cast<size_t>(model->artifact.dim_code[dim.code.first].value);
    }
    if (bytes != size || (!data && size)) return AOT_ERROR_ARGUMENT;
    const uint32_t number = static_cast<uint32_t>(held - &model->artifact.constants[unit.entry->constants.first]);
    const size_t piece = static_cast<size_t>(held->bytes);
    return guarded(nullptr, [&] {
        if (size) model->read_constant(unit.program, number, data, piece);
        for (size_t at = piece; at < size; at += piece) memcpy(static_cast<uint8_t *>(data) + at, data, piece);
    });
}

uint32_t aot_model_step_count(const aot_model *model) {
    return step_count(model->artifact, *model->variants.back().entry);
}

int32_t aot_model_step(const aot_model *model, uint32_t index, aot_step_info *out_info) {
    return step_info(model, &model->variants.back(), index, out_info);
}

const char *aot_model_step_loc(const aot_model *model, uint32_t step, uint32_t loc) {
    return step_loc(model, &model->variants.back(), step, loc);
}

int32_t aot_model_program_step(const aot_model *model, uint32_t program, uint32_t index, aot_step_info *out_info) {
    return step_info(model, variant_of(model, program), index, out_info);
}

const char *aot_model_program_step_loc(const aot_model *model, uint32_t program, uint32_t step, uint32_t loc) {
    return step_loc(model, variant_of(model, program), step, loc);
}

const char *aot_model_meta(const aot_model *model, size_t *out_bytes) {
    if (out_bytes) *out_bytes = model->artifact.meta.size();
    return model->artifact.meta.data();
}

uint64_t aot_model_weight_bytes(const aot_model *model) { return model->weights.bytes; }

uint64_t aot_model_shared_weight_bytes(const aot_model *model) { return model->shared_weight_bytes(); }

int32_t aot_model_check(const aot_model *model, const aot_tensor *const *inputs, uint32_t input_count, aot_error *error) {
    return guarded(error, [&] {
        require(model, "model");
        check_guards(*model, inputs, input_count);
    });
}

void aot_model_statistics(const aot_model *model, aot_statistics *out_statistics) {
    if (!model || !out_statistics) return;
    aot_statistics found{};
    found.struct_size = sizeof found;
    model->counts.read(found);
    write_info(out_statistics, found);
}

int32_t aot_model_device(const aot_model *model) { return model->device ? model->device->device.ordinal : -1; }

int32_t aot_device_allocate(const aot_model *model, size_t bytes, void **out_data, aot_error *error) {
    return guarded(error, [&] {
        require(out_data, "out_data");
        *out_data = nullptr;
        *out_data = device_of(model).allocate(bytes, model->name.c_str());
        model->holders.fetch_add(1, std::memory_order_relaxed);
    });
}

void aot_device_free(const aot_model *model, void *data) {
    if (!model || !data || !model->device) return;
    model->device->release(data);
    drop(model);
}

int32_t aot_device_copy(const aot_model *model, void *to, const void *from, size_t bytes, void *stream, aot_error *error) {
    return guarded(error, [&] {
        const cuda::DeviceModel &device = device_of(model);
        require((to && from) || !bytes, "to and from");
        device.copy(to, from, bytes, stream, model->name.c_str());
    });
}

int32_t aot_pool_create(uint32_t thread_count, aot_pool **out_pool, aot_error *error) {
    return guarded(error, [&] {
        require(out_pool, "out_pool");
        *out_pool = nullptr;
        *out_pool = new aot_pool(thread_count ? thread_count : default_thread_count());
    });
}

void aot_pool_destroy(aot_pool *pool) { delete pool; }

int32_t aot_session_create(const aot_model *model, const aot_session_options *options, aot_session **out_session,
                           aot_error *error) {
    return guarded(error, [&] {
        require(model, "model"), require(out_session, "out_session");
        *out_session = nullptr;
        *out_session = new aot_session(*model, read_options(options));
    });
}

void aot_session_destroy(aot_session *session) {
    if (!session) return;
    const aot_model *const owner = session->owner;
    delete session;
    drop(owner);
}

int32_t aot_session_run(aot_session *session, const aot_tensor *const *inputs, uint32_t input_count,
                        const aot_tensor *const *outputs, uint32_t output_count, const aot_run_options *options,
                        aot_error *error) {
    const uint64_t start = RunCounter::ticks();
    int32_t status = AOT_OK, reason = AOT_REASON_NONE;
    try {
        require(session, "session");
        session->run(inputs, input_count, outputs, output_count, read_options(options));
    } catch (...) {
        status = caught(error, &reason);
    }
    if (session) session->counter.add(status, reason, start);
    return status;
}

int32_t aot_session_prepare(aot_session *session, const aot_tensor *const *inputs, uint32_t input_count,
                            aot_error *error) {
    return guarded(error, [&] {
        require(session, "session");
        session->prepare(inputs, input_count);
    });
}

int32_t aot_session_reserve(aot_session *session, const aot_dim_value *dims, uint32_t count, aot_error *error) {
    return guarded(error, [&] {
        require(session, "session"), require(dims || !count, "dims");
        session->reserve(dims, count);
    });
}

int32_t aot_session_output(const aot_session *session, uint32_t index, aot_tensor *out_tensor) {
    return session && out_tensor && session->output(index, out_tensor) ? AOT_OK : AOT_ERROR_ARGUMENT;
}

uint64_t aot_session_arena_bytes(const aot_session *session) { return session->arena_bytes(); }

uint64_t aot_session_memory_bytes(const aot_session *session) { return session->memory_bytes(); }

uint32_t aot_session_thread_count(const aot_session *session) { return session->thread_count(); }

uint64_t aot_session_host_steps(const aot_session *session) { return session->host_steps(); }

uint32_t aot_session_profile(const aot_session *session, uint64_t *out_ns, uint32_t count, uint32_t *out_program) {
    return session->profile(out_ns, count, out_program);
}

int32_t aot_session_trace(aot_session *session, const aot_tensor *const *inputs, uint32_t input_count,
                          const aot_tensor *const *outputs, uint32_t output_count, const aot_run_options *options,
                          aot_trace_function trace, void *user, aot_error *error) {
    return guarded(error, [&] {
        require(session, "session"), require(trace, "trace");
        session->trace(inputs, input_count, outputs, output_count, read_options(options), trace, user);
    });
}

int32_t aot_session_time_steps(aot_session *session, uint32_t repeats, aot_step_time *out_steps, uint32_t count,
                               uint32_t *out_count, uint64_t *out_run_ns, aot_error *error) {
    return guarded(error, [&] {
        require(session, "session"), require(out_steps || !count, "out_steps"), require(out_run_ns, "out_run_ns");
        const uint32_t found = session->time_steps(repeats, out_steps, count, out_run_ns);
        if (out_count) *out_count = found;
    });
}

}  // extern "C"
