// Checks what the records of an artifact say of each other. After it, indices need no checks.
#pragma once

#include "artifact.h"

namespace aot {

// File offset of each section, for messages.
struct Offsets {
    uint64_t section[kSectionKinds];
};

void validate(const Artifact &artifact, const char *file, const Offsets &offsets);

}  // namespace aot
