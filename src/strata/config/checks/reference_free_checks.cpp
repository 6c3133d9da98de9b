#include "strata/config/checks/reference_free_checks.h"

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/config/checks/loss_names.h"
#include "strata/config/checks/rules.h"
#include "strata/config/recipes.h"

namespace strata::config {
namespace {

class ReferenceFreeRules : Rules {
 public:
  using Rules::Rules;

  void check() {
    if (config_.preference.beta == 0) {
      throw ConfigError(
          "{}: found 0, expected more: with it nothing is learnt of preferences; raise it, or run "
          "strata sft",
          source("beta"));
    }
    check_adapter();
    if (recipe_of(config_).command != "cpo") return;
    check_loss();
    check_parts_of_losses();
  }

 private:
  // Virtual tokens would stand between what the documents share and their answers.
  void check_adapter() const {
    const LoraConfig& lora = config_.lora;
    if (!lora.use_peft || !is_tuning_of_tokens(lora.peft_type)) return;
    throw ConfigError("{}: found {} with the recipe {}, expected an adapter of layers; use LORA",
                      source("peft_type"), lora.peft_type, recipe_of(config_).command);
  }

  void check_loss() const {
    const std::vector<std::string>& losses = config_.preference.loss_type;
    if (losses.size() > 1) {
      throw ConfigError("{}: found {} losses ({}), expected one of {}; choose one",
                        source("loss_type"), losses.size(), fmt::join(losses, ", "),
                        fmt::join(losses_of("cpo"), ", "));
    }
    if (!losses.empty()) require_loss_of("cpo", losses[0], source("loss_type"));
  }

  void check_parts_of_losses() {
    const std::vector<std::string>& losses = config_.preference.loss_type;
    const std::string loss = losses.empty() ? "sigmoid" : losses.front();
    if (loss == "hinge" || loss == "ipo") {
      warn_without_effect("label_smoothing", "loss_type is " + loss);
    }
    if (loss != "simpo" && loss != "alphapo") {
      warn_without_effect("simpo_gamma", "loss_type is neither simpo nor alphapo");
    }
    if (loss == "alphapo" && config_.preference.cpo_alpha != 0) {
      warn_without_effect("cpo_alpha", "loss_type alphapo means simpo with a cpo_alpha of 0");
    }
  }
};

}  // namespace

void check_reference_free(const RunConfig& config, const Merge& merge,
                          std::vector<std::string>& warnings) {
  ReferenceFreeRules(config, merge, warnings).check();
}

}  // namespace strata::config
