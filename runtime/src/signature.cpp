#include "signature.h"

#include <cstddef>

#include <dlfcn.h>

#include "sha256.h"

namespace aot {

using namespace format;

namespace {

constexpr char kDomain[] = "aotc artifact signature v1";  // with the zero byte behind it
constexpr int kEd25519 = 1087;  // EVP_PKEY_ED25519 of openssl/evp.h, the same in every version that has it

// The few functions of OpenSSL that verify a signature, since 1.1.1.
struct Crypto {
    void *(*new_raw_public_key)(int type, void *engine, const unsigned char *key, size_t bytes);
    void (*key_free)(void *key);
    void *(*context_new)();
    void (*context_free)(void *context);
    int (*verify_init)(void *context, void **key_context, const void *digest, void *engine, void *key);
    int (*verify)(void *context, const unsigned char *signature, size_t signature_bytes, const unsigned char *message,
                  size_t message_bytes);
};

bool load(Crypto &crypto) {
    static constexpr const char *kNames[] = {"EVP_PKEY_new_raw_public_key", "EVP_PKEY_free", "EVP_MD_CTX_new",
                                             "EVP_MD_CTX_free", "EVP_DigestVerifyInit", "EVP_DigestVerify"};
    void *found[6];
    static_assert(sizeof found == sizeof crypto, "one name for each function");
    for (const char *name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
        void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (!library) continue;
        bool complete = true;
        for (size_t i = 0; i < 6; ++i) complete = (found[i] = dlsym(library, kNames[i])) && complete;
        if (complete) {
            memcpy(&crypto, found, sizeof crypto);
            return true;  // it stays loaded
        }
        dlclose(library);
    }
    return false;
}

bool holds(const Crypto &crypto, const uint8_t *key, const uint8_t *signature, const Vector<uint8_t> &message) {
    void *public_key = crypto.new_raw_public_key(kEd25519, nullptr, key, kPublicKeyBytes);
    void *context = public_key ? crypto.context_new() : nullptr;
    const bool held = context && crypto.verify_init(context, nullptr, nullptr, nullptr, public_key) == 1 &&
                      crypto.verify(context, signature, sizeof SignatureEntry::signature, message.data(), message.size()) == 1;
    if (context) crypto.context_free(context);
    if (public_key) crypto.key_free(public_key);
    return held;
}

Vector<uint8_t> message_of(const Header &h, const Vector<uint8_t> &header, const Vector<uint8_t> &table) {
    Vector<uint8_t> message(header.get_allocator());
    message.reserve(sizeof kDomain + header.size() + table.size());
    message.insert(message.end(), kDomain, kDomain + sizeof kDomain);
    message.insert(message.end(), header.begin(), header.end());
    uint32_t count = 0;
    for (uint32_t i = 0; i < h.section_count; ++i) {
        const uint8_t *row = table.data() + size_t{i} * h.section_entry_bytes;
        SectionEntry entry;
        memcpy(&entry, row, sizeof entry);
        if (entry.kind == section::SIGNATURE) continue;
        const size_t at = message.size();
        message.insert(message.end(), row, row + h.section_entry_bytes);
        memset(message.data() + at + offsetof(SectionEntry, offset), 0, sizeof entry.offset);
        ++count;
    }
    // What moves when signatures come and go: the file's size, the table's place, the digest, the number of sections.
    uint8_t *const copy = message.data() + sizeof kDomain;
    memset(copy + offsetof(Header, file_bytes), 0, sizeof h.file_bytes);
    memset(copy + offsetof(Header, table_offset), 0, sizeof h.table_offset);
    memset(copy + offsetof(Header, digest), 0, sizeof h.digest);
    memcpy(copy + offsetof(Header, section_count), &count, sizeof count);
    return message;
}

Failure refused(const char *file, const char *hint, const char *reason) {
    return Failure(AOT_ERROR_SIGNATURE, file, hint, "the artifact is refused: %s", reason);
}

}  // namespace

void must_be_trusted(const char *file, const TrustedKeys &trusted, const Vector<SignatureEntry> &signatures,
                     const Header &h, const Vector<uint8_t> &header, const Vector<uint8_t> &table) {
    if (!trusted.keys || !trusted.count) {
        throw refused(file, "Give the public keys of those who sign artifacts, 32 bytes each.", "the list of trusted keys is empty");
    }
    if (signatures.empty()) {
        throw refused(file, "Sign it: aotc sign ARTIFACT --key PRIVATE.pem.", "it is not signed, and only signed ones are trusted");
    }
    Crypto crypto;
    if (!load(crypto)) {
        throw refused(file, "Install OpenSSL 3 or 1.1.1 (the package libssl3 of Debian and Ubuntu).",
                      "its signature cannot be verified: libcrypto.so.3 and libcrypto.so.1.1 are not there");
    }
    Vector<uint8_t> message(header.get_allocator());
    for (uint32_t i = 0; i < trusted.count; ++i) {
        const uint8_t *key = trusted.keys + size_t{i} * kPublicKeyBytes;
        const Digest name = sha256(key, kPublicKeyBytes);
        for (const SignatureEntry &entry : signatures) {
            if (entry.algorithm != signature_algorithm::ED25519 || memcmp(entry.key, name.bytes, sizeof entry.key) != 0) continue;
            if (message.empty()) message = message_of(h, header, table);
            if (holds(crypto, key, entry.signature, message)) return;
        }
    }
    if (message.empty()) {
        throw refused(file, "Trust the key that signed it, or sign it with one that is trusted.",
                      text_of("none of its %zu signatures is by a trusted key", signatures.size()).c_str());
    }
    throw refused(file, "Do not use it. Get it again from who signed it.",
                  "its signature does not hold: it was changed after it was signed, or the signature was");
}

}  // namespace aot
