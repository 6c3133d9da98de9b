#include "strata/checkpoint/convert/weight_reader.h"

#include <ATen/ops/from_blob.h>

#include "strata/checkpoint/element_type.h"
#include "strata/checkpoint/manifest.h"
#include "strata/hf/weight_names.h"

namespace strata::checkpoint {

hf::DType WeightReader::type_of(const SavedTensor& tensor) const {
  const bool keeps_type =
      !tensor.is_parameter() || tensor.is_of_codes || hf::keeps_float32(tensor.weight);
  if (!weight_type_ || keeps_type) return tensor.dtype;
  return at::isFloatingType(memory_type_of(tensor.dtype)) ? *weight_type_ : tensor.dtype;
}

std::span<const std::byte> WeightReader::read(size_t index) {
  const SavedTensor& tensor = state_.tensors()[index];
  buffer_.resize(tensor.size_bytes());
  state_.read(index, buffer_);
  const hf::DType type = type_of(tensor);
  if (type == tensor.dtype) {
    checksums_[index] = checksum(buffer_.data(), buffer_.size());
    return buffer_;
  }
  const auto numel = static_cast<int64_t>(buffer_.size() / hf::size_of(tensor.dtype));
  converted_ = at::from_blob(buffer_.data(), {numel},
                             at::TensorOptions().dtype(memory_type_of(tensor.dtype)))
                   .to(memory_type_of(type));
  checksums_[index] = checksum(converted_.data_ptr(), converted_.nbytes());
  return {static_cast<const std::byte*>(converted_.data_ptr()), converted_.nbytes()};
}

}  // namespace strata::checkpoint
