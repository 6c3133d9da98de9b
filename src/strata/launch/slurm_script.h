// The batch script that runs a launch line under SLURM. Owns: its text. Never: submits it, decides
// settings.
#pragma once

#include <string>
#include <vector>

#include "strata/config/run_config.h"

namespace strata::launch {

// What a job runs: `strata launch` on every machine.
struct SlurmJob {
  std::string program = {};  // strata on the machines
  int num_nodes = 1;
  int ranks_per_node = 1;
  bool uses_gpus = false;
  std::vector<std::string> launch_flags = {};  // without those that the script sets
  std::string recipe = {};                     // sft, train.py
  std::vector<std::string> arguments = {};     // of the recipe, without resume_from_checkpoint
  std::string resume_from = {};                // what they had there; empty: nothing
  std::string output_dir = {};                 // where checkpoints are looked for
  std::string work_folder = {};
};

// A bash script that shellcheck accepts. One task a node runs the launcher, whose machine rank is
// the node's number in the job. USR1 (before the time limit) and TERM (pre-emption) are passed on
// to the ranks; a job that was stopped so (kStoppedExitCode) is put back into the queue and resumes
// from the newest checkpoint in output_dir. Throws ConfigError for options that cannot stand in a
// script (line breaks).
std::string slurm_script(const config::SlurmConfig& slurm, const SlurmJob& job);

}  // namespace strata::launch
