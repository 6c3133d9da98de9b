#include "strata/comm/liveness.h"

namespace strata::comm {

void require_alive(const Group& group) {
  if (const auto* known = dynamic_cast<const Liveness*>(&group)) known->require_alive();
}

void require_alive(const Mesh& mesh) {
  for (const Group* group : {mesh.world.get(), mesh.shard.get(), mesh.replicate.get(),
                             mesh.part.get(), mesh.sequence.get()}) {
    if (group != nullptr) require_alive(*group);
  }
}

bool has_lost_peer(const Group& group) {
  const auto* known = dynamic_cast<const Liveness*>(&group);
  return known != nullptr && known->has_lost_peer();
}

}  // namespace strata::comm
