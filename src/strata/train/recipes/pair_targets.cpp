#include "strata/train/recipes/pair_targets.h"

#include <algorithm>

#include "strata/base/labels.h"

namespace strata::train {
namespace {

int64_t count_trained(const data::MicroBatch& batch, int64_t first, int64_t last) {
  const auto begin = batch.targets.begin() + first, end = batch.targets.begin() + last;
  return end - begin - std::count(begin, end, kNotTrained);
}

// Targets of the document before its first trained token.
int64_t leading_masked(const data::MicroBatch& batch, size_t document) {
  if (batch.first_labels[document] != kNotTrained) return 0;
  const auto begin = batch.targets.begin() + batch.offsets[document];
  const auto end = batch.targets.begin() + batch.offsets[document + 1];
  return std::find_if(begin, end, [](int64_t label) { return label != kNotTrained; }) - begin;
}

}  // namespace

int64_t num_chosen_targets(const data::MicroBatch& batch) {
  int64_t count = 0;
  for (size_t d = 0; d + 1 < batch.offsets.size(); d += 2) {
    count += count_trained(batch, batch.offsets[d], batch.offsets[d + 1]);
  }
  return count;
}

std::vector<int64_t> prompt_targets(const data::MicroBatch& batch) {
  std::vector<int64_t> counts;
  for (size_t d = 0; d + 2 < batch.offsets.size(); d += 2) {
    const int64_t first = batch.offsets[d];
    counts.push_back(count_trained(batch, first, first + leading_masked(batch, d + 1)));
    counts.push_back(0);
  }
  return counts;
}

}  // namespace strata::train
