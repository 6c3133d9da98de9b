// Collectives between ranks of one machine through shared memory. Owns: the thread that moves the
// data of one group. Never: who can share memory (shm_link.h).
#pragma once

#include "strata/comm/group.h"
#include "strata/comm/rendezvous.h"

namespace strata::comm {

// Collective over `ranks`, as make_gloo_group. Null on every rank when not all of them can share
// memory; `reason` is why, where they are on one machine.
//
// Sums are added in rank order, from rank 0: the same bits on every rank and in every run. The
// reduce-scatter's are those of the Gloo group to the bit; Gloo's all-reduce adds in the order of a
// ring, which for more than two ranks is another one.
// `timeout`: of a collective; nothing: the rendezvous'.
// Memory: 2 x 512 KiB a rank, whatever the tensors' sizes.
std::unique_ptr<Group> make_shm_group(Rendezvous& rendezvous, const std::string& name,
                                      const std::vector<int>& ranks, std::string& reason,
                                      std::optional<std::chrono::seconds> timeout = {});

}  // namespace strata::comm
