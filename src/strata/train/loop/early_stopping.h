// When a run ends before its last step because evaluations get no better, as transformers'
// EarlyStoppingCallback decides it. Owns: how many were not. Never: evaluations, nor what the best
// one is (best_checkpoint.h).
#pragma once

#include <cstdint>
#include <optional>

#include "strata/config/run_config.h"
#include "strata/report/trainer_state.h"

namespace strata::train {

// Every rank must report the same values; then all give the same answers.
class EarlyStopping {
 public:
  explicit EarlyStopping(const config::TrainConfig& config);

  // After an evaluation: its value, and the best one of those before it; nothing where there is
  // none. Without early_stopping_patience nothing is counted.
  void judge(double value, const std::optional<double>& best);
  bool is_due() const { return patience_ > 0 && counter_ >= patience_; }
  // Evaluations in a row that were not better.
  int64_t counter() const { return counter_; }

  void fill(report::TrainerState& state) const;
  // What a resumed run continues from: the counter; the patience is this run's.
  void load(const report::TrainerState& state);

 private:
  int64_t patience_;
  double threshold_;
  bool is_greater_better_;
  int64_t counter_ = 0;
};

}  // namespace strata::train
