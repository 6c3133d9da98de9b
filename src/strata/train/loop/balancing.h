// router_aux_loss_coef: how the loss that balances a mixture's experts
// (nn/experts/expert_balance.h) is weighted in a step. Never: the loss.
#pragma once

#include <cstddef>
#include <optional>

#include "strata/base/json.h"
#include "strata/config/run_config.h"

namespace strata::train {

// As TRL's trainer has it: every micro-batch of every rank has a loss of its own, their mean is
// added; ranks that share rows have one together. So the sum depends on
// per_device_train_batch_size, and on the number of ranks no more than on
// gradient_accumulation_steps: both are numbers of micro-batches.
struct Balancing {
  std::optional<double> coefficient;  // none: a model without experts
  // Not beside label_smoothing_factor, where the reference's smoother takes logits alone: the loss
  // is then told and trains nothing.
  bool is_added = true;

  bool is_measured() const { return coefficient.value_or(0) != 0; }
  double weight() const { return is_added ? coefficient.value_or(0) : 0; }
  // What backward multiplies a micro-batch's loss by.
  double scale(double loss_scale, size_t micro_steps, int data_parallel_size) const {
    return weight() * loss_scale / (static_cast<double>(micro_steps) * data_parallel_size);
  }
};

// By the setting, else by config.json. ConfigError for a weight without experts.
Balancing balancing_of(const config::RunConfig& config, const Json& model_config);

}  // namespace strata::train
