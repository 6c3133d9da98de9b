#include "strata/config/checks/rated_checks.h"

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/config/checks/loss_names.h"
#include "strata/config/checks/preference_checks.h"
#include "strata/config/checks/rules.h"
#include "strata/config/recipes.h"

namespace strata::config {
namespace {

class RatedRules : Rules {
 public:
  using Rules::Rules;

  void check() {
    check_loss();
    check_weights();
    if (estimates_divergence(config_)) check_batches();
    check_reference(config_, merge_);
    check_moving_reference(config_, merge_, warnings_);
  }

 private:
  void check_loss() const {
    const std::vector<std::string>& losses = config_.preference.loss_type;
    if (losses.size() > 1) {
      throw ConfigError("{}: found {} losses ({}), expected one of {}; choose one",
                        source("loss_type"), losses.size(), fmt::join(losses, ", "),
                        fmt::join(losses_of("kto"), ", "));
    }
    if (!losses.empty()) require_loss_of("kto", losses[0], source("loss_type"));
  }

  void check_weights() const {
    const PreferenceConfig& preference = config_.preference;
    if (preference.beta == 0) {
      throw ConfigError("{}: found 0, expected more; with it nothing is learnt", source("beta"));
    }
    if (preference.desirable_weight == 0 && preference.undesirable_weight == 0) {
      throw ConfigError(
          "{}: found 0 with undesirable_weight 0, expected one of them above 0; with both nothing "
          "is learnt",
          source("desirable_weight"));
    }
  }

  // Each answer stands after the prompt of its neighbour in a batch of fixed order, too.
  void check_batches() const {
    const TrainConfig& train = config_.train;
    if (!config_.data.dataset_streaming && train.train_sampling_strategy != Sampling::kSequential) {
      throw ConfigError(
          "{}: found {} with the loss kto, expected sequential: the divergence is estimated from "
          "answers that share a batch in the rows' own order; remove it, or use the loss "
          "apo_zero_unpaired",
          source("train_sampling_strategy"), name_of(train.train_sampling_strategy));
    }
    if (train.per_device_train_batch_size < 2) {
      throw ConfigError(
          "{}: found {} with the loss kto, expected at least 2: a single answer has no other "
          "prompt to be paired with; raise it, or use the loss apo_zero_unpaired",
          source("per_device_train_batch_size"), train.per_device_train_batch_size);
    }
  }
};

}  // namespace

bool estimates_divergence(const RunConfig& config) {
  const std::vector<std::string>& losses = config.preference.loss_type;
  return recipe_of(config).reads_ratings && (losses.empty() || losses.front() == "kto");
}

void check_rated(const RunConfig& config, const Merge& merge, std::vector<std::string>& warnings) {
  RatedRules(config, merge, warnings).check();
}

}  // namespace strata::config
