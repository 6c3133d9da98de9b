// A request to stop that comes while a run is still loading. Owns: what SIGUSR1 does until training
// has handlers of its own (train/loop/stop_signals.h), and again after it, and to a launcher while
// it has no ranks that it could pass it on to. Never: SIGTERM, which launchers send to the ranks
// beside one that failed; who takes that for a request would have the failed run come again.
#pragma once

namespace strata::cli {

// From here on it ends the process at once with launch::kStoppedExitCode, as it does a run that
// trains: nothing is lost, and whoever asked starts it again. So does one that waits since the
// program's start (base/stop_request.h). Once training has begun, where it
// finds this again, it does nothing: the run is at its end. `message`: what is said then on
// standard error, of static storage; null: nothing.
void end_on_early_request(const char* message);

inline constexpr const char* kStoppedEarly =
    "\nstopped on request before training began: nothing was lost, start it again\n";

}  // namespace strata::cli
