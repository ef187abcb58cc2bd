#include "cuda/weights.h"

#include <cstdio>
#include <map>
#include <mutex>

#include "format.h"

namespace aot::cuda {
namespace {

struct Held {
    Address address = 0;
    uint32_t holders = 0;
};

// Not destroyed at exit: the driver may be gone by then.
struct Registry {
    std::mutex mutex;
    std::map<WeightKey, Held> weights;
};

Registry &registry() {
    static Registry *const held = new Registry;
    return *held;
}

Digest digest_of(const uint8_t *data, size_t bytes, const Memory &memory) {
    Vector<Digest> leaves((bytes + format::kTreeChunkBytes - 1) / format::kTreeChunkBytes, Digest{}, Allocator<Digest>(memory));
    hash_chunks(data, bytes, leaves.data());
    return sha256(leaves.data(), leaves.size() * sizeof(Digest));
}

}  // namespace

bool WeightKey::operator<(const WeightKey &other) const {
    if (context != other.context) return context < other.context;
    if (bytes != other.bytes) return bytes < other.bytes;
    return memcmp(digest.bytes, other.digest.bytes, sizeof digest.bytes) < 0;
}

Address DeviceWeights::add(const uint8_t *data, size_t bytes, const char *name) {
    if (!bytes) return 0;
    const WeightKey key{device_.context, digest_of(data, bytes, keys_.get_allocator().memory), bytes};
    make_room(keys_);
    Registry &shared = registry();
    // Held during the upload, so that a second model waits for the bytes instead of sending them again.
    std::lock_guard<std::mutex> lock(shared.mutex);
    auto found = shared.weights.find(key);
    if (found == shared.weights.end()) {
        DeviceBlock block(device_, bytes, name, "weights");
        char doing[80];
        snprintf(doing, sizeof doing, "copying %zu bytes of weights to the device", bytes);
        check(device_.driver, device_.driver.copy_in(block.address(), data, bytes), name, doing);
        found = shared.weights.emplace(key, Held{}).first;
        found->second.address = block.give();
    }
    // Variants of a model may have the same constant: they hold it once.
    for (const WeightKey &held : keys_) {
        if (!(held < key) && !(key < held)) return found->second.address;
    }
    ++found->second.holders;
    keys_.push_back(key);
    return found->second.address;
}

uint64_t DeviceWeights::shared_bytes() const {
    Registry &shared = registry();
    std::lock_guard<std::mutex> lock(shared.mutex);
    uint64_t total = 0;
    for (const WeightKey &key : keys_) total += shared.weights.find(key)->second.holders > 1 ? key.bytes : 0;
    return total;
}

void DeviceWeights::release() {
    Registry &shared = registry();
    std::lock_guard<std::mutex> lock(shared.mutex);
    for (const WeightKey &key : keys_) {
        auto found = shared.weights.find(key);
        if (found == shared.weights.end() || --found->second.holders) continue;
        device_.driver.memory_free(found->second.address);
        shared.weights.erase(found);
    }
    keys_.clear();
}

}  // namespace aot::cuda
