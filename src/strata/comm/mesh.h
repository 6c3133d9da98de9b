// The two directions in which ranks share work: `shard` ranks hold different pieces of the same
// parameters, `replicate` ranks hold the same pieces. Every strategy is a shape of this mesh.
#pragma once

#include <memory>

#include "strata/comm/group.h"

namespace strata::comm {

class Rendezvous;

// World rank = replica * shard.size() + position in the shard group.
// Invariants: shard->size() * replicate->size() == world->size().
struct Mesh {
  std::unique_ptr<Group> world;
  std::unique_ptr<Group> shard;
  std::unique_ptr<Group> replicate;
};

// Collective over all ranks. `shard_size` must divide the world size (ConfigError).
Mesh make_mesh(Rendezvous& rendezvous, int shard_size);

// A mesh of fake groups for dry runs, seen from rank 0.
Mesh make_fake_mesh(int world_size, int shard_size);

}  // namespace strata::comm
