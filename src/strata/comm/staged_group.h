// Collectives over tensors of a device through host memory: for ranks that share one GPU, which
// NCCL refuses, and machines whose GPUs it cannot join. Owns: the copies. Never: the transport.
#pragma once

#include "strata/comm/group.h"

namespace strata::comm {

// Every tensor is copied to host memory, goes through `host`, and comes back at wait(). The host
// waits for the device when a collective starts.
std::unique_ptr<Group> make_staged_group(std::shared_ptr<Group> host);

}  // namespace strata::comm
