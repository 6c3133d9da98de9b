// The part of Trainer that evaluates: the sets that there are, what is logged of them, and what
// follows from it for the best checkpoint, the learning rate and an early end.
#include <limits>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/base/phases.h"
#include "strata/base/seconds_since.h"
#include "strata/config/glue_tasks.h"
#include "strata/train/loop/answers.h"
#include "strata/train/loop/trainer.h"

namespace strata::train {

using Clock = std::chrono::steady_clock;

std::optional<EvalSums> Trainer::evaluate_set(const data::TokenStore& set, Split split,
                                              const StopRequest& asked) {
  const auto sums = evaluate_dataset(set, config_, trainee_, recipe_, asked, split);
  if (!sums || sums->num_left_out == 0) return sums;
  const std::string empty =
      sums->num_empty > 0 ? fmt::format(" ({} without a trained token)", sums->num_empty) : "";
  const bool is_odd = sums->num_left_out > sums->num_empty;
  say(
      fmt::format("warning: evaluation after step {}: found {}{} with a loss that is not finite, "
                  "which eval_loss leaves out as Trainer's does{}",
                  step_, counted(sums->num_left_out, "batch", "batches"), empty,
                  is_odd ? fault_of_weights().text : ""));
  return sums;
}

std::optional<Json> Trainer::evaluate_sets() {
  const Clock::time_point start = Clock::now();
  // An evaluation may take longer than a scheduler waits between its signal and the end.
  const StopRequest asked = stop_request();
  const auto sums = evaluate_set(*datasets_.eval, Split::kEval, asked);
  if (!sums) return std::nullopt;
  std::optional<double> exact;
  if (config_.train.predict_with_generate) {
    exact = exact_answers(*datasets_.eval, config_, *datasets_.tokenizer, trainee_, asked);
    if (!exact) return std::nullopt;
  }
  const double seconds = std::max(seconds_since(start), 1e-9);
  const double rows = static_cast<double>(datasets_.eval->size());
  Json values{{"eval_loss", sums->mean_loss},
              {"eval_runtime", seconds},
              {"eval_samples_per_second", rows / seconds},
              {"eval_steps_per_second", static_cast<double>(sums->num_batches) / seconds},
              {"eval_num_tokens", static_cast<double>(sums_.num_tokens())}};
  sums->figures.write_to(values, "eval_");
  if (exact) values["eval_accuracy"] = *exact;
  if (!datasets_.second_eval) return values;
  const auto second = evaluate_set(*datasets_.second_eval, Split::kSecondEval, asked);
  if (!second) return std::nullopt;
  values[fmt::format("eval_loss{}", config::kSecondEvaluation)] = second->mean_loss;
  second->figures.write_to(values, "eval_", config::kSecondEvaluation);
  return values;
}

Trainer::Evaluation Trainer::evaluate(bool decides) {
  if (!datasets_.eval) return Evaluation::kOrdinary;
  set_phase(kEvaluatingPhase);
  const Clock::time_point start = Clock::now();
  std::optional<Json> values = evaluate_sets();
  if (!values) {
    owes_evaluation_ = true;
    return Evaluation::kBrokenOff;
  }
  bool is_best = false;
  const BestCheckpoint& best = checkpoints_.best();
  if (decides && !best.metric().empty()) {
    // Seconds are others on every rank: rank 0's count.
    // A figure that no batch of the evaluation has is worse than any.
    const double own = values->value(best.metric(), std::numeric_limits<double>::quiet_NaN());
    at::Tensor shared = at::full({1}, own, at::kDouble);
    world_.broadcast(shared, /*root=*/0)->wait();
    const double value = shared.item<double>();
    // A save that failed takes the best value back, on all ranks before any judges.
    saver_.settle();
    early_stopping_.judge(value, best.value());
    is_best = checkpoints_.judge(value, step_);
    if (metric_schedule_) metric_schedule_->step(value);
  }
  record(std::move(*values), machine_readings());
  set_phase(kTrainingPhase);
  // The evaluation's seconds are not training's.
  sums_.leave_out(Clock::now() - start);
  return is_best ? Evaluation::kBest : Evaluation::kOrdinary;
}

std::string Trainer::early_end_line() const {
  const int64_t counter = early_stopping_.counter();
  std::string line = fmt::format(
      "early stopping: {} has not improved in {} evaluation{} (early_stopping_patience {}); "
      "training ends after step {} of {}",
      checkpoints_.best().metric(), counter, counter == 1 ? "" : "s",
      *config_.train.early_stopping_patience, step_, plan_.max_steps);
  // A resumed run that goes no further: it was the whole run that was saved.
  if (step_ == checkpoints_.first_step()) line += "; raise early_stopping_patience to continue";
  return line;
}

}  // namespace strata::train
