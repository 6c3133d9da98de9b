// Starting all ranks again after one failed. Owns: when that makes sense. Never: what a rank
// resumes from (checkpoint/).
#pragma once

#include <optional>

#include "strata/launch/supervisor.h"

namespace strata::launch {

// Runs the ranks up to 1 + plan.max_restarts times, until they end well, are told to stop, or end
// for a reason that another start would not change: wrong settings (exit code 2), a run that saved
// itself to be continued later (kStoppedExitCode). Returns as run_workers.
int run_with_restarts(LaunchPlan& plan, const SupervisorOptions& options);

// In a rank. How often `strata launch` has started it before; 0 under another launcher.
int restart_count();

// In a rank: when its launcher started, in seconds after 1970; nothing under another launcher. What
// was saved since is this run's own, so that a restart continues from there and not from what an
// earlier run left.
std::optional<double> launch_time();

}  // namespace strata::launch
