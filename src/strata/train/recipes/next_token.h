// Next-token training (sft, seq2seq): a step's loss is the mean over its trained tokens.
#pragma once

#include <memory>

#include "strata/train/recipes/recipe.h"

namespace strata::train {

std::unique_ptr<Recipe> make_next_token(const BeforeTraining& before);

}  // namespace strata::train
