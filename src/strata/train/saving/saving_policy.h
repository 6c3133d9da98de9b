// What the settings say of a run's checkpoints. Read by the loop that saves and by the plan of its
// memory. Never: whether there is room (preflight.h).
#pragma once

#include "strata/config/run_config.h"

namespace strata::train {

struct SavingPolicy {
  bool saves = false;  // checkpoints, also when nobody asks for one
  bool with_optimizer = true;
  bool in_whole_files = false;  // FULL_STATE_DICT
  // From a copy in host memory, which is kept from the first save on; where there is no room for
  // it, training waits.
  bool in_background = false;
};

SavingPolicy saving_policy(const config::RunConfig& config);

}  // namespace strata::train
