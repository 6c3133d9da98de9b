#include "strata/train/recipes/dpo.h"

#include <algorithm>

#include "strata/base/labels.h"
#include "strata/config/checks/preference_checks.h"
#include "strata/nn/preference_loss.h"
#include "strata/train/recipes/pair_targets.h"
#include "strata/train/recipes/reference.h"

namespace strata::train {
namespace {

nn::PreferenceOptions options_of(const config::PreferenceConfig& config) {
  nn::PreferenceOptions options;
  options.beta = config.beta;
  if (!config.loss_type.empty()) options.losses = config.loss_type;
  options.weights = config::preference_loss_weights(config);
  options.label_smoothing = config.label_smoothing;
  options.divergence = config.f_divergence_type;
  options.divergence_alpha = config.f_alpha_divergence_coef;
  options.discopop_tau = config.discopop_tau;
  options.ld_alpha = config.ld_alpha;
  options.weighs_pairs = config.use_weighting;
  return options;
}

nn::PairPreference pairs_of(const data::MicroBatch& batch, const nn::PreferenceOptions& options,
                            const std::vector<double>& reference) {
  nn::PairPreference pairs;
  pairs.options = options;
  for (const int64_t row : batch.rows) {
    for (size_t answer = 0; answer < 2; ++answer) {
      pairs.reference.push_back(reference.at(2 * static_cast<size_t>(row) + answer));
    }
  }
  for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
    const auto first = batch.targets.begin() + batch.offsets[d];
    const auto last = batch.targets.begin() + batch.offsets[d + 1];
    pairs.answer_tokens.push_back(last - first - std::count(first, last, kNotTrained) +
                                  (batch.first_labels[d] != kNotTrained ? 1 : 0));
  }
  return pairs;
}

class PairObjective final : public Objective {
 public:
  explicit PairObjective(nn::PairPreference pairs) : pairs_(std::move(pairs)) {}
  void ask(nn::ForwardContext& context) override { context.head.preference = &pairs_; }
  Figures figures(const nn::LossSums& sums) const override { return figures_of(sums, pairs_); }
  double num_losses(const nn::LossSums&) const override {
    return static_cast<double>(pairs_.documents.size()) / 2;
  }

 private:
  nn::PairPreference pairs_;
};

class Dpo final : public Recipe {
 public:
  Dpo(const config::PreferenceConfig& config, Reference reference)
      : options_(options_of(config)),
        disables_dropout_(config.disable_dropout),
        reference_(std::move(reference)) {}

  // Pairs, and the trained tokens of preferred answers.
  LossCounts count(const data::MicroBatch& batch) const override {
    return {.losses = static_cast<double>(batch.rows.size()),
            .others = static_cast<double>(num_chosen_targets(batch))};
  }
  bool disables_dropout() const override { return disables_dropout_; }
  std::unique_ptr<Objective> objective(const data::MicroBatch& batch, Split split,
                                       const LossCounts& counts) const override {
    nn::PairPreference pairs = pairs_of(batch, options_, reference_.of(split));
    pairs.pairs_per_chosen_token = counts.losses / std::max(counts.others, 1.0);
    return std::make_unique<PairObjective>(std::move(pairs));
  }
  void begin(int64_t step) override { reference_.begin(step); }
  bool end_step(int64_t step, const StopRequest& asked) override {
    return reference_.end_step(step, asked);
  }

 private:
  nn::PreferenceOptions options_;
  bool disables_dropout_;
  Reference reference_;
};

}  // namespace

std::unique_ptr<Recipe> make_dpo(const BeforeTraining& before) {
  const nn::PreferenceOptions options = options_of(before.config.preference);
  const auto ask = [options](const data::MicroBatch& batch, const AskModel& ask_model) {
    nn::PairPreference pairs;
    pairs.options = options;
    ask_model(batch, pairs);
    std::vector<double> found;
    for (const nn::DocumentSums& document : pairs.documents) {
      found.push_back(pairs.weighted_log_prob(document));
    }
    return found;
  };
  return std::make_unique<Dpo>(
      before.config.preference,
      Reference(before, {.noun = "pair",
                         .numbers = {"the preferred answer", "the other answer"},
                         .ask = ask,
                         .ld_alpha = options.ld_alpha}));
}

}  // namespace strata::train
