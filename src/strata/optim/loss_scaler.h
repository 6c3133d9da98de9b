// The factor by which the loss is multiplied so that fp16 gradients do not vanish, found while
// training. Owns: the factor and its counters. Never: gradients; who sees them says what happened.
// Source: torch.amp.GradScaler; with hysteresis and a smallest scale DeepSpeed's DynamicLossScaler.
#pragma once

#include <cstdint>

#include "strata/base/json.h"

namespace strata::optim {

struct LossScalerOptions {
  double fixed_scale = 0;  // > 0: never changes
  double initial_scale = 65536;
  int64_t growth_interval = 2000;  // clean steps in a row before the scale doubles
  int64_t hysteresis = 1;          // overflows before it is halved; refilled when it doubles
  double min_scale = 0;            // the run ends instead of going below (or below 2^-16)
};

// Every rank must report the same outcomes; then every rank has the same scale.
class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options);

  double scale() const { return scale_; }
  // To be called once after each step. `overflow`: a gradient was not finite and the step skipped.
  // Throws Error when the scale cannot be lowered any more.
  void update(bool overflow);
  int64_t num_skipped() const { return num_skipped_; }

  // For checkpoints: with it a resumed run goes on as if it had not stopped.
  Json state() const;
  void load(const Json& state);
  // The same for weights that are those of earlier again while the steps are counted on, and so
  // those that were skipped.
  void return_to(const Json& state);

 private:
  void lower();

  LossScalerOptions options_;
  double scale_;
  int64_t clean_steps_ = 0;
  int64_t hysteresis_left_;
  int64_t num_skipped_ = 0;
};

}  // namespace strata::optim
