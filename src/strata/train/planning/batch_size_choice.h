// auto_find_batch_size: how many rows a micro-batch may have, found with the plan of the run
// instead of by running out of memory. Owns: the search. Never: where memory is measured.
#pragma once

#include <functional>
#include <string>

#include "strata/comm/mesh.h"
#include "strata/config/run_config.h"
#include "strata/train/planning/plan.h"

namespace strata::train {

struct BatchSizeChoice {
  int64_t rows = 0;  // 0: not even one fits
  int64_t planned_bytes = 0;
};

// The most rows, at most `limit`, for which `plan` (bytes of so many rows, which must not fall with
// them) needs at most `bytes`. Calls it some log2(limit) times.
BatchSizeChoice choose_batch_size(int64_t limit, int64_t bytes,
                                  const std::function<int64_t(int64_t rows)>& plan);

// The same for the run that is about to start: collective, and alike on every rank; rank 0 plans.
// A run that is resumed takes the number that it had, as Trainer does, where it fits and is not
// beyond the limit. Returns what to tell the user. Throws OutOfMemoryError where one row does not
// fit into `room`.
std::string choose_batch_size(config::RunConfig& config, const comm::Mesh& mesh, at::Device device,
                              int64_t room,
                              const std::function<PlanRequest(const config::RunConfig&)>& request);

}  // namespace strata::train
