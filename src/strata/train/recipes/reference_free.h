// Preferences that are learnt without a reference, of the recipes orpo and cpo: what a head must
// know of a micro-batch of pairs. Never: the losses (nn/reference_free_loss.h).
#pragma once

#include <memory>

#include "strata/train/recipes/recipe.h"

namespace strata::train {

// A step's loss is the mean over its pairs, and over the trained tokens of the documents with the
// preferred answers.
std::unique_ptr<Recipe> make_reference_free(const BeforeTraining& before);

}  // namespace strata::train
