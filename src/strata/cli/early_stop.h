// Requests to stop that come while a run is still loading. Owns: what SIGTERM and SIGUSR1 do until
// training has handlers of its own (train/loop/stop_signals.h), and again behind it.
#pragma once

namespace strata::cli {

// From here on they end the process at once with launch::kStoppedExitCode, as they do a run that
// trains: nothing is lost, and whoever asked starts it again. Once training has begun, where they
// find this again, they do nothing: the run is at its end. `tells`: says so on standard error.
void end_on_early_requests(bool tells);

}  // namespace strata::cli
