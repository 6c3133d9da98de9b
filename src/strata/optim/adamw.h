// AdamW over the flat shards of a UnitStore, with global gradient clipping folded into the update.
// Owns: the moments. Never: parameters or gradients; those rest in their homes.
#pragma once

#include <vector>

#include "strata/shard/unit_store.h"

namespace strata::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

// Whether the reference's Trainer decays a weight of this name: all but biases and norms.
// Source: transformers Trainer.get_decay_parameter_names.
bool is_decayed(const std::string& parameter_name);

// L2 norm of the gradient of the whole model. Collective over the shard group; the same value on
// every rank. A non-finite gradient gives a non-finite norm.
double global_gradient_norm(shard::UnitStore& store);

// The factor that clipping multiplies gradients by: min(1, max_norm / (norm + 1e-6)); 1 when
// max_norm is 0.
double clip_factor(double norm, double max_norm);

class AdamW {
 public:
  AdamW(shard::UnitStore& store, const AdamWOptions& options);

  // Updates every trained shard in place. `gradient_scale` multiplies gradients first.
  void step(double learning_rate, double gradient_scale);

  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t steps) { num_steps_ = steps; }

  // The moments of one trained segment, fp32 [shard_numel] each.
  struct Moments {
    at::Tensor exp_avg, exp_avg_sq;
  };
  Moments& moments(int unit, int segment);

 private:
  // Neighbouring pieces of a shard that decay alike, updated in one pass.
  struct Run {
    int unit;
    int segment;
    int64_t begin;
    int64_t length;
    bool decayed;
  };

  shard::UnitStore& store_;
  AdamWOptions options_;
  int64_t num_steps_ = 0;
  std::vector<std::vector<Moments>> moments_;  // [unit][segment]
  std::vector<Run> runs_;
};

}  // namespace strata::optim
