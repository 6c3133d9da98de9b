// One pass over an evaluation set. Owns: the sums; the mean over examples is Trainer's.
#pragma once

#include <optional>

#include "strata/data/store/token_store.h"
#include "strata/train/loop/figures.h"
#include "strata/train/loop/stop_signals.h"
#include "strata/train/recipes/recipe.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

struct EvalSums {
  // Over examples: each counts its batch's mean loss of a token or pair, where that is finite
  // (Trainer's logging_nan_inf_filter); not a number where none is.
  double mean_loss = 0;
  int64_t num_left_out = 0;  // batches of all ranks whose loss is not finite
  int64_t num_empty = 0;     // those of them that have nothing to be a mean over
  MeanFigures figures;       // over batches, or of all rows where the recipe tallies
  int64_t num_batches = 0;   // of one rank
};

// Collective over the mesh; the same result on every rank. Nothing when a rank was asked to stop
// meanwhile, which is looked at before every batch.
std::optional<EvalSums> evaluate_dataset(const data::TokenStore& dataset,
                                         const config::RunConfig& config, Trainee& trainee,
                                         const Recipe& recipe, const StopRequest& is_asked_to_stop,
                                         Split split = Split::kEval);

}  // namespace strata::train
