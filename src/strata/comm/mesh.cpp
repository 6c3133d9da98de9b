#include "strata/comm/mesh.h"

#include "strata/base/error.h"
#include "strata/comm/fake_group.h"
#include "strata/comm/rendezvous.h"
#include "strata/comm/single_group.h"

namespace strata::comm {
namespace {

void check_divides(int world_size, int shard_size) {
  if (shard_size < 1 || world_size % shard_size != 0) {
    throw ConfigError(
        "device mesh: found {} ranks to be divided into shard groups of {}, expected a "
        "divisor of the world size; change num_processes or the sharding strategy",
        world_size, shard_size);
  }
}

}  // namespace

Mesh make_mesh(Rendezvous& rendezvous, int shard_size) {
  const int world = rendezvous.options().world_size;
  const int rank = rendezvous.options().rank;
  check_divides(world, shard_size);
  const int replica = rank / shard_size;
  const int position = rank % shard_size;
  std::vector<int> shard_ranks, replicate_ranks;
  for (int i = 0; i < shard_size; ++i) shard_ranks.push_back(replica * shard_size + i);
  for (int i = 0; i < world / shard_size; ++i) replicate_ranks.push_back(i * shard_size + position);
  Mesh mesh;
  mesh.world = rendezvous.make_group("world");
  mesh.shard = rendezvous.make_group("shard" + std::to_string(replica), shard_ranks);
  mesh.replicate = rendezvous.make_group("replicate" + std::to_string(position), replicate_ranks);
  return mesh;
}

Mesh make_fake_mesh(int world_size, int shard_size) {
  check_divides(world_size, shard_size);
  const auto make = [](int size) -> std::unique_ptr<Group> {
    if (size == 1) return make_single_group();
    return std::make_unique<FakeGroup>(0, size);
  };
  return Mesh{make(world_size), make(shard_size), make(world_size / shard_size)};
}

}  // namespace strata::comm
