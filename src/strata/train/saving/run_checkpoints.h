// Which checkpoints of a run count: which it saved, what a save may remove, where a rollback may
// go, which one can be gone on from, which one alone stays at the end. Owns: those decisions.
// Never: saves, loads or removes one (checkpoint/), nor what is said of it (loop/trainer.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/checkpoint/saver.h"
#include "strata/config/run_config.h"
#include "strata/report/trainer_state.h"
#include "strata/train/loop/best_checkpoint.h"

namespace strata::train {

// A name for a run that starts anew, another one at every call.
std::string fresh_run_id();

// Every rank must report the same; then all give the same answers, but for those that are rank 0's
// to ask: they look at folders, which ranks may see otherwise, and hundreds at once would ask for.
// Invariants: a save counts from its start until it is known to have failed.
class RunCheckpoints {
 public:
  explicit RunCheckpoints(const config::RunConfig& config);

  // How a run begins: anew, or with what lies beside a checkpoint's tensors, at that one's step.
  // The second may be called for several until one can be used, which is then named, with what rank
  // 0 has seen() of it and of the best one. Returns a warning where that is gone
  // (BestCheckpoint::note_found), or nothing. Throws Json::exception.
  void begin_anew(std::string run_id) { run_id_ = std::move(run_id); }
  void go_on(const report::TrainerState& state, const Json& progress);
  std::string note_source(const std::filesystem::path& source, const std::string& seen);
  // After go_on(). Rank 0.
  std::string seen(const std::filesystem::path& source) const;

  // The id of this run and of those that it continues; empty where an older version or another tool
  // saved what it went on from: then it needs a new one, by begin_anew().
  const std::string& run_id() const { return run_id_; }
  // Finished before this process began.
  int64_t first_step() const { return first_step_; }

  const BestCheckpoint& best() const { return best_; }
  // After an evaluation at `step`: whether its value is better than all before it.
  bool judge(double value, int64_t step) { return best_.judge(value, step); }

  // Whether the weights may be bad: while batches are, and after a rollback until one was good.
  // Then a save must not push out checkpoints that are good.
  bool is_in_doubt(int64_t num_bad_in_a_row) const;
  // Whether the run continues from the newest checkpoint of its own folder. Rank 0.
  bool goes_on_from_newest() const;
  // Then: what a kill between that one's save and the removal of older ones has left, oldest first.
  // As many stay as the run that saved it kept (`saved_limit`), or this one where that is more.
  // Rank 0.
  std::vector<std::filesystem::path> left_over(std::optional<int64_t> saved_limit) const;
  // When checkpoint-STEP is about to be saved: which older ones may go.
  checkpoint::Removal start_save(int64_t step, bool in_doubt);
  // How a save ended, on which all ranks agree: what Saver::wait() returned. One that failed is as
  // if it had not been started.
  void note_end(const checkpoint::SaveOutcome& outcome);
  // The checkpoint of `step`, if this process saved it last.
  std::optional<std::filesystem::path> last(int64_t step) const;
  // With save_only_model the last one is without the optimizer: whoever means to continue from that
  // step needs another.
  void forget_last() { saved_step_ = -1; }
  // A request to save was answered with checkpoint-STEP, which is to be told when it is there.
  void note_request(int64_t step) { asked_step_ = step; }
  bool is_requested(const std::filesystem::path& folder) const;
  // checkpoint-STEP, unless it failed, has the optimizer although those that follow have not: it
  // stays until another such one is there.
  void note_resumable(int64_t step);
  // The newest checkpoint with an optimizer that this run knows of, where its own have none; what
  // it went on from, wherever that lies, until then. Empty: there is none.
  const std::filesystem::path& resumable() const { return resumable_; }

  // Before the first step: of `num_saves` that follow, how many are on the disk at once, beside the
  // checkpoints that are there. Rank 0.
  int64_t num_at_once(int64_t num_saves) const;

  // Weights are bad since the batch of `first_bad`: the step before which a checkpoint must be to
  // be returned to. Never one again from which no batch was good.
  int64_t rollback_limit(int64_t first_bad) const;
  // What may be returned to, best first. With save_only_model nothing. Rank 0.
  std::vector<std::filesystem::path> ways_back(int64_t first_bad) const;
  void note_return(const std::filesystem::path& source);
  void note_good_batch() { rollback_limit_ = kNoLimit; }

  // The best checkpoint was to be the result and cannot be read.
  void note_damaged_best() { is_best_damaged_ = true; }
  // At the end: the checkpoint beside which all others of the output folder go, as in the
  // reference: with save_total_limit 1 the best one, if there is one. Rank 0.
  std::optional<std::filesystem::path> only_one_kept() const;

 private:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Whether this run, or one that it continues from, saved it.
  bool is_own(const std::filesystem::path& checkpoint) const;
  bool is_in_output_dir(const std::filesystem::path& checkpoint) const;
  // What no save may remove.
  std::vector<std::filesystem::path> kept() const;
  // What it went on from may have any name.
  int64_t step_of(const std::filesystem::path& checkpoint) const;

  std::filesystem::path output_dir_;
  std::optional<int64_t> total_limit_;
  bool only_model_;
  BestCheckpoint best_;
  bool is_best_damaged_ = false;
  std::string run_id_;
  int64_t first_step_ = 0;
  bool was_in_doubt_ = false;      // when what this run continues from was saved
  std::set<int64_t> saved_steps_;  // of this process
  int64_t saved_step_ = -1;        // the last of them; -1: none, or it failed
  int64_t asked_step_ = -1;
  std::filesystem::path resumable_;
  int64_t resumable_step_ = -1;
  bool is_first_here_ = false;  // the one that it went on from lies in its output folder
  int64_t rollback_limit_ = kNoLimit;
};

}  // namespace strata::train
