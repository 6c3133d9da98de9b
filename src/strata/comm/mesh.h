// The two directions in which ranks share work: `shard` ranks hold different pieces of the same
// parameters, `replicate` ranks hold the same pieces. Every strategy is a shape of this mesh.
#pragma once

#include <memory>

#include "strata/comm/group.h"

namespace strata::comm {

class Rendezvous;

// World rank = replica * shard.size() + position in the shard group; a part group is a run of
// neighbours inside a shard group.
// Invariants: shard->size() * replicate->size() == world->size(); part->size() divides
// shard->size().
struct Mesh {
  std::unique_ptr<Group> world;
  std::unique_ptr<Group> shard;
  std::unique_ptr<Group> replicate;
  std::unique_ptr<Group> part{};  // null unless units rest in parts between forward and backward
};

struct MeshShape {
  int shard_size = 1;
  int part_size = 0;  // 0: no part groups
};

// `shard_size` must divide the world size and `part_size` the shard size (ConfigError). What makes
// a mesh checks it too; before ranks have met, it is every rank's own error.
void check_mesh_shape(int world_size, const MeshShape& shape);

// Collective over all ranks.
Mesh make_mesh(Rendezvous& rendezvous, const MeshShape& shape);

// A mesh of fake groups for dry runs, seen from rank 0.
Mesh make_fake_mesh(int world_size, const MeshShape& shape);
Mesh make_fake_mesh(int world_size, int shard_size);

}  // namespace strata::comm
