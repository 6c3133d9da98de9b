// A run's saves, from the room that they need before the first step to the one that a request to
// stop makes. Owns: the saver, what lies besides tensors in checkpoints and is the same in all,
// whether this rank was asked to save. Never: the decision when a save is due (loop/trainer.h),
// nor which checkpoints count (run_checkpoints.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/checkpoint/saver.h"
#include "strata/train/datasets.h"
#include "strata/train/loop/step_plan.h"
#include "strata/train/saving/preflight.h"
#include "strata/train/saving/run_checkpoints.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

// The run as a checkpoint is to tell it.
struct RunMoment {
  int64_t step = 0;
  bool has_learned = false;
  int64_t num_bad_in_a_row = 0;  // batches
  // Rank 0: trainer_state.json and progress.json, made when the save before is known to have ended.
  std::function<checkpoint::SmallFiles()> state_files;
};

// Collective: everything but is_asked(), poll(), saves(), companions() and remove_all_but_best().
// Invariants: checkpoints hear of the start of every save, and of its end from what wait() returns.
class RunSaver {
 public:
  struct Options {
    comm::Group& group;         // of all ranks: the saving thread's, and patient_group()
    bool writes_result = true;  // at the end, by somebody else
    std::function<void(const std::string&)> say = {};
  };

  // Everything must outlive it.
  RunSaver(const config::RunConfig& config, const std::string& settings_text, Trainee& trainee,
           RunCheckpoints& checkpoints, Options options);

  // Before the first step, after what is resumed is known: reads what lies beside the model, looks
  // for room on the disk and in memory for every save of the run. Throws IoError, OutOfMemoryError.
  void prepare(const StepPlan& plan, int64_t step, const Datasets& datasets);
  // In a resumed run, before prepare(): completes what a kill prevented after the save that it goes
  // on from, the removal of older ones above all. What fails is told; the next save tries again.
  void finish_last_save();
  // Whether prepare() has found that the run saves.
  bool saves() const { return saver_ != nullptr; }
  // Room that the result takes on the disk, all files together; 0: none is written.
  uint64_t result_bytes() const { return result_bytes_; }
  // Rank 0, of a run that saves or writes a result: what lies beside it, as it was before the first
  // step.
  const checkpoint::SmallFiles& companions() const { return companions_; }
  // A group of all ranks, with a long time-out for the disk of one of them. Requires: no
  // save is being written.
  comm::Group& patient_group();

  void save(const RunMoment& moment);
  // Tells of a save that has ended meanwhile. Never waits.
  void poll();
  // Waits for the save that is being written; one that failed is told, and is no failure.
  void settle();

  // Whether this rank was asked to save, now or before. Kept until a save has been made.
  bool is_asked();
  // Saves the state after the steps so far, and training continues. Whoever asks for a checkpoint
  // means to continue from it, whatever save_strategy and save_only_model say.
  void save_on_request(const RunMoment& moment);
  // What a later run needs to go on, where it is not saved. Afterwards report() must be asked.
  std::optional<checkpoint::SaveOutcome> save_to_stop(const RunMoment& moment);
  // Says how a save ended, unless that was told, and takes note of one that failed. Throws IoError
  // for it when `must_hold`. The outcome must be what wait() or save_to_stop() returned.
  void report(const std::optional<checkpoint::SaveOutcome>& outcome, bool must_hold);

  // A checkpoint as the run's own saves write it, in a folder that is removed again. Returns its
  // size on rank 0. Requires: saves(). IoError when it cannot be written.
  uint64_t rehearse(const RunMoment& moment);

  // As in the reference: with save_total_limit 1 only the best checkpoint stays, if one is
  // known. Rank 0, after the result was written.
  void remove_all_but_best();

 private:
  bool is_main() const { return world_.rank() == 0; }
  void require_room_on_disk(const StepPlan& plan, int64_t step,
                            const checkpoint::FrozenWeights& frozen);
  void require_memory_for_result();
  // Rank 0: those that finish_last_save() removes.
  std::vector<std::filesystem::path> find_left_over() const;
  // Copies of the state beside what trains: whether memory has room for them.
  bool has_room_for_copies(optim::Optimizer* optimizer);
  // Returns the outcome of the save before.
  std::optional<checkpoint::SaveOutcome> start(const std::filesystem::path& output_dir,
                                               checkpoint::Removal removal,
                                               const RunMoment& moment);
  void add_small_files(checkpoint::SaveRequest& request, const RunMoment& moment) const;
  void tell(const checkpoint::SaveOutcome& outcome);
  // From here on saves include the optimizer. Returns the run's former saver, where that leaves it
  // out, for those that follow.
  std::unique_ptr<checkpoint::Saver> take_whole_saver();

  const config::RunConfig& config_;
  const std::string& settings_text_;
  Trainee& trainee_;
  comm::Group& world_;
  RunCheckpoints& checkpoints_;
  Options options_;
  std::unique_ptr<checkpoint::Saver> saver_;  // null: the run saves only when it is asked to
  std::optional<checkpoint::WholeFiles> whole_files_;  // FULL_STATE_DICT
  checkpoint::SmallFiles companions_;
  std::string second_names_;  // rank 0: checkpoint::kSecondNames, or nothing
  uint64_t result_bytes_ = 0;
  bool is_asked_ = false;
};

}  // namespace strata::train
