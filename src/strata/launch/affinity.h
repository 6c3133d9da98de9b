// Which cores of the machine a rank may use. Never: moves a process (worker.h).
#pragma once

#include <vector>

namespace strata::launch {

struct Core {
  int cpu = 0;      // the system's number
  int node = 0;     // of memory
  int package = 0;  // socket
  int core = 0;     // in the package; hardware threads of one core share it
};

// The cores that this process may use, with their places as the system tells them.
std::vector<Core> inspect_cores();

// CPU numbers for each of `ranks`: neighbours (threads of a core, then cores of a memory node)
// stay together, shares differ by one at most. With fewer cores than ranks, some share one.
std::vector<std::vector<int>> share_cores(std::vector<Core> cores, int ranks);

}  // namespace strata::launch
