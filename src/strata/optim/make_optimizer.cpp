// The table of optimizer names. Never: formulas.
#include "strata/optim/make_optimizer.h"

#include <array>
#include <string_view>

#include "strata/base/error.h"
#include "strata/optim/adafactor.h"
#include "strata/optim/adamw.h"
#include "strata/optim/rule_optimizer.h"

namespace strata::optim {
namespace {

struct Named {
  std::string_view name;
  Rule rule;
  bool is_8bit;
};

constexpr std::array<Named, 13> kNames = {{{"adamw_torch", Rule::kAdamW, false},
                                           {"adamw_torch_fused", Rule::kAdamW, false},
                                           {"paged_adamw", Rule::kAdamW, false},
                                           {"paged_adamw_32bit", Rule::kAdamW, false},
                                           {"adamw_bnb_8bit", Rule::kAdamW, true},
                                           {"adamw_8bit", Rule::kAdamW, true},
                                           {"paged_adamw_8bit", Rule::kAdamW, true},
                                           {"lion_32bit", Rule::kLion, false},
                                           {"paged_lion_32bit", Rule::kLion, false},
                                           {"lion_8bit", Rule::kLion, true},
                                           {"paged_lion_8bit", Rule::kLion, true},
                                           {"adam", Rule::kAdam, false},
                                           {"sgd", Rule::kSgd, false}}};

void refuse_files(const OptimizerSettings& settings) {
  if (!settings.state_files.is_on()) return;
  throw ConfigError(
      "optim: found {} with state in files, expected 32-bit AdamW; choose adamw_torch",
      settings.name);
}

// Without momentum gradient descent keeps no state.
Rule rule_of(const Named& named, const OptimizerSettings& settings) {
  const bool has_momentum = named.rule == Rule::kSgd && settings.momentum.factor != 0;
  return has_momentum ? Rule::kSgdMomentum : named.rule;
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(shard::UnitStore& store,
                                          const OptimizerSettings& settings) {
  if (settings.name == "adafactor") {
    refuse_files(settings);
    return std::make_unique<Adafactor>(store,
                                       AdafactorOptions{.weight_decay = settings.weight_decay,
                                                        .decays_all = settings.decays_all,
                                                        .sub_group_size = settings.sub_group_size});
  }
  for (const Named& named : kNames) {
    if (named.name != settings.name) continue;
    if (named.rule == Rule::kAdamW && !named.is_8bit) {
      return std::make_unique<AdamW>(store,
                                     AdamWOptions{.beta1 = settings.beta1,
                                                  .beta2 = settings.beta2,
                                                  .eps = settings.eps,
                                                  .weight_decay = settings.weight_decay,
                                                  .decays_all = settings.decays_all,
                                                  .state_files = settings.state_files,
                                                  .sub_group_size = settings.sub_group_size});
    }
    refuse_files(settings);
    return std::make_unique<RuleOptimizer>(store,
                                           RuleOptions{.rule = rule_of(named, settings),
                                                       .is_8bit = named.is_8bit,
                                                       .beta1 = settings.beta1,
                                                       .beta2 = settings.beta2,
                                                       .eps = settings.eps,
                                                       .weight_decay = settings.weight_decay,
                                                       .decays_all = settings.decays_all,
                                                       .momentum = settings.momentum,
                                                       .sub_group_size = settings.sub_group_size});
  }
  throw ConfigError("optim: found \"{}\", expected a supported update rule; choose adamw_torch",
                    settings.name);
}

}  // namespace strata::optim
