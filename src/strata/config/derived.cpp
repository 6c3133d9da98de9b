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

}  // namespace strata::config
