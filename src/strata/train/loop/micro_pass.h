// One micro-batch through the model under a recipe: what the blocks are told, and what is read from
// the pass. Owns: nothing. Never: what is done with the gradients or with the figures (trainer.h,
// evaluate.h).
#pragma once

#include "strata/train/recipes/recipe.h"

namespace strata::train {

struct MicroPass {
  // Sum over this rank's tokens, pairs or answers, of an evaluation over those of its sequence
  // group; without what figures add to it.
  double loss = 0;
  double num_losses = 0;  // what an evaluation divides it by
  Figures figures;
  std::vector<double> tally;  // of an evaluation (recipes/recipe.h)

  // The loss of an evaluation, with what figures add to it.
  double mean_loss() const;
};

// The place of a micro-batch in its step.
struct StepPlace {
  int64_t step = 0;
  size_t micro_step = 0, micro_steps = 1;
  LossCounts counts;      // of the whole step
  double loss_scale = 1;  // of fp16
};

// Adds the micro-batch's gradients to those of its step. Collective.
MicroPass train_batch(const config::RunConfig& config, Trainee& trainee, const Recipe& recipe,
                      const data::MicroBatch& rows, const StepPlace& place);

// A forward pass without gradients, dropout and noise, which fills the documents: as the split's
// batches are computed, so that models are compared by the same products. Collective.
void look_at(Trainee& trainee, Split split, const data::MicroBatch& rows,
             nn::Preference& documents);

// Collective.
MicroPass evaluate_batch(const config::RunConfig& config, Trainee& trainee, const Recipe& recipe,
                         const data::MicroBatch& rows, Split split = Split::kEval);

}  // namespace strata::train
