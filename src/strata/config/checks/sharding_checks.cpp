#include "strata/config/checks/sharding_checks.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include <fmt/ranges.h>

#include "strata/base/byte_size.h"
#include "strata/base/error.h"
#include "strata/config/checks/rules.h"
#include "strata/config/recipes.h"

namespace strata::config {
namespace {

class ShardingRules : Rules {
 public:
  using Rules::Rules;

  void check() {
    check_strategy();
    check_wrapping();
    check_precision();
    check_checkpointing();
    check_budget();
    check_offload();
    check_loading();
  }

 private:
  void check_strategy() {
    const ShardConfig& shard = config_.shard;
    using enum ShardingStrategy;
    const ShardingStrategy strategy = shard.sharding_strategy;
    const std::string place = source("fsdp_sharding_strategy");
    const bool gathers_twice = strategy == kFullShard || strategy == kHybridShard;
    const bool gathers = gathers_twice || strategy == kShardGradOp || strategy == kHybridShardZero2;
    if (shard.reshard_group_size > 0 && !gathers_twice) {
      throw ConfigError(
          "{}: found {} with the strategy {} ({}), expected FULL_SHARD or HYBRID_SHARD; remove one",
          source("fsdp_reshard_group_size"), shard.reshard_group_size, strategy, place);
    }
    if (strategy == kNoShard && shard.dp_shard_size > 1) {
      throw ConfigError("{}: found {} with NO_SHARD ({}), expected another strategy; remove one",
                        source("parallelism_config_dp_shard_size"), shard.dp_shard_size, place);
    }
    // Losses of pairs and of documents look at whole ones.
    if (shard.sequence_parallel_size > 1 && recipe_of(config_).command != "sft") {
      throw ConfigError(
          "{}: found {} with the recipe {}, expected 1: only sft divides rows; remove it",
          source("parallelism_config_sp_size"), shard.sequence_parallel_size,
          recipe_of(config_).command);
    }
    if (!gathers) {
      for (const char* name :
           {"fsdp_backward_prefetch", "fsdp_forward_prefetch", "fsdp_limit_all_gathers"}) {
        warn_without_effect(name, fmt::format("{} gathers nothing during a pass", strategy));
      }
    }
    if (gathers && shard.limit_all_gathers == "1") {
      const char* reason = "fsdp_limit_all_gathers is 1: only one unit is gathered at a time";
      if (shard.backward_prefetch == BackwardPrefetch::kPre) {
        warn_without_effect("fsdp_backward_prefetch", reason);
      }
      if (shard.forward_prefetch) warn_without_effect("fsdp_forward_prefetch", reason);
    }
    if (strategy == kZero1 || strategy == kNoShard) {
      warn_without_effect("sync_each_batch",
                          fmt::format("{} sums gradients once per update", strategy));
    }
  }

  void check_wrapping() {
    const ShardConfig& shard = config_.shard;
    const std::string reason = fmt::format("fsdp_auto_wrap_policy is {}", shard.auto_wrap_policy);
    if (shard.auto_wrap_policy != WrapPolicy::kTransformer) {
      warn_without_effect("fsdp_transformer_layer_cls_to_wrap", reason);
    }
    // accelerate's questionnaire and launcher write the default of what was not asked for.
    const bool asks =
        shard.min_num_params != ShardConfig{}.min_num_params && shard.min_num_params != 0;
    if (shard.auto_wrap_policy != WrapPolicy::kSize && asks) {
      warn_without_effect("fsdp_min_num_params", reason);
    }
  }

  void check_precision() {
    const ShardConfig& shard = config_.shard;
    const std::string compute = shard.bf16 ? "bfloat16" : shard.fp16 ? "float16" : "auto";
    if (compute != "auto" && shard.param_dtype != "auto" && shard.param_dtype != compute) {
      throw ConfigError("{}: found {} with {} ({}), expected {}; remove one",
                        source("fsdp_param_dtype"), shard.param_dtype, shard.bf16 ? "bf16" : "fp16",
                        source(shard.bf16 ? "bf16" : "fp16"), compute);
    }
    for (const char* name : {"fp16_loss_scale", "fp16_initial_scale", "fp16_scale_window",
                             "fp16_hysteresis", "fp16_min_scale"}) {
      if (!shard.fp16) warn_without_effect(name, "fp16 is off");
      if (shard.fp16 && shard.loss_scale > 0 && std::string_view(name) != "fp16_loss_scale") {
        warn_without_effect(name, "fp16_loss_scale is fixed");
      }
    }
  }

  void check_checkpointing() {
    const ShardConfig& shard = config_.shard;
    using enum Checkpointing;
    const Checkpointing mode = shard.checkpointing_mode;
    const bool is_auto = mode == kAuto, counts_layers = shard.checkpointing_layers > 0;
    if (!shard.gradient_checkpointing) {
      for (const char* name : {"gradient_checkpointing_mode", "gradient_checkpointing_layers",
                               "gradient_checkpointing_rest"}) {
        warn_without_effect(name, "gradient_checkpointing is off");
      }
      return;
    }
    if (is_auto && counts_layers) {
      throw ConfigError(
          "{}: found {} with gradient_checkpointing_mode auto ({}), which chooses the layers, "
          "expected one of them; remove one",
          source("gradient_checkpointing_layers"), shard.checkpointing_layers,
          source("gradient_checkpointing_mode"));
    }
    if (!counts_layers) {
      warn_without_effect("gradient_checkpointing_rest",
                          is_auto ? "gradient_checkpointing_mode auto chooses it"
                                  : "gradient_checkpointing_layers 0 is all layers");
    }
    const Checkpointing rest = shard.checkpointing_rest;
    const bool keeps_more =
        rest == kNone || mode == kFull || (mode == kAttention && rest == kSelective);
    if (counts_layers && !keeps_more) {
      throw ConfigError(
          "{}: found {} with gradient_checkpointing_mode {} ({}), expected one that keeps more, "
          "because what the last layers keep is freed before the first ones are recomputed; change "
          "one of them",
          source("gradient_checkpointing_rest"), rest, mode, source("gradient_checkpointing_mode"));
    }
  }

