// The rules, one function per group of settings.
#include "strata/config/checks.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include <fmt/ranges.h>

#include "strata/base/byte_size.h"
#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/config/recipe_checks.h"
#include "strata/config/saving_checks.h"

namespace strata::config {
namespace {

class Rules {
 public:
  Rules(const RunConfig& config, const Merge& merge, std::vector<std::string>& warnings)
      : config_(config), merge_(merge), warnings_(warnings) {}

  void check() {
    warn_of_unbound();
    check_recipe(config_, merge_, warnings_);
    check_lora();
    if (config_.lora.use_peft && config_.model.adapter_name_or_path.empty()) check_method();
    check_quantization();
    check_optimizer();
    check_steps();
    check_data();
    check_sharding();
    check_wrapping();
    check_precision();
    check_offload();
    check_launch();
  }

 private:
  const Given* given(const std::string& name) const { return merge_.find_given(name); }
  std::string source(const std::string& name) const { return merge_.source(name); }
  void warn_without_effect(const std::string& name, const std::string& reason) {
    if (const Given* found = given(name)) {
      warnings_.push_back(named_source(*found) + ": has no effect; " + reason);
    }
  }

  // Flags always; in files and the environment, which programs fill, only what differs from the
  // values listed as asking for nothing.
  void warn_of_unbound() {
    for (const auto& [name, found] : merge_.all()) {
      const Setting& setting = *found.setting;
      if (setting.kind != Kind::kUnbound) continue;
      const std::string text = canonical_text(found);
      const bool is_plain =
          std::ranges::find(setting.harmless, std::string_view(text)) != setting.harmless.end();
      const bool is_flag = found.origin.rank >= Rank::kLaunchFlag;
      if (is_plain && !is_flag) continue;
      warnings_.push_back(
          fmt::format("{}: has no effect here; {}", named_source(found), setting.help));
    }
  }

  void check_lora() {
    constexpr const char* kNames[] = {"peft_type",
                                      "lora_r",
                                      "lora_alpha",
                                      "lora_dropout",
                                      "lora_target_modules",
                                      "lora_modules_to_save",
                                      "feedforward_modules",
                                      "trainable_token_indices",
                                      "ensure_weight_tying",
                                      "use_rslora",
                                      "use_dora",
                                      "init_lora_weights",
                                      "rank_pattern",
                                      "alpha_pattern",
                                      "exclude_modules",
                                      "layers_to_transform",
                                      "layers_pattern",
                                      "bias",
                                      "lora_bias",
                                      "loftq_bits",
                                      "loftq_iter",
                                      "d_initial",
                                      "projection_prng_key",
                                      "save_projection",
                                      "init_weights",
                                      "num_virtual_tokens",
                                      "prompt_tuning_init",
                                      "prompt_tuning_init_text",
                                      "prefix_projection",
                                      "encoder_hidden_size"};
    const bool continues = !config_.model.adapter_name_or_path.empty();
    const bool is_switched_off = given("use_peft") || given("use_peft_lora");
    for (const char* name : kNames) {
      if (config_.lora.use_peft) {
        if (continues) warn_without_effect(name, "the adapter that is continued decides");
      } else if (is_switched_off) {
        warn_without_effect(name, "LoRA is off");
      } else if (const Given* found = given(name)) {
        throw ConfigError(
            "{}: found without use_peft, expected LoRA to be on; add --use_peft or "
            "remove it",
            named_source(*found));
      }
    }
  }

