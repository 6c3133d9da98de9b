// A loop around the supervisor.
#include "strata/launch/restarts.h"

#include <cstdlib>

#include <fmt/format.h>

#include "strata/launch/environment.h"

namespace strata::launch {

namespace {

void set_variable(LaunchPlan& plan, const std::string& name, const std::string& value) {
  for (auto& [known, old] : plan.environment) {
    if (known == name) old = value;
  }
}

// The number of this machine and the port of rank 0 as the machines have agreed on.
void take_round(LaunchPlan& plan, Round round) {
  plan.attempt = round.attempt;
  plan.first_rank = round.machine_rank * plan.local_world_size;
  plan.port = std::move(round.reserved);
  set_variable(plan, "MASTER_PORT", std::to_string(round.port));
  if (!round.launch_time.empty()) set_variable(plan, "STRATA_LAUNCH_TIME", round.launch_time);
}

}  // namespace

int run_with_restarts(LaunchPlan& plan, const SupervisorOptions& options) {
  for (plan.attempt = 0;; ++plan.attempt) {
    if (options.meeting != nullptr) take_round(plan, options.meeting->begin_round(plan.attempt));
    const RunEnd end = run_workers(plan, options);
    const bool is_final = end.was_interrupted || end.exit_code == 0 ||
                          end.exit_code == kWrongSettings || end.exit_code == kStoppedExitCode ||
                          (options.meeting != nullptr && options.meeting->is_over());
    if (is_final || plan.attempt >= plan.max_restarts) return end.exit_code;
    write_lines(options.streams.err, fmt::format("starting all ranks again: restart {} of {}\n",
                                                 plan.attempt + 1, plan.max_restarts));
  }
}

int restart_count() {
  const char* count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const bool is_ours = std::getenv("STRATA_LAUNCH_TIME") != nullptr;
  return is_ours && count != nullptr ? std::atoi(count) : 0;
}

std::optional<double> launch_time() {
  const char* launched = std::getenv("STRATA_LAUNCH_TIME");
  if (launched == nullptr) return std::nullopt;
  return std::strtod(launched, nullptr);
}

}  // namespace strata::launch
