// The mappings dataset_kwargs, model_init_kwargs, accelerator_config and
// activation_checkpointing_kwargs, whose keys are settings of their own here.
// Owns: which keys each has. Never: what the settings mean.
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"

namespace strata::config {

// Adds what the keys stand for, under "PLACE (model_init_kwargs.KEY)"; `warnings` of what has no
// effect.
// Throws ConfigError for an unknown key, a text that is no JSON object, and where a key and a plain
// setting contradict each other.
void translate_kwargs(Merge& merge, std::vector<std::string>& warnings);

}  // namespace strata::config
