// One started rank: its process, and what its output comes through. Owns: fork and exec, what a
// rank inherits, which of its output is shown and which goes to its log file. Never: decides when
// to stop (supervisor.h).
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/launch/plan.h"
#include "strata/launch/relay.h"
#include "strata/launch/watchdog.h"

namespace strata::launch {

struct Worker {
  int rank = 0;
  std::unique_ptr<WatchedRank> watched;
  pid_t pid = -1;
  bool is_running = false;
  int wait_status = 0;
  Descriptor log;  // with a log folder
  std::filesystem::path log_file;
  bool shows_errors = true;  // here, not only in the log file
  Relay out, err;            // of what this program passes on
};

struct Streams {
  int out = 1;
  int err = 2;
};

// Starts the rank in a process group of its own, to be killed with this process. Global rank 0
// inherits `streams`, so that a terminal stays one, and with a log folder gets one of its own that
// is passed on; standard input is empty for all. Throws IoError when the program cannot be started.
Worker start_worker(const LaunchPlan& plan, int local_rank, const Streams& streams);

}  // namespace strata::launch
