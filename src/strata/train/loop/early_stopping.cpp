#include "strata/train/loop/early_stopping.h"

#include <cmath>

#include "strata/config/derived.h"

namespace strata::train {

EarlyStopping::EarlyStopping(const config::TrainConfig& config)
    : patience_(config.early_stopping_patience.value_or(0)),
      threshold_(config.early_stopping_threshold),
      is_greater_better_(config::is_greater_better(config)) {}

void EarlyStopping::judge(double value, const std::optional<double>& best) {
  if (patience_ == 0) return;
  // Whether both hold of a value that is not a number: neither does.
  const bool is_better = !best || ((is_greater_better_ ? value > *best : value < *best) &&
                                   std::abs(value - *best) > threshold_);
  counter_ = is_better ? 0 : counter_ + 1;
}

void EarlyStopping::fill(report::TrainerState& state) const {
  if (patience_ == 0) return;
  state.early_stopping = {.patience = patience_, .threshold = threshold_, .counter = counter_};
}

void EarlyStopping::load(const report::TrainerState& state) {
  counter_ = state.early_stopping ? state.early_stopping->counter : 0;
}

}  // namespace strata::train
