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

// Losses that sort the values of the pairs of a micro-batch.
constexpr std::array<std::string_view, 2> kOfBatches = {"aot", "aot_unpaired"};
constexpr std::array<std::string_view, 4> kSmoothed = {"robust", "exo_pair", "aot", "aot_unpaired"};
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
    check_weighting();
    check_sorting();
    check_reference(config_, merge_);
    check_moving_reference(config_, merge_, warnings_);
  }

 private:
  void check_losses() const {
    for (const std::string& name : config_.preference.loss_type) {
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
    const bool smooths =
        std::ranges::any_of(kSmoothed, [this](std::string_view loss) { return learns(loss); });
    if (!smooths && preference.label_smoothing != 0) {
      warn_without_effect("label_smoothing", fmt::format("loss_type has none of the losses {}",
                                                         fmt::join(kSmoothed, ", ")));
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
          "{}: found {} with the loss {}, expected a loss of the difference between the two "
          "rewards ({}); change one",
          source("f_divergence_type"), preference.f_divergence_type, loss,
          fmt::join(kOfDifferences, ", "));
    }
  }

  void check_weighting() const {
    if (!config_.preference.use_weighting) return;
    const auto refuse = [this](std::string_view loss, const char* why) {
      throw ConfigError("{}: found true with the loss {}, expected {}; remove one",
                        source("use_weighting"), loss, why);
    };
    for (const std::string_view loss : kOfBatches) {
      if (!learns(loss)) continue;
      refuse(loss, "a loss of single pairs, which have a weight each");
    }
    if (learns("sft")) {
      refuse("sft", "a loss of pairs: that one is a mean over tokens, which have none");
    }
  }

  // What is sorted is what a rank has at once.
  void check_sorting() {
    if (config_.train.per_device_train_batch_size > 1) return;
    for (const std::string_view loss : kOfBatches) {
      if (!learns(loss)) continue;
      warnings_.push_back(
          fmt::format("{}: {} compares the pairs of a rank's micro-batch, which has only one; "
                      "raise per_device_train_batch_size (gradient_accumulation_steps does not "
                      "help)",
                      source("loss_type"), loss));
    }
  }
};

class ReferenceRules : Rules {
 public:
  using Rules::Rules;

  void check() {
    const PreferenceConfig& preference = config_.preference;
    if (!preference.sync_ref_model) {
      for (const char* name : {"ref_model_mixup_alpha", "ref_model_sync_steps"}) {
        warn_without_effect(name, "sync_ref_model is off");
      }
      return;
    }
    if (config_.lora.use_peft) {
      refuse("use_peft",
             "a fully trained model: the reference of an adapter is the base, which it does not "
             "change; set sync_ref_model false, or train the whole model");
    }
    if (parse_boolean(merge_.text("precompute_ref_log_probs")).value_or(false)) {
      refuse("precompute_ref_log_probs",
             "it without: the reference is evaluated again after each of its updates; remove one");
    }
    for (const char* place : {"offload_param_device", "offload_optimizer_device"}) {
      if (merge_.text(place) != "nvme") continue;
      refuse(place,
             "weights and state in memory, where the reference takes the model's place; set it to "
             "cpu or none");
    }
  }

 private:
  void refuse(const char* other, const char* expected) const {
    const Given* found = merge_.find(other);
    const bool is_implied = found != nullptr && found->origin.rank == Rank::kImplied;
    const std::string value = merge_.text(other);
    throw ConfigError("{}: found true with {}, expected {}", source("sync_ref_model"),
                      is_implied ? fmt::format("{} {} ({})", other, value, source(other))
                                 : fmt::format("{} {}", source(other), value),
                      expected);
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

void check_moving_reference(const RunConfig& config, const Merge& merge,
                            std::vector<std::string>& warnings) {
  ReferenceRules(config, merge, warnings).check();
}

void check_preferences(const RunConfig& config, const Merge& merge,
                       std::vector<std::string>& warnings) {
  PreferenceRules(config, merge, warnings).check();
}

}  // namespace strata::config
