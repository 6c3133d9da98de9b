// config.json of the base and what lies beside it, before there is a model, and whether the recipe
// is one for it. Never: weights.
#pragma once

#include "strata/base/json.h"
#include "strata/config/run_config.h"
#include "strata/generate/generation_config.h"

namespace strata::train {

// config.json of the settings' model, from model_name_or_path or config_name. `alone`: of a model
// of the Hub nothing else is downloaded.
Json load_model_config(const config::ModelConfig& config, bool alone = false);

// What the files beside it say of generation; nothing of a model without a base. `alone`: of a
// model of the Hub nothing but these is downloaded.
generate::GenerationConfig load_generation_config(const config::ModelConfig& config,
                                                  bool alone = false);

// ConfigError unless the settings' recipe is the one for such a model: seq2seq where there is an
// encoder, sft elsewhere.
void require_recipe_of(const Json& model_config, const config::RunConfig& config);

}  // namespace strata::train
