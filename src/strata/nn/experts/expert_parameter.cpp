#include "strata/nn/experts/expert_parameter.h"

namespace strata::nn {

ExpertParameter expert_parameter(Parameter& weight, bool rows_are_outputs) {
  const std::vector<int64_t>& shape = weight.shape();
  return {.name = weight.name(),
          .num_experts = shape[0],
          .in_features = shape[rows_are_outputs ? 2 : 1],
          .out_features = shape[rows_are_outputs ? 1 : 2],
          .weights = {&weight},
          .rows_are_outputs = rows_are_outputs};
}

ExpertParameter expert_parameter(const std::string& name, int64_t num_experts,
                                 const std::vector<Parameter*>& weights) {
  const auto parts = std::ssize(weights) / num_experts;
  int64_t outputs = 0;
  for (int64_t p = 0; p < parts; ++p) outputs += weights[static_cast<size_t>(p)]->shape()[0];
  return {.name = name,
          .num_experts = num_experts,
          .in_features = weights[0]->shape()[1],
          .out_features = outputs,
          .weights = weights,
          .rows_are_outputs = true};
}

}  // namespace strata::nn
