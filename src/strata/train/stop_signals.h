// Requests to stop from outside (pre-emption): SIGTERM and SIGUSR1 while training. Owns: the
// handlers while it lives. Never: ends the process.
#pragma once

#include <csignal>
#include <functional>

#include "strata/comm/group.h"

namespace strata::train {

// Whether this rank was asked to stop. An empty one: nobody asks.
using StopRequest = std::function<bool()>;
// Whether any rank was. Collective over `world` unless empty.
bool is_any_asked(const StopRequest& request, comm::Group& world);

// One object at a time in a process. Threads: any may ask.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool is_requested() const;

 private:
  struct sigaction previous_term_;
  struct sigaction previous_user_;
};

}  // namespace strata::train
