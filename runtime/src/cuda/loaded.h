// What a model has on a GPU: its modules, kernels and constants.
#pragma once

#include "cuda/weights.h"
#include "model.h"

namespace aot::cuda {

class DeviceModel {
public:
    // Of a model whose programs are selected and whose constants are in host memory. Throws a Failure.
    DeviceModel(const Model &model, int ordinal, Context given);
    ~DeviceModel();
    DeviceModel(const DeviceModel &) = delete;
    DeviceModel &operator=(const DeviceModel &) = delete;

    Device device;
    // Kernels may start before those ahead of them have ended: they wait inside, which code for older GPUs cannot.
    bool is_programmatic() const { return device.capability >= 90 && architecture_ >= 90; }
    Function function(uint32_t program, uint32_t kernel) const { return functions_[first_function_[program] + kernel]; }
    Address constant(uint32_t program, uint32_t index) const { return constants_[first_constant_[program] + index]; }
    // Copies a constant back to host memory. Throws a Failure.
    void read_constant(uint32_t program, uint32_t index, void *to, size_t bytes, const char *where) const;

    // Bytes of constants in device memory that other models hold as well.
    uint64_t shared_weight_bytes() const { return weights_.shared_bytes(); }

    // Memory for the caller. Throws a Failure.
    void *allocate(size_t bytes, const char *where) const;
    void release(void *data) const noexcept;
    // Between any two of host and device, behind what the stream holds; returns when the stream has done it all.
    void copy(void *to, const void *from, size_t bytes, void *stream, const char *where) const;

private:
    void add(const Model &model, const Variant &unit);
    void load_kernels(const Model &model, const Variant &unit);
    void unload();

    struct Image {
        const uint8_t *bytes;
        uint64_t size;
        Module module;
    };
    Module module_of(const Model &model, const uint8_t *bytes, uint64_t size, const char *where);

    int architecture_;  // ten times the compute capability that the code was made for
    bool is_text_;      // the driver compiles it
    Vector<Image> images_;
    Vector<Function> functions_;
    Vector<uint32_t> first_function_, first_constant_;  // of each program of the artifact
    Vector<Address> constants_;
    DeviceWeights weights_;
};

}  // namespace aot::cuda
