// Oracle: the places of names, counted by hand.
#include <gtest/gtest.h>

#include "strata/train/labels.h"

namespace strata::train {
namespace {

TEST(LabelNames, AreNumberedByTheirPlaces) {
  data::DatasetStats stats;
  stats.labels = {{.name = "b", .first = {}}, {.name = "a", .first = {}}};
  EXPECT_EQ(classes_of(stats, {"c", "a", "b"}), (std::vector<int64_t>{2, 1}));
  // A config.json may say a name twice: its label2id knows the last.
  EXPECT_EQ(classes_of(stats, {"a", "a", "b"}), (std::vector<int64_t>{2, 1}));
}

}  // namespace
}  // namespace strata::train
