// The list of steps of one micro-batch, written down before the run from the strategy. The executor
// walks it, the memory plan walks it, `strata plan` prints it. Pure data; no tensors.
#pragma once

#include <string>
#include <vector>

namespace strata::shard {

enum class Action {
  kGather,    // start gathering unit `index` into a slot
  kRelease,   // give unit `index`'s slot back
  kForward,   // run block `index` forward
  kLoss,      // run the last block forward and backward in one go (the loss is known to be the end)
  kBackward,  // run block `index` backward, recomputing its forward first when `recompute`
  kReduce,    // start reducing unit `index`'s gradient into its home
};

// How a block's forward pass is kept for its backward pass.
enum class Keep {
  kNothing,      // no backward pass follows
  kInput,        // activation checkpointing: the input alone; the forward pass is run again
  kActivations,  // everything autograd saves
};

struct Step {
  Action action;
  int index;
  Keep keep = Keep::kNothing;  // kForward and kBackward only
};

using Schedule = std::vector<Step>;

// What the schedule must know of the model.
// Invariants: the vectors over blocks have equal length >= 2; block_units is sorted.
struct ChainShape {
  std::vector<std::vector<int>> block_units;
  std::vector<bool> block_trains;  // the block has trainable parameters
  std::vector<bool>
      backward_reads_parameters;  // false for an embedding: its gradient needs ids only
  std::vector<bool> unit_trains;
};

// A strategy is a row of this table.
struct ScheduleOptions {
  bool reshard_after_forward = true;  // FULL_SHARD; false: units stay gathered until their backward
  int forward_prefetch = 1;           // units gathered ahead of the running block
  int backward_prefetch = 1;          // BACKWARD_PRE: 1; BACKWARD_POST and none: 0
  bool activation_checkpointing = true;
};

// Invariants of the result: a block runs only while its units are gathered; every gather has one
// release; a trained unit is reduced exactly once, after the earliest block in forward order that
// uses it has run backward (I3); blocks before the first trained one keep nothing (I5) and have no
// backward step (I4).
Schedule training_schedule(const ChainShape& shape, const ScheduleOptions& options);

// Forward only: evaluation.
Schedule evaluation_schedule(const ChainShape& shape, const ScheduleOptions& options);

// One line a step, such as "gather 3" or "backward 2 (recompute)".
std::string describe(const Schedule& schedule);

// The most units that are gathered at once, a walk over the schedule.
int peak_gathered_units(const Schedule& schedule);

}  // namespace strata::shard
