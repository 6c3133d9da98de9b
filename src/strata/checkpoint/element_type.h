// Element types of saved tensors: libtorch's against safetensors'. Owns: the table. Never:
// conversions. Optimizer state may have any of them, weights only floating types (shard/loading.h).
#pragma once

#include <string>

#include <c10/core/ScalarType.h>

#include "strata/hf/dtype.h"

namespace strata::checkpoint {

// Throws InternalError for a type without a safetensors name.
hf::DType file_type_of(at::ScalarType type);
at::ScalarType memory_type_of(hf::DType dtype);

}  // namespace strata::checkpoint
