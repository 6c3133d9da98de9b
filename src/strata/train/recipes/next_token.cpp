#include "strata/train/recipes/next_token.h"

namespace strata::train {
namespace {

class TokenObjective final : public Objective {
 public:
  Figures figures(const nn::LossSums& sums) const override { return figures_of(sums); }
  double num_losses(const nn::LossSums& sums) const override {
    return static_cast<double>(sums.tokens);
  }
};

class NextToken final : public Recipe {
 public:
  LossCounts count(const data::MicroBatch& batch) const override {
    return {.losses = static_cast<double>(batch.num_targets)};
  }
  std::unique_ptr<Objective> objective(const data::MicroBatch&, Split,
                                       const LossCounts&) const override {
    return std::make_unique<TokenObjective>();
  }
};

}  // namespace

std::unique_ptr<Recipe> make_next_token(const BeforeTraining&) {
  return std::make_unique<NextToken>();
}

}  // namespace strata::train
