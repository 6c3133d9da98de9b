// Direct preference optimisation: what a head must know of a micro-batch of pairs. Never: the
// losses (nn/preference_loss.h), the pass over the data that asks the reference
// (reference_table.h).
#pragma once

#include <memory>

#include "strata/train/recipes/recipe.h"

namespace strata::train {

// A step's loss is the mean over its pairs. The reference is a table: no second model is in memory,
// at any time, unless it follows the model. IoError where its file cannot be written. Collective.
std::unique_ptr<Recipe> make_dpo(const BeforeTraining& before);

}  // namespace strata::train
