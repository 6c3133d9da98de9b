// Learning-rate schedules of the reference's Trainer, as pure functions of the step. Owns:
// formulas. Source: transformers 5 get_scheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "strata/base/json.h"

namespace strata::optim {

struct ScheduleSettings {
  std::string type = "linear";
  Json kwargs = Json::object();  // lr_scheduler_kwargs
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;
  double learning_rate = 1;  // polynomial and min_lr express their ends in it
};

// factor(s) multiplies the learning rate of the update that follows s finished updates (s from 0).
// Throws ConfigError for an unknown type (with the closest name), a kwarg that the type does not
// know, and a missing one that it needs.
std::function<double(int64_t)> make_schedule(const ScheduleSettings& settings);

}  // namespace strata::optim
