// Numbers that follow from settings once the length of the run is known, as Trainer computes them.
// Never: state of a run.
#pragma once

#include <cstdint>
#include <string>

#include "strata/config/run_config.h"

namespace strata::config {

// Updates of warm-up: warmup_steps >= 1 rounded down, else ceil(fraction * total_steps).
int64_t num_warmup_steps(const OptimConfig& optim, int64_t total_steps);

// A setting like logging_steps: below 1 a fraction of the run, ceil(fraction * total_steps).
int64_t interval_steps(double steps, int64_t total_steps);

// eval_steps, or logging_steps where it is not set.
int64_t eval_interval_steps(const TrainConfig& train, int64_t total_steps);

// The value of an evaluation that says which checkpoint is the best, such as "eval_loss"; empty:
// none does.
std::string best_metric(const RunConfig& config);

// Whether its greater value is the better.
bool is_greater_better(const TrainConfig& train);

}  // namespace strata::config