  void check_budget() {
    const std::string& budget = config_.shard.memory_budget;
    const bool is_auto = config_.shard.gradient_checkpointing &&
                         config_.shard.checkpointing_mode == Checkpointing::kAuto;
    if (!is_auto && !config_.train.auto_find_batch_size) {
      warn_without_effect(
          "memory_budget",
          "neither gradient_checkpointing_mode is auto nor auto_find_batch_size on");
    }
    if (budget.empty()) return;
    try {
      parse_memory_size(budget);
    } catch (const ConfigError&) {
      throw ConfigError("{}: found \"{}\", expected a size like 40GB or 36GiB",
                        source("memory_budget"), budget);
    }
  }

  // `kind`: "offload_param" or "offload_optimizer".
  void check_offload_path(const std::string& kind, OffloadDevice device, const std::string& path) {
    if (device == OffloadDevice::kNvme && path.empty()) {
      throw ConfigError(
          "{}: found nvme without a folder, expected one on a disk; add --{}_nvme_path",
          source(kind + "_device"), kind);
    }
    if (device != OffloadDevice::kNvme && !path.empty()) {
      warn_without_effect(kind + "_nvme_path", fmt::format("{}_device is {}", kind, device));
    }
  }

  void check_offload() {
    const ShardConfig& shard = config_.shard;
    check_offload_path("offload_param", shard.offload_param_device, shard.offload_param_nvme_path);
    check_offload_path("offload_optimizer", shard.offload_optimizer_device,
                       shard.offload_optimizer_nvme_path);
    const bool params_in_files = shard.offload_param_device == OffloadDevice::kNvme;
    const bool state_in_files = shard.offload_optimizer_device == OffloadDevice::kNvme;
    using enum ShardingStrategy;
    const ShardingStrategy strategy = shard.sharding_strategy;
    if (params_in_files && (strategy == kNoShard || strategy == kZero1 || strategy == kZero2)) {
      throw ConfigError(
          "{}: found nvme with the strategy {} ({}), which keeps all parameters whole in memory, "
          "expected one that gathers them when they are used; choose FULL_SHARD",
          source("offload_param_device"), strategy, source("fsdp_sharding_strategy"));
    }
    if (params_in_files && shard.offload_params) {
      throw ConfigError(
          "{}: found nvme with {} true (host memory), expected one place for the parameters; "
          "remove one",
          source("offload_param_device"), source("fsdp_offload_params"));
    }
    // Of the update rules these keep two fp32 numbers a weight, which a file holds.
    constexpr const char* kInFiles[] = {"adamw_torch", "adamw_torch_fused", "paged_adamw",
                                        "paged_adamw_32bit"};
    const std::string& optim = config_.optim.optim;
    if (state_in_files && std::ranges::find(kInFiles, optim) == std::end(kInFiles)) {
      throw ConfigError(
          "{}: found nvme with optim {} ({}), whose state stays in memory, expected one of {}; "
          "change one of them",
          source("offload_optimizer_device"), optim, source("optim"), fmt::join(kInFiles, ", "));
    }
    check_activations();
    const char* reason = "nothing is kept in files";
    if (!state_in_files && !params_in_files) warn_without_effect("sub_group_size", reason);
    if (state_in_files || params_in_files ||
        shard.activation_offloading == ActivationOffloading::kDisk)
      return;
    for (const char* name : {"aio_block_size", "aio_queue_depth"}) {
      warn_without_effect(name, reason);
    }
  }

  void check_activations() {
    const ShardConfig& shard = config_.shard;
    using enum ActivationOffloading;
    const ActivationOffloading place = shard.activation_offloading;
    if (place != kDisk && !shard.activation_offloading_path.empty()) {
      warn_without_effect("activation_offloading_path",
                          fmt::format("activation_offloading is {}", place));
    }
    if (place == kFalse) return;
    const Checkpointing mode = shard.checkpointing_mode;
    const bool recomputes = shard.gradient_checkpointing &&
                            (mode == Checkpointing::kFull || mode == Checkpointing::kAttention);
    if (!recomputes) {
      throw ConfigError(
          "{}: found {} with {}, expected full activation checkpointing (offloading moves "
          "the inputs of recomputed layers); add --activation_checkpointing full",
          source("activation_offloading"), place,
          shard.gradient_checkpointing
              ? fmt::format("gradient_checkpointing_mode {} ({})", mode,
                            source("gradient_checkpointing_mode"))
              : "gradient_checkpointing false (" + source("gradient_checkpointing") + ")");
    }
    if (place == kDisk && shard.activation_offloading_path.empty()) {
      throw ConfigError(
          "{}: found disk without a folder, expected one on a disk; add "
          "--activation_offloading_path",
          source("activation_offloading"));
    }
  }

  void check_loading() const {
    const bool loads_on_one = merge_.text("fsdp_cpu_ram_efficient_loading") == "true";
    if (loads_on_one && merge_.text("fsdp_sync_module_states") == "false") {
      throw ConfigError(
          "{}: found false with fsdp_cpu_ram_efficient_loading true, expected true (as accelerate "
          "does)",
          source("fsdp_sync_module_states"));
    }
  }
};

}  // namespace

void check_sharding(const RunConfig& config, const Merge& merge,
                    std::vector<std::string>& warnings) {
  ShardingRules(config, merge, warnings).check();
}

}  // namespace strata::config
