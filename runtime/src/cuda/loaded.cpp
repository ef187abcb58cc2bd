#include "cuda/loaded.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace aot::cuda {

using namespace format;

namespace {

constexpr uint32_t kPlainShared = 48 << 10;  // bytes that a block may have without being asked for

const char *target_of(const Model &model) { return model.artifact.text(model.variants[0].entry->target); }

int architecture_of(const char *target) {
    const char *number = strpbrk(target, "0123456789");
    return number ? atoi(number) : 0;
}

}  // namespace

DeviceModel::DeviceModel(const Model &model, int ordinal, Context given)
    : device(ordinal, given, model.name.c_str()), architecture_(architecture_of(target_of(model))),
      is_text_(strncmp(target_of(model), "cuda:compute_", 13) == 0), images_(Allocator<Image>(model.memory)),
      functions_(images_.get_allocator()), first_function_(images_.get_allocator()),
      first_constant_(images_.get_allocator()), constants_(images_.get_allocator()), weights_(device, model.memory) {
    const Current current(device);
    current.require(model.name.c_str());
    first_function_.assign(model.artifact.programs.size(), 0);
    first_constant_.assign(model.artifact.programs.size(), 0);
    try {
        for (const Vector<Variant> *units : {&model.variants, &model.blocks}) {
            for (const Variant &unit : *units) {
                if (unit.on_device) add(model, unit);
            }
        }
    } catch (...) {
        unload();
        throw;
    }
}

DeviceModel::~DeviceModel() {
    const Current current(device);
    unload();
}

void DeviceModel::unload() {
    for (const Image &image : images_) device.driver.module_unload(image.module);
    images_.clear();
    weights_.release();
}

void DeviceModel::add(const Model &model, const Variant &unit) {
    load_kernels(model, unit);
    first_constant_[unit.program] = static_cast<uint32_t>(constants_.size());
    for (uint32_t i = 0; i < unit.entry->constants.count; ++i) {
        const ConstantEntry &constant = model.artifact.constants[unit.entry->constants.first + i];
        constants_.push_back(weights_.add(model.weights.constant(unit.program, i), static_cast<size_t>(constant.bytes),
                                          model.artifact.text(constant.name)));
    }
}

void DeviceModel::load_kernels(const Model &model, const Variant &unit) {
    first_function_[unit.program] = static_cast<uint32_t>(functions_.size());
    const Artifact &a = model.artifact;
    for (uint32_t i = 0; i < unit.entry->kernels.count; ++i) {
        const KernelEntry &kernel = a.kernels[unit.entry->kernels.first + i];
        const char *symbol = a.text(kernel.symbol);
        char where[160], doing[200];
        snprintf(where, sizeof where, "kernel '%.60s' of %.80s", a.text(kernel.label),
                 kernel.locs.count ? a.text(static_cast<uint32_t>(a.integer(kernel.locs.first))) : model.name.c_str());
        const uint8_t *bytes = a.code.data() + unit.entry->code_offset + kernel.image_offset;
        const Module module = module_of(model, bytes, kernel.image_bytes, where);
        Function function = nullptr;
        snprintf(doing, sizeof doing, "finding the function %.120s in its code", symbol);
        check(device.driver, device.driver.module_function(&function, module, symbol), where, doing);
        if (kernel.shared_bytes > kPlainShared) {
            snprintf(doing, sizeof doing, "reserving %u bytes of shared memory", kernel.shared_bytes);
            const int wanted = static_cast<int>(kernel.shared_bytes);
            check(device.driver, device.driver.function_set(function, kDynamicShared, wanted), where, doing);
        }
        // Now, not in the middle of a run or of a capture.
        if (device.driver.function_load) {
            check(device.driver, device.driver.function_load(function), where, "bringing its machine code to the device");
        }
        functions_.push_back(function);
    }
}

// Kernels may share an image: it is loaded once.
Module DeviceModel::module_of(const Model &model, const uint8_t *bytes, uint64_t size, const char *where) {
    for (const Image &image : images_) {
        if (image.bytes == bytes && image.size == size) return image.module;
    }
    // The driver wants aligned machine code, and a NUL behind text.
    Vector<uint8_t> copy(static_cast<size_t>(size) + 1, 0, Allocator<uint8_t>(model.memory));
    memcpy(copy.data(), bytes, static_cast<size_t>(size));
    char log[256] = "";
    const int options[] = {kJitErrorLog, kJitErrorLogBytes};
    void *const values[] = {log, reinterpret_cast<void *>(sizeof log - 1)};
    make_room(images_);
    Module module = nullptr;
    const Result code = device.driver.module_load(&module, copy.data(), 2, options, values);
    char doing[320];
    for (char *at = log; *at; ++at) *at = *at == '\n' ? ' ' : *at;
    snprintf(doing, sizeof doing, "%s%s%.240s%s", is_text_ ? "compiling its PTX for this device" : "loading its machine code",
             *log ? " (" : "", log, *log ? ")" : "");
    check(device.driver, code, where, doing);
    images_.push_back({bytes, size, module});
    return module;
}

void *DeviceModel::allocate(size_t bytes, const char *where) const {
    const Current current(device);
    current.require(where);
    DeviceBlock block(device, bytes ? bytes : 1, where, "the caller");
    return reinterpret_cast<void *>(static_cast<uintptr_t>(block.give()));
}

void DeviceModel::release(void *data) const noexcept {
    const Current current(device);
    device.driver.memory_free(reinterpret_cast<uintptr_t>(data));
}

void DeviceModel::copy(void *to, const void *from, size_t bytes, void *stream, const char *where) const {
    const Current current(device);
    current.require(where);
    const Stream queue = static_cast<Stream>(stream);
    if (bytes) {
        const Result code = device.driver.copy_any_async(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from),
                                                         bytes, queue);
        check(device.driver, code, where, "copying");
    }
    check(device.driver, device.driver.stream_synchronize(queue), where, "waiting for a stream");
}

void DeviceModel::read_constant(uint32_t program, uint32_t index, void *to, size_t bytes, const char *where) const {
    if (!bytes) return;
    const Current current(device);
    current.require(where);
    check(device.driver, device.driver.copy_out(to, constant(program, index), bytes), where, "reading a constant");
}

}  // namespace aot::cuda
