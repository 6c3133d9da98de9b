#include "strata/train/recipes/reference_free.h"

#include <algorithm>

#include "strata/config/recipes.h"
#include "strata/nn/reference_free_loss.h"
#include "strata/train/recipes/pair_targets.h"

namespace strata::train {
namespace {

nn::ReferenceFreeOptions options_of(const config::RunConfig& run) {
  const config::PreferenceConfig& config = run.preference;
  nn::ReferenceFreeOptions options;
  options.beta = config.beta;
  if (config::recipe_of(run).learns_prompts) {
    options.loss = "odds_ratio";
    return options;
  }
  options.nll_weight = config.cpo_alpha;
  options.label_smoothing = config.label_smoothing;
  options.simpo_gamma = config.simpo_gamma;
  options.alpha = config.alpha;
  if (!config.loss_type.empty()) options.loss = config.loss_type.front();
  if (options.loss == "alphapo") {
    options.loss = "simpo";
    options.nll_weight = 0;
  }
  return options;
}

class ReferenceFreeObjective final : public Objective {
 public:
  explicit ReferenceFreeObjective(nn::ReferenceFreePreference pairs) : pairs_(std::move(pairs)) {}
  void ask(nn::ForwardContext& context) override { context.head.preference = &pairs_; }
  Figures figures(const nn::LossSums& sums) const override { return figures_of(sums, pairs_); }
  double num_losses(const nn::LossSums&) const override {
    return static_cast<double>(pairs_.documents.size()) / 2;
  }

 private:
  nn::ReferenceFreePreference pairs_;
};

class ReferenceFree final : public Recipe {
 public:
  explicit ReferenceFree(const config::RunConfig& config)
      : options_(options_of(config)), disables_dropout_(config.preference.disable_dropout) {}

  // Pairs, and the trained tokens of the documents with preferred answers.
  LossCounts count(const data::MicroBatch& batch) const override {
    return {.losses = static_cast<double>(batch.rows.size()),
            .others = static_cast<double>(num_chosen_targets(batch))};
  }
  bool disables_dropout() const override { return disables_dropout_; }
  std::unique_ptr<Objective> objective(const data::MicroBatch& batch, Split,
                                       const LossCounts& counts) const override {
    nn::ReferenceFreePreference pairs;
    pairs.options = options_;
    pairs.prompt_targets = prompt_targets(batch);
    pairs.pairs_per_chosen_token = counts.losses / std::max(counts.others, 1.0);
    return std::make_unique<ReferenceFreeObjective>(std::move(pairs));
  }

 private:
  nn::ReferenceFreeOptions options_;
  bool disables_dropout_;
};

}  // namespace

std::unique_ptr<Recipe> make_reference_free(const BeforeTraining& before) {
  return std::make_unique<ReferenceFree>(before.config);
}

}  // namespace strata::train
