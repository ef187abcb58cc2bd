// Who vouches for an artifact: Ed25519 signatures over header and section table, as docs/format.md defines them.
#pragma once

#include "base.h"
#include "format.h"

namespace aot {

inline constexpr size_t kPublicKeyBytes = 32;
inline constexpr uint32_t kMostSignatures = 64;

// The keys of those whose artifacts may be loaded; `keys` NULL: any artifact may be.
struct TrustedKeys {
    const uint8_t *keys = nullptr;  // kPublicKeyBytes each, one behind the other
    uint32_t count = 0;
    bool is_given() const { return keys || count; }
};

// Throws a Failure unless a signature by one of the keys holds for `header` (all of it) and `table`, of which `h` are
// the known fields. The system's libcrypto verifies; where there is none, the answer is no.
void must_be_trusted(const char *file, const TrustedKeys &trusted, const Vector<format::SignatureEntry> &signatures,
                     const format::Header &h, const Vector<uint8_t> &header, const Vector<uint8_t> &table);

}  // namespace aot
