#include "launches.h"

namespace emulated_gpu {
namespace {

thread_local LaunchesLeftOut* active = nullptr;

}  // namespace

LaunchesLeftOut::LaunchesLeftOut() : outer_(active) { active = this; }
LaunchesLeftOut::~LaunchesLeftOut() { active = outer_; }

bool LaunchesLeftOut::is_active() { return active != nullptr; }

bool LaunchesLeftOut::leave_out() {
  if (active == nullptr) return false;
  ++active->count_;
  return true;
}

}  // namespace emulated_gpu
