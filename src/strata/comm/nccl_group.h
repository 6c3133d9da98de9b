// Collectives between GPUs through NCCL, on a stream of their own. Owns: the communicator and the
// stream. Never: tensors of the host. Only in builds with CUDA.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "strata/comm/group.h"
#include "strata/comm/rendezvous.h"

namespace strata::comm {

// The GPU of this process, the same name for whoever else uses it. Requires: the current device.
std::string name_of_gpu(at::Device device);

// Collective over `ranks` of the rendezvous. Throws CommError.
// Stream: every collective starts after what the current stream has, and runs beside what comes
// later; wait() makes the current stream wait, not the host.
// `has_lost_peer`: whether a rank of the group is seen to have ended, asked from another thread
// while the group lives.
std::unique_ptr<Group> make_nccl_group(
    Rendezvous& rendezvous, const std::string& name, const std::vector<int>& ranks,
    at::Device device, std::function<bool()> has_lost_peer = [] { return false; });

}  // namespace strata::comm
