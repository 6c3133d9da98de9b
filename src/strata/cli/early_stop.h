// A request to stop that comes while a run is still loading. Owns: what SIGUSR1 does until training
// has handlers of its own (train/loop/stop_signals.h), and again behind it. Never: SIGTERM, which
// launchers send to the ranks beside one that failed; who takes that for a request would have the
// failed run come again.
#pragma once

namespace strata::cli {

// From here on it ends the process at once with launch::kStoppedExitCode, as it does a run that
// trains: nothing is lost, and whoever asked starts it again. Once training has begun, where it
// finds this again, it does nothing: the run is at its end. `tells`: says so on standard error.
void end_on_early_request(bool tells);

}  // namespace strata::cli
