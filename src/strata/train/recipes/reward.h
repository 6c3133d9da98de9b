// Reward models: a head gives every text a number, which is to be larger for the preferred answer.
// A step's loss is the mean over its pairs (nn/document_loss.h).
#pragma once

#include <memory>

#include "strata/train/recipes/recipe.h"

namespace strata::train {

// ConfigError for a tokenizer without a token for padding: texts end before it.
std::unique_ptr<Recipe> make_reward(const BeforeTraining& before);

}  // namespace strata::train
