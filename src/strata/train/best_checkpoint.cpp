#include "strata/train/best_checkpoint.h"

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
      saves_(config.train.save_strategy != "no") {}

bool BestCheckpoint::judge(double value, int64_t step) {
  // The first value is better than none, but for one that is not a number.
  const bool is_better =
      value_ ? (is_greater_better_ ? value > *value_ : value < *value_) : value == value;
  if (!is_better) return false;
  value_ = value;
  if (saves_) step_ = step;
  return true;
}

void BestCheckpoint::note_save(int64_t step) {
  if (!step_ || *step_ == 0) return;
  const fs::path best = checkpoint::folder_of(output_dir_, *step_);
  if (*step_ == step || fs::exists(best)) folder_ = best.string();
}

void BestCheckpoint::fill(report::TrainerState& state) const {
  state.best_metric = value_;
  state.best_global_step = step_;
  state.best_model_checkpoint = folder_;
}

std::string BestCheckpoint::load(const report::TrainerState& state) {
  value_ = state.best_metric;
  step_ = state.best_global_step;
  folder_ = state.best_model_checkpoint;
  if (!folder_ || fs::is_directory(*folder_)) return "";
  const fs::path moved = output_dir_ / fs::path(*folder_).filename();
  if (fs::is_directory(moved)) {
    folder_ = moved.string();
    return "";
  }
  const std::string lost = *std::exchange(folder_, std::nullopt);
  return fmt::format(
      "warning: best_model_checkpoint: found nothing of {}, expected the best checkpoint so far; "
      "there is none until an evaluation is better than {}",
      lost, value_.value_or(0));
}

}  // namespace strata::train
