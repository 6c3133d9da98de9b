// The bytes of a planned tensor, made of the state's weights some rows at a time. Owns: the order
// of rows, the change of type. Never: which weights (tensor_plan.h), files.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "strata/checkpoint/gguf/tensor_plan.h"

namespace strata::checkpoint {

// Calls `sink` with the tensor's bytes, part after part. Memory: one weight of the state where it
// is not mapped, and some rows. FormatError for a number that float16 cannot hold.
void write_rows(SavedState& state, const PlannedTensor& planned,
                const std::function<void(std::span<const std::byte>)>& sink);

}  // namespace strata::checkpoint
