#include "strata/train/planning/largest_batch.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "strata/base/labels.h"
#include "strata/data/collate.h"

namespace strata::train {
namespace {

// Tokens that a row has in such a pass.
int64_t tokens_of(const data::TokenStore& dataset, size_t row, Share share) {
  if (share == Share::kOwn) return dataset.num_own_tokens(row);
  return dataset.lengths(row)[share == Share::kSource ? 0 : 1];
}

// The first label of a document is never a target.
int64_t targets_of(const data::TokenStore& dataset, size_t row, Share share) {
  const data::ExampleView view = dataset[row];
  const bool is_rated = view.rating != data::Rating::kNone;
  const size_t first = share == Share::kMismatched ? 1 : 0;
  const size_t last = share == Share::kOwn && !is_rated ? view.lengths.size() : first + 1;
  int64_t found = 0;
  auto labels = view.labels;
  for (size_t d = 0; d < last; ++d) {
    const auto length = static_cast<size_t>(view.lengths[d]);
    const auto own = labels.first(length);
    if (d >= first && length > 0) {
      found +=
          std::ranges::count_if(own.subspan(1), [](int32_t label) { return label != kNotTrained; });
    }
    labels = labels.subspan(length);
  }
  return found;
}

// Row numbers, the longest `count` first.
std::vector<size_t> longest_rows(const data::TokenStore& dataset, size_t count, Share share) {
  std::vector<size_t> order(dataset.size());
  std::iota(order.begin(), order.end(), size_t{0});
  count = std::min(count, order.size());
  const auto tokens = [&](size_t row) { return tokens_of(dataset, row, share); };
  // For ten million rows a partial sort of many takes seconds.
  std::ranges::nth_element(order, order.begin() + static_cast<std::ptrdiff_t>(count),
                           std::greater(), tokens);
  order.resize(count);
  std::ranges::sort(order, std::greater(), tokens);
  return order;
}

// Those of a batch that more rows would be needed for come again.
template <typename T>
void repeat(std::vector<T>& taken, const BatchSize& size) {
  const size_t own = taken.size();
  const auto count = static_cast<size_t>(size.rows);
  while (size.is_filled && own > 0 && taken.size() < count) {
    taken.push_back(taken[taken.size() - own]);
  }
}

}  // namespace

std::vector<int64_t> largest_batch(const data::TokenStore& dataset, const BatchSize& size,
                                   Share share) {
  const std::vector<size_t> order = longest_rows(dataset, static_cast<size_t>(size.rows), share);
  std::vector<int64_t> longest(order.begin(), order.end());
  repeat(longest, size);
  const data::MicroBatch rows = data::collate_rows(dataset, longest);
  const data::MicroBatch& batch = share == Share::kMismatched ? *rows.mismatched : rows;
  std::vector<int64_t> documents;
  for (size_t d = 1; d < batch.offsets.size(); ++d) {
    documents.push_back(batch.offsets[d] - batch.offsets[d - 1]);
  }
  return documents;
}

int64_t most_trained(const data::TokenStore& dataset, const BatchSize& size, Share share) {
  constexpr size_t kMostRows = 1 << 16;
  constexpr int64_t kMostTokens = 1 << 25;
  const auto count = static_cast<size_t>(size.rows);
  if (count == 0) return 0;
  const std::vector<size_t> order = longest_rows(dataset, count + kMostRows + 1, share);
  std::vector<int64_t> most;  // of the rows read so far, the most first
  int64_t tokens = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    // The last token of a document has no next one.
    const int64_t at_most = tokens_of(dataset, order[i], share) - 1;
    const bool is_full = most.size() == count;
    if (is_full && at_most <= most.back()) break;
    if (is_full && (i >= count + kMostRows || tokens > kMostTokens)) {
      for (int64_t& found : most) found = std::max(found, at_most);
      break;
    }
    const int64_t found = targets_of(dataset, order[i], share);
    tokens += dataset.num_tokens(order[i]);
    most.insert(std::ranges::upper_bound(most, found, std::greater()), found);
    if (most.size() > count) most.pop_back();
  }
  repeat(most, size);
  return std::reduce(most.begin(), most.end());
}

}  // namespace strata::train
