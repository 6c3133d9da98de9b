// gradient_checkpointing_mode auto: how little may be recomputed, found with the plan of the run
// before there is one. Owns: the order in which layers come to keep more, and the search. Never:
// the plan; where memory is measured.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "strata/comm/mesh.h"
#include "strata/config/run_config.h"
#include "strata/train/planning/plan.h"

namespace strata::train {

bool chooses_checkpointing(const config::ShardConfig& config);

// "full", "none", "attention in the first 12 layers, selective in the others".
std::string checkpointing_text(const config::ShardConfig& config);

struct CheckpointingChoice {
  // As gradient_checkpointing_mode, but none where nothing is recomputed, and _rest.
  config::Checkpointing mode = config::Checkpointing::kFull;
  config::Checkpointing rest = config::Checkpointing::kNone;
  int64_t layers = 0;  // as gradient_checkpointing_layers
  int num_layers = 0;  // that could be recomputed
  int64_t planned_bytes = 0;
  bool fits = false;  // false: not even with everything recomputed

  void apply(config::ShardConfig& config) const;
  std::string text() const;  // "full in the first 12 of 32 layers, attention in the others"
};

// What a plan says that counts here.
struct PlannedPeak {
  int64_t bytes;
  int num_recomputed;  // blocks whose forward pass is run again
};
using PlanPeak = std::function<PlannedPeak(const config::RunConfig&)>;

// The one that recomputes least of those whose plan needs at most `bytes`: from full for all layers
// over attention and selective to none, a layer at a time, the last ones first. Calls `plan` some
// log2(3 * layers) times.
CheckpointingChoice choose_checkpointing(const config::RunConfig& config, int64_t bytes,
                                         const PlanPeak& plan);

// For a run that recomputes whole layers: what auto would spare it in `bytes`, with one or two
// plans. None where it would spare nothing, or the settings choose something else.
std::optional<std::string> recomputation_hint(const config::RunConfig& config, int64_t bytes,
                                              const PlanPeak& plan);

// choose_checkpointing() for the run that is about to start on this mesh: collective, and alike on
// every rank. Rank 0 plans with `request`. Returns what to tell the user.
std::string choose_checkpointing(config::RunConfig& config, const comm::Mesh& mesh,
                                 at::Device device, int64_t room, const PlanRequest& request);

// recomputation_hint() for the run that is about to start, with what is free for this rank of its
// GPU. None on a CPU, where others may want what is free, and where there is no plan. Not
// collective.
std::optional<std::string> recomputation_hint(const config::RunConfig& config, at::Device device,
                                              int num_sharers, const PlanRequest& request);

}  // namespace strata::train
