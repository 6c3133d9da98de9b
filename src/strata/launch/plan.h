// Which processes `strata launch` starts on this machine, and with what environment. Never: starts
// them (workers.h).
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "strata/config/run_config.h"

namespace strata::launch {

struct LaunchPlan {
  std::vector<std::string> command;  // program and arguments of every rank
  int first_rank = 0;                // of this machine
  int local_world_size = 1;
  int world_size = 1;
  // What every rank gets beside the inherited environment; RANK and LOCAL_RANK are added per rank.
  std::vector<std::pair<std::string, std::string>> environment;
  std::filesystem::path log_dir;  // empty: output of ranks above 0 is relayed line by line
};

struct MachineFacts {
  int num_cores = 1;    // that this process may use
  int num_devices = 0;  // accelerators in sight
  bool has_omp_num_threads = false;
};
MachineFacts inspect_machine(const config::LaunchConfig& config);

// Settles the number of ranks, the address and port of rank 0 and the threads of a rank.
// `start_time`: seconds since 1970 at which the launcher started, handed on as STRATA_LAUNCH_TIME.
// Throws ConfigError: processes that do not divide by machines, no address for several machines, a
// port in use.
LaunchPlan plan_launch(const config::LaunchConfig& config, const MachineFacts& machine,
                       std::vector<std::string> command, double start_time);

// A TCP port that nothing listens on now.
int free_port();
bool is_port_free(int port);

}  // namespace strata::launch
