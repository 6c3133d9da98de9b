// Which micro-batches make up which optimizer step, and when to log, evaluate and save: Trainer's
// arithmetic as pure functions. Owns: no state.
#pragma once

#include <cstdint>
#include <string>

#include "strata/config/run_config.h"

namespace strata::train {

struct StepPlan {
  int64_t batches_per_epoch = 0;  // of one rank
  int64_t accumulation = 1;
  int64_t updates_per_epoch = 0;
  int64_t max_steps = 0;
  int64_t num_epochs = 0;     // begun
  int64_t logging_steps = 0;  // 0: not by steps
  int64_t eval_steps = 0;
  int64_t save_steps = 0;

  // The micro-batches of the step that follows `step` finished ones.
  struct Window {
    int64_t epoch;
    int64_t first;  // index of its first micro-batch in the epoch
    int64_t count;  // accumulation, or what is left of the epoch
  };
  Window window(int64_t step) const;
  // The epoch that Trainer logs after `step` finished steps, such as 0.4.
  double epoch_after(int64_t step) const;
  bool ends_epoch(int64_t step) const;  // step (from 1) is the last of its epoch
};

// Requires: settings were checked by config/. `batches_per_epoch` > 0.
StepPlan plan_steps(const config::TrainConfig& config, int64_t batches_per_epoch);

bool should_log(const StepPlan& plan, const config::TrainConfig& config, int64_t step);
bool should_evaluate(const StepPlan& plan, const config::TrainConfig& config, int64_t step);
bool should_save(const StepPlan& plan, const config::TrainConfig& config, int64_t step);

// The steps after `done` finished ones for which should_save() is true; with save_strategy best,
// after whose evaluation a save may follow.
int64_t count_saves(const StepPlan& plan, const config::TrainConfig& config, int64_t done);

}  // namespace strata::train
