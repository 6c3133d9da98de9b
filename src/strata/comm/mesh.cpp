#include "strata/comm/mesh.h"

#include "strata/base/error.h"
#include "strata/comm/fake_group.h"
#include "strata/comm/rendezvous.h"
#include "strata/comm/single_group.h"

namespace strata::comm {
namespace {

// `size` ranks from `first` on, `stride` apart.
std::vector<int> ranks_of(int first, int size, int stride = 1) {
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

}  // namespace

void check_mesh_shape(int world_size, const MeshShape& shape) {
  if (shape.shard_size < 1 || world_size % shape.shard_size != 0) {
    throw ConfigError(
        "device mesh: found {} ranks to be divided into shard groups of {}, expected a "
        "divisor of the world size; change num_processes or the sharding strategy",
        world_size, shape.shard_size);
  }
  if (shape.part_size < 0 || (shape.part_size > 0 && shape.shard_size % shape.part_size != 0)) {
    throw ConfigError(
        "fsdp_reshard_group_size: found {} for shard groups of {} ranks, expected a divisor; "
        "change it or num_processes",
        shape.part_size, shape.shard_size);
  }
  if (shape.sequence_size < 1 || world_size % shape.sequence_size != 0) {
    throw ConfigError(
        "sequence_parallel_size: found {} for {} rank{}, expected a divisor of the world size; "
        "change it or num_processes",
        shape.sequence_size, world_size, world_size == 1 ? "" : "s");
  }
}

Mesh make_mesh(Rendezvous& rendezvous, const MeshShape& shape) {
  const int world = rendezvous.options().world_size;
  const int rank = rendezvous.options().rank;
  check_mesh_shape(world, shape);
  const int shard_size = shape.shard_size;
  const int replica = rank / shard_size;
  const int position = rank % shard_size;
  Mesh mesh;
  mesh.world = rendezvous.make_group("world");
  mesh.shard = rendezvous.make_group("shard" + std::to_string(replica),
                                     ranks_of(replica * shard_size, shard_size));
  mesh.replicate = rendezvous.make_group("replicate" + std::to_string(position),
                                         ranks_of(position, world / shard_size, shard_size));
  if (shape.part_size > 0) {
    const int part = rank / shape.part_size;
    mesh.part = rendezvous.make_group("part" + std::to_string(part),
                                      ranks_of(part * shape.part_size, shape.part_size));
  }
  if (shape.sequence_size > 1) {
    const int sequence = rank / shape.sequence_size;
    mesh.sequence =
        rendezvous.make_group("sequence" + std::to_string(sequence),
                              ranks_of(sequence * shape.sequence_size, shape.sequence_size));
  }
  return mesh;
}

Mesh make_fake_mesh(int world_size, const MeshShape& shape, const ImitatedMachines& machines) {
  check_mesh_shape(world_size, shape);
  const auto make = [&](int size, int stride = 1) -> std::unique_ptr<Group> {
    if (size == 1) return make_single_group();
    const bool on_one_machine = (size - 1) * stride < machines.local_world_size;
    const Imitated imitated = machines.have_accelerators                ? Imitated::kDirect
                              : machines.share_memory && on_one_machine ? Imitated::kSharedMemory
                                                                        : Imitated::kGloo;
    return std::make_unique<FakeGroup>(0, size, imitated);
  };
  Mesh mesh{make(world_size), make(shape.shard_size),
            make(world_size / shape.shard_size, shape.shard_size)};
  if (shape.part_size > 0) mesh.part = make(shape.part_size);
  if (shape.sequence_size > 1) mesh.sequence = make(shape.sequence_size);
  return mesh;
}

Mesh make_fake_mesh(int world_size, int shard_size) {
  return make_fake_mesh(world_size, MeshShape{.shard_size = shard_size});
}

void sum_alike(const Mesh& mesh, const at::Tensor& tensor) {
  if (mesh.shard->size() == 1 || tensor.numel() == 0) return;
  mesh.shard->all_reduce(tensor)->wait();
  if (mesh.replicate->size() > 1) mesh.replicate->broadcast(tensor, /*root=*/0)->wait();
}

bool shares_memory(const Mesh& mesh) {
  for (const Group* group :
       {mesh.sequence.get(), mesh.part.get(), mesh.shard.get(), mesh.replicate.get()}) {
    if (group != nullptr && group->size() > 1) return group->transport() != Transport::kGloo;
  }
  return true;
}

SentBytes sent_bytes(const Mesh& mesh) {
  const auto of = [](const std::unique_ptr<Group>& group) {
    return group ? group->traffic().sent_bytes : 0;
  };
  return {of(mesh.shard), of(mesh.replicate), of(mesh.part), of(mesh.sequence)};
}

int64_t imitated_process_bytes(const Mesh& mesh) {
  int64_t bytes = 0;
  for (const Group* group :
       {mesh.shard.get(), mesh.replicate.get(), mesh.part.get(), mesh.sequence.get()}) {
    if (const auto* fake = dynamic_cast<const FakeGroup*>(group)) bytes += fake->process_bytes();
  }
  return bytes;
}

}  // namespace strata::comm
