#include "strata/adapters/adapter_options.h"

namespace strata::adapters {

Method method_of(std::string_view peft_type) {
  if (peft_type == "IA3") return Method::kIa3;
  if (peft_type == "VERA") return Method::kVera;
  if (peft_type == "PROMPT_TUNING") return Method::kPrompt;
  if (peft_type == "PREFIX_TUNING") return Method::kPrefix;
  return Method::kLora;
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

}  // namespace strata::adapters
