#include "strata/adapters/adapter_options.h"

#include <algorithm>
#include <array>
#include <utility>

#include "strata/base/error.h"

namespace strata::adapters {
namespace {

constexpr std::array<std::pair<Method, std::string_view>, 5> kPeftTypes = {
    {{Method::kLora, "LORA"},
     {Method::kIa3, "IA3"},
     {Method::kVera, "VERA"},
     {Method::kPrompt, "PROMPT_TUNING"},
     {Method::kPrefix, "PREFIX_TUNING"}}};

}  // namespace

Method method_of(std::string_view peft_type) {
  const auto* found =
      std::ranges::find(kPeftTypes, peft_type, [](const auto& e) { return e.second; });
  if (found == kPeftTypes.end())
    throw InternalError("peft_type: found {}, expected one of its list", peft_type);
  return found->first;
}

std::string_view peft_type_of(Method method) {
  return std::ranges::find(kPeftTypes, method, [](const auto& e) { return e.first; })->second;
}

LoraOptions lora_options_of(const hf::AdapterConfig& config) {
  LoraOptions options;
  options.method = method_of(config.peft_type);
  options.feedforward_modules = config.feedforward_modules;
  options.feedforward_pattern = config.feedforward_modules_regex;
  options.r = config.r;
  options.alpha = config.lora_alpha;
  options.dropout = config.lora_dropout;
  options.target_modules = config.target_modules;
  options.target_pattern = config.target_modules_regex;
  options.target_parameters = config.target_parameters;
  options.exclude_modules = config.exclude_modules;
  options.exclude_pattern = config.exclude_modules_regex;
  options.layers_to_transform = config.layers_to_transform;
  options.layers_pattern = config.layers_pattern;
  options.rank_pattern = config.rank_pattern;
  options.alpha_pattern = config.alpha_pattern;
  options.modules_to_save = config.modules_to_save;
  options.trainable_tokens = config.trainable_token_indices;
  options.token_module = config.trainable_token_module;
  options.other_token_modules = config.other_token_modules;
  options.ensure_weight_tying = config.ensure_weight_tying;
  options.fan_in_fan_out = config.fan_in_fan_out;
  options.use_dora = config.use_dora;
  options.lora_bias = config.lora_bias;
  options.bias = config.bias;
  options.init = config.init_lora_weights;
  options.use_rslora = config.use_rslora;
  options.loftq_bits = config.loftq_bits;
  options.loftq_iter = config.loftq_iter;
  options.d_initial = config.d_initial;
  options.projection_prng_key = static_cast<uint64_t>(config.projection_prng_key);
  options.save_projection = config.save_projection;
  options.init_weights = config.init_weights;
  options.num_virtual_tokens = config.num_virtual_tokens;
  options.prompt_init = config.prompt_tuning_init;
  return options;
}

void require_applied(const hf::AdapterConfig& config, const std::string& folder) {
  constexpr const char* kTask = "CAUSAL_LM";
  const Method method = method_of(config.peft_type);
  const bool is_of_tokens = method == Method::kPrompt || method == Method::kPrefix;
  if (!is_of_tokens || config.task_type == kTask) return;
  const bool has_task = !config.task_type.empty();
  throw ConfigError(
      "{}: task_type: found {} with {}, expected \"{}\", without which PEFT {}; if it is what the "
      "adapter was trained for, write it into adapter_config.json",
      folder, has_task ? '"' + config.task_type + '"' : "null", config.peft_type, kTask,
      has_task ? "runs another kind of model" : "answers as if there were no adapter");
}

void describe_options(const LoraOptions& options, hf::AdapterConfig& config) {
  config.peft_type = peft_type_of(options.method);
  config.feedforward_modules = options.feedforward_modules;
  config.feedforward_modules_regex = options.feedforward_pattern;
  config.r = options.r;
  config.lora_alpha = options.alpha;
  config.lora_dropout = options.dropout;
  config.target_modules = options.target_modules;
  config.target_modules_regex = options.target_pattern;
  config.target_parameters = options.target_parameters;
  config.exclude_modules = options.exclude_modules;
  config.exclude_modules_regex = options.exclude_pattern;
  config.layers_to_transform = options.layers_to_transform;
  config.layers_pattern = options.layers_pattern;
  config.rank_pattern = options.rank_pattern;
  config.alpha_pattern = options.alpha_pattern;
  config.modules_to_save = options.modules_to_save;
  config.trainable_token_indices = options.trainable_tokens;
  // A list alone means the embedding.
  if (options.token_module == "lm_head") config.trainable_token_module = options.token_module;
  config.ensure_weight_tying = options.ensure_weight_tying;
  config.fan_in_fan_out = options.fan_in_fan_out;
  config.use_rslora = options.use_rslora;
  config.use_dora = options.use_dora;
  config.lora_bias = options.lora_bias;
  config.bias = options.bias;
  // Over a quantised base the values are the adapter's own: whoever loads it has nothing to repeat.
  config.init_lora_weights = options.keeps_base ? "true" : options.init;
  config.loftq_bits = options.loftq_bits;
  config.loftq_iter = options.loftq_iter;
  config.d_initial = options.d_initial;
  config.projection_prng_key = static_cast<int64_t>(options.projection_prng_key);
  config.save_projection = options.save_projection;
  config.init_weights = options.init_weights;
  config.num_virtual_tokens = options.num_virtual_tokens;
  config.prompt_tuning_init = options.prompt_init;
}

}  // namespace strata::adapters
