// Constants of the selected programs, in one block of memory.
#pragma once

#include "artifact.h"
#include "recipe.h"

namespace aot {

struct WeightOptions {
    uint32_t flags = 0;
    const aot_named_tensor *given = nullptr;
    uint32_t given_count = 0;
    const char *external_path = nullptr;
};

struct Weights {
    explicit Weights(const Memory &memory) : pointers(Allocator<const uint8_t *>(memory)) {}
    // For each program of the artifact, its constants; empty for programs that were not selected.
    Vector<const uint8_t *> pointers;
    Vector<uint32_t> first_of_program{pointers.get_allocator()};
    Block block;
    std::shared_ptr<const uint8_t> mapping;
    std::shared_ptr<const FileWatch> watch;  // of the mapped file
    uint64_t bytes = 0;

    // Keeps the constants of these programs alone, in memory of its own.
    void keep(const Artifact &artifact, const Vector<uint32_t> &programs);
    const uint8_t *constant(uint32_t program, uint32_t index) const { return pointers[first_of_program[program] + index]; }
};

// Copies (or maps) embedded constants while the whole section is hashed, and makes the others.
void load_weights(const Artifact &artifact, const Vector<uint32_t> &programs, const ByteSource &source,
                  const WeightOptions &options, Weights &out);

}  // namespace aot
