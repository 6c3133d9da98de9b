#include "strata/config/checks/preference_checks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/config/checks/loss_names.h"
#include "strata/config/checks/rules.h"
#include "strata/config/recipes.h"

namespace strata::config {
namespace {

// Those that are more than a function of one pair: they sort the pairs of a micro-batch, or keep a
// running mean of them.
constexpr std::array<std::string_view, 3> kOfBatches = {"aot", "aot_unpaired", "bco_pair"};
// A divergence other than the reverse KL leaves a term that only a difference of rewards takes out.
constexpr std::array<std::string_view, 8> kOfDifferences = {
    "sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "robust", "discopop", "sft"};

std::optional<double> number_in(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

bool has(const auto& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

class PreferenceRules : Rules {
 public:
  using Rules::Rules;

  void check() {
    check_losses();
    check_weights();
    check_parts_of_losses();
    check_reference(config_, merge_);
  }

 private:
  void check_losses() const {
    for (const std::string& name : config_.preference.loss_type) {
      if (has(kOfBatches, name)) {
        throw ConfigError(
            "{}: found {}, expected a loss of single pairs ({}); it depends on which pairs share a "
            "micro-batch, and is not supported",
            source("loss_type"), name, fmt::join(losses_of("dpo"), ", "));
      }
      require_loss_of("dpo", name, source("loss_type"));
    }
  }

  void check_weights() const {
    const PreferenceConfig& preference = config_.preference;
    if (preference.loss_weights.empty()) return;
    const size_t losses = std::max<size_t>(1, preference.loss_type.size());
    if (preference.loss_weights.size() != losses) {
      throw ConfigError("{}: found {} of them for {} loss{}, expected one for each; add or remove",
                        source("loss_weights"), preference.loss_weights.size(), losses,
                        losses == 1 ? "" : "es");
    }
    for (const std::string& text : preference.loss_weights) {
      if (number_in(text)) continue;
      throw ConfigError("{}: found \"{}\", expected numbers; correct it", source("loss_weights"),
                        text);
    }
  }

  bool learns(std::string_view loss) const {
    const std::vector<std::string>& losses = config_.preference.loss_type;
    return losses.empty() ? loss == "sigmoid" : has(losses, loss);
  }

  void check_parts_of_losses() {
    const PreferenceConfig& preference = config_.preference;
    if (preference.beta == 0) {
      throw ConfigError("{}: found 0, expected more; with it nothing is learnt", source("beta"));
    }
    if (learns("exo_pair") && preference.label_smoothing == 0) {
      throw ConfigError(
          "{}: found exo_pair without label_smoothing, expected a share above 0; add "
          "--label_smoothing 1e-3",
          source("loss_type"));
    }
    if (!learns("exo_pair") && !learns("robust") && preference.label_smoothing != 0) {
      warn_without_effect("label_smoothing", "loss_type is neither robust nor exo_pair");
    }
    if (!learns("discopop")) {
      warn_without_effect("discopop_tau", "loss_type is not discopop");
    } else if (preference.discopop_tau == 0) {
      throw ConfigError("{}: found 0, expected another number; it divides", source("discopop_tau"));
    }
    if (preference.f_divergence_type != "alpha_divergence") {
      warn_without_effect("f_alpha_divergence_coef", "f_divergence_type is not alpha_divergence");
    }
    if (preference.f_divergence_type == "reverse_kl") return;
    for (const std::string& loss : preference.loss_type) {
      if (has(kOfDifferences, loss)) continue;
      throw ConfigError(
          "{}: found {} with the loss {}, expected a loss of the difference of both rewards ({}); "
          "change one",
          source("f_divergence_type"), preference.f_divergence_type, loss,
          fmt::join(kOfDifferences, ", "));
    }
  }
};

}  // namespace

std::vector<double> preference_loss_weights(const PreferenceConfig& config) {
  std::vector<double> weights;
  for (const std::string& text : config.loss_weights) weights.push_back(number_in(text).value());
  return weights;
}

void check_reference(const RunConfig& config, const Merge& merge) {
  const LoraConfig& lora = config.lora;
  if (!lora.use_peft || !config.model.adapter_name_or_path.empty()) return;
  const std::string_view recipe = recipe_of(config).command;
  const auto refuse = [&](const char* setting, const std::string& found, const char* advice) {
    throw ConfigError(
        "{}: found {} with the recipe {}, expected an adapter that starts as the base, which is "
        "the reference; {}",
        merge.source(setting), found, recipe, advice);
  };
  if (lora.init_lora_weights == "false") refuse("init_lora_weights", "false", "remove it");
  if (lora.peft_type == PeftType::kVera && lora.init_weights == "false") {
    refuse("init_weights", "false", "remove it");
  }
  if (is_tuning_of_tokens(lora.peft_type)) {
    refuse("peft_type", fmt::format("{}", lora.peft_type), "use LORA");
  }
}

void check_preferences(const RunConfig& config, const Merge& merge,
                       std::vector<std::string>& warnings) {
  PreferenceRules(config, merge, warnings).check();
}

}  // namespace strata::config
