// What the tensors of an adapter are called: in a run of ours, in PEFT's file, and in the model
// that PEFT trains, where each has the adapter's name in it. Owns: the three and the ways between
// them. Never: which tensors there are.
#pragma once

#include <string>
#include <vector>

#include "strata/checkpoint/convert/saved_state.h"

namespace strata::checkpoint {

// PEFT's name of either kind as a run of ours has it: without the adapter's name, and that of a
// module saved whole, or of a bias, as the base's.
std::string name_in_run(const std::string& name);

// Without a projection the embedding of PEFT's module is the prompt itself.
void name_prompts_in_run(std::vector<SavedTensor>& tensors);

// A weight in PEFT's file, or in that of a whole model.
std::string name_in_file(const SavedState& state, const SavedTensor& tensor);

// A weight in the optimizer of whoever trains with PEFT, whose adapter is called "default"; in that
// of a whole model.
std::string name_in_optimizer(const SavedState& state, const std::string& weight);

}  // namespace strata::checkpoint
