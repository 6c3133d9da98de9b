// Gives a run's model its adapter: a new one of the settings, or one that goes on. Owns: which
// weights of the vocabulary the adapter's files hold whole. Never: values.
#pragma once

#include <cstdint>
#include <vector>

#include "strata/config/run_config.h"
#include "strata/train/setup/strategy.h"
#include "strata/train/setup/trainee.h"
#include "strata/train/setup/vocabulary.h"

namespace strata::train {

// `new_tokens`: what trains beside a new adapter. Requires: a model. Throws ConfigError for an
// adapter that cannot go on or is none for the recipe, and for modules that the model has not.
void attach_adapter(const config::RunConfig& config, const std::vector<int64_t>& new_tokens,
                    const Target& target, Trainee& trainee);

// Requires: new rows are marked. In a plan the files of an adapter that goes on are not looked at.
void store_vocabulary(const config::RunConfig& config, const GrownVocabulary& grown,
                      bool is_imagined, Trainee& trainee);

}  // namespace strata::train
