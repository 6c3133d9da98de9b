// The largest micro-batch that the rows of a set can give. Never: plans.
#pragma once

#include <cstdint>
#include <vector>

#include "strata/data/store/token_store.h"

namespace strata::train {

// Which documents of the rows determine the length of a pass.
enum class Share { kOwn, kMismatched, kSource };

struct BatchSize {
  int64_t rows = 1;
  // Several ranks have full batches: of a set with fewer rows than one of them rows repeat.
  bool is_filled = false;
};

// Tokens of the documents of the longest rows that one batch has together.
std::vector<int64_t> largest_batch(const data::TokenStore& dataset, const BatchSize& size,
                                   Share share = Share::kOwn);

// The most trained tokens that one batch can have, which need not be the longest: a bound, exact
// where the rows that decide it are among the longest ones (2^16 rows, of 2^25 tokens), the only
// ones whose labels are read. Requires: not a share of sources.
int64_t most_trained(const data::TokenStore& dataset, const BatchSize& size,
                     Share share = Share::kOwn);

}  // namespace strata::train
