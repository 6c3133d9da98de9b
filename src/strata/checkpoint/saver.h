// Saving while training goes on: the state is copied to host memory, then a thread writes it. Owns:
// the copy, the thread, the removal of old checkpoints. Never: the decision when to save.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "strata/checkpoint/sharded.h"

namespace strata::checkpoint {

struct SaverOptions {
  bool in_background = true;
  std::optional<int64_t> total_limit;  // checkpoints kept
  FrozenWeights frozen = {};           // saved beside what trains
  // What a test lets fail: memory for copies, and the copy.
  std::function<std::vector<LocalPiece>(const std::vector<LocalPiece>&)> take_memory =
      snapshot_memory;
  std::function<std::vector<LocalPiece>(const std::vector<LocalPiece>&, std::vector<LocalPiece>)>
      copy = snapshot;
};

// For how many seconds training stood still for a save.
struct SaveStall {
  double waiting = 0;  // for the save before it, if that was still being written
  double copying = 0;  // the state to host memory; 0 without a background
  double whole = 0;    // all of it
};

// How a save ended; folder and failure are the same on every rank, the rest is this one's.
struct SaveOutcome {
  std::filesystem::path folder;
  std::string failure;        // empty: it is durable
  std::string leftover = {};  // what went wrong besides, such as an older one's removal; or empty
  uint64_t size_bytes = 0;
  double seconds = 0;  // from the end of the copy to the last sync
  SaveStall stall = {};
};

// Invariants: at most one save is being written; an old checkpoint goes only after a newer one is
// durable.
// Collective: save(), on all ranks alike. Threads: one caller; `group` must be used by nothing
// else. Memory: in the background a copy of this rank's state, kept for the next save; none on
// replicas of a rank that writes.
class Saver {
 public:
  // Host memory that the copy would take on this rank.
  static uint64_t snapshot_bytes(shard::UnitStore& store, optim::Optimizer* optimizer);

  // Everything must outlive the saver. `optimizer` may be null. In the background memory for the
  // copy is taken at once, by the thread, so that the first save does not wait for its pages.
  Saver(shard::UnitStore& store, optim::Optimizer* optimizer, comm::Group& group,
        const SaverOptions& options);
  // Waits for the save that is being written.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Starts a save and returns when training may go on: after the copy (in the background) or the
  // whole save. `keep`: checkpoints that total_limit must not remove. Returns the outcome of the
  // save before, if nobody has asked for it yet.
  std::optional<SaveOutcome> save(SaveRequest request,
                                  std::vector<std::filesystem::path> keep = {});
  // The outcome of a save that has ended since the last call. Never waits.
  std::optional<SaveOutcome> poll();
  // The same after waiting for the save that is being written.
  std::optional<SaveOutcome> wait();

 private:
  // What this rank writes: nothing on replicas of one that does.
  std::vector<LocalPiece> own_pieces() const;
  // Runs `work`, which sets is_finished_, on the writer's thread.
  void start(const std::function<void()>& work);
  // Fills the snapshot. False, with the reason in `outcome`, where there is no memory for it.
  bool copy(const std::vector<LocalPiece>& pieces, SaveOutcome& outcome);
  void remove_older(const std::filesystem::path& output_dir,
                    std::vector<std::filesystem::path> keep);
  void write(const SaveRequest& request, const std::vector<LocalPiece>& pieces,
             const std::vector<std::filesystem::path>& keep);
  void join();

  shard::UnitStore& store_;
  optim::Optimizer* optimizer_;
  comm::Group& group_;
  SaverOptions options_;
  std::vector<LocalPiece> snapshot_;
  std::thread writer_;  // makes room for the first copy, then writes saves
  std::atomic<bool> is_finished_ = false;
  std::optional<SaveOutcome> outcome_;  // the writer's until it is joined
};

}  // namespace strata::checkpoint
