// What `strata plan` and --dry_run say of a run. Owns: the wording, what fits and what would.
// Never: prints.
#pragma once

#include <string>

#include "strata/config/resolve.h"

namespace strata::cli {

struct PlanReport {
  std::string text;
  bool fits = true;  // false: into --device_memory; true where that is not given
};

// Throws ConfigError for settings that cannot be.
PlanReport plan_report(const config::RunConfig& config);

// Ranks of the run that is planned: --world_size, else those that a launcher would start.
int planned_world_size(const config::RunConfig& config);

// The same for --dry_run, with every setting, the units and the schedule.
std::string dry_run_report(const config::Settings& settings, int world_size);

}  // namespace strata::cli
