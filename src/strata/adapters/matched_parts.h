// What an adapter's settings mean in a model as a whole, and what of that its user may not expect.
// Owns: the order of the questions, the notes. Never: attaching; it changes nothing. The rules are
// in target_layers.h and target_parameters.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/adapters/lora.h"
#include "strata/adapters/target_layers.h"

namespace strata::adapters {

struct MatchedParts {
  TargetLayers targets;
  std::vector<nn::ExpertParameter*> expert_parameters;
  std::vector<std::string> saved;  // weights of modules_to_save
  // Whether embedding and output layer are one weight; one of them may get a copy later.
  bool was_tied = false;
};

// Requires: nothing is attached yet. ConfigError for settings that mean nothing here, or what the
// method cannot adapt.
MatchedParts match_parts(const LoraOptions& options, models::Model& model);

// What adapter_config.json's target_modules holds: the list, or the expression in its place.
std::vector<std::string> target_modules_to_save(const LoraOptions& options,
                                                const TargetLayers& targets);

// LoraAdapter::notes(). Requires: all is attached. `tokens`: what attach_token_rows() gave.
std::vector<std::string> notes_on(const LoraOptions& options, models::Model& model,
                                  const MatchedParts& parts,
                                  const std::optional<TrainedTokens>& tokens);

}  // namespace strata::adapters
