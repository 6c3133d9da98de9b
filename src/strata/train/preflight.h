// What must hold before the first step so that no later save can fail for want of it: the folder is
// one and writable for all ranks, the disk has room. Owns: nothing.
#pragma once

#include <cstdint>
#include <filesystem>

#include "strata/checkpoint/state_pieces.h"
#include "strata/train/assemble.h"

namespace strata::train {

// On every rank but 0, after rank 0 has created the folder and its lock: the rank sees the same
// folder and can write to it. Throws IoError.
void require_shared_folder(const std::filesystem::path& folder, int rank);

struct SavePlan {
  uint64_t checkpoint_bytes = 0;  // of one checkpoint, all ranks together
  uint64_t result_bytes = 0;      // model or adapter
  int64_t num_checkpoints = 0;    // at once on the disk, beside those that are there already
};

// Throws IoError when the file system of `folder` has less room than the plan needs.
void require_disk_space(const std::filesystem::path& folder, const SavePlan& plan);

// `frozen`: what is saved beside the weights that train.
uint64_t checkpoint_bytes(Trainee& trainee, bool with_optimizer,
                          const checkpoint::FrozenWeights& frozen);
uint64_t result_bytes(const Trainee& trainee);

// Memory that this machine can give without swapping; 0: it does not say.
uint64_t available_memory_bytes();

}  // namespace strata::train
