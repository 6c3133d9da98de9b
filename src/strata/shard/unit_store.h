// The homes of all units and their visits to slots: gather, release, gradient buffers, reduction.
// Owns: every parameter's memory. Never: the order of things; the schedule has that.
#pragma once

#include <memory>
#include <vector>

#include "strata/comm/mesh.h"
#include "strata/shard/slot_pool.h"
#include "strata/shard/unit.h"

namespace strata::shard {

// Where this rank's shard of one segment rests.
struct Home {
  at::Tensor value;     // [shard_numel], storage type: the fp32 master when it trains
  at::Tensor gradient;  // [shard_numel], fp32; undefined for frozen segments
};

struct StoreOptions {
  at::ScalarType compute_type = at::kFloat;  // type of gathered values
  at::Device device = at::kCPU;
};

// States of a unit: sharded (home only) -> gathering (slot taken, all-gather in flight) -> gathered
// (slot whole, values attached) -> sharded. Gradients: none -> open (whole buffer attached, being
// written by backward) -> reducing (reduce-scatter in flight) -> none.
// Invariants: a shard group of one rank whose storage type is the compute type uses its home as the
// slot; nothing is copied then.
// Collective: gather(), reduce() and gather_stored(), in the same order on every rank.
class UnitStore {
 public:
  UnitStore(models::Model& model, comm::Mesh& mesh, const StoreOptions& options);
  ~UnitStore();
  UnitStore(const UnitStore&) = delete;
  UnitStore& operator=(const UnitStore&) = delete;

  const Partition& partition() const { return partition_; }
  int num_units() const { return static_cast<int>(partition_.units.size()); }
  const Unit& unit(int u) const { return partition_.units[static_cast<size_t>(u)]; }
  Home& home(int u, int segment);
  comm::Mesh& mesh() { return mesh_; }
  models::Model& model() { return model_; }
  SlotPool& pool() { return pool_; }
  const StoreOptions& options() const { return options_; }

  // Starts an all-gather into a slot. Requires: unit is sharded.
  void gather(int u);
  // Finishes the gather: afterwards the unit's parameters have values.
  void wait_gather(int u);
  // Gives the slot back; values are gone.
  void release(int u);
  bool is_gathered(int u) const;

  // Attaches a whole gradient buffer to each trainable parameter of the unit.
  void open_gradients(int u, bool first_micro_step);
  bool has_open_gradients(int u) const;
  // Starts the reduction of the whole gradient into the homes. On the last micro-step it also sums
  // over replicas.
  void reduce(int u, bool last_micro_step);
  void wait_reduce(int u);

  // The whole segment in its storage type, for export: [segment.numel] in rank order. The buffer
  // must go back to pool().
  at::Tensor gather_stored(int u, int segment);

 private:
  struct Visit;
  struct State;
  void attach_values(int u);
  // After a reduce-scatter: adds what arrived to the home and sums over replicas.
  void settle_reduced(Visit& visit, bool last_micro_step);

  models::Model& model_;
  comm::Mesh& mesh_;
  StoreOptions options_;
  Partition partition_;
  SlotPool pool_;
  std::vector<std::unique_ptr<State>> states_;
};

}  // namespace strata::shard
