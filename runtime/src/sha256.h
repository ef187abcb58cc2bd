// SHA-256 (FIPS 180-4): with the SHA instructions, 16 or 8 chunks at once with AVX-512 or AVX2, or in plain C++.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aot {

struct Digest {
    uint8_t bytes[32];
    bool operator==(const Digest &other) const;
};

class Sha256 {
public:
    Sha256();
    void add(const void *data, size_t bytes);
    Digest finish();

private:
    uint32_t state_[8];
    uint64_t total_ = 0;
    uint8_t pending_[64];
    size_t pending_bytes_ = 0;
};

Digest sha256(const void *data, size_t bytes);

// Digests of consecutive chunks of kTreeChunkBytes, the last one perhaps shorter.
void hash_chunks(const uint8_t *data, size_t bytes, Digest *out);

// For tests: 0 picks by CPU, 1 plain C++, 2 SHA instructions, 3 AVX2, 4 AVX-512. False where the CPU cannot.
bool choose_sha256(int which);

}  // namespace aot
