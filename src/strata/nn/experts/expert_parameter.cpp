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

}  // namespace strata::nn
