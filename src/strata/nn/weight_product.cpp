// Products with dense and quantised weights. Never: autograd.
#include "strata/nn/weight_product.h"

#include "strata/ops/matmul/matmul.h"
#include "strata/ops/quant/few_rows.h"
#include "strata/ops/quant/int8_product.h"

namespace strata::nn {
namespace {

void multiply(at::Tensor y, const at::Tensor& x, const Parameter& weight, bool transposed,
              float beta) {
  if (!weight.quantization()) {
    // Activations may be wider than weights: those that choose experts are (nn/experts).
    return ops::matmul_into(y, x, weight.value().to(x.scalar_type()),
                            {.b = transposed != weight.is_transposed()}, beta);
  }
  const at::ScalarType compute = weight.quantization()->compute.value_or(x.scalar_type());
  ops::quant::matmul_into(y, x, weight.quantized_value(), transposed, beta, compute);
}

// Whether it was done.
bool multiply_answer_into(const at::Tensor& y, const at::Tensor& x, const Parameter& weight,
                          float beta) {
  const auto& quantization = weight.quantization();
  return quantization &&
         ops::quant::multiply_few_rows_into(y, x, weight.quantized_value(), beta,
                                            quantization->compute.value_or(x.scalar_type()));
}

}  // namespace

Purpose purpose_of(const ForwardContext& context) {
  if (context.training) return Purpose::kTraining;
  return context.generation.cache != nullptr ? Purpose::kAnswering : Purpose::kEvaluation;
}

void multiply_by_weight_into(at::Tensor y, const at::Tensor& x, const Parameter& weight,
                             float beta) {
  multiply(y, x, weight, /*transposed=*/true, beta);
}

void forward_product_into(at::Tensor y, const at::Tensor& x, const Parameter& weight, float beta,
                          Purpose purpose) {
  const auto& quantization = weight.quantization();
  const bool is_int8 = quantization && quantization->format.kind == ops::quant::Kind::kInt8;
  if (purpose == Purpose::kTraining || !is_int8) {
    if (purpose == Purpose::kAnswering && multiply_answer_into(y, x, weight, beta)) return;
    return multiply_by_weight_into(y, x, weight, beta);
  }
  const at::Tensor product =
      ops::quant::int8_product(x, weight.quantized_value(), quantization->threshold);
  beta == 0 ? y.copy_(product) : y.add_(product);
}

void multiply_by_weight_back_into(at::Tensor dx, const at::Tensor& dy, const Parameter& weight,
                                  float beta) {
  multiply(dx, dy, weight, /*transposed=*/false, beta);
}

}  // namespace strata::nn
