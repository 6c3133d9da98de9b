// Element types under torch's names: of dtypes ("float32") and of storages ("FloatStorage").
#pragma once

#include <optional>
#include <string_view>

#include "strata/hf/dtype.h"

namespace strata::hf {

// Empty for a type that torch has under no storage of its own.
std::string_view torch_storage_of(DType dtype);
std::string_view torch_dtype_of(DType dtype);
// The inverse; nothing for other names.
std::optional<DType> dtype_of_torch_storage(std::string_view name);
std::optional<DType> dtype_of_torch_dtype(std::string_view name);

}  // namespace strata::hf
