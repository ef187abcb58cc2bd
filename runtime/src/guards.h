// The checks of inputs and outputs before every run, in the words of the user's model.
#pragma once

#include "model.h"

namespace aot {

// Everything that does not depend on the variant: presence, device, dtype, rank, extents, strides, data.
void check_inputs(const Model &model, const aot_tensor *const *inputs, uint32_t count);

// Reads what inputs in device memory hold.
class ElementReader {
public:
    virtual ~ElementReader() = default;
    virtual void read(const uint8_t *from, void *to, size_t bytes) const = 0;
};

// Runs the guard table of a variant and fills `symbols`. False where it does not fit; then `failure` says why.
bool bind_symbols(const Model &model, const Variant &variant, const aot_tensor *const *inputs, int64_t *symbols,
                  const ElementReader *reader, Failure *failure);

// All of that with no session: throws a Failure where no variant takes the inputs.
void check_guards(const Model &model, const aot_tensor *const *inputs, uint32_t count);

// A bound tensor of the caller against dtype and shape; `what` is "input" or "output".
void check_tensor(const Model &model, const char *what, const format::PortEntry &port, const aot_tensor &tensor,
                  const int64_t *shape);

}  // namespace aot
