// Kahneman-Tversky optimisation: what a head must know of a micro-batch of rated answers, and how
// far the model is from its reference meanwhile. Never: the losses (nn/rated_loss.h), the pass over
// the data that asks the reference (reference_table.h).
#pragma once

#include <memory>

#include "strata/train/recipes/recipe.h"

namespace strata::train {

// A step's loss is the mean over its answers. Of the loss kto each micro-batch takes a second
// forward pass, over the same prompts with the answers of other rows: what the model finds these
// likelier than the reference, on the mean over all ranks and at least 0, stands for the
// divergence. Errors: those of ask_reference(). Collective.
std::unique_ptr<Recipe> make_kto(const BeforeTraining& before);

}  // namespace strata::train
