// Oracle: every batch that the rows can make, collated.
#include "strata/train/planning/largest_batch.h"

#include <algorithm>
#include <bit>

#include <gtest/gtest.h>

#include "strata/base/labels.h"
#include "strata/data/collate.h"

namespace strata::train {
namespace {

// A document of `tokens`, of which all behind the prompt are trained.
void append(data::Example& row, int32_t tokens, int32_t prompt) {
  for (int32_t i = 0; i < tokens; ++i) {
    row.ids.push_back(i);
    row.labels.push_back(i < prompt ? kNotTrained : i);
  }
  row.lengths.push_back(tokens);
}

// Long rows train little, and those that train most are not the longest.
data::TokenStore rows_of(data::Rating rating) {
  data::Dataset dataset;
  for (const auto& [tokens, prompt] :
       {std::pair(50, 48), {20, 1}, {31, 9}, {44, 40}, {20, 3}, {9, 0}}) {
    data::Example row;
    row.rating = rating;
    append(row, tokens, prompt);
    append(row, 3 * tokens % 29 + 2, prompt % 7);
    dataset.rows.push_back(row);
  }
  return data::TokenStore(std::move(dataset));
}

int64_t most_of_all_batches(const data::TokenStore& set, int64_t rows, bool is_mismatched) {
  int64_t most = 0;
  for (unsigned chosen = 0; chosen < 1u << set.size(); ++chosen) {
    if (std::popcount(chosen) != rows) continue;
    std::vector<int64_t> numbers;
    for (size_t row = 0; row < set.size(); ++row) {
      if (chosen >> row & 1) numbers.push_back(static_cast<int64_t>(row));
    }
    const data::MicroBatch batch = data::collate_rows(set, numbers);
    most = std::max(most, is_mismatched ? batch.mismatched->num_targets : batch.num_targets);
  }
  return most;
}

TEST(LargestBatch, TrainsAsManyTokensAsTheBatchThatTrainsMost) {
  const data::TokenStore pairs = rows_of(data::Rating::kNone);
  const data::TokenStore rated = rows_of(data::Rating::kDesirable);
  for (int64_t rows = 1; rows <= 6; ++rows) {
    SCOPED_TRACE(rows);
    EXPECT_EQ(most_trained(pairs, {.rows = rows}), most_of_all_batches(pairs, rows, false));
    EXPECT_EQ(most_trained(rated, {.rows = rows}), most_of_all_batches(rated, rows, false));
    EXPECT_EQ(most_trained(rated, {.rows = rows}, Share::kMismatched),
              most_of_all_batches(rated, rows, true));
  }
  // Fewer rows than a batch has.
  EXPECT_EQ(most_trained(pairs, {.rows = 8}), most_of_all_batches(pairs, 6, false));
  EXPECT_GT(most_trained(pairs, {.rows = 8, .is_filled = true}),
            most_of_all_batches(pairs, 6, false));
}

// Labels of so many rows are read; of those behind them it is known how long they are.
TEST(LargestBatch, OfManyRowsIsABound) {
  data::Dataset dataset;
  data::Example row, last;
  append(row, 4, 3);
  append(last, 3, 1);
  dataset.rows.assign((1 << 16) + 9, row);
  dataset.rows.push_back(last);
  const data::TokenStore set(std::move(dataset));
  const int64_t found = most_trained(set, {.rows = 2});
  EXPECT_GE(found, 2 + 1);
  EXPECT_LE(found, 2 * 3);
}

}  // namespace
}  // namespace strata::train