  // Settings that only some methods have, of an adapter that is new.
  void check_method() {
    const std::string& type = config_.lora.peft_type;
    struct Owned {
      const char* name;
      std::vector<std::string_view> types;
    };
    const Owned kOwned[] = {{"lora_r", {"LORA", "VERA"}},
                            {"lora_alpha", {"LORA"}},
                            {"lora_dropout", {"LORA", "VERA"}},
                            {"lora_target_modules", {"LORA", "IA3", "VERA"}},
                            {"lora_modules_to_save", {"LORA", "IA3", "VERA"}},
                            {"exclude_modules", {"LORA", "IA3"}},
                            {"trainable_token_indices", {"LORA"}},
                            {"ensure_weight_tying", {"LORA"}},
                            {"use_rslora", {"LORA"}},
                            {"use_dora", {"LORA"}},
                            {"init_lora_weights", {"LORA"}},
                            {"loftq_bits", {"LORA"}},
                            {"loftq_iter", {"LORA"}},
                            {"rank_pattern", {"LORA"}},
                            {"alpha_pattern", {"LORA"}},
                            {"layers_to_transform", {"LORA", "VERA"}},
                            {"layers_pattern", {"LORA", "VERA"}},
                            {"bias", {"LORA", "VERA"}},
                            {"lora_bias", {"LORA"}},
                            {"feedforward_modules", {"IA3"}},
                            {"d_initial", {"VERA"}},
                            {"projection_prng_key", {"VERA"}},
                            {"save_projection", {"VERA"}},
                            {"init_weights", {"VERA", "PREFIX_TUNING"}},
                            {"num_virtual_tokens", {"PROMPT_TUNING", "PREFIX_TUNING"}},
                            {"prompt_tuning_init", {"PROMPT_TUNING"}},
                            {"prompt_tuning_init_text", {"PROMPT_TUNING"}},
                            {"prefix_projection", {"PREFIX_TUNING"}},
                            {"encoder_hidden_size", {"PREFIX_TUNING"}}};
    for (const Owned& owned : kOwned) {
      if (std::ranges::find(owned.types, std::string_view(type)) != owned.types.end()) continue;
      warn_without_effect(owned.name, "peft_type is " + type);
    }
    if (type == "LORA" && config_.lora.init_lora_weights != "loftq") {
      for (const char* name : {"loftq_bits", "loftq_iter"}) {
        warn_without_effect(name, "init_lora_weights is not loftq");
      }
    }
    if (type == "PREFIX_TUNING" && !config_.lora.prefix_projection) {
      warn_without_effect("encoder_hidden_size", "prefix_projection is off");
    }
    if (type == "LORA" && config_.lora.bias == "vera_only") {
      throw ConfigError("{}: found vera_only with peft_type LORA, expected none, all or lora_only",
                        source("bias"));
    }
    if (type == "LORA" && config_.lora.init_lora_weights == "eva") {
      throw ConfigError(
          "{}: found eva, whose first values come from activations of the data, which is not "
          "built, expected true, false, gaussian, orthogonal, pissa, pissa_niter_N, olora or "
          "loftq; choose one of them",
          source("init_lora_weights"));
    }
    check_virtual_tokens(type);
  }

  void check_virtual_tokens(const std::string& type) {
    if (type.ends_with("_TUNING") && config_.lora.num_virtual_tokens == 0) {
      throw ConfigError(
          "num_virtual_tokens: found nothing with peft_type {}, expected how many rows to train; "
          "pass --num_virtual_tokens 20 or another number",
          type);
    }
    if (type != "PROMPT_TUNING") return;
    const bool from_text = config_.lora.prompt_tuning_init == "TEXT";
    if (from_text == !config_.lora.prompt_tuning_init_text.empty()) return;
    throw ConfigError(
        "prompt_tuning_init_text: found {} with prompt_tuning_init {}, expected a text with TEXT "
        "alone; {}",
        from_text ? "nothing" : "a text", config_.lora.prompt_tuning_init,
        from_text ? "pass one" : "leave it out or pass --prompt_tuning_init TEXT");
  }

  void check_quantization() {
    const QuantizationConfig& quantization = config_.quantization;
    if (quantization.load_in_4bit && quantization.load_in_8bit) {
      throw ConfigError("{}: found beside {}, expected one of them; remove one",
                        source("load_in_4bit"), source("load_in_8bit"));
    }
    const bool is_on = quantization.load_in_4bit || quantization.load_in_8bit;
    const std::string which = quantization.load_in_4bit ? "load_in_4bit" : "load_in_8bit";
    for (const char* name : {"bnb_4bit_quant_type", "bnb_4bit_blocksize",
                             "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype"}) {
      if (!quantization.load_in_4bit) warn_without_effect(name, "load_in_4bit is off");
    }
    if (!quantization.load_in_8bit)
      warn_without_effect("llm_int8_threshold", "load_in_8bit is off");
    if (!is_on) return warn_without_effect("llm_int8_skip_modules", "nothing is quantised");
    const int64_t block = quantization.bnb_4bit_blocksize;
    if ((block & (block - 1)) != 0) {
      throw ConfigError("{}: found {}, expected a power of two from 32 to 4096; choose 64",
                        source("bnb_4bit_blocksize"), block);
    }
    if (!config_.lora.use_peft) {
      throw ConfigError(
          "{}: found without an adapter, expected one because quantised weights cannot train; add "
          "--use_peft",
          source(which));
    }
    if (config_.model.model_name_or_path.empty()) {
      throw ConfigError(
          "{}: found without model_name_or_path, expected a checkpoint to quantise; "
          "name its folder",
          source(which));
    }
    if (quantization.bnb_4bit_compute_dtype == "float16") {
      warn_without_effect("bnb_4bit_compute_dtype",
                          "there is no float16 arithmetic, products are taken in the run's type");
    }
  }

