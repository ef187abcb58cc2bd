// Mutations of artifacts that know the format: records are changed, and digests made right again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aot::fuzz {

// A small generator of random numbers (splitmix64); the same numbers for the same seed.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }
    size_t below(size_t limit) { return limit ? static_cast<size_t>(next() % limit) : 0; }
    bool one_in(size_t n) { return below(n) == 0; }

private:
    uint64_t state_;
};

// Changes bytes without knowing what they are, as LLVMFuzzerMutate does. Returns the new size.
using ChangeBytes = size_t (*)(uint8_t *data, size_t size, size_t max_size);

// Changes the artifact in `data`, which has room for `max_size` bytes. Returns the new size.
size_t mutate(uint8_t *data, size_t size, size_t max_size, uint64_t seed, ChangeBytes change);

// An artifact with sections of both. Returns its size, 0 where there is none that fits.
size_t cross(const uint8_t *left, size_t left_size, const uint8_t *right, size_t right_size, uint8_t *out,
             size_t max_size, uint64_t seed);

}  // namespace aot::fuzz
