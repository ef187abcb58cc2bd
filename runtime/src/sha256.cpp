#include "sha256.h"

#include <cstring>

#include <immintrin.h>

#include "cpu.h"
#include "format.h"

namespace aot {
namespace {

alignas(64) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
constexpr uint32_t kStart[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

inline uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

void blocks_plain(uint32_t *state, const uint8_t *data, size_t count) {
    for (; count; --count, data += 64) {
        uint32_t w[64];
        for (int i = 0; i < 16; ++i) {
            uint32_t word;
            memcpy(&word, data + 4 * i, 4);
            w[i] = __builtin_bswap32(word);
        }
        for (int i = 16; i < 64; ++i) {
            uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
            uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
#pragma GCC unroll 8
        for (int i = 0; i < 64; ++i) {
            uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
            uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
}

__attribute__((target("sha,sse4.1,ssse3"))) void blocks_sha(uint32_t *state, const uint8_t *data, size_t count) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    // The instructions want the state as (A, B, E, F) and (C, D, G, H).
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(state)), 0xb1);
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(low, high, 8);
    __m128i cdgh = _mm_blend_epi16(high, low, 0xf0);
    for (; count; --count, data += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (int i = 0; i < 4; ++i) {
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i *>(data + 16 * i)), swap);
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
            __m128i words = w[i & 3];
            __m128i sum = _mm_add_epi32(words, _mm_load_si128(reinterpret_cast<const __m128i *>(kRound + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
            if (i < 12) {
                __m128i next = _mm_sha256msg1_epu32(words, w[(i + 1) & 3]);
                next = _mm_add_epi32(next, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
                w[i & 3] = _mm_sha256msg2_epu32(next, w[(i + 3) & 3]);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(state), _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

typedef uint32_t Lanes8 __attribute__((vector_size(32)));
typedef uint32_t Lanes16 __attribute__((vector_size(64)));

// A macro, since a function that returns such a vector would have another ABI without the target's flags.
#define AOT_ROTATE(x, n) ((x) >> (n) | (x) << (32 - (n)))

// One block of every lane's stream: w holds the words, and state[i] word i of the state, of all lanes.
template <class Lanes> [[gnu::always_inline]] inline void round_lanes(Lanes *state, Lanes *w) {
    Lanes a = state[0], b = state[1], c = state[2], d = state[3];
    Lanes e = state[4], f = state[5], g = state[6], h = state[7];
#pragma GCC unroll 16
    for (int i = 0; i < 64; ++i) {
        if (i >= 16) {
            Lanes x = w[(i + 1) & 15], y = w[(i + 14) & 15];
            Lanes s0 = AOT_ROTATE(x, 7) ^ AOT_ROTATE(x, 18) ^ (x >> 3);
            Lanes s1 = AOT_ROTATE(y, 17) ^ AOT_ROTATE(y, 19) ^ (y >> 10);
            w[i & 15] += s0 + w[(i + 9) & 15] + s1;
        }
        Lanes t1 = h + (AOT_ROTATE(e, 6) ^ AOT_ROTATE(e, 11) ^ AOT_ROTATE(e, 25)) + ((e & f) ^ (~e & g)) +
                   kRound[i] + w[i & 15];
        Lanes t2 = (AOT_ROTATE(a, 2) ^ AOT_ROTATE(a, 13) ^ AOT_ROTATE(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

// Word `i` of the block at `data` in each of the streams, which lie `stride` bytes apart.
__attribute__((target("avx2"))) inline Lanes8 gather8(const uint8_t *data, int stride) {
    const __m256i lane = _mm256_mullo_epi32(_mm256_set1_epi32(stride), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i swap = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
    const __m256i words = _mm256_i32gather_epi32(reinterpret_cast<const int *>(data), lane, 1);
    return reinterpret_cast<Lanes8>(_mm256_shuffle_epi8(words, swap));
}

__attribute__((target("avx512f,avx512bw"))) inline Lanes16 gather16(const uint8_t *data, int stride) {
    const __m512i number = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i lane = _mm512_mullo_epi32(_mm512_set1_epi32(stride), number);
    const __m512i swap = _mm512_maskz_broadcast_i32x4(0xffff, _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
    const __m512i words = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xffff, lane, data, 1);
    return reinterpret_cast<Lanes16>(_mm512_shuffle_epi8(words, swap));
}

__attribute__((target("avx2"))) void blocks_8(Lanes8 *state, const uint8_t *data, int stride, size_t count) {
    for (; count; --count, data += 64) {
        Lanes8 w[16];
        for (int i = 0; i < 16; ++i) w[i] = gather8(data + 4 * i, stride);
        round_lanes(state, w);
    }
}

__attribute__((target("avx512f,avx512bw"))) void blocks_16(Lanes16 *state, const uint8_t *data, int stride,
                                                           size_t count) {
    for (; count; --count, data += 64) {
        Lanes16 w[16];
        for (int i = 0; i < 16; ++i) w[i] = gather16(data + 4 * i, stride);
        round_lanes(state, w);
    }
}

using Blocks = void (*)(uint32_t *, const uint8_t *, size_t);

struct Choice {
    Blocks blocks;
    size_t lanes;  // chunks that are hashed at once
};

Choice choice_for(int which) {
    const CpuFeatures &cpu = cpu_features();
    const Blocks blocks = cpu.sha && which != 1 ? blocks_sha : blocks_plain;
    if (which == 0) which = cpu.level >= 4 ? 4 : cpu.sha ? 2 : cpu.avx2 ? 3 : 1;
    return {blocks, which == 4 ? size_t{16} : which == 3 ? size_t{8} : size_t{1}};
}

Choice &chosen() {
    static Choice choice = choice_for(0);
    return choice;
}

void put_length(uint8_t *to, uint64_t bytes) {
    uint64_t bits = __builtin_bswap64(bytes * 8);
    memcpy(to, &bits, 8);
}

// Digests of as many chunks as there are lanes.
template <class Lanes>
void hash_lanes(void (*blocks)(Lanes *, const uint8_t *, int, size_t), const uint8_t *data, Digest *out) {
    constexpr size_t chunk = format::kTreeChunkBytes, count = sizeof(Lanes) / 4;
    Lanes state[8];
    uint32_t *words = reinterpret_cast<uint32_t *>(state);
    for (size_t i = 0; i < 8 * count; ++i) words[i] = kStart[i / count];
    blocks(state, data, chunk, chunk / 64);
    uint8_t last[64] = {0x80};
    put_length(last + 56, chunk);
    blocks(state, last, 0, 1);
    for (size_t lane = 0; lane < count; ++lane) {
        for (size_t i = 0; i < 8; ++i) {
            uint32_t word = __builtin_bswap32(words[i * count + lane]);
            memcpy(out[lane].bytes + 4 * i, &word, 4);
        }
    }
}

}  // namespace

bool Digest::operator==(const Digest &other) const { return memcmp(bytes, other.bytes, sizeof bytes) == 0; }

Sha256::Sha256() { memcpy(state_, kStart, sizeof state_); }

void Sha256::add(const void *data, size_t bytes) {
    if (!bytes) return;  // `data` may be NULL then, which memcpy may not be given
    const uint8_t *from = static_cast<const uint8_t *>(data);
    total_ += bytes;
    if (pending_bytes_) {
        size_t part = 64 - pending_bytes_ < bytes ? 64 - pending_bytes_ : bytes;
        memcpy(pending_ + pending_bytes_, from, part);
        pending_bytes_ += part, from += part, bytes -= part;
        if (pending_bytes_ < 64) return;
        chosen().blocks(state_, pending_, 1);
        pending_bytes_ = 0;
    }
    chosen().blocks(state_, from, bytes / 64);
    pending_bytes_ = bytes % 64;
    if (pending_bytes_) memcpy(pending_, from + (bytes - pending_bytes_), pending_bytes_);
}

Digest Sha256::finish() {
    uint64_t total = total_;
    uint8_t tail[128] = {0x80};
    size_t padding = (pending_bytes_ < 56 ? 56 : 120) - pending_bytes_;
    put_length(tail + padding, total);
    add(tail, padding + 8);
    Digest digest;
    for (int i = 0; i < 8; ++i) {
        uint32_t word = __builtin_bswap32(state_[i]);
        memcpy(digest.bytes + 4 * i, &word, 4);
    }
    return digest;
}

Digest sha256(const void *data, size_t bytes) {
    Sha256 hash;
    if (bytes) hash.add(data, bytes);
    return hash.finish();
}

void hash_chunks(const uint8_t *data, size_t bytes, Digest *out) {
    constexpr size_t chunk = format::kTreeChunkBytes;
    const size_t lanes = chosen().lanes;
    for (; lanes > 1 && bytes >= lanes * chunk; data += lanes * chunk, bytes -= lanes * chunk, out += lanes) {
        if (lanes == 16) hash_lanes<Lanes16>(blocks_16, data, out);
        else hash_lanes<Lanes8>(blocks_8, data, out);
    }
    for (; bytes; ++out) {
        size_t part = bytes < chunk ? bytes : chunk;
        *out = sha256(data, part);
        data += part, bytes -= part;
    }
}

bool choose_sha256(int which) {
    const CpuFeatures &cpu = cpu_features();
    if ((which == 2 && !cpu.sha) || (which == 3 && !cpu.avx2) || (which == 4 && cpu.level < 4)) return false;
    chosen() = choice_for(which);
    return true;
}

}  // namespace aot