  void check_optimizer() {
    const OptimConfig& optim = config_.optim;
    if (optim.warmup_steps > 0 && optim.warmup_ratio > 0) {
      throw ConfigError("{}: found {} beside {} {}, expected one kind of warm-up; remove one",
                        source("warmup_ratio"), optim.warmup_ratio, source("warmup_steps"),
                        optim.warmup_steps);
    }
    if (optim.lr_scheduler_kwargs.empty()) return;
    const std::string subject = source("lr_scheduler_kwargs");
    Json kwargs;
    try {
      kwargs = parse_json(optim.lr_scheduler_kwargs, subject);
    } catch (const FormatError& error) {
      throw ConfigError(error.what());
    }
    if (!kwargs.is_object()) {
      throw ConfigError("{}: found {}, expected a JSON object like {{\"num_cycles\": 2}}", subject,
                        optim.lr_scheduler_kwargs);
    }
  }

  void check_interval(const std::string& strategy, const std::string& name, double steps) {
    const std::string choice = merge_.text(strategy, field_text(get_setting(strategy), config_));
    if (choice != "steps") {
      return warn_without_effect(name, strategy + " is " + choice);
    }
    if (steps > 0 && (steps < 1 || steps == static_cast<double>(static_cast<int64_t>(steps)))) {
      return;
    }
    throw ConfigError("{}: found {}, expected a whole number of updates, or a fraction below 1",
                      source(name), steps);
  }

  void check_steps() {
    const TrainConfig& train = config_.train;
    if (train.max_steps == 0 || train.max_steps < -1) {
      throw ConfigError("{}: found {}, expected at least 1, or -1 for num_train_epochs",
                        source("max_steps"), train.max_steps);
    }
    if (train.max_steps > 0) {
      warn_without_effect("num_train_epochs", "max_steps decides");
    } else if (!(train.num_train_epochs > 0)) {
      throw ConfigError("{}: found {}, expected more than 0", source("num_train_epochs"),
                        train.num_train_epochs);
    }
    check_interval("logging_strategy", "logging_steps", train.logging_steps);
    check_interval("save_strategy", "save_steps", train.save_steps);
    check_interval("eval_strategy", "eval_steps", train.eval_steps.value_or(1));
    check_saving(config_, merge_, warnings_);
    try {
      parse_byte_size(train.max_shard_size);
    } catch (const ConfigError&) {
      throw ConfigError("{}: found \"{}\", expected a size like 50GB, 200MB or 1000000",
                        source("max_shard_size"), train.max_shard_size);
    }
  }

  void check_data() {
    const DataConfig& data = config_.data;
    const bool has_test = data.splits.find(',') != std::string::npos;
    if (data.splits.empty() || data.splits.front() == ',') {
      throw ConfigError("{}: found \"{}\", expected the name of the train split first",
                        source("splits"), data.splits);
    }
    if (!has_test && (config_.train.eval_strategy != "no" || config_.train.eval_on_start)) {
      throw ConfigError(
          "{}: found an evaluation without a test split in splits ({}), expected "
          "two names; write splits as train,test or set eval_strategy no",
          source(config_.train.eval_on_start ? "eval_on_start" : "eval_strategy"), data.splits);
    }
    warn_without_effect("pad_token", "rows are not padded");
    if (data.chat_template_format != "none" && !data.chat_template_path.empty()) {
      throw ConfigError("{}: found {} beside {} {}, expected one template; remove one",
                        source("chat_template_format"), data.chat_template_format,
                        source("chat_template_path"), data.chat_template_path);
    }
    if (data.packing && data.packing_strategy != "bfd" && data.long_rows != "drop") {
      warn_without_effect("long_rows", "packing_strategy " + data.packing_strategy + " decides");
    }
    for (const std::string& column : data.dataset_columns) {
      const size_t equals = column.find('=');
      if (equals != std::string::npos && equals > 0 && equals + 1 < column.size()) continue;
      throw ConfigError("{}: found \"{}\", expected COLUMN=NAME, like messages=dialog",
                        source("dataset_columns"), column);
    }
    check_weights();
    if (data.dataset_streaming) {
      warn_without_effect("train_sampling_strategy", "dataset_streaming keeps the files' order");
    }
    if (!data.packing && !data.eval_packing.value_or(false)) {
      warn_without_effect("packing_strategy", "packing is off");
    }
  }

