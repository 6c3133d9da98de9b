#include "strata/adapters/adapter_options.h"

namespace strata::adapters {

LoraOptions lora_options_of(const hf::AdapterConfig& config) {
  LoraOptions options;
  options.r = config.r;
  options.alpha = config.lora_alpha;
  options.dropout = config.lora_dropout;
  options.target_modules = config.target_modules;
  options.target_pattern = config.target_modules_regex;
  options.modules_to_save = config.modules_to_save;
  options.use_rslora = config.use_rslora;
  return options;
}

}  // namespace strata::adapters
