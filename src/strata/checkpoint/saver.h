// Saving while training goes on: the state is copied to host memory, then a thread writes it. Owns:
// the copy, the thread, the removal of old checkpoints. Never: the decision when to save.
#pragma once

#include <atomic>
#include <exception>
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
  FileSystem* files = &real_file_system();
  // What a test lets fail: memory for copies, and the copy.
  std::function<std::vector<LocalPiece>(const std::vector<LocalPiece>&)> take_memory =
      snapshot_memory;
  std::function<std::vector<LocalPiece>(const std::vector<LocalPiece>&, std::vector<LocalPiece>)>
      copy = snapshot;
};

// How many seconds training paused for a save.
struct SaveStall {
  double waiting = 0;  // for the save before it, if that was still being written
  double copying = 0;  // the state to host memory; 0 without a background
  double whole = 0;    // all of it
};

// How a save ended; unless noted, values are this rank's.
struct SaveOutcome {
  std::filesystem::path folder;  // the same on every rank, and of what wait() returns failure too
  std::string failure;           // empty: it is there, whole
  std::string leftover = {};  // what went wrong besides, such as an older one's removal; or empty
  bool is_told = false;       // poll() has returned it as it is
  uint64_t size_bytes = 0;
  double seconds = 0;  // from the end of the copy to the last sync
  SaveStall stall = {};
};

// Which older checkpoints total_limit may remove.
struct Removal {
  bool is_allowed = true;
  std::vector<std::filesystem::path> kept = {};
};

// What a rank adds to a request before anything is written. Not collective; an exception fails
// the save, on all ranks alike, and not the run.
using CompleteRequest = std::function<void(SaveRequest&)>;

// Invariants: at most one save is being written; an old checkpoint goes only after a newer one is
// durable.
// A group that broke (a rank waited longer for another than its time-out) is not used again: from
// then on training waits for saves, which go over the group of all ranks.
// Collective: save() and wait(), on all ranks alike. Threads: one caller; `group` must be used by
// nothing else from save() to wait(). Memory: in the background a copy of this rank's state, kept
// for the next save; none on replicas of a rank that writes.
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

  // Starts a save and returns when training may continue: after the copy (in the background) or the
  // whole save. Returns the outcome of the save before, if nobody has asked for it yet. Throws
  // CommError where a collective after the state has been ended from outside.
  std::optional<SaveOutcome> save(SaveRequest request, Removal removal = {},
                                  const CompleteRequest& complete = {});
  // How a save ended on this rank, once, when it has ended; wait() returns it all the same. Never
  // waits.
  std::optional<SaveOutcome> poll();
  // The outcome of the last save, after it has ended on all ranks; nothing if it was returned.
  std::optional<SaveOutcome> wait();
  // Whether `group` broke, on which all ranks agree after wait().
  bool has_lost_group() const { return has_lost_group_; }

 private:
  // One save on this rank.
  struct Job {
    SaveRequest request;
    Removal removal;
    std::vector<LocalPiece> pieces = {};  // what this rank writes of what trains
    std::vector<LocalPiece> fixed = {};   // and besides; never copied
    std::exception_ptr unready = {};      // why it has nothing to write
  };

  // What this rank writes: nothing on replicas of one that does.
  std::vector<LocalPiece> own_pieces() const;
  void collect(Job& job, const CompleteRequest& complete) const;
  // Runs `work`, which sets is_finished_, on the writer's thread.
  void start(const std::function<void()>& work);
  // The calling thread's calls of the device are those of this rank's.
  void use_device() const;
  // Throws CommError where what the weights were made of may never have come.
  void require_sound_state() const;
  // Puts the snapshot in the place of what trains. False, with the reason in `outcome`, where there
  // is no memory for it.
  bool copy(Job& job, SaveOutcome& outcome);
  void remove_older(const Job& job);
  void write(const Job& job);
  void join();
  // Ranks may have heard other ends of one save where the group broke in its last collectives.
  void agree();

  shard::UnitStore& store_;
  optim::Optimizer* optimizer_;
  comm::Group& group_;
  SaverOptions options_;
  std::vector<LocalPiece> snapshot_;
  std::thread writer_;  // makes room for the first copy, then writes saves
  std::atomic<bool> is_finished_ = false;
  bool has_lost_group_ = false;
  // The writer's until it is joined.
  std::optional<SaveOutcome> outcome_;
  AfterSave after_;
  bool is_group_broken_ = false;
};

}  // namespace strata::checkpoint
