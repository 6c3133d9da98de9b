#include "strata/nn/experts/expert_groups.h"

#include <ATen/ATen.h>

namespace strata::nn {

at::Tensor by_group(const at::Tensor& scores, const ExpertGroups& groups) {
  return scores.view({scores.size(0), groups.count, scores.size(1) / groups.count});
}

at::Tensor left_out(const at::Tensor& of_groups, const ExpertGroups& groups) {
  const at::Tensor chosen = std::get<1>(at::topk(of_groups, groups.chosen, /*dim=*/1));
  return at::ones(of_groups.sizes(), of_groups.options().dtype(at::kBool))
      .scatter_(1, chosen, false)
      .unsqueeze(2);
}

}  // namespace strata::nn
