// Stack code of dimensions. Its twin is artifacts/dim_code.py.
#pragma once

#include <cstdint>

#include "format.h"

namespace aot {

inline constexpr uint32_t kDimStackDepth = 64;

// NULL where the code is well formed: it leaves one value and never needs more than kDimStackDepth.
const char *check_dim_code(const format::DimCode *code, uint32_t count);

// The value of checked code; false on overflow or division by zero.
bool evaluate_dim(const format::DimCode *code, uint32_t count, const int64_t *symbols, int64_t *out);

}  // namespace aot
