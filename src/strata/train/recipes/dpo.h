// Direct preference optimisation: what the model that training starts from thinks of every answer,
// and what a head must know of a micro-batch of pairs. Owns: the pass over the data that asks that
// model, before the first step. Never: the losses (nn/preference_loss.h).
#pragma once

#include <memory>

#include "strata/train/recipes/recipe.h"

namespace strata::train {

// The file in output_dir in which a resumed run finds what the reference said: the format of
// safetensors under another name, because loaders take every *.safetensors of a folder for weights.
inline constexpr const char* kReferenceFile = "reference_log_probs.table";

// A step's loss is the mean over its pairs. The reference is a table: no second model is in memory,
// at any time. IoError where its file cannot be written. Collective.
std::unique_ptr<Recipe> make_dpo(const BeforeTraining& before);

}  // namespace strata::train
