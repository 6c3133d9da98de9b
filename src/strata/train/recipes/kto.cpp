#include "strata/train/recipes/kto.h"

#include <algorithm>

#include "strata/comm/agreement.h"
#include "strata/config/checks/rated_checks.h"
#include "strata/nn/rated_loss.h"
#include "strata/train/recipes/reference.h"

namespace strata::train {
namespace {

nn::RatedOptions options_of(const config::PreferenceConfig& config) {
  nn::RatedOptions options;
  options.beta = config.beta;
  if (!config.loss_type.empty()) options.loss = config.loss_type.front();
  options.desirable_weight = config.desirable_weight;
  options.undesirable_weight = config.undesirable_weight;
  return options;
}

// What the reference said of a micro-batch.
struct SaidOfBatch {
  std::vector<double> own;         // [rows]
  std::vector<double> mismatched;  // [rows], or none
};

class RatedObjective final : public Objective {
 public:
  RatedObjective(const data::MicroBatch& batch, const nn::RatedOptions& options,
                 SaidOfBatch reference)
      : mismatched_(batch.mismatched), reference_(std::move(reference.mismatched)) {
    answers_.options = options;
    answers_.reference = std::move(reference.own);
    for (const data::Rating rating : batch.ratings) {
      answers_.are_desirable.push_back(rating == data::Rating::kDesirable);
    }
  }

  void look_beside(const BesidePass& beside) override {
    if (mismatched_ == nullptr) return;
    nn::Preference found;
    beside.look(*mismatched_, found);
    double sums[2] = {0, static_cast<double>(found.documents.size())};
    for (size_t d = 0; d < found.documents.size(); ++d) {
      sums[0] += found.documents[d].log_prob - reference_.at(d);
    }
    comm::sum_over_ranks(beside.world, sums);
    // Not std::max(): what is no number stays so.
    const double mean = sums[0] / std::max(sums[1], 1.0);
    answers_.divergence = mean < 0 ? 0 : mean;
  }
  void ask(nn::ForwardContext& context) override { context.head.preference = &answers_; }
  Figures figures(const nn::LossSums& sums) const override { return figures_of(sums, answers_); }
  double num_losses(const nn::LossSums&) const override {
    return static_cast<double>(answers_.documents.size());
  }

 private:
  nn::RatedPreference answers_;
  std::shared_ptr<const data::MicroBatch> mismatched_;
  std::vector<double> reference_;
};

class Kto final : public Recipe {
 public:
  Kto(const config::RunConfig& config, Reference reference)
      : options_(options_of(config.preference)),
        disables_dropout_(config.preference.disable_dropout),
        width_(config::estimates_divergence(config) ? 2 : 1),
        reference_(std::move(reference)) {}

  LossCounts count(const data::MicroBatch& batch) const override {
    return {.losses = static_cast<double>(batch.rows.size())};
  }
  bool disables_dropout() const override { return disables_dropout_; }
  std::unique_ptr<Objective> objective(const data::MicroBatch& batch, Split split,
                                       const LossCounts&) const override {
    const std::vector<double>& table = reference_.of(split);
    SaidOfBatch reference;
    for (const int64_t row : batch.rows) {
      const size_t first = width_ * static_cast<size_t>(row);
      reference.own.push_back(table.at(first));
      if (width_ == 2) reference.mismatched.push_back(table.at(first + 1));
    }
    return std::make_unique<RatedObjective>(batch, options_, std::move(reference));
  }
  void begin(int64_t step) override { reference_.begin(step); }
  bool end_step(int64_t step, const StopRequest& asked) override {
    return reference_.end_step(step, asked);
  }

 private:
  nn::RatedOptions options_;
  bool disables_dropout_;
  size_t width_;  // numbers of a row
  Reference reference_;
};

// Of each row its own answer and, where there is one, the answer of another.
std::vector<double> ask_of_rows(const data::MicroBatch& batch, const AskModel& ask_model) {
  nn::Preference own, mismatched;
  ask_model(batch, own);
  if (batch.mismatched != nullptr) ask_model(*batch.mismatched, mismatched);
  std::vector<double> found;
  for (size_t row = 0; row < own.documents.size(); ++row) {
    found.push_back(own.documents[row].log_prob);
    if (batch.mismatched != nullptr) found.push_back(mismatched.documents[row].log_prob);
  }
  return found;
}

}  // namespace

std::unique_ptr<Recipe> make_kto(const BeforeTraining& before) {
  ReferenceQuestion question{.noun = "answer", .numbers = {"the answer"}, .ask = ask_of_rows};
  if (config::estimates_divergence(before.config)) {
    question.numbers.emplace_back("another row's answer after the prompt");
  }
  return std::make_unique<Kto>(before.config, Reference(before, std::move(question)));
}

}  // namespace strata::train
