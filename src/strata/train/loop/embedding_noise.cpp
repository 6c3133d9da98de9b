#include "strata/train/loop/embedding_noise.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace strata::train {

double embedding_noise(const config::RunConfig& config, std::span<const int64_t> row_tokens) {
  const std::optional<double> alpha = config.train.neftune_noise_alpha;
  if (!alpha || row_tokens.empty()) return 0;
  const bool is_flat = config.data.packing && config.data.packing_strategy.starts_with("bfd");
  const int64_t tokens = is_flat ? std::accumulate(row_tokens.begin(), row_tokens.end(), int64_t{0})
                                 : std::ranges::max(row_tokens);
  return tokens == 0 ? 0 : *alpha / std::sqrt(static_cast<double>(tokens));
}

}  // namespace strata::train
