// What a micro-batch tells beside its loss: figures with names that logs show. Owns: how they are
// added up over ranks and micro-steps. Never: the loss, nor where they are written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strata/base/json.h"
#include "strata/comm/group.h"
#include "strata/nn/batch.h"
#include "strata/nn/document_loss.h"
#include "strata/nn/experts/expert_balance.h"
#include "strata/nn/preference_loss.h"
#include "strata/nn/rated_loss.h"
#include "strata/nn/reference_free_loss.h"

namespace strata::train {

// What becomes of the ranks' figures of a micro-step: the sum of all sums by that of all weights;
// what that is above another such mean; the lowest; the highest.
enum class OverRanks { kMean, kDifference, kLowest, kHighest };

// A micro-step's figure is sum / weight.
struct Figure {
  std::string name;
  double sum = 0;
  double weight = 0;
  double loss_weight = 0;  // the loss has that many times the figure in it
  OverRanks over_ranks = OverRanks::kMean;
  double other_sum = 0, other_weight = 0;  // of kDifference
  bool may_be_absent = false;  // where its weights are 0 the micro-step says nothing of it

  double mean() const {
    const auto over = [](double total, double count) { return total / (count > 0 ? count : 1); };
    return over(sum, weight) - over(other_sum, other_weight);
  }
  bool is_absent() const {
    const bool lacks_other = over_ranks == OverRanks::kDifference && other_weight == 0;
    return may_be_absent && (weight == 0 || lacks_other);
  }
};
using Figures = std::vector<Figure>;

// Figures of every recipe: entropy and mean_token_accuracy, over the trained tokens.
Figures figures_of(const nn::LossSums& sums);
// Figures of pairs of answers, named as TRL's DPOTrainer logs them. mean_token_accuracy is that of
// the preferred answers; rewards/accuracies takes log-probabilities for equal that fp32 does not
// tell apart.
Figures figures_of(const nn::LossSums& sums, const nn::PairPreference& preference);

// Figures of pairs without a reference, named as in TRL's CPOTrainer; for the loss odds_ratio, in
// ORPOTrainer. nll_loss is that of the preferred answers' documents, mean_token_accuracy too.
Figures figures_of(const nn::LossSums& sums, const nn::ReferenceFreePreference& preference);

// Figures of rated answers, named as in TRL's KTOTrainer: means over the desirable ("chosen")
// and the undesirable ("rejected") ones of all ranks, of micro-steps that have such.
Figures figures_of(const nn::LossSums& sums, const nn::RatedPreference& answers);

// Figures of pairs with rewards, named as TRL's RewardTrainer logs them.
Figures figures_of(const nn::DocumentTask& rewards);

// aux_loss: the loss that balances a mixture's experts, which the run's has in it `weight` times.
// Waits for the device.
Figure figure_of(nn::ExpertBalance& balance, double weight);

// What the losses of a step have in them beside those that its recipe counts. `figures`: of its
// micro-steps, the same names in each.
double loss_in_figures(const std::vector<Figures>& figures);

// Adds up `values` and the figures over all ranks. Collective, as many on all ranks.
void sum_over_ranks(comm::Group& world, std::vector<double>& values, std::vector<Figures>& figures);

// The means over the micro-steps of a log, as the reference logs them. Part of a checkpoint.
class MeanFigures {
 public:
  void add(const Figures& figures);
  bool is_empty() const { return num_micro_steps_ == 0; }
  // Each by its name between `prefix` and `ending`.
  void write_to(Json& values, const std::string& prefix = "", std::string_view ending = "") const;

  Json state() const;
  // Also what versions before wrote, which knew two figures. Throws Json::exception.
  void load(const Json& state);

 private:
  Figures sums_;  // of means; the weights are the micro-steps that have one
  int64_t num_micro_steps_ = 0;
};

}  // namespace strata::train
