#include "strata/train/loop/balancing.h"

#include "strata/base/error.h"
#include "strata/config/derived.h"
#include "strata/config/recipes.h"
#include "strata/models/moe/config.h"

namespace strata::train {

Balancing balancing_of(const config::RunConfig& config, const Json& model_config) {
  const std::optional<double> given = config.model.router_aux_loss_coef;
  const std::optional<double> own = models::balancing_coefficient(model_config);
  if (!own && given.value_or(0) != 0) {
    throw ConfigError(
        "router_aux_loss_coef: found {} for a model without experts that a loss balances, expected "
        "0; leave it out",
        *given);
  }
  // transformers' models for sequence classification compute none of it.
  if (config::recipe_of(config).judges_documents()) {
    if (given) {
      throw ConfigError(
          "router_aux_loss_coef: found {} with the recipe {}, expected none: nothing balances the "
          "experts of such a model; remove it",
          *given, config::recipe_of(config).command);
    }
    return {};
  }
  const Balancing result{.coefficient = own && given ? given : own,
                         .is_added = config.train.label_smoothing_factor == 0};
  if (config::best_metric(config) == "eval_aux_loss" && !result.is_measured()) {
    throw ConfigError(
        "metric_for_best_model: found {}, expected a metric that evaluations report: this model's "
        "experts are not balanced; name another",
        config.train.metric_for_best_model);
  }
  return result;
}

}  // namespace strata::train
