// Questions about the caller's tensors.
#pragma once

#include "artifact.h"

namespace aot {

bool same_dtype(const aot_tensor &tensor, uint32_t dtype);
// Whether the strides are those of a row-major tensor without holes.
bool is_dense(const aot_tensor &tensor);
// "f32 [1, 3, 224]"
void describe(const char *dtype, const int64_t *shape, size_t rank, char *to, size_t size);
void describe(const aot_tensor &tensor, char *to, size_t size);
const char *dtype_name(const aot_tensor &tensor);
inline uint8_t *data_of(const aot_tensor &tensor) { return static_cast<uint8_t *>(tensor.data) + tensor.byte_offset; }

}  // namespace aot
