// Between a run's settings, the adapter that they ask for, and what its file says. Never: weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/adapters/lora.h"
#include "strata/config/run_config.h"
#include "strata/hf/adapter_files.h"
#include "strata/models/model.h"

namespace strata::train {

struct Trainee;

// Throws ConfigError for text that is no pattern, layer or token.
adapters::LoraOptions options_of(const config::LoraConfig& config);

// As TRL has it, tokens of another tokenizer train beside a LoRA adapter, and so does the output
// layer.
adapters::LoraOptions with_new_tokens(adapters::LoraOptions options,
                                      const std::vector<int64_t>& new_tokens);

// As PEFT for its task SEQ_CLS: the head for documents trains whole and is saved with the adapter.
// So is a layer of it that begins anew, which PEFT would save nowhere.
void add_document_head(adapters::LoraOptions& options, models::Model& model);

// Layers of that head which the base's files lack and modules_to_save does not name.
std::vector<std::string> unsaved_new_layers(const adapters::LoraOptions& options,
                                            models::Model& model);

// The tokens of prompt_tuning_init_text, as the base's tokenizer makes them.
std::vector<int64_t> prompt_text_ids(const config::RunConfig& config);

// What adapter_config.json of the result says.
hf::AdapterConfig adapter_config_of(const config::RunConfig& config, const Trainee& trainee);

}  // namespace strata::train
