// Which processes `strata launch` starts on this machine, and with what environment. Never: starts
// them (worker.h).
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "strata/config/run_config.h"
#include "strata/launch/affinity.h"
#include "strata/launch/port.h"

namespace strata::launch {

struct LaunchPlan {
  std::vector<std::string> command;  // program and arguments of every rank
  int first_rank = 0;                // of this machine
  int local_world_size = 1;
  int world_size = 1;
  // What every rank gets beside the inherited environment; RANK and LOCAL_RANK are added per rank.
  std::vector<std::pair<std::string, std::string>> environment;
  std::filesystem::path log_dir;  // empty: output of ranks above 0 is relayed line by line
  std::vector<int> tee;           // by local rank: what is shown beside the log file (kTee...)
  // Where this machine's rank 0 will be met: handed to it, so that nobody takes the port meanwhile.
  std::optional<ReservedPort> port;
  std::vector<std::vector<int>> cores;  // by local rank; empty: the system places the threads
  // A rank that waits for others for longer is taken for a hang; zero: forever.
  std::chrono::milliseconds hang_timeout{0};
  std::filesystem::path stack_dir;  // for the ranks' stacks then
  std::string launch_time;          // as STRATA_LAUNCH_TIME says it
  int max_restarts = 0;
  int attempt = 0;  // how often the ranks have been started before
  // The ranks are runs of a recipe, not a program of the user's own. They begin as
  // hold_save_requests() and hold_stop_requests() leave a program, so that a request cannot come
  // too early, and end with 0 only when their run is at its end, with kStoppedExitCode when they
  // were told to stop before.
  bool runs_recipe = false;
};

struct MachineFacts {
  int num_cores = 1;    // that this process may use
  int num_devices = 0;  // accelerators in sight
  bool has_omp_num_threads = false;
  std::vector<Core> cores = {};
};
MachineFacts inspect_machine(const config::LaunchConfig& config);

// Threads of a rank, of which a machine has `local_world_size`: as many as the settings say, else
// its share of the cores. Where OMP_NUM_THREADS is set that counts unless the settings say
// otherwise.
int threads_of_rank(const config::LaunchConfig& config, const MachineFacts& machine,
                    int local_world_size);

// What is shown of a rank that has a log file; torchrun's numbers.
inline constexpr int kTeeOutput = 1, kTeeErrors = 2, kTeeBoth = 3;

// "0", "3" for all ranks of this machine, or "0:1,2:3" by local rank. Throws ConfigError.
std::vector<int> parse_tee(const std::string& text, int local_world_size);

// The variable that tells rank 0 the number of the descriptor that holds its port.
inline constexpr const char* kListenVariable = "STRATA_LISTEN_FD";

// How many seconds ranks wait for each other at the start.
inline constexpr const char* kJoinTimeoutVariable = "STRATA_JOIN_TIMEOUT";

// Settles the number of ranks, the address and port of rank 0, the threads and cores of a rank.
// `start_time`: seconds since 1970 at which the launcher started, handed on as STRATA_LAUNCH_TIME.
// Throws ConfigError: processes that do not divide by machines, no address for several machines, a
// port in use, a list of devices that is none or too short.
LaunchPlan plan_launch(const config::LaunchConfig& config, const MachineFacts& machine,
                       std::vector<std::string> command, double start_time);

}  // namespace strata::launch
