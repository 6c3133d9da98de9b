#include "strata/nn/beam_candidates.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "strata/libtorch/memory_kind.h"

namespace strata::nn {

BeamCandidates beam_candidates(at::Tensor& logits, const at::Tensor& scores, int64_t count,
                               const std::function<void(at::Tensor&)>& exclude) {
  const MemoryScope of_logits(MemoryKind::kLogits);
  at::Tensor all = at::log_softmax(logits, 1);
  logits.reset();
  if (exclude) exclude(all);
  all.add_(scores.view({-1, 1}));
  const int64_t vocabulary = all.size(1);
  const auto [best, places] = at::topk(all.view({scores.size(0), -1}), count, 1);
  return {best, places.div(vocabulary, "floor"), places.remainder(vocabulary)};
}

int64_t beam_scratch_bytes(int64_t documents, int64_t choices) {
  // libtorch's topk() makes a list of pairs of each row that a thread looks at.
  constexpr int64_t kPair = sizeof(std::pair<double, int64_t>);
  return std::min<int64_t>(at::get_num_threads(), documents) * choices * kPair;
}

}  // namespace strata::nn
