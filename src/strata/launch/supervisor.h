// Runs the ranks of this machine to their end. Owns: relaying output and signals, stopping all when
// one fails. Never: training, or anything printed beside the ranks' output and the one line that
// names the rank that failed.
#pragma once

#include <chrono>

#include "strata/launch/meeting.h"
#include "strata/launch/worker.h"

namespace strata::launch {

struct SupervisorOptions {
  Streams streams = {};
  // The launchers of the other machines, when they start and end together; may be null.
  Meeting* meeting = nullptr;
  // After a failure the other ranks may end by themselves for this long, with their own message and
  // without their half-written files, before they are told to.
  std::chrono::milliseconds patience{2000};
  // From the first failure, or a SIGINT, until what is left is killed. After a SIGINT ranks whose
  // status page says that they save or train are waited for.
  std::chrono::milliseconds grace{5000};
  // The same after SIGTERM or SIGHUP.
  std::chrono::milliseconds grace_after_term{120000};
  // After this machine's ranks ended well, for those of the others.
  std::chrono::milliseconds wait_for_others{300000};
};

// What a rank exits with that was given settings that cannot be used.
inline constexpr int kWrongSettings = 2;

struct RunEnd {
  int exit_code = 0;
  bool was_interrupted = false;  // this process was told to stop
};

// Starts the ranks and waits for all of them. Exit code: 0, or that of the rank that failed first
// (128 + signal when it was killed), or kStoppedExitCode when all ranks stopped on request, or 128
// + signal when this process was told to stop and they neither stopped nor came to their end.
// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on; a second SIGINT kills at once. When
// it returns no process of any rank's process group is left, and none is a zombie. Threads: none
// may run beside the caller (it blocks signals and forks).
RunEnd run_workers(const LaunchPlan& plan, const SupervisorOptions& options);

}  // namespace strata::launch
