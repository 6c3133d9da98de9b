// The block `scheduler` of a ds_config. Owns: the parameters that each type knows. Never: the
// schedules' formulas (optim/deepspeed_schedule.h).
#pragma once

#include "strata/config/deepspeed/file.h"
#include "strata/config/merge.h"

namespace strata::config {

// Adds lr_scheduler_type and lr_scheduler_kwargs; "auto" stays in the latter for the schedule,
// which knows the learning rate and the steps. ConfigError: unknown types and parameters with the
// closest name, missing ones, and values that contradict a flag.
void translate_scheduler(const DsFile& file, Merge& merge);

}  // namespace strata::config
