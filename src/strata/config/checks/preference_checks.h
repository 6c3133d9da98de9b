// What the settings of the recipe dpo may not be together. Owns: these rules. Never: which settings
// belong to which recipe (recipe_checks.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"
#include "strata/config/run_config.h"

namespace strata::config {

// The reference is the model that training starts from: it must be the one that the reference stack
// takes, which is the base without its new adapter. Throws ConfigError where it is not.
void check_reference(const RunConfig& config, const Merge& merge);

// A reference that follows the model (sync_ref_model), of dpo and kto. The same as below.
void check_moving_reference(const RunConfig& config, const Merge& merge,
                            std::vector<std::string>& warnings);

// Of settings that were checked; empty: 1 each.
std::vector<double> preference_loss_weights(const PreferenceConfig& config);

// Throws ConfigError; appends a line for every setting that was given and does nothing.
void check_preferences(const RunConfig& config, const Merge& merge,
                       std::vector<std::string>& warnings);

}  // namespace strata::config
