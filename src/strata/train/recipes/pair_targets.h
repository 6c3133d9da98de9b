// Trained tokens of the documents of pairs, where two documents are a row, the preferred answer's
// first. Never: what they count in a loss.
#pragma once

#include <cstdint>
#include <vector>

#include "strata/data/batch.h"

namespace strata::train {

// The trained tokens of all preferred answers' documents.
int64_t num_chosen_targets(const data::MicroBatch& batch);

// [documents] those before the answer. A pair has one prompt, which is trained with the preferred
// answer or not at all: the other document shows where it ends.
std::vector<int64_t> prompt_targets(const data::MicroBatch& batch);

}  // namespace strata::train
