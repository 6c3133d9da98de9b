#include "strata/adapters/merged_weight.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace strata::adapters {
namespace {

// Rows of a weight that are widened at once: 4 MB.
constexpr int64_t kElementsAtOnce = int64_t{1} << 20;

at::Tensor fp32_copy(const nn::Parameter& parameter) {
  return parameter.value().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

// Rows do not depend on each other, not even DoRA's lengths.
void add_branch(const at::Tensor& weight, const Branch& branch, at::Tensor& result) {
  const int64_t step = std::max<int64_t>(kElementsAtOnce / std::max<int64_t>(weight.size(1), 1), 1);
  for (int64_t row = 0; row < weight.size(0); row += step) {
    const int64_t rows = std::min(step, weight.size(0) - row);
    at::Tensor sum = at::matmul(branch.b.narrow(0, row, rows), branch.a).mul_(branch.scale);
    sum.add_(weight.narrow(0, row, rows).to(at::kFloat));
    if (branch.magnitude.defined()) {
      const at::Tensor length = at::linalg_vector_norm(sum, 2, at::IntArrayRef{1});
      sum.mul_((branch.magnitude.narrow(0, row, rows) / length).unsqueeze(1));
    }
    result.narrow(0, row, rows).copy_(sum);
  }
}

at::Tensor rows_of_inputs(const at::Tensor& matrices, bool rows_are_outputs) {
  return rows_are_outputs ? matrices.transpose(1, 2) : matrices;
}

void add_expert_branches(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                         double scale, at::Tensor& result) {
  const int64_t num_experts = weight.size(0);
  const at::Tensor a_by_expert = a.view({num_experts, -1, a.size(1)});
  const at::Tensor b_by_expert = b.view({b.size(0), -1, num_experts});
  for (int64_t e = 0; e < num_experts; ++e) {
    at::Tensor of_expert = result.select(0, e);
    add_branch(weight.select(0, e),
               {.a = b_by_expert.select(2, e).t(),
                .b = a_by_expert.select(0, e).t(),
                .magnitude = {},
                .scale = scale},
               of_expert);
  }
}

Branch branch_of_layer(const at::Tensor& a, const at::Tensor& b, const ExpertLayer& layer,
                       int64_t outputs, double scale) {
  const at::Tensor rows = b.narrow(0, layer.first_row, outputs);
  return {.a = a.view({layer.num_experts, -1, a.size(1)}).select(0, layer.expert),
          .b = rows.view({outputs, -1, layer.num_experts}).select(2, layer.expert),
          .magnitude = {},
          .scale = scale};
}

Branch vera_branch(const nn::VeraProjection& projection, const at::Tensor& lambda_b,
                   const at::Tensor& lambda_d, at::IntArrayRef shape) {
  Branch branch;
  branch.a = projection.a.narrow(1, 0, shape[1]) * lambda_d.to(at::kFloat).unsqueeze(1);
  branch.b = projection.b.narrow(0, 0, shape[0]) * lambda_b.to(at::kFloat).unsqueeze(1);
  branch.scale = 1;
  return branch;
}

at::Tensor merged_weight(const nn::Linear& layer) {
  const bool is_transposed = layer.weight().is_transposed();
  at::Tensor weight = layer.weight().quantization() ? layer.weight().dense_value(at::kFloat)
                                                    : fp32_copy(layer.weight());
  if (is_transposed) weight = weight.t().contiguous();
  if (const nn::LowRankBranch* low_rank = layer.low_rank()) {
    Branch branch{.a = fp32_copy(low_rank->a),
                  .b = fp32_copy(low_rank->b),
                  .magnitude = {},
                  .scale = low_rank->scaling};
    if (low_rank->magnitude) branch.magnitude = fp32_copy(*low_rank->magnitude);
    add_branch(weight, branch, weight);
  }
  if (const nn::Vera* vera = layer.vera()) {
    add_branch(weight,
               vera_branch(*vera->projection, vera->b.value(), vera->d.value(), weight.sizes()),
               weight);
  }
  if (const nn::Rescale* rescale = layer.rescale()) weight.mul_(fp32_copy(rescale->factors));
  return is_transposed ? weight.t().contiguous() : weight;
}

void visit_merged_weights(const nn::ExpertParameter& matrices,
                          const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  const nn::ExpertBranch& branch = *matrices.branch;
  const at::Tensor a = fp32_copy(branch.a), b = fp32_copy(branch.b);
  if (matrices.weights.size() == 1) {
    const at::Tensor weight = matrices.weights[0]->dense_value(at::kFloat);
    at::Tensor merged = at::empty_like(weight);
    at::Tensor of_inputs = rows_of_inputs(merged, matrices.rows_are_outputs);
    add_expert_branches(rows_of_inputs(weight, matrices.rows_are_outputs), a, b, branch.scaling,
                        of_inputs);
    return visit(matrices.name, merged);
  }
  ExpertLayer layer{.expert = 0, .num_experts = matrices.num_experts};
  for (nn::Parameter* parameter : matrices.weights) {
    const at::Tensor weight = parameter->dense_value(at::kFloat);
    at::Tensor merged = at::empty_like(weight);
    add_branch(weight, branch_of_layer(a, b, layer, weight.size(0), branch.scaling), merged);
    visit(parameter->name(), merged);
    layer.first_row += weight.size(0);
    if (layer.first_row < matrices.out_features) continue;
    ++layer.expert;
    layer.first_row = 0;
  }
}

at::Tensor merged_bias(const nn::Linear& layer) {
  at::Tensor bias = fp32_copy(*layer.bias());
  const nn::LowRankBranch* low_rank = layer.low_rank();
  if (low_rank != nullptr && low_rank->bias) {
    bias.add_(low_rank->bias->value(), low_rank->scaling);
  }
  if (layer.rescale() != nullptr && !layer.rescale()->of_input) {
    bias.mul_(fp32_copy(layer.rescale()->factors).view({-1}));
  }
  return bias;
}

}  // namespace strata::adapters
