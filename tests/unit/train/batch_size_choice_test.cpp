// Oracle: all numbers of rows, tried in order.
#include "strata/train/planning/batch_size_choice.h"

#include <gtest/gtest.h>

namespace strata::train {
namespace {

TEST(BatchSizeChoice, TakesTheMostThatFit) {
  for (int64_t limit = 1; limit <= 40; ++limit) {
    for (int64_t room = 90; room < 700; room += 7) {
      const auto bytes = [](int64_t rows) { return 100 + 13 * rows + rows / 5; };
      int64_t expected = 0;
      for (int64_t rows = 1; rows <= limit && bytes(rows) <= room; ++rows) expected = rows;
      int num_plans = 0;
      const BatchSizeChoice found = choose_batch_size(limit, room, [&](int64_t rows) {
        EXPECT_TRUE(rows >= 1 && rows <= limit);
        ++num_plans;
        return bytes(rows);
      });
      ASSERT_EQ(found.rows, expected) << limit << ", " << room;
      ASSERT_EQ(found.planned_bytes, bytes(std::max<int64_t>(expected, 1)));
      ASSERT_LE(num_plans, 8);
    }
  }
}

}  // namespace
}  // namespace strata::train
