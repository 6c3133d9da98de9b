// Tensors of a saved state as libtorch's. Never: which format they lie in (saved_state.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/checkpoint/convert/saved_state.h"

namespace strata::checkpoint {

// A copy of the whole tensor in its own type.
at::Tensor read_tensor(SavedState& state, size_t index);

}  // namespace strata::checkpoint
