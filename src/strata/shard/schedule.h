// The list of steps of one micro-batch, written down before the run from the strategy. The executor
// walks it, the memory plan walks it, `strata plan` prints it. Pure data; no tensors.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace strata::shard {

enum class Action {
  kGather,    // start gathering unit `index` into a slot
  kRelease,   // give unit `index`'s slot back
  kForward,   // run block `index` forward
  kLoss,      // run the last block forward and backward in one go (the loss is known to be the end)
  kBackward,  // run block `index` backward, before that forward again where `keep` runs_again()
  kReduce,    // start reducing unit `index`'s gradient into its home
  kRefresh,   // start bringing the updated masters of unit `index` into its slot
  kRead,      // start reading unit `index`'s home from its file, for the gather after the next ones
  kOffload,   // start moving block `index`'s input to where it is stored until its backward pass
  kFetch,     // start bringing it back
};

// How a block's forward pass is kept for its backward pass.
enum class Keep {
  kNothing,      // no backward pass follows
  kInput,        // full checkpointing: the input alone; the forward pass is run again
  kAttention,    // the input and what nn::KeptAttention keeps; the rest is run again
  kSelected,     // selective checkpointing: what is costly to compute; the rest is computed again
  kActivations,  // everything autograd saves
};

// Whether the block's forward pass is run again, from its input.
constexpr bool runs_again(Keep keep) { return keep == Keep::kInput || keep == Keep::kAttention; }

struct Step {
  Action action;
  int index;
  Keep keep = Keep::kNothing;  // kForward and kBackward only
  // kRelease: keep this rank's part of the smaller reshard group; kGather: gather those parts.
  bool part = false;
};

using Schedule = std::vector<Step>;

// What the schedule must know of the model.
// Invariants: the vectors over blocks have equal length >= 2; block_units is sorted.
struct ChainShape {
  std::vector<std::vector<int>> block_units;
  std::vector<bool> block_trains;  // the block has trainable parameters
  // False for an embedding: its gradient needs the ids alone.
  std::vector<bool> backward_reads_parameters;
  std::vector<bool> unit_trains;
  int decoder_begin = 0;  // models::Model::decoder_begin()
};

// When the next unit of the backward pass is gathered, as FSDP means the names.
enum class BackwardPrefetch {
  kPre,   // before the gradients of the running block: both units are whole for a while
  kPost,  // after them and after this unit's release, before its reduction goes on the wire
  kNone,  // when its block is about to run, after the reduction
};

// Ordered from the kind that keeps most to the one that keeps least.
enum class Checkpointing { kNone, kSelective, kAttention, kFull };

inline constexpr int kAllBlocks = std::numeric_limits<int>::max();

// A strategy is a row of this table.
struct ScheduleOptions {
  bool reshard_after_forward = true;  // FULL_SHARD; false: units stay gathered until their backward
  bool reshard_to_part = false;       // between forward and backward a unit is stored in parts
  bool resident = false;              // ZeRO-1, ZeRO-2: units stay gathered between steps as well
  bool reduce_every_micro_step = true;  // false (ZeRO-1, no_sync): gradients stay whole until the
                                        // last micro-step of a step
  int slots = 2;  // limit_all_gathers: units gathered at once, the running block's included
  bool forward_prefetch = true;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  Checkpointing activation_checkpointing = Checkpointing::kFull;
  // The first blocks, so many, which would hold their activations longest; those after
  // them are checkpointed in another way.
  int checkpointed_blocks = kAllBlocks;
  Checkpointing checkpointing_behind = Checkpointing::kNone;
  int read_ahead = 0;  // homes in files: units whose read starts before the gather that is next
  // Inputs of recomputed blocks rest elsewhere until then (ActivationHome).
  bool offload_activations = false;
};

// Everything that is walked during a run.
struct Schedules {
  Schedule start;         // once, before the first micro-batch: resident units
  Schedule accumulation;  // a micro-batch that is not the last of its step
  Schedule training;      // the last micro-batch of a step
  Schedule evaluation;    // forward only
  Schedule decoding;      // the same of the decoder's blocks; empty where there is no encoder
  Schedule refresh;       // after parameters were changed: resident units that train
};

Schedules build_schedules(const ChainShape& shape, const ScheduleOptions& options);

// Invariants of the result: a block runs only while its units are gathered; every gather has one
// release (none of either when resident); a trained unit is reduced exactly once, after the
// earliest block in forward order that uses it has run backward (I3); blocks before the first
// trained one keep nothing (I5) and have no backward step (I4); an input that is offloaded leaves
// as its block begins and is fetched once, ahead of the backward pass before its own.
Schedule training_schedule(const ChainShape& shape, const ScheduleOptions& options);

// Forward only: evaluation. Blocks before `first_block` are left out.
Schedule evaluation_schedule(const ChainShape& shape, const ScheduleOptions& options,
                             int first_block = 0);

// One line a step, such as "gather 3" or "backward 2 (recompute)".
std::string describe(const Schedule& schedule);

}  // namespace strata::shard
