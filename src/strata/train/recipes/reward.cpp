#include "strata/train/recipes/reward.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/nn/reward_loss.h"

namespace strata::train {
namespace {

// The last token of a document that is none of padding, as transformers finds it; else the first.
int64_t last_token(const data::MicroBatch& batch, size_t document, int64_t pad_id) {
  const int64_t begin = batch.offsets[document];
  for (int64_t i = batch.offsets[document + 1] - 1; i > begin; --i) {
    if (batch.ids[static_cast<size_t>(i)] != pad_id) return i;
  }
  return begin;
}

class RewardObjective final : public Objective {
 public:
  explicit RewardObjective(nn::Rewards rewards) : rewards_(std::move(rewards)) {}
  void ask(nn::ForwardContext& context) override { context.head.rewards = &rewards_; }
  Figures figures(const nn::LossSums&) const override { return figures_of(rewards_); }
  double num_losses(const nn::LossSums&) const override {
    return static_cast<double>(rewards_.rows.size()) / 2;
  }

 private:
  nn::Rewards rewards_;
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
    nn::Rewards rewards{.rows = {}, .center_coefficient = center_coefficient_, .values = {}};
    for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
      rewards.rows.push_back(last_token(batch, d, pad_id_));
    }
    return std::make_unique<RewardObjective>(std::move(rewards));
  }

 private:
  double center_coefficient_;
  bool disables_dropout_;
  int64_t pad_id_;
};

}  // namespace

std::unique_ptr<Recipe> make_reward(const BeforeTraining& before) {
  const auto pad_id = before.datasets.tokenizer->pad_id();
  if (!pad_id) {
    throw ConfigError(
        "pad_token: found none in the tokenizer and no end-of-sequence token, expected one: a text "
        "gets the reward of its last token that is no padding; pass --pad_token");
  }
  return std::make_unique<Reward>(before.config.preference, *pad_id);
}

}  // namespace strata::train
