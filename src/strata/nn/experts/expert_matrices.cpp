#include "strata/nn/experts/expert_matrices.h"

#include <ATen/ATen.h>

#include "strata/ops/matmul/matmul.h"

namespace strata::nn {

ExpertMatrices::ExpertMatrices(const Parameter& weight, at::ScalarType type) : weight_(weight) {
  const auto& quantization = weight.quantization();
  if (!quantization || quantization->format != ops::quant::kMxfp4Format) return;
  decoded_ = at::empty({weight.matrix_rows(), weight.matrix_columns()},
                       weight.quantized_bytes().options().dtype(type));
}

void ExpertMatrices::multiply_into(const at::Tensor& y, const at::Tensor& x, size_t expert,
                                   bool transposed, float beta) const {
  const auto index = static_cast<int64_t>(expert);
  if (decoded_.defined()) {
    weight_.decode_matrix_into(decoded_, index);
    ops::matmul_into(y, x, decoded_, {.b = transposed}, beta);
  } else if (const auto& quantization = weight_.quantization()) {
    ops::quant::matmul_into(y, x, weight_.quantized_value(index), transposed, beta,
                            quantization->compute.value_or(x.scalar_type()));
  } else {
    ops::matmul_into(y, x, weight_.value().select(0, index), {.b = transposed}, beta);
  }
}

}  // namespace strata::nn
