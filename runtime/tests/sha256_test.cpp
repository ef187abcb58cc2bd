// Every implementation of SHA-256 gives the published digests, and all give the same ones.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "format.h"
#include "sha256.h"

namespace {

void check(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "failed: %s\n", what);
    exit(1);
}

bool is(const aot::Digest &digest, const char *hex) {
    char text[65];
    for (int i = 0; i < 32; ++i) snprintf(text + 2 * i, 3, "%02x", digest.bytes[i]);
    return strcmp(text, hex) == 0;
}

}  // namespace

int main() {
    constexpr size_t chunk = aot::format::kTreeChunkBytes;
    std::vector<uint8_t> data(35 * chunk + 77);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 31 + (i >> 8));
    std::vector<aot::Digest> first(36);
    for (int which = 1; which <= 4; ++which) {
        if (!aot::choose_sha256(which)) continue;
        // FIPS 180-4 examples.
        check(is(aot::sha256("", 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"), "empty");
        check(is(aot::sha256("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"), "abc");
        const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        check(is(aot::sha256(two, 56), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"), "two blocks");
        aot::Sha256 million;
        for (int i = 0; i < 10000; ++i) million.add(std::vector<char>(100, 'a').data(), 100);
        check(is(million.finish(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"), "a million a");
        std::vector<aot::Digest> found(36);
        aot::hash_chunks(data.data(), data.size(), found.data());
        for (size_t i = 0; i < 36; ++i) {
            const size_t bytes = i < 35 ? chunk : 77;
            check(found[i] == aot::sha256(data.data() + i * chunk, bytes), "chunk");
        }
        if (which == 1) first = found;
        for (size_t i = 0; i < 36; ++i) check(found[i] == first[i], "implementations differ");
        for (size_t cut = 0; cut < 200; ++cut) {  // any split gives the same
            aot::Sha256 split;
            split.add(data.data(), cut);
            split.add(data.data() + cut, 200 - cut);
            check(split.finish() == aot::sha256(data.data(), 200), "split");
        }
    }
    puts("ok");
    return 0;
}
