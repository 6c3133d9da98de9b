#include "strata/train/loop/best_checkpoint.h"

#include <limits>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "strata/checkpoint/folders.h"
#include "strata/config/derived.h"

namespace strata::train {

namespace fs = std::filesystem;

BestCheckpoint::BestCheckpoint(const config::RunConfig& config)
    : output_dir_(config.train.output_dir),
      metric_(config::best_metric(config)),
      is_greater_better_(config::is_greater_better(config.train)),
      saves_(config.train.save_strategy != config::Interval::kNo) {}

bool BestCheckpoint::judge(double value, int64_t step) {
  // After a first one that is not a number every number is better.
  constexpr double kWorst = std::numeric_limits<double>::infinity();
  if (!value_) value_ = is_greater_better_ ? -kWorst : kWorst;
  if (is_greater_better_ ? !(value > *value_) : !(value < *value_)) return false;
  value_ = value;
  if (saves_) step_ = step;
  return true;
}

void BestCheckpoint::note_save(int64_t step, bool is_best_there) {
  if (!step_ || *step_ == 0) return;
  const fs::path best = checkpoint::folder_of(output_dir_, *step_);
  if ((*step_ != step && !is_best_there) || folder_ == best.string()) return;
  folder_ = best.string();
  before_ = std::exchange(noted_, {value_, step_, folder_});
}

void BestCheckpoint::note_failure(int64_t step) {
  if (folder_ != checkpoint::folder_of(output_dir_, step).string()) return;
  // A better value since then keeps its place: it is still to be saved.
  if (step_ == step) {
    unsaved_ = {value_, step_, std::nullopt};
    value_ = before_.value;
    step_ = before_.step;
  }
  folder_ = before_.folder;
  noted_ = std::exchange(before_, {});
}

std::optional<double> BestCheckpoint::unsaved_value(int64_t step) const {
  return unsaved_.step == step ? unsaved_.value : std::nullopt;
}

void BestCheckpoint::fill(report::TrainerState& state) const {
  state.best_metric = value_;
  state.best_global_step = step_;
  state.best_model_checkpoint = folder_;
}

void BestCheckpoint::load(const report::TrainerState& state) {
  value_ = state.best_metric;
  step_ = state.best_global_step;
  folder_ = state.best_model_checkpoint;
  before_ = {};
  noted_ = {value_, step_, folder_};
}

std::string BestCheckpoint::find() const {
  if (!folder_) return "";
  std::error_code unseen;
  if (fs::is_directory(*folder_, unseen)) return *folder_;
  const fs::path moved = output_dir_ / fs::path(*folder_).filename();
  return fs::is_directory(moved, unseen) ? moved.string() : "";
}

std::string BestCheckpoint::note_found(const std::string& found) {
  if (!folder_) return "";
  if (!found.empty()) {
    folder_ = noted_.folder = found;
    return "";
  }
  const std::string lost = *std::exchange(folder_, std::nullopt);
  noted_.folder.reset();
  return fmt::format(
      "warning: best_model_checkpoint: found nothing of {}, expected the best checkpoint so far; "
      "there is none until an evaluation is better than {}",
      lost, value_.value_or(0));
}

}  // namespace strata::train
