// Whether what came of collectives may be used, and whether ranks have ended: what some transports
// know beside what they carry. Owns: the questions. Never: a transport.
#pragma once

#include "strata/comm/mesh.h"

namespace strata::comm {

// Groups that know implement it beside Group. Threads: any.
class Liveness {
 public:
  virtual ~Liveness() = default;
  virtual void require_alive() const {}
  virtual bool has_lost_peer() const { return false; }
};

// For a host that has waited for results and bases a decision on them. NCCL's collectives are
// ended from outside (nccl_watch.h), which leaves tensors as they were and is no error of a stream.
// Throws CommError once that has happened in the group; nothing of groups that cannot know.
void require_alive(const Group& group);
void require_alive(const Mesh& mesh);  // in any of its groups

// Whether a rank of the group is seen to have ended; false of groups that do not look.
bool has_lost_peer(const Group& group);

}  // namespace strata::comm
