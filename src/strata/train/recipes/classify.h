// Text classification: a head tells the label of a text, several, or a number. A step's loss is the
// mean over its texts (nn/document_loss.h), an evaluation's figures are of all its rows.
#pragma once

#include <memory>

#include "strata/train/recipes/recipe.h"

namespace strata::train {

// ConfigError for a tokenizer without a token for padding: texts end before it.
std::unique_ptr<Recipe> make_classify(const BeforeTraining& before);

}  // namespace strata::train
