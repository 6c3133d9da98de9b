// Oracle: every rung of the ladder, tried in order.
#include "strata/train/planning/checkpointing_choice.h"

#include <map>

#include <gtest/gtest.h>

namespace strata::train {
namespace {

using config::Checkpointing;

// What a layer keeps, in bytes, and the time that its recomputation takes.
const std::map<Checkpointing, int64_t> kKept = {{Checkpointing::kFull, 10},
                                                {Checkpointing::kAttention, 25},
                                                {Checkpointing::kSelective, 180},
                                                {Checkpointing::kNone, 200}};

int64_t bytes_of(const config::ShardConfig& shard, int64_t num_layers) {
  const Checkpointing mode =
      shard.gradient_checkpointing ? shard.checkpointing_mode : Checkpointing::kNone;
  int64_t bytes = 1000;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const bool is_behind = shard.checkpointing_layers > 0 && layer >= shard.checkpointing_layers;
    bytes += kKept.at(is_behind ? shard.checkpointing_rest : mode);
  }
  return bytes;
}

CheckpointingChoice choose(int64_t num_layers, int64_t room, int* num_plans = nullptr) {
  config::RunConfig config;
  config.shard.checkpointing_mode = Checkpointing::kAuto;
  return choose_checkpointing(config, room, [&](const config::RunConfig& tried) {
    EXPECT_NE(tried.shard.checkpointing_mode, Checkpointing::kAuto);
    if (num_plans != nullptr) ++*num_plans;
    const bool is_full = tried.shard.gradient_checkpointing &&
                         tried.shard.checkpointing_mode == Checkpointing::kFull;
    return PlannedPeak{bytes_of(tried.shard, num_layers),
                       is_full ? static_cast<int>(num_layers) - 1 : 0};
  });
}

// All that the ladder has, from the least to the most.
std::vector<int64_t> ladder(int64_t num_layers) {
  const std::vector<Checkpointing> modes = {Checkpointing::kFull, Checkpointing::kAttention,
                                            Checkpointing::kSelective, Checkpointing::kNone};
  std::vector<int64_t> bytes;
  for (size_t stage = 0; stage + 1 < modes.size(); ++stage) {
    for (int64_t behind = 0; behind < num_layers; ++behind) {
      bytes.push_back(1000 + (num_layers - behind) * kKept.at(modes[stage]) +
                      behind * kKept.at(modes[stage + 1]));
    }
  }
  bytes.push_back(1000 + num_layers * kKept.at(Checkpointing::kNone));
  return bytes;
}

TEST(CheckpointingChoice, TakesTheHighestRungThatFits) {
  for (const int64_t num_layers : {1, 2, 5, 32}) {
    const std::vector<int64_t> rungs = ladder(num_layers);
    for (int64_t room = 900; room < rungs.back() + 50; room += 7) {
      const CheckpointingChoice found = choose(num_layers, room);
      const auto above = std::ranges::upper_bound(rungs, room);
      ASSERT_EQ(found.fits, above != rungs.begin());
      ASSERT_EQ(found.planned_bytes, found.fits ? *std::prev(above) : rungs.front());
      config::ShardConfig shard;
      found.apply(shard);
      ASSERT_EQ(bytes_of(shard, num_layers), found.planned_bytes) << found.text();
    }
  }
}

TEST(CheckpointingChoice, SaysWhatItChose) {
  EXPECT_EQ(choose(32, 100).text(), "full in all 32 layers");
  EXPECT_EQ(choose(32, 1 << 20).text(), "none in all 32 layers");
  EXPECT_EQ(choose(32, 1000 + 32 * 25).text(), "attention in all 32 layers");
  EXPECT_EQ(choose(32, 1000 + 30 * 10 + 2 * 25).text(),
            "full in the first 30 of 32 layers, attention in the others");
  EXPECT_EQ(choose(32, 1000 + 4 * 25 + 28 * 180).text(),
            "attention in the first 4 of 32 layers, selective in the others");
}

TEST(CheckpointingChoice, PlansFewTimes) {
  int num_plans = 0;
  choose(80, 5000, &num_plans);
  EXPECT_LE(num_plans, 9);
}

TEST(CheckpointingChoice, HintsAtWhatAutoWouldSpare) {
  config::RunConfig config;
  const auto hint = [&](int64_t room) {
    return recomputation_hint(config, room, [](const config::RunConfig& tried) {
      return PlannedPeak{bytes_of(tried.shard, 32), 0};
    });
  };
  const int64_t all = 1000 + 32 * 200, attention = 1000 + 32 * 25;
  EXPECT_NE(hint(all).value_or("").find("recompute nothing here"), std::string::npos);
  EXPECT_NE(hint(all - 1).value_or("").find("recompute less here"), std::string::npos);
  EXPECT_TRUE(hint(attention).has_value());
  EXPECT_FALSE(hint(attention - 1).has_value());
  // Who chose something else is not told.
  config.shard.checkpointing_mode = Checkpointing::kSelective;
  EXPECT_FALSE(hint(all).has_value());
  config.shard.checkpointing_mode = Checkpointing::kFull;
  config.shard.activation_offloading = config::ActivationOffloading::kTrue;
  EXPECT_FALSE(hint(all).has_value());
  config.shard.activation_offloading = config::ActivationOffloading::kFalse;
  config.shard.checkpointing_layers = 3;
  EXPECT_FALSE(hint(all).has_value());
  config.shard.checkpointing_layers = 0;
  config.shard.gradient_checkpointing = false;
  EXPECT_FALSE(hint(all).has_value());
}

}  // namespace
}  // namespace strata::train
