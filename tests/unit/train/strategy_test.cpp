// Oracle: the table of the design: what each strategy's name means for mesh, schedule and types.
#include "strata/train/setup/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::train {
namespace {

using config::ShardingStrategy;

config::ShardConfig with(ShardingStrategy strategy) {
  config::ShardConfig config;
  config.sharding_strategy = strategy;
  return config;
}

TEST(Strategy, IsAShapeOfTheMeshAndOptionsOfTheSchedule) {
  // On two machines of four ranks: ranks that share the shards; when units are whole; when
  // gradients travel.
  using enum ShardingStrategy;
  struct Row {
    ShardingStrategy name;
    int shard_size;
    bool reshards, is_resident, reduces_always;
  };
  for (const Row& row :
       {Row{kFullShard, 8, true, false, true}, Row{kShardGradOp, 8, false, false, true},
        Row{kNoShard, 1, true, false, true}, Row{kHybridShard, 4, true, false, true},
        Row{kHybridShardZero2, 4, false, false, true}, Row{kZero1, 8, false, true, false},
        Row{kZero2, 8, false, true, true}}) {
    SCOPED_TRACE(config::name_of(row.name));
    EXPECT_EQ(mesh_shape(with(row.name), 8, 4).shard_size, row.shard_size);
    const shard::ScheduleOptions options = schedule_options(with(row.name));
    EXPECT_EQ(options.reshard_after_forward, row.reshards);
    EXPECT_EQ(options.resident, row.is_resident);
    EXPECT_EQ(options.reduce_every_micro_step, row.reduces_always);
  }
}

TEST(Strategy, WholeCopiesKeepWhatTheyConverted) {
  const Target native{.has_bf16 = true}, narrow{.has_bf16 = false};
  config::RunConfig config;
  EXPECT_FALSE(keeps_compute_copies(config, native)) << "shards";
  config.shard.sharding_strategy = ShardingStrategy::kNoShard;
  EXPECT_TRUE(keeps_compute_copies(config, native));
  EXPECT_FALSE(keeps_compute_copies(config, narrow)) << "values are widened to fp32";
  config::RunConfig other = config;
  other.shard.bf16 = false;
  EXPECT_FALSE(keeps_compute_copies(other, native)) << "the home is the slot";
  other = config;
  other.lora.use_peft = true;
  EXPECT_FALSE(keeps_compute_copies(other, native));
  other = config;
  other.model.adapter_name_or_path = "outputs/first";
  EXPECT_FALSE(keeps_compute_copies(other, native)) << "an adapter that is trained on";
  other = config;
  other.shard.offload_params = true;
  EXPECT_FALSE(keeps_compute_copies(other, native));
}

TEST(Strategy, LimitOfGathersIsTheSizeOfTheRing) {
  config::ShardConfig config;
  for (const auto& [limit, slots] :
       {std::pair<std::string, int>{"true", 2}, {"false", 4}, {"1", 1}, {"5", 5}}) {
    config.limit_all_gathers = limit;
    EXPECT_EQ(schedule_options(config).slots, slots);
  }
}

TEST(Strategy, EveryPrefetchHasItsOption) {
  config::ShardConfig config;
  using shard::BackwardPrefetch;
  for (const auto& [name, prefetch] :
       {std::pair{config::BackwardPrefetch::kPre, BackwardPrefetch::kPre},
        {config::BackwardPrefetch::kPost, BackwardPrefetch::kPost},
        {config::BackwardPrefetch::kNone, BackwardPrefetch::kNone}}) {
    config.backward_prefetch = name;
    EXPECT_EQ(schedule_options(config).backward_prefetch, prefetch);
  }
  config.forward_prefetch = false;
  EXPECT_FALSE(schedule_options(config).forward_prefetch);
}

TEST(Strategy, EveryWrapPolicyHasItsKind) {
  using Kind = shard::WrapPolicy::Kind;
  config::ShardConfig config;
  config.layer_classes = {"LlamaDecoderLayer"};
  EXPECT_EQ(wrap_policy(config).layer_classes, config.layer_classes);
  config.auto_wrap_policy = config::WrapPolicy::kSize;
  config.min_num_params = 300;
  EXPECT_EQ(wrap_policy(config).kind, Kind::kSize);
  EXPECT_EQ(wrap_policy(config).min_num_params, 300);
  config.auto_wrap_policy = config::WrapPolicy::kNone;
  EXPECT_EQ(wrap_policy(config).kind, Kind::kNone);
}

// On a processor without bf16 arithmetic its emulation would take several times as long.
TEST(Strategy, WithoutNativeArithmeticProductsAreInFp32) {
  config::ShardConfig config;
  config.bf16 = true;
  const auto compute = [&](bool has_bf16, bool has_fp16) {
    return store_options(config, {.has_bf16 = has_bf16, .has_fp16 = has_fp16}).compute_type;
  };
  EXPECT_EQ(compute(true, false), at::kBFloat16);
  EXPECT_EQ(compute(false, false), at::kFloat);
  config.bf16 = false;
  config.fp16 = true;
  EXPECT_EQ(compute(true, false), at::kFloat);
  EXPECT_EQ(compute(true, true), at::kHalf);
  // Weights are rounded to fp16 all the same: the run is that of a device which has it.
  EXPECT_EQ(store_options(config, {.has_bf16 = false}).param_type, at::kHalf);
}

TEST(Strategy, TypesOfWeightsAndReductionAreApart) {
  config::ShardConfig config;
  config.bf16 = false;
  config.param_dtype = "bfloat16";
  config.reduce_dtype = "float16";
  const shard::StoreOptions options = store_options(config);
  EXPECT_EQ(options.compute_type, at::kFloat);
  EXPECT_EQ(options.param_type, at::kBFloat16);
  EXPECT_EQ(options.reduce_type, at::kHalf);
}

TEST(Strategy, CopiesAndShardsMakeUpTheWorld) {
  config::ShardConfig config = with(ShardingStrategy::kHybridShard);
  config.dp_replicate_size = 3;
  EXPECT_EQ(mesh_shape(config, 12, 4).shard_size, 4);
  config.dp_shard_size = 2;
  EXPECT_THROW(mesh_shape(config, 12, 4), ConfigError);
  config.dp_replicate_size = 6;
  EXPECT_EQ(mesh_shape(config, 12, 4).shard_size, 2);
}

}  // namespace
}  // namespace strata::train
