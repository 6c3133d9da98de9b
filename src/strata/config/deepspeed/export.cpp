// One function per block of the file.
#include "strata/config/deepspeed/export.h"

#include <cmath>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/config/field_text.h"
#include "strata/config/optim_args.h"

namespace strata::config {
namespace {

class Writer {
 public:
  explicit Writer(const Settings& settings) : settings_(settings) {}

  Json file(std::vector<std::string>& warnings) {
    file_["train_batch_size"] = "auto";
    file_["train_micro_batch_size_per_gpu"] = value("per_device_train_batch_size");
    file_["gradient_accumulation_steps"] = value("gradient_accumulation_steps");
    file_["gradient_clipping"] = value("max_grad_norm");
    write_precision();
    write_zero();
    write_sequences();
    write_optimizer(warnings);
    write_scheduler();
    warn_of_the_rest(warnings);
    return std::move(file_);
  }

 private:
  bool is_given(const std::string& name) const {
    const auto found = settings_.origins.find(name);
    return found != settings_.origins.end() && found->second.rank > Rank::kDefault;
  }

  std::string text(const std::string& name) const {
    return field_text(get_setting(name), settings_.config);
  }

  // A number or boolean as JSON, or "auto" for what was not given.
  Json value(const std::string& name) {
    written_.insert(name);
    return is_given(name) ? Json::parse(text(name)) : Json("auto");
  }

  void write_precision() {
    written_.insert({"bf16", "fp16"});
    const ShardConfig& shard = settings_.config.shard;
    if (!shard.fp16) {
      file_["bf16"] = {{"enabled", value("bf16")}};
      return;
    }
    // Written out: DeepSpeed's own defaults are not those of torch's scaler.
    file_["fp16"] = {{"enabled", true},
                     {"loss_scale", shard.loss_scale},
                     {"initial_scale_power", std::lround(std::log2(shard.initial_loss_scale))},
                     {"loss_scale_window", shard.loss_scale_window},
                     {"hysteresis", shard.loss_scale_hysteresis},
                     {"min_loss_scale", shard.min_loss_scale}};
    written_.insert({"fp16_loss_scale", "fp16_initial_scale", "fp16_scale_window",
                     "fp16_hysteresis", "fp16_min_scale"});
  }

  void write_zero() {
    using enum ShardingStrategy;
    static const std::map<ShardingStrategy, int> kStages = {
        {kNoShard, 0}, {kZero1, 1}, {kZero2, 2}, {kShardGradOp, 2}, {kFullShard, 3}};
    written_.insert("fsdp_sharding_strategy");
    const ShardingStrategy strategy = settings_.config.shard.sharding_strategy;
    const auto stage = kStages.find(strategy);
    if (stage == kStages.end()) {
      throw ConfigError(
          "{}: found {}, expected a strategy of DeepSpeed (NO_SHARD, ZERO1, ZERO2, SHARD_GRAD_OP, "
          "FULL_SHARD); DeepSpeed does not shard within a machine only",
          settings_.source_of("fsdp_sharding_strategy"), strategy);
    }
    Json& zero = file_["zero_optimization"];
    zero["stage"] = stage->second;
    zero["overlap_comm"] = true;
    zero["contiguous_gradients"] = true;
    zero["reduce_bucket_size"] = "auto";
    write_offload(zero, stage->second);
    if (stage->second < 3) return;
    zero["stage3_prefetch_bucket_size"] = "auto";
    zero["stage3_param_persistence_threshold"] = "auto";
    zero["stage3_gather_16bit_weights_on_model_save"] = true;
    written_.insert({"fsdp_reshard_group_size", "fsdp_reshard_after_forward"});
    const int64_t neighbours = settings_.config.shard.reshard_group_size;
    if (neighbours > 0) zero["zero_hpz_partition_size"] = neighbours;
  }

  void write_sequences() {
    const char* setting = "parallelism_config_sp_size";
    written_.insert({setting, "parallelism_config_cp_size"});
    const int64_t ranks = settings_.config.shard.sequence_parallel_size;
    if (ranks > 1) file_["sequence_parallel_size"] = ranks;
  }

