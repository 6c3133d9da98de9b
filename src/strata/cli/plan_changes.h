// What may be changed so that a plan fits: settings and ranks, one change each. Owns: the list, in
// the order in which it is offered. Never: plans; it does not know what fits (plan_report.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strata/config/run_config.h"

namespace strata::cli {

// Where a planned run computes.
struct PlannedPlace {
  int world_size;
  int nodes;
  bool is_cuda;
  int64_t process_bytes;             // of one rank, beside its tensors
  std::optional<int64_t> available;  // to one rank
};

// A change of settings that costs something else: time, ranks, or another result.
struct PlanChange {
  std::string text;
  std::function<bool(config::RunConfig&, PlannedPlace&)> apply;  // false: already so
  bool keeps_training = true;  // false: other weights are trained, or on less of the data
};

// All of them; which can be applied depends on the run.
std::vector<PlanChange> plan_changes();

}  // namespace strata::cli
