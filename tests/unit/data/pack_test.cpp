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

TEST(Pack, RefusesUnknownStrategies) {
  EXPECT_THROW(pack({row_of(1, 1)}, 4, "tight"), ConfigError);
}

}  // namespace
}  // namespace strata::data
