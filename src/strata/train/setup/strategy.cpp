#include "strata/train/setup/strategy.h"

#include <charconv>

#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/libtorch/planned_device.h"
#include "strata/shard/in_place.h"

namespace strata::train {
namespace {

using config::OffloadDevice;
using config::ShardingStrategy;

// Over which ranks a unit is sharded, and for how long it is whole (of NO_SHARD always, in its
// home).
struct Strategy {
  ShardingStrategy name;
  enum Spread { kNowhere, kMachine, kWorld } spread;  // the shard group
  enum Whole { kInEachPass, kToItsBackward, kAlways } whole;
  bool reduces_every_micro_step = true;  // else in the last one of a step
};

constexpr Strategy kStrategies[] = {
    {ShardingStrategy::kFullShard, Strategy::kWorld, Strategy::kInEachPass},
    {ShardingStrategy::kShardGradOp, Strategy::kWorld, Strategy::kToItsBackward},
    {ShardingStrategy::kNoShard, Strategy::kNowhere, Strategy::kInEachPass},
    {ShardingStrategy::kHybridShard, Strategy::kMachine, Strategy::kInEachPass},
    {ShardingStrategy::kHybridShardZero2, Strategy::kMachine, Strategy::kToItsBackward},
    {ShardingStrategy::kZero1, Strategy::kWorld, Strategy::kAlways,
     /*reduces_every_micro_step=*/false},
    {ShardingStrategy::kZero2, Strategy::kWorld, Strategy::kAlways},
};

const Strategy& strategy_of(const config::ShardConfig& config) {
  for (const Strategy& strategy : kStrategies) {
    if (strategy.name == config.sharding_strategy) return strategy;
  }
  throw InternalError(
      "sharding strategy: found {}, expected one of the table; report this as a "
      "bug",
      config.sharding_strategy);
}

// FSDP's throttle holds two gathers; without it as many are under way as the processor gets ahead
// of the device, which is never the whole model.
constexpr int kThrottled = 2, kUnthrottled = 4;

int gathered_at_once(const std::string& limit) {
  if (limit == "false") return kUnthrottled;
  int number = kThrottled;
  std::from_chars(limit.data(), limit.data() + limit.size(), number);
  return number;
}

// Until auto is resolved (planning/checkpointing_choice.h), it is what takes the least memory.
shard::Checkpointing checkpointing_of(config::Checkpointing mode) {
  switch (mode) {
    case config::Checkpointing::kNone:
      return shard::Checkpointing::kNone;
    case config::Checkpointing::kSelective:
      return shard::Checkpointing::kSelective;
    case config::Checkpointing::kAttention:
      return shard::Checkpointing::kAttention;
    case config::Checkpointing::kFull:
    case config::Checkpointing::kAuto:
      break;
  }
  return shard::Checkpointing::kFull;
}

shard::BackwardPrefetch prefetch_of(config::BackwardPrefetch prefetch) {
  switch (prefetch) {
    case config::BackwardPrefetch::kPre:
      return shard::BackwardPrefetch::kPre;
    case config::BackwardPrefetch::kPost:
      return shard::BackwardPrefetch::kPost;
    case config::BackwardPrefetch::kNone:
      break;
  }
  return shard::BackwardPrefetch::kNone;
}

}  // namespace

at::ScalarType scalar_type_of(const std::string& name) {
  if (name == "bfloat16") return at::kBFloat16;
  return name == "float16" ? at::kHalf : at::kFloat;
}

bool offloads_to_host(const config::ShardConfig& config) {
  // Gradients and moments follow parameters that are stored in files: the update is the CPU's then.
  return config.offload_params || config.offload_param_device != OffloadDevice::kNone ||
         config.offload_optimizer_device != OffloadDevice::kNone;
}

bool keeps_compute_copies(const config::RunConfig& config, const Target& target) {
  const bool is_whole = config.shard.sharding_strategy == ShardingStrategy::kNoShard;
  const bool is_converted = shard::is_16_bit(store_options(config.shard, target).compute_type);
  // A frozen base in fp32 would be there twice.
  const bool trains_all = !config.lora.use_peft && config.model.adapter_name_or_path.empty();
  return is_whole && is_converted && trains_all && !offloads_to_host(config.shard);
}

shard::ActivationHomeOptions::Place activation_place(const config::ShardConfig& config,
                                                     const Target& target) {
  using Place = shard::ActivationHomeOptions::Place;
  const bool is_gpu = is_for_cuda(target.device);
  if (config.activation_offloading == config::ActivationOffloading::kDisk) {
    if (!is_gpu) return Place::kFiles;
    throw ConfigError(
        "activation_offloading: found disk in a run on a GPU, expected true (host memory); "
        "change it, or run on the CPU with --cpu");
  }
  const bool is_asked = config.activation_offloading == config::ActivationOffloading::kTrue;
  return is_asked && is_gpu ? Place::kHost : Place::kWhereComputed;
}

comm::MeshShape mesh_shape(const config::ShardConfig& config, int world_size,
                           int local_world_size) {
  const Strategy& strategy = strategy_of(config);
  const int64_t replicas = config.dp_replicate_size;
  comm::MeshShape shape;
  shape.part_size = static_cast<int>(config.reshard_group_size);
  shape.sequence_size = static_cast<int>(config.sequence_parallel_size);
  if (config.dp_shard_size > 0) {
    // As in accelerate's mesh those who share rows share the shards, too.
    const int64_t sharers = strategy.spread == Strategy::kNowhere ? 1 : shape.sequence_size;
    const int64_t shard_size = config.dp_shard_size * sharers;
    if (sharers > 1 && world_size % shard_size != 0) {
      throw ConfigError(
          "dp_shard_size: found {} with sequence_parallel_size {} for {} ranks, expected that "
          "their product divides the ranks; change one of them",
          config.dp_shard_size, sharers, world_size);
    }
    shape.shard_size = static_cast<int>(shard_size);
  } else if (strategy.spread == Strategy::kNowhere) {
    shape.shard_size = 1;
  } else if (replicas > 0) {
    shape.shard_size = std::max(1, static_cast<int>(world_size / replicas));
  } else {
    shape.shard_size = strategy.spread == Strategy::kMachine ? local_world_size : world_size;
  }
  // Without shards every rank has a copy, also of those who share rows.
  const int64_t sharers = strategy.spread == Strategy::kNowhere ? shape.sequence_size : 1;
  if (replicas > 0 && shape.shard_size * replicas * sharers != world_size) {
    throw ConfigError(
        "dp_replicate_size: found {} over {} each{} for {}, expected their "
        "product to be the world size; change dp_replicate_size, dp_shard_size or num_processes",
        counted(replicas, "copy", "copies"), counted(shape.shard_size, "rank"),
        sharers > 1 ? fmt::format(" with sequence_parallel_size {}", sharers) : "",
        counted(world_size, "rank"));
  }
  return shape;
}

shard::ScheduleOptions schedule_options(const config::ShardConfig& config) {
  const Strategy& strategy = strategy_of(config);
  shard::ScheduleOptions options;
  options.reshard_after_forward = strategy.whole == Strategy::kInEachPass;
  options.reshard_to_part = config.reshard_group_size > 0;
  options.resident = strategy.whole == Strategy::kAlways;
  options.reduce_every_micro_step = strategy.reduces_every_micro_step && config.sync_each_batch;
  options.slots = gathered_at_once(config.limit_all_gathers);
  options.forward_prefetch = config.forward_prefetch;
  options.backward_prefetch = prefetch_of(config.backward_prefetch);
  options.activation_checkpointing = config.gradient_checkpointing
                                         ? checkpointing_of(config.checkpointing_mode)
                                         : shard::Checkpointing::kNone;
  if (config.checkpointing_layers > 0) {
    options.checkpointed_blocks =
        static_cast<int>(std::min<int64_t>(config.checkpointing_layers, shard::kAllBlocks));
    options.checkpointing_behind = checkpointing_of(config.checkpointing_rest);
  }
  // One read in flight beside one gather: more would only hold memory.
  options.read_ahead = config.offload_param_device == OffloadDevice::kNvme ? 1 : 0;
  return options;
}

shard::StoreOptions store_options(const config::ShardConfig& config, const Target& target) {
  shard::StoreOptions options;
  options.device = target.device;
  options.homes_on_host = is_for_cuda(target.device) && offloads_to_host(config);
  // Without arithmetic in a 16-bit type its values are widened where they arrive.
  options.compute_type = config.bf16 && target.has_bf16   ? at::kBFloat16
                         : config.fp16 && target.has_fp16 ? at::kHalf
                                                          : at::kFloat;
  options.param_type = config.param_dtype != "auto" ? scalar_type_of(config.param_dtype)
                       : config.fp16                ? at::kHalf
                                                    : options.compute_type;
  options.reduce_type = scalar_type_of(config.reduce_dtype);
  options.wrap = wrap_policy(config);
  return options;
}

shard::WrapPolicy wrap_policy(const config::ShardConfig& config) {
  shard::WrapPolicy policy;
  using enum config::WrapPolicy;
  if (config.auto_wrap_policy == kTransformer) {
    policy.layer_classes = config.layer_classes;
  } else if (config.auto_wrap_policy == kSize && config.min_num_params > 0) {
    policy.kind = shard::WrapPolicy::Kind::kSize;
    policy.min_num_params = config.min_num_params;
  } else {
    policy.kind = shard::WrapPolicy::Kind::kNone;
  }
  return policy;
}

}  // namespace strata::train
