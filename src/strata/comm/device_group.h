// A group whose ranks compute on GPUs: tensors of the host go one way, those of the device another.
// Owns: that choice. Never: a transport.
#pragma once

#include <string>
#include <vector>

#include "strata/comm/group.h"
#include "strata/comm/rendezvous.h"

namespace strata::comm {

// `host` carries tensors of the CPU. Those of the device go through NCCL where every rank of the
// group has a GPU of its own, else through host memory. Collective. `ranks` as in make_group(). The
// rendezvous must outlive the group.
std::unique_ptr<Group> make_device_group(Rendezvous& rendezvous, const std::string& name,
                                         const std::vector<int>& ranks,
                                         std::unique_ptr<Group> host);

// A name for the GPU of each of `ranks`, the same for those that share one. Collective over them,
// all of which compute on GPUs. Throws CommError.
std::vector<std::string> names_of_gpus(Rendezvous& rendezvous, const std::vector<int>& ranks);

}  // namespace strata::comm
