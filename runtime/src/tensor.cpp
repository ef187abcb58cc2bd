#include "tensor.h"

#include <cstdio>

namespace aot {

bool same_dtype(const aot_tensor &tensor, uint32_t number) {
    const format::DType *dtype = find_dtype(number);
    return dtype && tensor.dtype_lanes == 1 && tensor.dtype_code == dtype->dlpack_code &&
           tensor.dtype_bits == dtype->dlpack_bits;
}

bool is_dense(const aot_tensor &tensor) {
    if (!tensor.strides) return true;
    for (int32_t axis = 0; axis < tensor.rank; ++axis) {
        if (tensor.shape[axis] == 0) return true;
    }
    int64_t step = 1;
    for (int32_t axis = tensor.rank; axis-- > 0;) {
        if (tensor.shape[axis] != 1 && tensor.strides[axis] != step) return false;
        if (!checked_mul(step, tensor.shape[axis], &step)) return false;
    }
    return true;
}

const char *dtype_name(const aot_tensor &tensor) {
    for (const format::DType &dtype : format::kDTypes) {
        if (tensor.dtype_lanes == 1 && tensor.dtype_code == dtype.dlpack_code && tensor.dtype_bits == dtype.dlpack_bits) {
            return dtype.name;
        }
    }
    return "an unknown element type";
}

void describe(const char *dtype, const int64_t *shape, size_t rank, char *to, size_t size) {
    int at = snprintf(to, size, "%s [", dtype);
    for (size_t axis = 0; axis < rank && at > 0 && static_cast<size_t>(at) < size; ++axis) {
        at += snprintf(to + at, size - static_cast<size_t>(at), axis ? ", %lld" : "%lld",
                       static_cast<long long>(shape[axis]));
    }
    if (at > 0 && static_cast<size_t>(at) + 1 < size) snprintf(to + at, size - static_cast<size_t>(at), "]");
}

void describe(const aot_tensor &tensor, char *to, size_t size) {
    describe(dtype_name(tensor), tensor.shape, tensor.rank > 0 ? static_cast<size_t>(tensor.rank) : 0, to, size);
}

}  // namespace aot
