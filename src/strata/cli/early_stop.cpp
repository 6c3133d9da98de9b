#include "strata/cli/early_stop.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string_view>

#include "strata/launch/environment.h"
#include "strata/train/loop/stop_signals.h"

namespace strata::cli {
namespace {

std::atomic<bool> tells_of_stop = false;

constexpr std::string_view kStopped =
    "\nstopped on request before training began: nothing was lost, start it again\n";

void end_at_once(int) {
  if (train::has_training_begun()) return;
  if (tells_of_stop) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kStopped.data(), kStopped.size());
  }
  ::_exit(launch::kStoppedExitCode);
}

}  // namespace

void end_on_early_request(bool tells) {
  tells_of_stop = tells;
  struct sigaction action = {};
  action.sa_handler = end_at_once;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGUSR1, &action, nullptr);
}

}  // namespace strata::cli
