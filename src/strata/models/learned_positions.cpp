#include "strata/models/learned_positions.h"

#include <algorithm>
#include <vector>

#include "strata/base/error.h"
#include "strata/nn/attention/kv_cache.h"

namespace strata::models {

void check_learned_positions(const nn::ForwardContext& context, int64_t most,
                             std::string_view key) {
  const std::vector<int64_t>& offsets = context.batch->of_documents().offsets;
  int64_t longest = 0;
  for (size_t d = 1; d < offsets.size(); ++d) {
    longest = std::max(longest, offsets[d] - offsets[d - 1]);
  }
  if (context.generation.cache != nullptr) longest += context.generation.cache->length;
  if (longest <= most) return;
  throw ConfigError(
      "max_length: found a document of {} tokens, expected at most {}, for which the model has "
      "positions ({}); lower max_length",
      longest, most, key);
}

}  // namespace strata::models
