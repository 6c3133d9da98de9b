// What an adapter_config.json asks of attach_lora().
#pragma once

#include "strata/adapters/lora.h"
#include "strata/hf/adapter_files.h"

namespace strata::adapters {

// Requires: one of PEFT's names that hf::AdapterConfig lists.
Method method_of(std::string_view peft_type);

LoraOptions lora_options_of(const hf::AdapterConfig& config);

}  // namespace strata::adapters
