#include "strata/data/rated_rows.h"

#include <algorithm>
#include <utility>

#include "strata/base/error.h"
#include "strata/base/labels.h"
#include "strata/data/collate.h"

namespace strata::data {
namespace {

constexpr size_t kUnpairedAtOnce = 1000;  // rows of a batch of datasets.map

// Two parts of a row, of which the first begins at the token `begin`.
Example answer_of(const ExampleView& row, size_t part, size_t begin, Rating rating) {
  const std::span<const int32_t> lengths = row.lengths.subspan(part, 2);
  const auto size = static_cast<size_t>(lengths[0]) + static_cast<size_t>(lengths[1]);
  return ExampleView(row.ids.subspan(begin, size), row.labels.subspan(begin, size), lengths, rating)
      .copy();
}

// Appends the prompt of one row with the answer of another, of at most max_length tokens.
void append_document(const Example& asked, const Example& answered, int64_t max_length,
                     Example& row) {
  const size_t size_before = row.ids.size();
  const auto append = [&](const Example& from, size_t first, size_t last) {
    const auto begin = static_cast<std::ptrdiff_t>(first), end = static_cast<std::ptrdiff_t>(last);
    row.ids.insert(row.ids.end(), from.ids.begin() + begin, from.ids.begin() + end);
    row.labels.insert(row.labels.end(), from.labels.begin() + begin, from.labels.begin() + end);
  };
  append(asked, 0, static_cast<size_t>(asked.lengths[0]));
  append(answered, static_cast<size_t>(answered.lengths[0]), answered.ids.size());
  if (max_length > 0) {
    const size_t limit = size_before + static_cast<size_t>(max_length);
    row.ids.resize(std::min(row.ids.size(), limit));
    row.labels.resize(row.ids.size());
  }
  row.lengths.push_back(static_cast<int32_t>(row.ids.size() - size_before));
}

// Nothing predicts the first token of a document.
bool is_trained(const Example& row) {
  if (row.labels.empty()) return false;
  return std::any_of(row.labels.begin() + 1, row.labels.end(),
                     [](int32_t label) { return label != kNotTrained; });
}

}  // namespace

RatedRows::RatedRows(const PrepareOptions& options, Preparation::Keep keep)
    : options_(options), keep_(std::move(keep)) {}

void RatedRows::add(const ExampleView& row) {
  if (row.lengths.size() == 2) return take(answer_of(row, 0, 0, row.rating));
  if (row.lengths.size() != 4) {
    throw InternalError(
        "rated rows: found {} parts, expected a prompt before each of 1 or 2 answers",
        row.lengths.size());
  }
  const auto second = static_cast<size_t>(row.lengths[0] + row.lengths[1]);
  rejected_.push_back(answer_of(row, 2, second, Rating::kUndesirable));
  take(answer_of(row, 0, 0, Rating::kDesirable));
  if (rejected_.size() == kUnpairedAtOnce) release_rejected();
}

void RatedRows::finish() {
  release_rejected();
  release_block();
}

void RatedRows::release_rejected() {
  for (Example& answer : std::exchange(rejected_, {})) take(std::move(answer));
}

void RatedRows::take(Example answer) {
  const int64_t limit = options_.max_length;
  const bool is_long = limit > 0 && static_cast<int64_t>(answer.ids.size()) > limit;
  num_long_ += is_long;
  if (is_long && options_.long_rows == "drop") return;
  Example own;
  append_document(answer, answer, limit, own);
  if ((limit > 0 && answer.lengths[0] >= limit) || !is_trained(own)) {
    ++num_dropped_;
    return;
  }
  if (options_.rated->mismatched_rows == 0) {
    own.rating = answer.rating;
    return keep_(own);
  }
  block_.push_back(std::move(answer));
  if (static_cast<int64_t>(block_.size()) == options_.rated->mismatched_rows) release_block();
}

// Each document was short enough alone.
void RatedRows::require_room(const Example& row) const {
  const auto size = static_cast<int64_t>(row.ids.size());
  if (size <= kMaxRowTokens) return;
  throw FormatError(
      "{}: found {} tokens in a rated answer and another one after its prompt, expected at most {} "
      "in both; set max_length to at most {}, or use a loss without the divergence "
      "(apo_zero_unpaired)",
      options_.subject, size, kMaxRowTokens, kMaxRowTokens / 2);
}

void RatedRows::release_block() {
  const std::vector<Example> block = std::exchange(block_, {});
  for (size_t i = 0; i < block.size(); ++i) {
    Example row;
    row.rating = block[i].rating;
    append_document(block[i], block[i], options_.max_length, row);
    append_document(block[i], block[(i + block.size() - 1) % block.size()], options_.max_length,
                    row);
    require_room(row);
    keep_(row);
  }
}

}  // namespace strata::data
