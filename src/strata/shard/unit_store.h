// The homes of all units and their visits to slots: gather, release, gradient buffers, reduction.
// Owns: every parameter's memory. Never: the order of operations; the schedule has that.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "strata/comm/mesh.h"
#include "strata/libtorch/side_stream.h"
#include "strata/shard/home_file.h"
#include "strata/shard/host_gradients.h"
#include "strata/shard/slot_pool.h"
#include "strata/shard/unit.h"

namespace strata::shard {

// Where this rank's shard of one segment is stored.
struct Home {
  // [shard_numel], storage type: the fp32 master when it trains. Of a home in a file: a view of it,
  // for what is not done every step.
  at::Tensor value;
  at::Tensor gradient;               // [shard_numel], fp32; undefined for frozen segments
  std::optional<FileRegion> region;  // of UnitStore::file(), when the value is stored there
};

struct StoreOptions {
  at::ScalarType compute_type = at::kFloat;  // type of gathered values
  // Trained values are rounded to this type before they are gathered: what travels. 16 bits with
  // compute_type fp32 is fp32 arithmetic on 16-bit values. Undefined: the compute type.
  at::ScalarType param_type = at::ScalarType::Undefined;
  at::ScalarType reduce_type = at::kFloat;  // of gradients while they are summed over ranks
  at::Device device = at::kCPU;             // where units visit slots and blocks compute
  // Homes of parameters, gradients and optimizer state are in host memory, apart from the slots,
  // pinned if there is a GPU, and updates run on the CPU (offload). Without a GPU it is a copy in
  // the same memory: no setting asks for it, but tests use it to cover the code path of a GPU run.
  bool homes_on_host = false;
  WrapPolicy wrap = {};
  FileHomeOptions parameter_files = {};  // on: parameters are stored in a file (NVMe offload)
};

// What the homes of one rank take up in a file.
uint64_t parameter_file_bytes(const Partition& partition);

// Where the values of a unit are. They cycle from kSharded or kInParts back to one of the two; a
// refresh() goes back from kGathered to kGathering.
enum class Residence {
  kSharded,    // in the home only
  kGathering,  // slot taken, all-gather in flight
  kGathered,   // slot whole, values attached
  kInParts,    // this rank's part of the smaller reshard group, from which the next gather starts
};

// Where its gradients are, apart from the values: each state follows the one before, the first the
// last.
enum class Gradients {
  kNone,      // in the home only
  kOpen,      // whole buffer attached, written by backward, over several micro-steps if reduce()
              // waits that long
  kReducing,  // reduce-scatter in flight
  kSumming,   // in the home; the sum over replicas in flight, where there are any
};

// A call that is out of order by these states is an InternalError that names the unit.
// Invariants: a shard group of one rank whose values need no conversion uses its home as the slot;
// nothing is copied then.
// Collective: gather(), refresh(), reduce(), settle_reduce() and with_stored(), in the same order
// on every rank.
class UnitStore {
 public:
  UnitStore(models::Model& model, comm::Mesh& mesh, const StoreOptions& options);
  ~UnitStore();
  UnitStore(const UnitStore&) = delete;
  UnitStore& operator=(const UnitStore&) = delete;

  const Partition& partition() const { return partition_; }
  int num_units() const { return static_cast<int>(partition_.units.size()); }
  const Unit& unit(int u) const { return partition_.units[static_cast<size_t>(u)]; }
  // The caller may write to it, so the promise of compute_copy() for the segment is withdrawn.
  Home& home(int u, int segment);
  comm::Mesh& mesh() { return mesh_; }
  models::Model& model() { return model_; }
  SlotPool& pool() { return pool_; }
  // The file in which parameters are stored; null: they are in memory.
  HomeFile* file() { return file_.get(); }
  const StoreOptions& options() const { return options_; }
  // Where homes in memory are, and with them the optimizer's state.
  at::Device home_device() const {
    return options_.homes_on_host && !options_.device.is_meta() ? at::kCPU : options_.device;
  }
  // Waits for all gradients on their way to homes in host memory. Call before those are read.
  void finish_transfers() { host_gradients_.finish(); }

