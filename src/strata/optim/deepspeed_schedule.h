// The learning-rate schedules of DeepSpeed (runtime/lr_schedules.py, 0.19.8) under its names, as
// factors of the learning rate. Owns: formulas. As there the first two updates of a warm-up from 0
// do nothing: the schedule is one step behind the updates. "auto" in their kwargs is filled from
// the run.
#pragma once

#include <cstdint>
#include <functional>

#include "strata/optim/lr_schedule.h"

namespace strata::optim {

// Each as make_schedule(): factor(s) is for the update that follows s finished updates.
std::function<double(int64_t)> deepspeed_warmup(const ScheduleSettings& settings);
std::function<double(int64_t)> deepspeed_warmup_decay(const ScheduleSettings& settings);
std::function<double(int64_t)> deepspeed_warmup_cosine(const ScheduleSettings& settings);
// Without its cycle of momentum, which has to be switched off (cycle_momentum false).
std::function<double(int64_t)> deepspeed_one_cycle(const ScheduleSettings& settings);
std::function<double(int64_t)> deepspeed_range_test(const ScheduleSettings& settings);

}  // namespace strata::optim
