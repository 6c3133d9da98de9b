// Where the settings let parameters, optimizer state and activations rest in files. Owns: the
// folders of this rank and their removal. Never: what is written there (shard/home_file.h).
#pragma once

#include <memory>
#include <string>

#include "strata/base/scratch_folder.h"
#include "strata/config/run_config.h"
#include "strata/shard/home_file.h"

namespace strata::train {

// Throws for a folder that is missing or not writable (IoError), or that lies in memory (tmpfs), so
// that offloading to it would save nothing (ConfigError). Allocates nothing.
void check_offload_folders(const config::ShardConfig& config);

// The folders of one rank; off where the settings say so. Must outlive what is stored in them.
struct OffloadFolders {
  std::unique_ptr<ScratchFolder> parameters, state, activations;

  explicit OffloadFolders(const config::ShardConfig& config);
  bool is_on() const { return parameters || state || activations; }
  shard::FileHomeOptions parameter_files() const { return options_of(parameters.get()); }
  shard::FileHomeOptions state_files() const { return options_of(state.get()); }
  shard::FileHomeOptions activation_files() const { return options_of(activations.get()); }

 private:
  shard::FileHomeOptions options_of(const ScratchFolder* folder) const;
  FileQueueOptions queue_;
};

// What a person is told about it: a line each, none when everything is stored in memory as it would
// without the settings. `device`: where blocks compute.
std::vector<std::string> describe_offload(const config::ShardConfig& config,
                                          const OffloadFolders& folders, at::Device device);

}  // namespace strata::train
