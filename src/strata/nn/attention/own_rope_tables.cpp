#include "strata/nn/attention/own_rope_tables.h"

#include <algorithm>
#include <vector>

#include "strata/nn/attention/rotated.h"

namespace strata::nn {

RopeTables own_rope_tables(Rope& rope, const ForwardContext& context) {
  if (!context.batch->whole) return rope_tables(rope, context);
  const std::vector<int64_t>& offsets = context.batch->whole->offsets;
  int64_t longest = 0;
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    longest = std::max(longest, offsets[d + 1] - offsets[d]);
  }
  return rope.tables(context.batch->positions, longest);
}

}  // namespace strata::nn
