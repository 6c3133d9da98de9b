// Oracle: TRL's pack_dataset on the same rows.
#include "strata/data/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::data {
namespace {

using ::testing::ElementsAre;
using Lists = std::vector<std::vector<int32_t>>;

Example row_of(int32_t value, size_t count) {
  Example row;
  row.ids.assign(count, value);
  row.labels.assign(count, -value);
  row.lengths.assign(1, static_cast<int32_t>(count));
  return row;
}

std::vector<Example> golden_rows() {
  return {row_of(1, 5), row_of(2, 2), row_of(3, 3), row_of(4, 1), row_of(5, 7),
          row_of(6, 3), row_of(7, 4), row_of(0, 0), row_of(8, 9), row_of(9, 2)};
}

std::vector<Example> pack(const std::vector<Example>& rows, int64_t max_length,
                          const std::string& strategy) {
  std::vector<Example> packed;
  Packer packer(max_length, strategy, [&](Example row) { packed.push_back(std::move(row)); });
  for (const Example& row : rows) packer.add(row);
  packer.finish();
  return packed;
}

Lists ids_of(const std::vector<Example>& rows) {
  Lists lists;
  for (const Example& row : rows) {
    lists.push_back(row.ids);
    std::vector<int32_t> negated = row.labels;
    for (int32_t& label : negated) label = -label;
    EXPECT_EQ(negated, row.ids) << "labels must move with their ids";
  }
  return lists;
}

Lists lengths_of(const std::vector<Example>& rows) {
  Lists lists;
  for (const Example& row : rows) lists.push_back(row.lengths);
  return lists;
}

TEST(Pack, BestFitDecreasing) {
  const std::vector<Example> packed = pack(golden_rows(), 6, "bfd");
  EXPECT_EQ(ids_of(packed), (Lists{{5, 5, 5, 5, 5, 5},
                                   {8, 8, 8, 8, 8, 8},
                                   {1, 1, 1, 1, 1, 4},
                                   {7, 7, 7, 7, 2, 2},
                                   {3, 3, 3, 6, 6, 6},
                                   {9, 9}}));
  EXPECT_EQ(lengths_of(packed), (Lists{{6}, {6}, {5, 1}, {4, 2}, {3, 3}, {2}}));
}

TEST(Pack, BestFitDecreasingWithSplit) {
  const std::vector<Example> packed = pack(golden_rows(), 6, "bfd_split");
  EXPECT_EQ(ids_of(packed), (Lists{{5, 5, 5, 5, 5, 5},
                                   {8, 8, 8, 8, 8, 8},
                                   {1, 1, 1, 1, 1, 4},
                                   {7, 7, 7, 7, 2, 2},
                                   {3, 3, 3, 6, 6, 6},
                                   {8, 8, 8, 9, 9, 5}}));
  EXPECT_EQ(lengths_of(packed), (Lists{{6}, {6}, {5, 1}, {4, 2}, {3, 3}, {3, 2, 1}}));
}

TEST(Pack, Wrapped) {
  const std::vector<Example> packed = pack(golden_rows(), 6, "wrapped");
  EXPECT_EQ(ids_of(packed), (Lists{{1, 1, 1, 1, 1, 2},
                                   {2, 3, 3, 3, 4, 5},
                                   {5, 5, 5, 5, 5, 5},
                                   {6, 6, 6, 7, 7, 7},
                                   {7, 8, 8, 8, 8, 8},
                                   {8, 8, 8, 8, 9, 9}}));
  EXPECT_EQ(lengths_of(packed), (Lists{{6}, {6}, {6}, {6}, {6}, {6}}));
}

TEST(Pack, NeverPacksAcrossBatchesOf1000Rows) {
  const std::vector<Example> rows(1001, row_of(1, 1));
  for (const char* strategy : {"bfd", "wrapped"}) {
    const std::vector<Example> packed = pack(rows, 600, strategy);
    ASSERT_EQ(packed.size(), 3u) << strategy;
    EXPECT_EQ(packed[0].ids.size(), 600u);
    EXPECT_EQ(packed[1].ids.size(), 400u);
    EXPECT_EQ(packed[2].ids.size(), 1u);
  }
}

// A row of as many tokens as a batch of short ones must not be held together with its pieces, nor
// may what waits for a batch's end be held at all once it is much: the same rows, whatever the
// room.
TEST(Pack, RowsAreHandedOnOnceTheyAreFull) {
  for (const char* strategy : {"wrapped", "bfd_split"}) {
    int64_t num_taken = 0;
    Packer packer(6, strategy, [&](const Example&) { ++num_taken; });
    packer.add(row_of(1, 603));
    EXPECT_EQ(num_taken, 100) << strategy;
    packer.finish();
    EXPECT_EQ(num_taken, 101) << strategy;
  }
}

TEST(Pack, ManyTokensWaitOnDiskForTheSameResult) {
  constexpr size_t kLength = 9000;  // 800 of them are more than what stays in memory
  std::vector<Example> rows;
  for (int32_t i = 0; i < 800; ++i) rows.push_back(row_of(i + 1, kLength - static_cast<size_t>(i)));
  const std::vector<Example> packed = pack(rows, 2 * kLength - 799, "bfd");
  // The longest first, each with the longest that fits beside it: the first takes the last.
  ASSERT_EQ(packed.size(), 400u);
  for (size_t i = 0; i < packed.size(); ++i) {
    const auto first = static_cast<int32_t>(i + 1), last = static_cast<int32_t>(800 - i);
    EXPECT_THAT(packed[i].lengths, ElementsAre(static_cast<int32_t>(kLength - i),
                                               static_cast<int32_t>(kLength - 799 + i)));
    EXPECT_EQ(packed[i].ids.front(), first);
    EXPECT_EQ(packed[i].ids.back(), last);
    EXPECT_EQ(packed[i].labels.back(), -last);
  }
}

TEST(Pack, RefusesUnknownStrategies) {
  EXPECT_THROW(pack({row_of(1, 1)}, 4, "tight"), ConfigError);
}

}  // namespace
}  // namespace strata::data