  void check_weights() {
    const DataConfig& data = config_.data;
    if (data.dataset_weights.empty()) return;
    const auto num_sets = static_cast<size_t>(std::ranges::count(data.dataset_name, ',')) + 1;
    const bool fits = data.dataset_weights.size() == num_sets &&
                      std::ranges::all_of(data.dataset_weights, [](const std::string& text) {
                        char* end = nullptr;
                        const double weight = std::strtod(text.c_str(), &end);
                        return end == text.c_str() + text.size() && weight > 0 && weight < 1e9;
                      });
    if (fits) return;
    throw ConfigError("{}: found {}, expected {} positive number{}, one for each data set of {}",
                      source("dataset_weights"), fmt::join(data.dataset_weights, " "), num_sets,
                      num_sets == 1 ? "" : "s", data.dataset_name);
  }

  void check_sharding() {
    const ShardConfig& shard = config_.shard;
    const std::string& strategy = shard.sharding_strategy;
    const std::string place = source("fsdp_sharding_strategy");
    const bool gathers_twice = strategy == "FULL_SHARD" || strategy == "HYBRID_SHARD";
    const bool gathers =
        gathers_twice || strategy == "SHARD_GRAD_OP" || strategy == "HYBRID_SHARD_ZERO2";
    if (shard.reshard_group_size > 0 && !gathers_twice) {
      throw ConfigError(
          "{}: found {} with the strategy {} ({}), expected FULL_SHARD or HYBRID_SHARD; remove one",
          source("fsdp_reshard_group_size"), shard.reshard_group_size, strategy, place);
    }
    if (strategy == "NO_SHARD" && shard.dp_shard_size > 1) {
      throw ConfigError("{}: found {} with NO_SHARD ({}), expected another strategy; remove one",
                        source("parallelism_config_dp_shard_size"), shard.dp_shard_size, place);
    }
    if (!gathers) {
      for (const char* name :
           {"fsdp_backward_prefetch", "fsdp_forward_prefetch", "fsdp_limit_all_gathers"}) {
        warn_without_effect(name, strategy + " gathers nothing during a pass");
      }
    }
    if (strategy == "ZERO1" || strategy == "NO_SHARD") {
      warn_without_effect("sync_each_batch", strategy + " sums gradients once an update");
    }
  }

