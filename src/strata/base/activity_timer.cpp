#include "strata/base/activity_timer.h"

namespace strata {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kNone = -1;

struct Ledger {
  ActivitySeconds seconds{};
  int running = kNone;
  Clock::time_point since;

  // Charges what runs and goes on with `next`.
  void turn_to(int next) {
    const Clock::time_point now = Clock::now();
    if (running != kNone) {
      seconds[static_cast<size_t>(running)] += std::chrono::duration<double>(now - since).count();
    }
    running = next;
    since = now;
  }
};

thread_local Ledger ledger;

}  // namespace

const char* name_of(Activity activity) {
  constexpr std::array<const char*, kNumActivities> kNames = {
      "matrix products", "attention", "element-wise", "loss",
      "collectives",     "update",    "files",        "data"};
  return kNames[static_cast<size_t>(activity)];
}

const ActivitySeconds& activity_seconds() { return ledger.seconds; }

ActivityTimer::ActivityTimer(Activity activity) : outer_(ledger.running) {
  ledger.turn_to(static_cast<int>(activity));
}

ActivityTimer::~ActivityTimer() { ledger.turn_to(outer_); }

}  // namespace strata
