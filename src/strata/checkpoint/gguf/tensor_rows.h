// The bytes of a planned tensor, made of the state's weights some rows at a time. Owns: the order
// of rows, the change of type. Never: which weights (tensor_plan.h), files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "strata/checkpoint/gguf/tensor_plan.h"

namespace strata::checkpoint {

// Calls `sink` with the tensor's bytes, part after part. Memory: one weight of the state where it
// is not mapped, and some rows. FormatError for a number that float16 cannot hold.
void write_rows(SavedState& state, const PlannedTensor& planned,
                const std::function<void(std::span<const std::byte>)>& sink);

// The row that becomes row `row` where rows of heads of `size` rows each stand in pairs that turn
// together: of a head the rows i and i + size / 2 become neighbours.
int64_t row_before_pairs(int64_t row, int64_t size);

// The bytes of whole rows of a tensor in its type. `source`: whose values they are. FormatError for
// a number that the type cannot hold.
void encode_values(const hf::GgufTensor& tensor, std::span<const float> values,
                   const std::string& source, std::vector<std::byte>& out);

}  // namespace strata::checkpoint
