// The directions in which ranks share work: `shard` ranks hold different pieces of the same
// parameters, `replicate` ranks hold the same pieces, `sequence` ranks have parts of the same rows.
// Every strategy is a shape of this mesh.
#pragma once

#include <limits>
#include <memory>

#include "strata/comm/group.h"

namespace strata::comm {

class Rendezvous;

// World rank = replica * shard.size() + position in the shard group; a part group is a run of
// neighbours inside a shard group, a sequence group one of the world.
// Invariants: shard->size() * replicate->size() == world->size(); part->size() divides
// shard->size(), sequence->size() world->size().
struct Mesh {
  std::unique_ptr<Group> world;
  std::unique_ptr<Group> shard;
  std::unique_ptr<Group> replicate;
  std::unique_ptr<Group> part{};  // null unless units rest in parts between forward and backward
  std::unique_ptr<Group> sequence{};  // null: every rank has rows of its own

  int sequence_size() const { return sequence ? sequence->size() : 1; }
  // The ranks as the code that distributes rows sees them.
  int data_parallel_size() const { return world->size() / sequence_size(); }
  int data_parallel_rank() const { return world->rank() / sequence_size(); }
  // One rank of all that have the same rows: it counts them.
  bool counts_rows() const { return !sequence || sequence->rank() == 0; }
};

struct MeshShape {
  int shard_size = 1;
  int part_size = 0;  // 0: no part groups
  int sequence_size = 1;
};

// `shard_size` and `sequence_size` must divide the world size, `part_size` the shard size
// (ConfigError). What makes a mesh checks it too; before ranks have met, it is every rank's own
// error.
void check_mesh_shape(int world_size, const MeshShape& shape);

// Collective over all ranks.
Mesh make_mesh(Rendezvous& rendezvous, const MeshShape& shape);

// Where the ranks of a fake mesh would be; decides what their transport would take.
struct ImitatedMachines {
  int local_world_size = std::numeric_limits<int>::max();
  bool share_memory = true;  // ranks of one machine
  bool have_accelerators = false;
};

// A mesh of fake groups for dry runs, seen from rank 0.
Mesh make_fake_mesh(int world_size, const MeshShape& shape, const ImitatedMachines& machines = {});
Mesh make_fake_mesh(int world_size, int shard_size);

// `tensor` becomes its sum over the shard group, the same to the bit on every rank of the world:
// shard groups may add in different orders, and copies of one weight must be updated alike.
// Collective over the world; returns when the sum is there.
void sum_alike(const Mesh& mesh, const at::Tensor& tensor);

// Whether ranks of one machine share memory: what carries the smallest group of several. Where that
// reaches beyond the machine it tells nothing, and no group lies inside one.
bool shares_memory(const Mesh& mesh);

// What this rank has sent of parameters, gradients and, in its sequence group, activations.
struct SentBytes {
  int64_t shard = 0;
  int64_t replicate = 0;
  int64_t part = 0;
  int64_t sequence = 0;

  int64_t total() const { return shard + replicate + part + sequence; }
  SentBytes operator-(const SentBytes& b) const {
    return {shard - b.shard, replicate - b.replicate, part - b.part, sequence - b.sequence};
  }
  SentBytes operator*(int64_t times) const {
    return {shard * times, replicate * times, part * times, sequence * times};
  }
  SentBytes& operator+=(const SentBytes& b) {
    shard += b.shard;
    replicate += b.replicate;
    part += b.part;
    sequence += b.sequence;
    return *this;
  }
  bool operator==(const SentBytes&) const = default;
};
SentBytes sent_bytes(const Mesh& mesh);

// What the transports that a fake mesh imitates would take of a process, besides tensors.
int64_t imitated_process_bytes(const Mesh& mesh);

}  // namespace strata::comm