  void write_offload(Json& zero, int stage) {
    for (const std::string kind : {"offload_optimizer", "offload_param"}) {
      const std::string name = kind + "_device";
      if (!find_setting(name)) continue;  // a version without offload
      written_.insert({name, kind + "_nvme_path"});
      std::string device = text(name);
      if (device == "none" && is_given("fsdp_offload_params") &&
          text("fsdp_offload_params") == "true" && (kind == "offload_optimizer" || stage == 3)) {
        device = "cpu";
      }
      if (device == "none") continue;
      zero[kind] = {{"device", device}, {"pin_memory", true}};
      if (device == "nvme") zero[kind]["nvme_path"] = text(kind + "_nvme_path");
    }
    written_.insert("fsdp_offload_params");
  }

  void write_optimizer(std::vector<std::string>& warnings) {
    static const std::map<std::string, std::string> kTypes = {{"adamw_torch", "AdamW"},
                                                              {"adamw_torch_fused", "AdamW"},
                                                              {"adam", "Adam"},
                                                              {"lion_32bit", "Lion"},
                                                              {"sgd", "SGD"}};
    const auto type = kTypes.find(settings_.config.optim.optim);
    const OptimConfig& optim = settings_.config.optim;
    // With a block every weight decays. Without one the Trainer makes its own optimizer from the
    // flags.
    if (type == kTypes.end()) return;
    if (!optim.decay_norms_and_biases && optim.weight_decay != 0) {
      warnings.push_back(
          "left out: the optimizer: DeepSpeed's would also decay norms and biases "
          "(decay_norms_and_biases); Trainer makes one from the flags if the file has none");
      return;
    }
    written_.insert("decay_norms_and_biases");
    written_.insert("optim");
    Json params = {{"lr", value("learning_rate")}, {"weight_decay", value("weight_decay")}};
    if (type->second == "Adam") params["adam_w_mode"] = false;
    if (type->second == "SGD") write_momentum(params);
    if (type->second != "SGD") {
      written_.insert({"adam_beta1", "adam_beta2"});
      const bool has_betas = is_given("adam_beta1") || is_given("adam_beta2");
      params["betas"] =
          has_betas ? Json::array({optim.adam_beta1, optim.adam_beta2}) : Json("auto");
    }
    if (type->second.starts_with("Adam")) params["eps"] = value("adam_epsilon");
    file_["optimizer"] = {{"type", type->second}, {"params", params}};
  }

  void write_momentum(Json& params) {
    written_.insert("optim_args");
    const SgdArgs args = parse_sgd_args(settings_.config.optim.optim_args, "optim_args");
    if (args.momentum == 0) return;
    params["momentum"] = args.momentum;
    if (args.dampening != 0) params["dampening"] = args.dampening;
    if (args.nesterov) params["nesterov"] = true;
  }

  void write_scheduler() {
    static const std::set<std::string> kTypes = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR",
                                                 "OneCycle", "LRRangeTest"};
    const OptimConfig& optim = settings_.config.optim;
    if (!kTypes.contains(optim.lr_scheduler_type)) return;
    written_.insert({"lr_scheduler_type", "lr_scheduler_kwargs"});
    file_["scheduler"] = {
        {"type", optim.lr_scheduler_type},
        {"params", optim.lr_scheduler_kwargs.empty() ? Json::object()
                                                     : Json::parse(optim.lr_scheduler_kwargs)}};
  }

  void warn_of_the_rest(std::vector<std::string>& warnings) const {
    std::vector<std::string> names;
    for (const auto& [name, origin] : settings_.origins) {
      const Setting& setting = get_setting(name);
      const bool is_own_choice = origin.rank > Rank::kImplied && setting.kind == Kind::kBound;
      if (is_own_choice && !written_.contains(name)) names.push_back(name);
    }
    if (names.empty()) return;
    warnings.push_back(fmt::format(
        "left out: {}; a ds_config has no place for them; pass them as flags or in accelerate's "
        "file",
        fmt::join(names, ", ")));
  }

  const Settings& settings_;
  Json file_ = Json::object();
  std::set<std::string> written_;
};

}  // namespace

Json to_deepspeed(const Settings& settings, std::vector<std::string>& warnings) {
  return Writer(settings).file(warnings);
}

}  // namespace strata::config
