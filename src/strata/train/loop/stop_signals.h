// Requests to stop from outside while training: SIGTERM and SIGUSR1 (pre-emption), SIGINT (Ctrl-C),
// SIGHUP (the terminal is gone).
// Owns: the handlers while it lives. Never: ends the process.
#pragma once

#include <csignal>
#include <functional>
#include <vector>

#include "strata/comm/group.h"

namespace strata::train {

// Whether this rank was asked to stop. An empty one: nobody asks.
using StopRequest = std::function<bool()>;
// Whether any rank was. Collective over `world` unless empty.
bool is_any_asked(const StopRequest& request, comm::Group& world);

// Whether this process has had StopSignals. Safe in a signal's handler.
bool has_training_begun();

// One object at a time in a process. Threads: any may ask. Who presses Ctrl-C a second time means
// it: after the first SIGINT that signal has its default action. SIGINT and SIGHUP stay ignored
// where they were, as in a shell's background and under nohup.
class StopSignals {
 public:
  // `tells`: says on standard error what the first SIGINT does, at once, since a step may be long.
  explicit StopSignals(bool tells);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool is_requested() const;
  // Whether SIGTERM was among the requests, which lets nothing wait that may take long.
  bool is_told_to_end() const;
  // No step follows: what the first SIGINT says is another thing from here on.
  void note_end_of_training();

 private:
  struct Replaced {
    int number;
    struct sigaction action;
  };
  void install(int number, int flags);

  std::vector<Replaced> replaced_;
};

}  // namespace strata::train
