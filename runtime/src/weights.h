// Constants of the selected programs: in one block of memory, but for those that models share.
#pragma once

#include "artifact.h"
#include "recipe.h"
#include "sharing.h"

namespace aot {

struct WeightOptions {
    uint32_t flags = 0;
    const aot_named_tensor *given = nullptr;
    uint32_t given_count = 0;
    const char *external_path = nullptr;
    bool is_trusted_only = false;  // the artifact is signed: no byte is used but those that were checked
};

struct Weights {
    explicit Weights(const Memory &memory) : pointers(Allocator<const uint8_t *>(memory)), shared(memory) {}
    ~Weights() { drop_own(); }
    // For each program of the artifact, its constants; empty for programs that were not selected.
    Vector<const uint8_t *> pointers;
    Vector<uint32_t> first_of_program{pointers.get_allocator()};
    std::shared_ptr<Slab> slab;  // first constants of its own, `own_bytes` in all, then those that others may hold too
    size_t own_bytes = 0;
    SharedConstants shared;
    std::shared_ptr<const uint8_t> mapping;
    std::shared_ptr<const FileWatch> watch;  // of the mapped file
    uint64_t bytes = 0;

    // Keeps the constants of these programs alone, in memory of its own.
    void keep(const Artifact &artifact, const Vector<uint32_t> &programs);
    const uint8_t *constant(uint32_t program, uint32_t index) const { return pointers[first_of_program[program] + index]; }

private:
    void drop_own();
};

// Copies (or maps) embedded constants while the whole section is hashed, and makes the others.
void load_weights(const Artifact &artifact, const Vector<uint32_t> &programs, const ByteSource &source,
                  const WeightOptions &options, Weights &out);

}  // namespace aot
