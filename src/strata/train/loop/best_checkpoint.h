// Which checkpoint of a run is the best, as the reference Trainer decides it. Owns: the best value
// so far and its step. Never: evaluations, saves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "strata/config/run_config.h"
#include "strata/report/trainer_state.h"

namespace strata::train {

// Every rank must report the same; then all give the same answers. It looks at no disk but in
// find(): what ranks of one folder see there may differ for some seconds.
class BestCheckpoint {
 public:
  explicit BestCheckpoint(const config::RunConfig& config);

  // The value of an evaluation that decides, such as "eval_loss"; empty: none does.
  const std::string& metric() const { return metric_; }
  // The best of the evaluations so far; nothing before the first.
  const std::optional<double>& value() const { return value_; }
  // After an evaluation at `step`: whether its value is better than all before it.
  bool judge(double value, int64_t step);
  // The step of that one; nothing where nothing is saved.
  const std::optional<int64_t>& step() const { return step_; }
  // When checkpoint-STEP is about to be saved: from the save of the best step on there is a best
  // checkpoint. `is_best_there`: that of the best step was saved before.
  void note_save(int64_t step, bool is_best_there = false);
  // When checkpoint-STEP could not be saved: the best one is again that of before.
  void note_failure(int64_t step);
  // The value of the evaluation at `step`, where it was the best of all so far and checkpoint-STEP
  // could not be saved.
  std::optional<double> unsaved_value(int64_t step) const;
  // Where it is; nothing: not saved.
  const std::optional<std::string>& folder() const { return folder_; }

  void fill(report::TrainerState& state) const;
  // What a resumed run continues from.
  void load(const report::TrainerState& state);
  // After load(): where the best checkpoint lies. One that is gone is looked for in the output
  // folder (which may have been moved). Empty: there is none, or it is nowhere. Rank 0.
  std::string find() const;
  // The answer of rank 0. One that is nowhere is forgotten; its value still has to be surpassed, as
  // in the reference. Then the answer says so.
  std::string note_found(const std::string& found);

 private:
  std::filesystem::path output_dir_;
  std::string metric_;
  bool is_greater_better_;
  bool saves_;
  std::optional<double> value_;
  std::optional<int64_t> step_;
  std::optional<std::string> folder_;
  // The best one before the last that was noted: what remains if that cannot be saved.
  struct Saved {
    std::optional<double> value;
    std::optional<int64_t> step;
    std::optional<std::string> folder;
  };
  Saved noted_;
  Saved before_;
  Saved unsaved_;  // the last that took its value back
};

}  // namespace strata::train
