// Names in the settings of an adapter that mean nothing in a model. Owns: that such a name is an
// error, where PEFT trains without it. Never: what a name means (target_layers.h), and adapters
// that others saved, whose settings may name more than their base has.
#pragma once

#include "strata/adapters/lora.h"
#include "strata/models/model.h"

namespace strata::adapters {

// Every entry of target_modules, exclude_modules, feedforward_modules, rank_pattern, alpha_pattern,
// layers_to_transform and layers_pattern must mean something. Call before attaching. ConfigError
// for the first that does not, with the closest name.
void require_named_modules(const LoraOptions& options, models::Model& model);

}  // namespace strata::adapters
