// Oracle: TRL's DataCollatorForLanguageModeling on the same rows, shifted as the loss shifts.
#include "strata/data/collate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "strata/base/error.h"

namespace strata::data {
namespace {

using ::testing::ElementsAre;

MicroBatch collate_all(const std::vector<Example>& rows, std::vector<int64_t> indices) {
  const std::vector<ExampleView> views(rows.begin(), rows.end());
  return collate(views, indices);
}

TEST(Collate, PutsDocumentsSideBySide) {
  const std::vector<Example> rows = {{{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}, {3, 2}},
                                     {{6, 7, 8}, {-100, 7, 8}, {1, 2}}};
  const MicroBatch batch = collate_all(rows, {9, 4});
  EXPECT_THAT(batch.ids, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0, 1, 0, 0, 1));
  // The reference's labels are -100 2 3 -100 5 -100 -100 8.
  EXPECT_THAT(batch.targets, ElementsAre(2, 3, -100, 5, -100, -100, 8, -100));
  EXPECT_THAT(batch.offsets, ElementsAre(0, 3, 5, 6, 8));
  EXPECT_THAT(batch.rows, ElementsAre(9, 4));
  EXPECT_THAT(batch.row_tokens, ElementsAre(5, 3));
  EXPECT_EQ(batch.num_targets, 4);
  const int64_t first = 9 * kMaxRowTokens;
  const int64_t second = 4 * kMaxRowTokens;
  EXPECT_THAT(batch.token_keys, ElementsAre(first, first + 1, first + 2, first + 3, first + 4,
                                            second, second + 1, second + 2));
}

// The reference counts labels[..., 1:] of the padded batch: the first label of each row is left
// out.
TEST(Collate, CountsTargetsAsThePaddedBatch) {
  const std::vector<Example> rows = {{{1, 2, 3}, {1, 2, 3}, {3}}, {{4}, {4}, {1}}};
  EXPECT_EQ(collate_all(rows, {0, 1}).num_targets, 2);
  EXPECT_EQ(count_targets(rows[0]), 2);
  EXPECT_EQ(count_targets(rows[1]), 0);
}

TEST(Collate, CountsTargetsPerDocument) {
  const Example row = {{1, 2, 3, 4, 5}, {1, 2, 3, -100, 5}, {2, 3}};
  EXPECT_EQ(count_targets(row), 2);
  EXPECT_EQ(collate_all({row}, {0}).num_targets, 2);
}

TEST(Collate, LeavesOutEmptyDocuments) {
  const MicroBatch batch = collate_all({{{}, {}, {0}}, {{1, 2}, {1, 2}, {2}}}, {0, 1});
  EXPECT_THAT(batch.offsets, ElementsAre(0, 2));
  EXPECT_THAT(batch.row_tokens, ElementsAre(0, 2));
}

// DataCollatorForSeq2Seq and T5's _shift_right without their padding.
TEST(Collate, ShiftsTheTargetsOfPairsBehindTheStartToken) {
  const std::vector<Example> rows = {{{5, 6, 1, 7, 8, 1}, {-100, -100, -100, 7, 8, 1}, {3, 3}},
                                     {{9, 4}, {-100, 4}, {1, 1}}};
  const std::vector<ExampleView> views(rows.begin(), rows.end());
  const MicroBatch batch = collate(views, std::vector<int64_t>{2, 0}, /*decoder_start=*/0);
  EXPECT_THAT(batch.source_ids, ElementsAre(5, 6, 1, 9));
  EXPECT_THAT(batch.source_offsets, ElementsAre(0, 3, 4));
  EXPECT_THAT(batch.ids, ElementsAre(0, 7, 8, 0));
  EXPECT_THAT(batch.targets, ElementsAre(7, 8, 1, 4));
  EXPECT_THAT(batch.offsets, ElementsAre(0, 3, 4));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(batch.row_tokens, ElementsAre(6, 2));
  EXPECT_EQ(batch.num_targets, 4);
  std::set<int64_t> keys(batch.token_keys.begin(), batch.token_keys.end());
  keys.insert(batch.source_token_keys.begin(), batch.source_token_keys.end());
  EXPECT_EQ(keys.size(), 8U);  // no token draws another one's mask
  const Example text{{1}, {1}, {1}};
  const std::vector<ExampleView> no_pair{text};
  EXPECT_THROW(collate(no_pair, std::vector<int64_t>{0}, 0), InternalError);
}

TEST(Collate, RefusesRowsThatDoNotFit) {
  EXPECT_THROW(collate_all({{{1, 2}, {1}, {2}}}, {0}), InternalError);
  EXPECT_THROW(collate_all({{{1, 2}, {1, 2}, {1}}}, {0}), InternalError);
  EXPECT_THROW(collate_all({{{1}, {1}, {1}}}, {0, 1}), InternalError);
}

TEST(Collate, RowsOfASetAreThoseOfTheirIndices) {
  Dataset set;
  set.rows = {{{1, 2}, {1, 2}, {2}}, {{3, 4, 5}, {3, 4, 5}, {1, 2}}, {{6}, {6}, {1}}};
  const MicroBatch expected = collate_all({set.rows[2], set.rows[1]}, {2, 1});
  const TokenStore store(set);
  const MicroBatch found = collate_rows(store, std::vector<int64_t>{2, 1});
  EXPECT_EQ(found.ids, expected.ids);
  EXPECT_EQ(found.targets, expected.targets);
  EXPECT_EQ(found.token_keys, expected.token_keys);
  EXPECT_EQ(found.offsets, expected.offsets);
  EXPECT_EQ(found.rows, expected.rows);
  const MicroBatch pair = collate_rows(store, std::vector<int64_t>{1}, /*decoder_start=*/0);
  EXPECT_THAT(pair.source_ids, ElementsAre(3));
  EXPECT_THAT(pair.ids, ElementsAre(0, 4));
}

}  // namespace
}  // namespace strata::data
