#include "strata/cli/early_stop.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "strata/base/stop_request.h"
#include "strata/launch/environment.h"
#include "strata/train/loop/stop_signals.h"

namespace strata::cli {
namespace {

std::atomic<const char*> told = nullptr;

void end_at_once(int) {
  if (train::has_training_begun()) return;
  if (const char* message = told) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, message, std::strlen(message));
  }
  ::_exit(launch::kStoppedExitCode);
}

}  // namespace

void end_on_early_request(const char* message) {
  told = message;
  struct sigaction action = {};
  action.sa_handler = end_at_once;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGUSR1, &action, nullptr);
  release_stop_requests();
}

}  // namespace strata::cli
