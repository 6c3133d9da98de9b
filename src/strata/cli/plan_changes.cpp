#include "strata/cli/plan_changes.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "strata/config/recipes.h"
#include "strata/train/planning/checkpointing_choice.h"
#include "strata/train/setup/strategy.h"

namespace strata::cli {
namespace {

using config::ShardingStrategy;
constexpr ShardingStrategy kFullShard = ShardingStrategy::kFullShard;

// Every layer in this mode; false: already so.
bool recompute(config::ShardConfig& shard, config::Checkpointing mode) {
  const std::string before = train::checkpointing_text(shard);
  shard.gradient_checkpointing = true;
  shard.checkpointing_mode = mode;
  shard.checkpointing_layers = 0;
  return before != config::name_of(mode);
}

// Rows that more ranks share; as many rows in an update. False: not with this recipe or these
// ranks.
bool share_rows(config::RunConfig& config, const PlannedPlace& place, int times) {
  const int64_t sharers = config.shard.sequence_parallel_size * times;
  if (config::recipe_of(config).command != "sft" || place.world_size % sharers != 0) return false;
  config.shard.sequence_parallel_size = sharers;
  config.train.gradient_accumulation_steps *= times;
  return true;
}

// Time for memory.
std::vector<PlanChange> keep_less_of_activations() {
  return {
      {"--activation_checkpointing selective",
       [](config::RunConfig& c, PlannedPlace&) {
         c.shard.checkpointing_mode = config::Checkpointing::kSelective;
         return !std::exchange(c.shard.gradient_checkpointing, true);
       }},
      {"--activation_checkpointing attention",
       [](config::RunConfig& c, PlannedPlace&) {
         const bool is_least = train::checkpointing_text(c.shard) == "full";
         return recompute(c.shard, config::Checkpointing::kAttention) && !is_least;
       }},
      {"--activation_checkpointing full",
       [](config::RunConfig& c, PlannedPlace&) {
         return recompute(c.shard, config::Checkpointing::kFull);
       }},
      {"--activation_offloading true",
       [](config::RunConfig& c, PlannedPlace& p) {
         const bool recomputes = c.shard.gradient_checkpointing &&
                                 c.shard.checkpointing_mode == config::Checkpointing::kFull;
         constexpr auto kTrue = config::ActivationOffloading::kTrue;
         return p.is_cuda && recomputes &&
                std::exchange(c.shard.activation_offloading, kTrue) != kTrue;
       }},
  };
}

// The same updates from smaller parts.
std::vector<PlanChange> hold_less_at_once() {
  return {
      {"--fsdp_backward_prefetch NO_PREFETCH",
       [](config::RunConfig& c, PlannedPlace& p) {
         const ShardingStrategy strategy = c.shard.sharding_strategy;
         constexpr auto kNone = config::BackwardPrefetch::kNone;
         return p.world_size > 1 &&
                (strategy == kFullShard || strategy == ShardingStrategy::kHybridShard) &&
                std::exchange(c.shard.backward_prefetch, kNone) != kNone;
       }},
      {"--sharding_strategy FULL_SHARD",
       [](config::RunConfig& c, PlannedPlace&) {
         // Of one rank, too: what stays of converted values.
         return std::exchange(c.shard.sharding_strategy, kFullShard) != kFullShard;
       }},
      {"half --per_device_train_batch_size, twice --gradient_accumulation_steps",
       [](config::RunConfig& c, PlannedPlace&) {
         if (c.train.per_device_train_batch_size < 2) return false;
         c.train.per_device_train_batch_size /= 2;
         c.train.gradient_accumulation_steps *= 2;
         return true;
       }},
      {"--per_device_train_batch_size 1",
       [](config::RunConfig& c, PlannedPlace&) {
         if (c.train.per_device_train_batch_size < 4) return false;
         c.train.gradient_accumulation_steps *= c.train.per_device_train_batch_size;
         c.train.per_device_train_batch_size = 1;
         return true;
       }},
  };
}

// Another result.
std::vector<PlanChange> train_otherwise() {
  return {
      {"half --max_length",
       [](config::RunConfig& c, PlannedPlace&) {
         if (!c.data.max_length || *c.data.max_length < 256 || config::recipe_of(c).has_encoder)
           return false;
         *c.data.max_length /= 2;
         return true;
       },
       false},
      {"half --max_source_length",
       [](config::RunConfig& c, PlannedPlace&) {
         if (c.data.max_source_length < 256 || !config::recipe_of(c).has_encoder) return false;
         c.data.max_source_length /= 2;
         return true;
       },
       false},
      {"--use_peft (LoRA)",
       [](config::RunConfig& c, PlannedPlace&) {
         return c.model.adapter_name_or_path.empty() && !std::exchange(c.lora.use_peft, true);
       },
       false},
      {"--use_peft and --load_in_4bit (QLoRA)",
       [](config::RunConfig& c, PlannedPlace&) {
         if (!c.model.adapter_name_or_path.empty()) return false;
         c.lora.use_peft = true;
         return !std::exchange(c.quantization.load_in_4bit, true);
       },
       false},
      {"--dtype bfloat16 for the frozen weights",
       [](config::RunConfig& c, PlannedPlace&) {
         return c.lora.use_peft && std::exchange(c.model.dtype, "bfloat16") != "bfloat16";
       },
       false},
  };
}

// The host's memory, or other ranks'.
std::vector<PlanChange> use_other_memory() {
  return {
      {"--fsdp_offload_params true",
       [](config::RunConfig& c, PlannedPlace& p) {
         const bool is_there = train::offloads_to_host(c.shard);
         c.shard.offload_params = true;
         return p.is_cuda && !is_there;
       }},
      {"twice the ranks",
       [](config::RunConfig& c, PlannedPlace& p) {
         p.world_size *= 2;
         return c.shard.sharding_strategy != ShardingStrategy::kNoShard;
       }},
      {"four times the ranks",
       [](config::RunConfig& c, PlannedPlace& p) {
         p.world_size *= 4;
         return c.shard.sharding_strategy != ShardingStrategy::kNoShard;
       }},
      // After the ranks, which they divide.
      {"twice --sequence_parallel_size and --gradient_accumulation_steps",
       [](config::RunConfig& c, PlannedPlace& p) { return share_rows(c, p, 2); }},
      {"four times --sequence_parallel_size and --gradient_accumulation_steps",
       [](config::RunConfig& c, PlannedPlace& p) { return share_rows(c, p, 4); }},
  };
}

}  // namespace

std::vector<PlanChange> plan_changes() {
  std::vector<PlanChange> all;
  for (const auto part :
       {keep_less_of_activations, hold_less_at_once, train_otherwise, use_other_memory}) {
    std::ranges::move(part(), std::back_inserter(all));
  }
  return all;
}

}  // namespace strata::cli
