#include "strata/train/loop/step_plan.h"

#include <algorithm>
#include <cmath>

#include "strata/config/derived.h"

namespace strata::train {
namespace {

using config::Interval;

// The last step counts as due with kSteps where Trainer does so. With kBest none is: an evaluation
// decides.
bool is_due(const StepPlan& plan, Interval strategy, int64_t interval, int64_t step,
            bool at_the_end) {
  if (strategy == Interval::kEpoch) return plan.ends_epoch(step) || step == plan.max_steps;
  if (strategy == Interval::kEnd) return step == plan.max_steps;
  if (strategy != Interval::kSteps) return false;
  if (interval > 0 && step % interval == 0) return true;
  return at_the_end && step == plan.max_steps;
}

}  // namespace

StepPlan::Window StepPlan::window(int64_t step) const {
  const int64_t in_epoch = step % updates_per_epoch;
  const int64_t first = in_epoch * accumulation;
  return {step / updates_per_epoch, first, std::min(accumulation, batches_per_epoch - first)};
}

double StepPlan::epoch_after(int64_t step) const {
  if (step == 0) return 0;
  const Window last = window(step - 1);
  return static_cast<double>(last.epoch) +
         static_cast<double>(last.first + last.count) / static_cast<double>(batches_per_epoch);
}

bool StepPlan::ends_epoch(int64_t step) const { return step % updates_per_epoch == 0; }

StepPlan plan_steps(const config::TrainConfig& config, int64_t batches_per_epoch) {
  StepPlan plan;
  plan.batches_per_epoch = batches_per_epoch;
  plan.accumulation = config.gradient_accumulation_steps;
  const int64_t rest = batches_per_epoch % plan.accumulation;
  plan.updates_per_epoch =
      std::max<int64_t>(batches_per_epoch / plan.accumulation + (rest > 0 ? 1 : 0), 1);
  const double updates = static_cast<double>(plan.updates_per_epoch);
  plan.max_steps = config.max_steps > 0
                       ? config.max_steps
                       : static_cast<int64_t>(std::ceil(config.num_train_epochs * updates));
  plan.num_epochs = config.max_steps > 0
                        ? (plan.max_steps + plan.updates_per_epoch - 1) / plan.updates_per_epoch
                        : static_cast<int64_t>(std::ceil(config.num_train_epochs));
  plan.logging_steps = config::interval_steps(config.logging_steps, plan.max_steps);
  plan.eval_steps = config::eval_interval_steps(config, plan.max_steps);
  plan.save_steps = config::interval_steps(config.save_steps, plan.max_steps);
  return plan;
}

bool should_log(const StepPlan& plan, const config::TrainConfig& config, int64_t step) {
  if (config.logging_first_step && step == 1) return true;
  return is_due(plan, config.logging_strategy, plan.logging_steps, step, /*at_the_end=*/false);
}

bool should_evaluate(const StepPlan& plan, const config::TrainConfig& config, int64_t step) {
  const bool by_epoch = config.eval_strategy == Interval::kEpoch;
  if (config.eval_delay > (by_epoch ? plan.epoch_after(step) : static_cast<double>(step))) {
    return false;
  }
  return is_due(plan, config.eval_strategy, plan.eval_steps, step, /*at_the_end=*/true);
}

bool should_save(const StepPlan& plan, const config::TrainConfig& config, int64_t step) {
  return is_due(plan, config.save_strategy, plan.save_steps, step, /*at_the_end=*/true);
}

int64_t count_saves(const StepPlan& plan, const config::TrainConfig& config, int64_t done) {
  const int64_t last = plan.max_steps;
  // Whichever evaluation is the best so far is followed by a save: at most all of them.
  const bool is_best = config.save_strategy == Interval::kBest;
  const Interval strategy = is_best ? config.eval_strategy : config.save_strategy;
  if (strategy == Interval::kNo || done >= last) return 0;
  if (strategy == Interval::kEnd) return 1;
  // Not step by step: a run may have millions.
  const int64_t by_steps = is_best ? plan.eval_steps : plan.save_steps;
  const int64_t interval = strategy == Interval::kEpoch ? plan.updates_per_epoch : by_steps;
  const int64_t stride = interval > 0 ? interval : last;
  return last / stride - done / stride + (last % stride != 0 ? 1 : 0);
}

}  // namespace strata::train
