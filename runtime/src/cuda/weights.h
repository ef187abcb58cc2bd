// Constants in device memory, once per context however many models hold them.
#pragma once

#include "cuda/device.h"
#include "sha256.h"

namespace aot::cuda {

// What a constant is known by: its bytes, not the file it came from.
struct WeightKey {
    Context context;
    Digest digest;
    uint64_t bytes;
    bool operator<(const WeightKey &other) const;
};

// The constants that one model holds.
class DeviceWeights {
public:
    DeviceWeights(const Device &device, const Memory &memory) : device_(device), keys_(Allocator<WeightKey>(memory)) {}
    DeviceWeights(const DeviceWeights &) = delete;
    DeviceWeights &operator=(const DeviceWeights &) = delete;

    // Where the bytes are on the device: uploaded, unless a model already did. The context must be current.
    Address add(const uint8_t *data, size_t bytes, const char *name);

    // Bytes of those that another model holds as well at this moment.
    uint64_t shared_bytes() const;

    // Gives all of them back: those that no other model holds are freed. The context must be current.
    void release();

private:
    const Device &device_;
    Vector<WeightKey> keys_;
};

}  // namespace aot::cuda
