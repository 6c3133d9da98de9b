// Arithmetic on settings.
#include "strata/config/derived.h"

#include <cmath>

namespace strata::config {

int64_t num_warmup_steps(const OptimConfig& optim, int64_t total_steps) {
  if (optim.warmup_steps >= 1) return static_cast<int64_t>(optim.warmup_steps);
  const double fraction = optim.warmup_steps > 0 ? optim.warmup_steps : optim.warmup_ratio;
  return static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * fraction));
}

int64_t interval_steps(double steps, int64_t total_steps) {
  if (steps >= 1) return static_cast<int64_t>(steps);
  return static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * steps));
}

int64_t eval_interval_steps(const TrainConfig& train, int64_t total_steps) {
  return interval_steps(train.eval_steps.value_or(train.logging_steps), total_steps);
}

std::string best_metric(const RunConfig& config) {
  const std::string& schedule = config.optim.lr_scheduler_type;
  std::string name = config.train.metric_for_best_model;
  const bool needs_one = config.train.load_best_model_at_end ||
                         schedule == "reduce_lr_on_plateau" || schedule == "greedy";
  if (name == "none" || name == "None") name.clear();
  if (name.empty() && needs_one) name = "loss";
  if (name.empty() || name.starts_with("eval_")) return name;
  return "eval_" + name;
}

bool is_greater_better(const TrainConfig& train) {
  if (train.greater_is_better) return *train.greater_is_better;
  const std::string& name = train.metric_for_best_model;
  const bool is_error = name.ends_with("loss") || name.ends_with("mse");
  return !name.empty() && name != "none" && name != "None" && !is_error;
}

}  // namespace strata::config
