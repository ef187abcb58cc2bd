// Makes a packed constant from source weights. Its twin is aot/recipe.py: same bits.
#pragma once

#include "artifact.h"

namespace aot {

// Gives the row-major bytes of the program's source number `index`.
class SourceWeights {
public:
    virtual ~SourceWeights() = default;
    virtual const uint8_t *bytes(uint32_t index) = 0;
};

// Runs the recipe of a constant of `program` and writes its bytes to `to`. Throws a Failure.
void run_recipe(const Artifact &artifact, const format::ProgramEntry &program, const format::ConstantEntry &constant,
                SourceWeights &sources, const char *file, uint8_t *to);

}  // namespace aot
