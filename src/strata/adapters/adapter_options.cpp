#include "strata/adapters/adapter_options.h"

namespace strata::adapters {

LoraOptions lora_options_of(const hf::AdapterConfig& config) {
  LoraOptions options;
  if (config.peft_type == "IA3") options.method = Method::kIa3;
  options.feedforward_modules = config.feedforward_modules;
  options.feedforward_pattern = config.feedforward_modules_regex;
  options.r = config.r;
  options.alpha = config.lora_alpha;
  options.dropout = config.lora_dropout;
  options.target_modules = config.target_modules;
  options.target_pattern = config.target_modules_regex;
  options.exclude_modules = config.exclude_modules;
  options.exclude_pattern = config.exclude_modules_regex;
  options.layers_to_transform = config.layers_to_transform;
  options.layers_pattern = config.layers_pattern;
  options.rank_pattern = config.rank_pattern;
  options.alpha_pattern = config.alpha_pattern;
  options.modules_to_save = config.modules_to_save;
  options.trainable_tokens = config.trainable_token_indices;
  if (!config.trainable_token_module.empty()) options.token_module = config.trainable_token_module;
  options.ensure_weight_tying = config.ensure_weight_tying;
  options.use_dora = config.use_dora;
  options.lora_bias = config.lora_bias;
  options.bias = config.bias;
  options.init = config.init_lora_weights;
  options.use_rslora = config.use_rslora;
  return options;
}

}  // namespace strata::adapters