  void check_wrapping() {
    const ShardConfig& shard = config_.shard;
    const std::string reason = "fsdp_auto_wrap_policy is " + shard.auto_wrap_policy;
    if (shard.auto_wrap_policy != "TRANSFORMER_BASED_WRAP") {
      warn_without_effect("fsdp_transformer_layer_cls_to_wrap", reason);
    }
    // accelerate's questionnaire and launcher write the default of what was not asked for.
    const bool asks =
        shard.min_num_params != ShardConfig{}.min_num_params && shard.min_num_params != 0;
    if (shard.auto_wrap_policy != "SIZE_BASED_WRAP" && asks) {
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
    if (!shard.gradient_checkpointing) {
      warn_without_effect("gradient_checkpointing_mode", "gradient_checkpointing is off");
    }
    for (const char* name : {"fp16_loss_scale", "fp16_initial_scale", "fp16_scale_window",
                             "fp16_hysteresis", "fp16_min_scale"}) {
      if (!shard.fp16) warn_without_effect(name, "fp16 is off");
      if (shard.fp16 && shard.loss_scale > 0 && std::string_view(name) != "fp16_loss_scale") {
        warn_without_effect(name, "fp16_loss_scale is fixed");
      }
    }
  }

  // `kind`: "offload_param" or "offload_optimizer".
  void check_offload_path(const std::string& kind, const std::string& device,
                          const std::string& path) {
    if (device == "nvme" && path.empty()) {
      throw ConfigError(
          "{}: found nvme without a folder, expected one on a disk; add --{}_nvme_path",
          source(kind + "_device"), kind);
    }
    if (device != "nvme" && !path.empty()) {
      warn_without_effect(kind + "_nvme_path", kind + "_device is " + device);
    }
  }

  void check_offload() {
    const ShardConfig& shard = config_.shard;
    check_offload_path("offload_param", shard.offload_param_device, shard.offload_param_nvme_path);
    check_offload_path("offload_optimizer", shard.offload_optimizer_device,
                       shard.offload_optimizer_nvme_path);
    const bool params_in_files = shard.offload_param_device == "nvme";
    const bool state_in_files = shard.offload_optimizer_device == "nvme";
    const std::string& strategy = shard.sharding_strategy;
    if (params_in_files && (strategy == "NO_SHARD" || strategy == "ZERO1" || strategy == "ZERO2")) {
      throw ConfigError(
          "{}: found nvme with the strategy {} ({}), which keeps all parameters whole in memory, "
          "expected one that gathers them when they are used; choose FULL_SHARD",
          source("offload_param_device"), strategy, source("fsdp_sharding_strategy"));
    }
    if (params_in_files && shard.offload_params) {
      throw ConfigError(
          "{}: found nvme beside {} true (host memory), expected one place for the parameters; "
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
    const char* reason = "nothing rests in files";
    if (!state_in_files && !params_in_files) warn_without_effect("sub_group_size", reason);
    if (state_in_files || params_in_files || shard.activation_offloading == "disk") return;
    for (const char* name : {"aio_block_size", "aio_queue_depth"}) {
      warn_without_effect(name, reason);
    }
  }

  void check_activations() {
    const ShardConfig& shard = config_.shard;
    const std::string& place = shard.activation_offloading;
    if (place != "disk" && !shard.activation_offloading_path.empty()) {
      warn_without_effect("activation_offloading_path", "activation_offloading is " + place);
    }
    if (place == "false") return;
    const bool recomputes = shard.gradient_checkpointing && shard.checkpointing_mode == "full";
    if (!recomputes) {
      throw ConfigError(
          "{}: found {} with {}, expected full activation checkpointing, because the inputs of "
          "recomputed layers are what is moved; add --activation_checkpointing full",
          source("activation_offloading"), place,
          shard.gradient_checkpointing
              ? "gradient_checkpointing_mode selective (" + source("gradient_checkpointing_mode") +
                    ")"
              : "gradient_checkpointing false (" + source("gradient_checkpointing") + ")");
    }
    if (place == "disk" && shard.activation_offloading_path.empty()) {
      throw ConfigError(
          "{}: found disk without a folder, expected one on a disk; add "
          "--activation_offloading_path",
          source("activation_offloading"));
    }
  }

  void check_launch() {
    const LaunchConfig& launch = config_.launch;
    if (launch.machine_rank >= launch.num_machines) {
      throw ConfigError("{}: found {}, expected less than num_machines ({})",
                        source("machine_rank"), launch.machine_rank, launch.num_machines);
    }
    if (launch.num_machines > 1 && launch.num_processes % launch.num_machines != 0) {
      throw ConfigError("{}: found {}, expected a multiple of num_machines ({})",
                        source("num_processes"), launch.num_processes, launch.num_machines);
    }
    if (launch.log_dir.empty() && !launch.tee.empty()) {
      warn_without_effect("tee", "without log_dir all output is shown");
    }
    const bool loads_on_one = merge_.text("fsdp_cpu_ram_efficient_loading") == "true";
    if (loads_on_one && merge_.text("fsdp_sync_module_states") == "false") {
      throw ConfigError(
          "{}: found false beside fsdp_cpu_ram_efficient_loading true, expected true (as "
          "accelerate does)",
          source("fsdp_sync_module_states"));
    }
  }

  const RunConfig& config_;
  const Merge& merge_;
  std::vector<std::string>& warnings_;
};

}  // namespace

void check_settings(const RunConfig& config, const Merge& merge,
                    std::vector<std::string>& warnings) {
  Rules(config, merge, warnings).check();
}

}  // namespace strata::config
