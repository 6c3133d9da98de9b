// The learning-rate schedule and the loss scale that the settings ask for. Never: what they are
// (optim/).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "strata/config/run_config.h"
#include "strata/optim/loss_scaler.h"
#include "strata/optim/metric_schedule.h"

namespace strata::train {

// The factor of a step's learning rate; empty: the schedule answers to the evaluated loss.
std::function<double(int64_t)> lr_schedule(const config::OptimConfig& optim, int64_t max_steps);

// Such a schedule; none: the factor follows the step. Throws ConfigError when nothing is evaluated.
std::optional<optim::MetricSchedule> metric_schedule(const config::RunConfig& config);

// Throws ConfigError for what either would throw, before the number of steps is known.
void require_schedule(const config::RunConfig& config);

// None: not in fp16.
std::optional<optim::LossScaler> loss_scaler(const config::ShardConfig& shard);

}  // namespace strata::train
