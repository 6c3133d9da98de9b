// What rank 0 says of a run before its first step and after its last. Owns: those lines. Never:
// what is logged in between (loop/trainer_logging.cpp).
#pragma once

#include <string>
#include <vector>

#include "strata/config/run_config.h"
#include "strata/train/datasets.h"
#include "strata/train/loop/trainer.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

// What trains on what: sizes, types, strategy, memory of loading, the run's `notes` and warnings.
void introduce(const config::RunConfig& config, Trainee& trainee, const Datasets& datasets,
               const std::vector<std::string>& notes, Trainer& trainer);

// What the public script of the recipe prints after its last epoch, and what was sent, by group.
// Requires: the trainer has run.
void conclude(const config::RunConfig& config, const comm::Mesh& mesh, Trainer& trainer);

}  // namespace strata::train
