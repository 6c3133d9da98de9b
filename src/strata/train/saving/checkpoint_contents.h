// What the files of a run's checkpoints hold beside the shards of what trains, by name. Never:
// writes a file (checkpoint/).
#pragma once

#include <string>

#include "strata/checkpoint/sharded.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

// FULL_STATE_DICT: names as the result has them.
checkpoint::WholeFiles whole_files_of(const Trainee& trainee);

// What an adapter's file, or a whole model's, holds beside the weights that train. A file of ranges
// need not hold what the base does.
checkpoint::FrozenWeights frozen_weights_of(const Trainee& trainee, bool in_whole_files);

// What checkpoint::kSecondNames holds of a run; empty: no weight has two names.
std::string second_names_of(const adapters::LoraAdapter& adapter);

}  // namespace strata::train