  // Starts to read homes that are in a file, for the next gather. Does nothing for other homes.
  void start_read(int u);
  // Starts an all-gather into a slot, after the end of the read (started now if it was not).
  // `from_parts`: over the smaller group. Requires: kSharded; with `from_parts` kInParts.
  void gather(int u, bool from_parts = false);
  // Finishes the gather: afterwards the unit's parameters have values. Requires: kGathering, or
  // kGathered, where it does nothing.
  void wait_gather(int u);
  // Finishes the gather and gives the slot back; values are gone. Requires: as wait_gather().
  // `keep_part`: this rank keeps its part of the smaller group. Requires: mesh().part.
  void release(int u, bool keep_part = false);
  // Finishes the gather and starts to gather the trained segments into the slot that the unit has;
  // wait_gather() before values are read again. Requires: as wait_gather().
  void refresh(int u);

  // For a segment that trains and stays gathered: this rank's part of the slot, [shard_numel] of 16
  // bits: an update of the home writes its values there too, all pieces of this rank, so that the
  // next refresh converts nothing. The segment has no values until then (I1). Undefined: there
  // is no such part, and gathers convert. Call after home().
  at::Tensor compute_copy(int u, int segment);

  // Attaches a whole gradient buffer to each trainable parameter of the unit, which stays until
  // reduce(), be it in a later micro-step. Requires: kNone.
  void open_gradients(int u, bool first_micro_step);
  bool has_open_gradients(int u) const;
  // Starts the reduction of the whole gradient into the homes, for the last micro-step over the
  // replicas too: those after the shard group, from settle_reduce() on. Requires: kOpen.
  void reduce(int u, bool last_micro_step);
  // Waits for the shard group; the sum over replicas is under way afterwards. Requires: kReducing.
  void settle_reduce(int u);
  // Waits for all of it. Requires: kReducing or kSumming.
  void wait_reduce(int u);

  // Calls `use` with the whole segment in its storage type, for export: [>= segment.numel] in rank
  // order. In a shard group of one it is the home itself, wherever that is: do not write to it.
  void with_stored(int u, int segment, const std::function<void(const at::Tensor&)>& use);

 private:
  struct Visit;
  struct State;
  State& state_of(int u) { return *states_[static_cast<size_t>(u)]; }
  // The unit's state, which must be one of `expected`. `call`: the operation, for the error.
  State& require(int u, const char* call, std::initializer_list<Residence> expected);
  State& require(int u, const char* call, std::initializer_list<Gradients> expected);
  // The element type of a gathered segment: the compute type, but codes are decoded where they are
  // used, not before, and buffers keep their own.
  at::ScalarType slot_type(const Segment& segment) const;
  at::ScalarType wire_type(const Segment& segment) const;
  // Zeros in the memory of homes; not for files.
  at::Tensor home_memory(int64_t numel, at::ScalarType type) const;
  // Whether homes are in other memory than the slots: with a GPU, in host memory or in a file.
  bool rests_elsewhere() const;
  // A copy, on the computing device, of a home that is elsewhere.
  at::Tensor on_device(const at::Tensor& resting) const;
  // Writes it to `own`, which has another type, as converted where blocks compute.
  void convert_on_device(const at::Tensor& own, const at::Tensor& resting) const;
  // Whether the whole gradient is the home's.
  bool has_own_gradients() const;
  // Memory next to the homes, as large as the largest shard that trains.
  at::Tensor make_staging() const;
  // Whether the home itself can serve as the slot.
  bool is_own_slot(const Segment& segment) const;
  // Where this rank's shard goes in what is gathered.
  at::Tensor own_part(const at::Tensor& whole, const Segment& segment) const;
  void start_gather(Visit& visit, const Segment& segment);
  void attach_values(int u);
  void start_reduce_scatter(Visit& visit, const Segment& segment, bool first_micro_step);
  // Sums the home's gradient over replicas in the reduce type.
  std::unique_ptr<comm::Work> sum_over_replicas(Visit& visit);
  void finish_replicas(Visit& visit);
  void start_read(Visit& visit);
  // The shard as memory: the home's value, or what was read of it.
  at::Tensor resting_value(Visit& visit);
  // After a reduce-scatter: adds what arrived to the home and starts the sum over replicas.
  void settle_reduced(Visit& visit, const State& state);

  models::Model& model_;
  comm::Mesh& mesh_;
  StoreOptions options_;
  Partition partition_;
  SlotPool pool_;
  SlotPool read_pool_;  // buffers of direct reads
  std::unique_ptr<HomeFile> file_;
  std::vector<std::unique_ptr<State>> states_;
  // With a GPU: casts and copies into slots, ahead of the blocks that compute.
  SideStream gather_stream_;
  HostGradients host_gradients_;  // of homes in host memory
};

}  // namespace strata::shard
