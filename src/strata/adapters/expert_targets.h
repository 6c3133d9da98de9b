// Adapters of the experts and the router of a mixture, which are parameters in transformers and no
// linear layers: what PEFT can make of them. Owns: the refusals. Never: names (target_layers.h).
// Source: PEFT tuners/lora/layer.py (ParamWrapper), utils/transformers_weight_conversion.py.
#pragma once

#include <vector>

#include "strata/adapters/lora.h"
#include "strata/models/model.h"

namespace strata::adapters {

// ConfigError where `layers`, the targets, hold such a layer and the method is another than plain
// LoRA.
void require_computed_on_experts(const LoraOptions& options, const std::vector<nn::Linear*>& layers,
                                 models::Model& model);

// ConfigError for dropout of the branches of such layers, which training would leave out.
void require_no_dropout_on_experts(const LoraOptions& options,
                                   const std::vector<nn::Linear*>& layers, models::Model& model);

// ConfigError where PEFT would not load the adapter, or load another: dropout, a part of what is
// one parameter there, names that other layers have too (shared experts, MLPs between), ranks of
// their own, scales by the root of the rank, first values that
// change the base, experts among modules_to_save. Of adapters that are trained anew.
void require_loadable_on_experts(const LoraOptions& options, const std::vector<nn::Linear*>& layers,
                                 models::Model& model);

}  // namespace strata::adapters
