#include "strata/nn/experts/expert_matrices.h"

#include <ATen/ATen.h>

namespace strata::nn {

ExpertMatrices::ExpertMatrices(const Parameter& weight, at::ScalarType type) : weight_(weight) {
  if (!weight.quantization()) return;
  decoded_ = at::empty({weight.shape()[1], weight.shape()[2]},
                       weight.quantized_bytes().options().dtype(type));
}

at::Tensor ExpertMatrices::of(size_t expert) const {
  const auto index = static_cast<int64_t>(expert);
  if (!decoded_.defined()) return weight_.value().select(0, index);
  weight_.decode_matrix_into(decoded_, index);
  return decoded_;
}

}  // namespace strata::nn
