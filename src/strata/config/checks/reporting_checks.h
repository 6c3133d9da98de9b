// Where a run's numbers go. Owns: the names of report_to. Never: other rules (checks.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"
#include "strata/config/run_config.h"

namespace strata::config {

// Whether event files for TensorBoard are asked for; "all" means what there is here.
bool reports_to_tensorboard(const TrainConfig& train);

// Throws ConfigError for a name that Trainer does not know either; appends a line for every one
// that it knows and nobody writes here, and for a logging_dir without use.
void check_reporting(const RunConfig& config, const Merge& merge,
                     std::vector<std::string>& warnings);

}  // namespace strata::config
