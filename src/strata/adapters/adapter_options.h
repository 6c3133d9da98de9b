// Between the settings of attach_lora() and those of an adapter_config.json, both ways. Owns: which
// field of one is which of the other. Never: defaults that a model has, nor the file's form.
#pragma once

#include <string>
#include <string_view>

#include "strata/adapters/lora.h"
#include "strata/hf/adapter_files.h"

namespace strata::adapters {

// Requires: one of PEFT's names that hf::AdapterConfig lists.
Method method_of(std::string_view peft_type);
// The way back.
std::string_view peft_type_of(Method method);

// What the file asks for. A projected prefix is one that is not: its file holds the rows alone.
LoraOptions lora_options_of(const hf::AdapterConfig& config);

// ConfigError where the file holds a prompt or prefix that PEFT leaves out: it asks the task_type
// whether there is anything to put before the tokens. `folder` is the file's.
void require_applied(const hf::AdapterConfig& config, const std::string& folder);

// Sets what a file says of `options` in `config`; the rest of it stays. Not said by any:
// `keeps_base` beyond the values' being the adapter's own, `prompt_text_ids`, modules that are tied
// to the one with rows of its own, and how the rows of a prefix were made.
void describe_options(const LoraOptions& options, hf::AdapterConfig& config);

}  // namespace strata::adapters
