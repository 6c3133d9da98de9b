// Reads tensors of a saved state one at a time, in another floating type if one is asked for.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/checkpoint/convert/saved_state.h"

namespace strata::checkpoint {

// Memory: the largest tensor read so far. Threads: one.
class WeightReader {
 public:
  explicit WeightReader(SavedState& state, std::optional<hf::DType> weight_type = std::nullopt)
      : state_(state), weight_type_(weight_type) {}

  // What a tensor is written as: optimizer state, integers, codes and their scales keep their type.
  hf::DType type_of(const SavedTensor& tensor) const;
  // Valid until the next read.
  std::span<const std::byte> read(size_t index);
  // Of what was read, as it was handed out, by index.
  const std::map<size_t, std::string>& checksums() const { return checksums_; }

 private:
  SavedState& state_;
  std::optional<hf::DType> weight_type_;
  std::vector<std::byte> buffer_;
  at::Tensor converted_;
  std::map<size_t, std::string> checksums_;
};

}  // namespace strata::checkpoint
