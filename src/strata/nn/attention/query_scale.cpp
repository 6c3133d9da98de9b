#include "strata/nn/attention/query_scale.h"

#include <vector>

#include <ATen/ATen.h>

namespace strata::nn {
namespace {

// In generation the texts' lengths are not in the batch.
bool may_reach(int64_t length, const ForwardContext& context) {
  if (context.generation.cache != nullptr) return true;
  const std::vector<int64_t>& offsets = context.batch->of_documents().offsets;
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    if (offsets[d + 1] - offsets[d] > length) return true;
  }
  return false;
}

}  // namespace

at::Tensor scaled_by_position(const at::Tensor& q, const QueryScale& scale, int64_t num_before,
                              const ForwardContext& context) {
  if (scale.beta == 0 || !may_reach(scale.length - scale.first - num_before, context)) return q;
  const at::Tensor turns = context.batch->positions.to(at::kFloat)
                               .add_(scale.first)
                               .div_(static_cast<double>(scale.length))
                               .floor_();
  const at::Tensor factors = turns.add_(1).log_().mul_(scale.beta).add_(1).unsqueeze(1);
  if (scale.rounds_factor) return q * factors.to(q.scalar_type());
  return (q * factors).to(q.scalar_type());
}

}  // namespace strata::nn
