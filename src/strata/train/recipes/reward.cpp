#include "strata/train/recipes/reward.h"

#include "strata/nn/document_loss.h"
#include "strata/train/recipes/read_tokens.h"

namespace strata::train {
namespace {

class RewardObjective final : public Objective {
 public:
  explicit RewardObjective(nn::DocumentTask rewards) : rewards_(std::move(rewards)) {}
  void ask(nn::ForwardContext& context) override { context.head.documents = &rewards_; }
  Figures figures(const nn::LossSums&) const override { return figures_of(rewards_); }
  double num_losses(const nn::LossSums&) const override {
    return static_cast<double>(rewards_.rows.size()) / 2;
  }

 private:
  nn::DocumentTask rewards_;
};

class Reward final : public Recipe {
 public:
  Reward(const config::PreferenceConfig& config, int64_t pad_id)
      : center_coefficient_(config.center_rewards_coefficient),
        disables_dropout_(config.disable_dropout),
        pad_id_(pad_id) {}

  LossCounts count(const data::MicroBatch& batch) const override {
    return {.losses = static_cast<double>(batch.rows.size())};
  }
  bool disables_dropout() const override { return disables_dropout_; }
  std::unique_ptr<Objective> objective(const data::MicroBatch& batch, Split,
                                       const LossCounts&) const override {
    return std::make_unique<RewardObjective>(
        nn::DocumentTask{.loss = nn::DocumentLoss::kPairs,
                         .rows = last_tokens(batch, pad_id_),
                         .center_coefficient = center_coefficient_});
  }

 private:
  double center_coefficient_;
  bool disables_dropout_;
  int64_t pad_id_;
};

}  // namespace

std::unique_ptr<Recipe> make_reward(const BeforeTraining& before) {
  return std::make_unique<Reward>(before.config.preference,
                                  require_pad_id(*before.datasets.tokenizer));
}

}  // namespace strata::train
