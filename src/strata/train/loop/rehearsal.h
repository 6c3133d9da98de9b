// What would go wrong after hours, before the first step: the longest batch (twice, where gradients
// accumulate: the second one finds those of the first), the longest evaluation batch with its
// answers, one pass over offloaded state and one checkpoint. Nothing of it stays: no value, moment,
// counter or file of the run changes, so that losses are those of a run without it. Owns: the
// choice of batches and the checks. Never: prints.
#pragma once

#include <string>
#include <vector>

#include "strata/train/datasets.h"
#include "strata/train/loop/trainer.h"

namespace strata::train {

// The longest of this rank's micro-batches, by tokens.
struct LongestBatch {
  std::vector<int64_t> rows;
  int64_t num_tokens = 0;
};

// The longest of the micro-batches that remain after `first_step` finished steps.
LongestBatch longest_training_batch(const data::TokenStore& dataset,
                                    const data::BatchSampler& sampler, const StepPlan& plan,
                                    int rank, int64_t first_step);

// An estimate from the model's size, the tokens planned and the matrix products that this
// rank reaches where it computes, in the type that it computes in.
double planned_seconds(const config::RunConfig& config, const Trainee& trainee,
                       const data::TokenStore& dataset, const StepPlan& plan, int64_t first_step);

// Collective: the same answer on every rank. True for rehearse true, and for auto when more than
// one hour of work is planned.
bool wants_rehearsal(const config::RunConfig& config, const Trainee& trainee,
                     const Datasets& datasets, const StepPlan& plan, int64_t first_step);

// Collective. Returns what was found, a line each. Throws OutOfMemoryError or IoError that says
// what did not fit and which setting to change.
std::vector<std::string> rehearse(const config::RunConfig& config, Trainee& trainee,
                                  const Datasets& datasets, const Recipe& recipe, Trainer& trainer);

}  // namespace strata::train
