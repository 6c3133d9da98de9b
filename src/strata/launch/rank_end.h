// How a rank ended: as an exit code and in words. Never: what follows from it (supervisor.h).
#pragma once

#include <string>

#include "strata/launch/worker.h"

namespace strata::launch {

// Of what waitpid() said: that of the process, or 128 + signal.
int exit_code_of(int wait_status);

// On request, with its state saved.
bool has_stopped(const Worker& worker);

// "killed by signal 9 (Killed); ...".
std::string end_of(const Worker& worker);

// The end of its log file, which holds its message; empty: its errors were shown.
std::string tail_of_log(const Worker& worker);

}  // namespace strata::launch
