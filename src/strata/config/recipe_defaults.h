// What a recipe's script brings of its own: defaults of other settings, a known data set. Owns:
// those values. Never: what the settings mean.
#pragma once

#include "strata/config/merge.h"

namespace strata::config {

// Adds them where nobody gave another value, as implied by the recipe (or by its task_name).
void imply_recipe_defaults(Merge& merge);

}  // namespace strata::config
