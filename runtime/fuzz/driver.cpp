// main for compilers without libFuzzer: replays files, then mutates them for a while. No coverage guides it.
//   load_fuzz [--seconds N] FILE_OR_FOLDER...
// A sanitizer ends the process at a finding; the input is then in the file crash-input.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "mutate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t *left, size_t left_size, const uint8_t *right,
                                            size_t right_size, uint8_t *out, size_t max_size, unsigned seed);

namespace {

constexpr size_t kMaxBytes = 16384;
aot::fuzz::Random bytes_random(1);

void keep(const std::vector<uint8_t> &input) {
    std::ofstream("crash-input", std::ios::binary)
        .write(reinterpret_cast<const char *>(input.data()), static_cast<std::streamsize>(input.size()));
}

std::vector<uint8_t> current;

}  // namespace

// Sanitizers call this before they end the process.
extern "C" void __asan_on_error() { keep(current); }

extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size) {
    aot::fuzz::Random &random = bytes_random;
    if (size < max_size && (size == 0 || random.one_in(4))) {
        const size_t at = random.below(size + 1);
        memmove(data + at + 1, data + at, size - at);
        data[at] = static_cast<uint8_t>(random.next());
        return size + 1;
    }
    if (size > 1 && random.one_in(4)) {
        const size_t at = random.below(size);
        memmove(data + at, data + at + 1, size - at - 1);
        return size - 1;
    }
    if (size) data[random.below(size)] ^= static_cast<uint8_t>(1u << random.below(8));
    return size;
}

int main(int argc, char **argv) {
    long seconds = 0;
    std::vector<std::string> paths;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            seconds = atol(argv[++i]);
        } else if (std::filesystem::is_directory(argv[i])) {
            for (const auto &entry : std::filesystem::directory_iterator(argv[i])) paths.push_back(entry.path().string());
        } else {
            paths.emplace_back(argv[i]);
        }
    }
    std::sort(paths.begin(), paths.end());
    std::vector<std::vector<uint8_t>> corpus;
    for (const std::string &path : paths) {
        std::ifstream file(path, std::ios::binary);
        current.assign(std::istreambuf_iterator<char>(file), {});
        LLVMFuzzerTestOneInput(current.data(), current.size());
        if (current.size() < kMaxBytes) corpus.push_back(current);
    }
    if (corpus.empty()) {
        fprintf(stderr, "no files to start from\n");
        return 1;
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    aot::fuzz::Random random(7);
    std::vector<uint8_t> buffer(kMaxBytes);
    unsigned long long runs = corpus.size();
    while (seconds && (runs % 64 || std::chrono::steady_clock::now() < end)) {
        const std::vector<uint8_t> &start = corpus[random.below(corpus.size())];
        size_t size = start.size();
        memcpy(buffer.data(), start.data(), size);
        if (random.one_in(10)) {
            const std::vector<uint8_t> &other = corpus[random.below(corpus.size())];
            const size_t crossed = LLVMFuzzerCustomCrossOver(start.data(), start.size(), other.data(), other.size(),
                                                             buffer.data(), kMaxBytes, static_cast<unsigned>(random.next()));
            if (crossed) size = crossed;
        }
        for (size_t n = 1 + random.below(4); n > 0; --n) {
            size = LLVMFuzzerCustomMutator(buffer.data(), size, kMaxBytes, static_cast<unsigned>(random.next()));
        }
        current.assign(buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(size));
        LLVMFuzzerTestOneInput(current.data(), current.size());
        ++runs;
    }
    printf("%zu files replayed, %llu executions, no finding\n", paths.size(), runs);
    return 0;
}
