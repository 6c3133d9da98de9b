// ALiBi (Press et al. 2022): scores grow with the key's position by a slope of each head, in the
// place of other positions. A softmax does not see what all keys of a query have in common, so the
// bias is one of distances and knows no document. Owns: slopes and their table. Never: attention.
// Source: transformers modeling_{bloom,mpt}.py.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"

namespace strata::nn {

// Slopes by head: powers of 2^(-8 / n), n the largest power of two within `num_heads`, then, for
// the remaining heads, every second power of 2^(-4 / n).
std::vector<float> alibi_slopes(int64_t num_heads);
// As in MPT: powers of 2^(-8 / n), n the smallest power of two of at least `num_heads`; if it is
// larger, first every second power, then the others.
std::vector<float> spread_alibi_slopes(int64_t num_heads);

// Threads: one at a time. Memory: the table of the longest document so far.
class Alibi {
 public:
  // `slopes`: of each head.
  explicit Alibi(std::vector<float> slopes) : slopes_(std::move(slopes)) {}

  // The AttentionOptions::bias: fp32 [heads, 2 n + 1], n at least the longest distance between
  // tokens of a document of the micro-batch, or of the cache and what follows it.
  const at::Tensor& table(const ForwardContext& context);

 private:
  std::vector<float> slopes_;
  at::Tensor table_;
};

}  // namespace strata::nn
