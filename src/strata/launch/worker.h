// One started rank: its process, and the pipes its output comes through. Owns: fork and exec, what
// a rank inherits. Never: decides when to stop (supervisor.h).
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/launch/plan.h"
#include "strata/launch/watchdog.h"

namespace strata::launch {

// Stops silently when the reader is gone.
void write_all(int target, std::string_view text);

// The same for whole lines. On a terminal they replace rank 0's progress bar, which is drawn again
// after its next step.
void write_lines(int target, std::string_view text);

// Passes on what a pipe delivers, line by line, each with a prefix.
// Threads: one.
class LineRelay {
 public:
  LineRelay() = default;
  // `source`: a non-blocking read end. `target` stays the caller's.
  LineRelay(Descriptor source, int target, std::string prefix);

  int source() const { return source_.get(); }
  // Reads what is there and writes whole lines. False at the end, after writing the rest.
  bool relay();
  void close();

 private:
  void write_line(std::string_view line);
  Descriptor source_;
  int target_ = -1;
  std::string prefix_;
  std::string pending_;
};

struct Worker {
  int rank = 0;
  std::unique_ptr<WatchedRank> watched;
  pid_t pid = -1;
  bool is_running = false;
  int wait_status = 0;
  LineRelay out, err;              // of ranks that are relayed
  std::filesystem::path log_file;  // of ranks that write to one
};

struct Streams {
  int out = 1;
  int err = 2;
};

// Starts the rank in a process group of its own, to be killed with this process. Global rank 0
// inherits `streams`, so that a terminal stays one; standard input is empty for all.
// Throws IoError when the program cannot be started.
Worker start_worker(const LaunchPlan& plan, int local_rank, const Streams& streams);

}  // namespace strata::launch
