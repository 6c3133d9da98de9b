#include "strata/nn/experts/expert_matrices.h"

#include <ATen/ATen.h>

#include "strata/ops/matmul/matmul.h"
#include "strata/ops/quant/few_rows.h"

namespace strata::nn {
namespace {

bool is_in_mxfp4(const Parameter& weight) {
  const auto& quantization = weight.quantization();
  return quantization && quantization->format == ops::quant::kMxfp4Format;
}

}  // namespace

ExpertMatrices::ExpertMatrices(const Parameter& weight, at::ScalarType type, Purpose purpose)
    : weight_(weight), purpose_(purpose), type_(type) {}

// Codes of MXFP4 are those of the transposed matrices.
bool ExpertMatrices::multiply_answer_into(const at::Tensor& y, const at::Tensor& x, size_t expert,
                                          bool transposed, float beta) const {
  return purpose_ == Purpose::kAnswering && !transposed &&
         ops::quant::multiply_few_rows_into(
             y, x, weight_.quantized_value(static_cast<int64_t>(expert)), beta, x.scalar_type());
}

void ExpertMatrices::multiply_into(const at::Tensor& y, const at::Tensor& x, size_t expert,
                                   bool transposed, float beta) const {
  const auto index = static_cast<int64_t>(expert);
  if (is_in_mxfp4(weight_)) {
    if (multiply_answer_into(y, x, expert, transposed, beta)) return;
    if (!decoded_.defined()) {
      decoded_ = at::empty({weight_.matrix_rows(), weight_.matrix_columns()},
                           weight_.quantized_bytes().options().dtype(type_));
    }
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
