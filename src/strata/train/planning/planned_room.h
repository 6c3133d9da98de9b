// The room that a rank has where it computes, and what a plan says that it needs of it: what
// gradient_checkpointing_mode auto and auto_find_batch_size weigh, and what is told where it is too
// little. Never: the choice.
#pragma once

#include <optional>
#include <string>

#include "strata/comm/mesh.h"
#include "strata/config/run_config.h"
#include "strata/train/planning/plan.h"

namespace strata::train {

// What this process has by now of what a plan counts: of a GPU what libtorch took of it.
int64_t held_bytes(at::Device device);

// Nine tenths of what is free on its GPU, or else on this machine, for one of the `num_sharers`
// ranks that compute there, in bytes, and what the rank holds.
int64_t free_room(at::Device device, int num_sharers);

// Bytes, those of the rank that has least: memory_budget, else free_room().
// Collective.
int64_t room_of_run(const config::RunConfig& config, const comm::Mesh& mesh, at::Device device,
                    int num_sharers);

// The peak of the plan with what the process, or a GPU's libraries, take besides tensors.
int64_t needed_bytes(const RunPlan& plan, at::Device device);

// A warning where a rank will take more than its share of what is free, for rank 0; nothing
// elsewhere. `bytes_to_come`: beyond what it has by now; rank 0's counts for all, none: unknown.
// Collective.
std::optional<std::string> memory_warning(const comm::Mesh& mesh, at::Device device,
                                          int num_sharers, std::optional<int64_t> bytes_to_come);

}  // namespace strata::train
