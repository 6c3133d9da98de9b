// trainer_state.json in the reference Trainer's form: same keys, sorted, indent 2, final newline,
// losses unrounded. Never: the decision when to save it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"

namespace strata::report {

// Of Trainer's EarlyStoppingCallback.
struct EarlyStoppingState {
  int64_t patience = 1;
  double threshold = 0;
  int64_t counter = 0;  // evaluations in a row that were not better
};

struct TrainerState {
  double epoch = 0;
  int64_t global_step = 0;
  int64_t max_steps = 0;
  int64_t logging_steps = 500;
  int64_t eval_steps = 500;
  int64_t save_steps = 500;
  int64_t train_batch_size = 8;  // per device
  int64_t num_train_epochs = 0;
  int64_t num_input_tokens_seen = 0;
  double total_flos = 0;
  std::vector<Json> log_history;  // each with "epoch" and "step"
  std::optional<double> best_metric;
  std::optional<int64_t> best_global_step;
  std::optional<std::string> best_model_checkpoint;
  std::optional<EarlyStoppingState> early_stopping;  // nothing: no such callback
  // What Trainer's control held when the state was written.
  bool should_evaluate = false;
  bool should_log = false;
  bool should_save = true;
  bool should_training_stop = false;
};

// The file's text.
std::string trainer_state_text(const TrainerState& state);

// Accepts the files of Trainer and ours. Missing keys keep their defaults; keys of no meaning here
// are ignored, as Trainer's own reader needs them. Throws FormatError with `subject`.
TrainerState parse_trainer_state(std::string_view text, const std::string& subject);

}  // namespace strata::report
