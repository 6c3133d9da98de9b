// A second set of the trained weights, next to an update rule, which follows the first with a lag:
// the reference of a preference run in which that moves (TR-DPO, Gorbatovski et al. 2024,
// https://arxiv.org/abs/2404.09656). Owns: those weights, as a part of the optimizer's state, so
// that checkpoints hold them. Never: when they follow, nor what is asked of them.
#pragma once

#include <memory>
#include <vector>

#include "strata/optim/optimizer.h"
#include "strata/shard/unit_store.h"

namespace strata::optim {

// Memory: the trained weights once more, in the type and the place in which they rest.
class TrailingWeights final : public Optimizer {
 public:
  // Requires: homes in memory. They are zeros until take().
  TrailingWeights(shard::UnitStore& store, std::unique_ptr<Optimizer> rule);

  void step(double learning_rate, double gradient_scale) override;
  void rehearse() override { rule_->rehearse(); }
  std::vector<StateTensor> state() override;

  // They become those that train.
  void take();
  // They become share * those that train + (1 - share) * what they were, each product rounded to
  // their type as TRL rounds it.
  void follow(double share);
  // Changes places with those that train, until it is called again. The executor is to be told.
  void exchange();

 private:
  struct Part {
    int unit, segment;
    shard::Piece piece;
    at::Tensor values;
  };
  at::Tensor trained(const Part& part);

  shard::UnitStore& store_;
  std::unique_ptr<Optimizer> rule_;
  std::vector<Part> parts_;
};

}  // namespace strata::optim
