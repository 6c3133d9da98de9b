// A run's output folder before anything is written to it. Owns: who may write there, what a crash
// left there, whether the kind of result fits. Never: what checkpoints hold (checkpoint/repair.h),
// room on the disk (saving/preflight.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/base/folder_lock.h"
#include "strata/comm/group.h"
#include "strata/config/run_config.h"

namespace strata::train {

// Rank 0's: the lock while the run lasts, and what its user should know.
struct OutputFolder {
  std::optional<FolderLock> lock;
  std::vector<std::string> notes;
};

// Makes the folder, locks it, finishes what a crash left half-way and removes what never will be
// whole. On its own, before the data: rank 0's error must not wait until the others have read
// theirs. ConfigError where another run writes there, or a result of another kind lies there;
// IoError for a folder that cannot be written or that the ranks do not share. Collective.
void take_output_folder(const config::RunConfig& config, comm::Group& world, OutputFolder& taken);

}  // namespace strata::train
