// A collective that never ends: a host that waits for a stream stands behind it. Owns: that wait.
// Never: what the collective was.
#pragma once

#include <atomic>

namespace emulated_gpu {

// From now on the host waits for streams until `is_over`, which must not go away before.
void break_waits(const std::atomic<bool>& is_over);
// While a collective is broken. Requires: nothing of the machine is held.
void wait_behind_broken();

}  // namespace emulated_gpu
