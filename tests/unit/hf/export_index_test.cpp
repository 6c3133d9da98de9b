// Oracle: golden plans and index text of huggingface_hub and transformers.
#include "strata/hf/export_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"

namespace strata::hf {
namespace {

using ::testing::ElementsAre;

TEST(PlanShards, OneFileNeedsNoIndex) {
  const TensorBytes tensors[] = {{"a", 10}, {"b", 20}};
  const ShardPlan plan = plan_shards(tensors, 30);
  ASSERT_EQ(plan.shards.size(), 1u);
  EXPECT_FALSE(plan.is_indexed());
  EXPECT_EQ(plan.shards[0].file, "model.safetensors");
  EXPECT_THAT(plan.shards[0].tensors, ElementsAre("a", "b"));
}

TEST(PlanShards, SplitsAsTheReference) {
  // [6, 6, 2, 6, 2, 2] with a limit of 10 is [6], [6, 2], [6, 2, 2]; c is larger than a shard.
  const TensorBytes tensors[] = {{"f", 6}, {"a", 6}, {"b", 2}, {"c", 11},
                                 {"d", 6}, {"e", 2}, {"g", 2}};
  const ShardPlan plan = plan_shards(tensors, 10);
  ASSERT_EQ(plan.shards.size(), 4u);
  EXPECT_THAT(plan.shards[0].tensors, ElementsAre("f"));
  EXPECT_THAT(plan.shards[1].tensors, ElementsAre("c"));  // closed before the shard being filled
  EXPECT_THAT(plan.shards[2].tensors, ElementsAre("a", "b"));
  EXPECT_THAT(plan.shards[3].tensors, ElementsAre("d", "e", "g"));
  EXPECT_EQ(plan.shards[3].size_bytes, 10u);
  EXPECT_EQ(plan.shards[3].file, "model-00004-of-00004.safetensors");
  EXPECT_EQ(plan.total_size, 35u);
}

TEST(ShardPlan, IndexText) {
  const TensorBytes tensors[] = {{"z", 6}, {"a", 6}};
  EXPECT_EQ(plan_shards(tensors, 6).index_json(3), R"({
  "metadata": {
    "total_parameters": 3,
    "total_size": 12
  },
  "weight_map": {
    "a": "model-00002-of-00002.safetensors",
    "z": "model-00001-of-00002.safetensors"
  }
}
)");
}

TEST(PlanShards, NeedsTensors) { EXPECT_THROW(plan_shards({}, 10), InternalError); }

}  // namespace
}  // namespace strata::hf
