#include "trace.h"

#include "dims.h"
#include "session.h"

namespace aot {

using namespace format;

namespace {

// What a step wrote, with its extents as numbers.
class Written {
public:
    Written(const Model &model, const Plan &plan, const StepEntry &step) : model_(model), plan_(plan), step_(step) {}

    // The tensor behind a pointer of the step; `extents`: room for its shape and strides.
    aot_tensor tensor(const TensorEntry &entry, int64_t *extents, size_t *bytes, int64_t *offset) const {
        const DType &dtype = *find_dtype(entry.dtype);
        const uint32_t rank = entry.shape.count;
        int64_t last = 0, origin = value(entry.origin);
        bool is_empty = false;
        for (uint32_t axis = 0; axis < rank; ++axis) {
            extents[axis] = value(static_cast<uint32_t>(model_.artifact.integer(entry.shape.first + axis)));
            extents[rank + axis] = value(static_cast<uint32_t>(model_.artifact.integer(entry.strides.first + axis)));
            is_empty = is_empty || extents[axis] <= 0;
            int64_t reach = 0;
            if (extents[rank + axis] < 0 || !checked_mul(extents[axis] - 1, extents[rank + axis], &reach) ||
                !checked_add(last, reach, &last)) {
                inconsistent();
            }
        }
        const ArgumentEntry &argument = model_.artifact.arguments[step_.arguments.first + entry.argument];
        const BufferEntry &buffer = model_.artifact.buffers[plan_.unit->entry->buffers.first + argument.buffer];
        const int64_t item = item_bytes(dtype);
        int64_t end = 0;
        const bool fits = origin >= 0 && checked_add(origin, last, &end) && checked_add(end, 1, &end) &&
                          checked_mul(end, item, &end) && checked_add(end, value(argument.offset_bytes), &end) &&
                          end <= value(buffer.size_bytes);
        if (!is_empty && !fits) inconsistent();
        *bytes = is_empty ? 0 : static_cast<size_t>((last + 1) * item);
        *offset = is_empty ? 0 : origin * item;
        return aot_tensor{nullptr, 1, 0, static_cast<int32_t>(rank), dtype.dlpack_code, dtype.dlpack_bits, 1,
                          extents, extents + rank, 0};
    }

private:
    int64_t value(uint32_t dim) const {
        const Run code = model_.artifact.dims[dim].code;
        int64_t result = 0;
        if (!evaluate_dim(model_.artifact.dim_code.data() + code.first, code.count, plan_.symbols.data(), &result)) {
            inconsistent();
        }
        return result;
    }
    [[noreturn]] void inconsistent() const {
        throw Failure(AOT_ERROR_INTERNAL, model_.name.c_str(),
                      "Build the artifact again; if that does not help, report it.",
                      "what a step writes does not fit into its buffer");
    }

    const Model &model_;
    const Plan &plan_;
    const StepEntry &step_;
};

}  // namespace

void Trace::tell(const Plan &plan, uint32_t step, Reader *reader) const {
    const Artifact &a = model_.artifact;
    const StepEntry &entry = a.steps[plan.unit->entry->steps.first + step];
    const Written written(model_, plan, entry);
    const uint32_t count = entry.results.count;
    Vector<aot_tensor> tensors(count, aot_tensor{}, Allocator<aot_tensor>(memory_));
    Vector<aot_named_tensor> named(count, aot_named_tensor{}, Allocator<aot_named_tensor>(memory_));
    size_t rank = 0;
    for (uint32_t i = 0; i < count; ++i) rank += a.tensors[entry.results.first + i].shape.count;
    Vector<int64_t> extents(2 * rank + 1, 0, Allocator<int64_t>(memory_));
    Vector<Block> copies{Allocator<Block>(memory_)};
    copies.reserve(count);
    int64_t *at = extents.data();
    for (uint32_t i = 0; i < count; ++i) {
        const TensorEntry &tensor = a.tensors[entry.results.first + i];
        size_t bytes = 0;
        int64_t offset = 0;
        tensors[i] = written.tensor(tensor, at, &bytes, &offset);
        at += 2 * tensor.shape.count;
        uint8_t *data = static_cast<uint8_t *>(plan.steps[step].buffers[tensor.argument]) + offset;
        if (reader && bytes) {
            copies.emplace_back(memory_, bytes, 64);
            reader->read(data, copies.back().data(), bytes);
            data = copies.back().data();
        }
        tensors[i].data = bytes ? data : nullptr;
        named[i] = {a.text(tensor.name), &tensors[i]};
    }
    const char *label = a.text(a.kernels[plan.unit->entry->kernels.first + entry.kernel].label);
    const aot_trace_step told{sizeof told, program, first_step + step, label, named.data(), count, 0};
    if (function_(user_, &told)) {
        throw Failure(AOT_ERROR_CANCELLED, model_.name.c_str(), "Outputs hold nothing of use.",
                      "the run was stopped by the function that traces it");
    }
}

void Session::trace(const aot_tensor *const *inputs, uint32_t input_count, const aot_tensor *const *outputs,
                    uint32_t output_count, const aot_run_options &options, aot_trace_function function, void *user) {
    Trace trace(model_, memory_, function, user);
    struct Set {
        Session &session;
        Set(Session &session, Trace *trace) : session(session) { put(trace); }
        ~Set() { put(nullptr); }
        void put(Trace *trace) {
            session.trace_ = trace;
            if (session.device_) session.device_->set_trace(trace);
        }
    } set(*this, &trace);
    run(inputs, input_count, outputs, output_count, options);
}

// Each step is a run of its own for the pool, so that all threads have ended it.
void Session::launch_traced(Job &job, uint32_t first_step) {
    trace_->first_step = first_step;
    const uint32_t count = job.end;
    for (uint32_t i = 0; i < count && !job.stop; ++i) {
        job.first = i, job.end = i + 1;
        if (job.threads == 1) work(&job, 0);
        else pool_->run(work, &job, job.threads);
        trace_->tell(*job.plan, i, nullptr);
    }
}

}  // namespace aot
