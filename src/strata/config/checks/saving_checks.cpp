#include "strata/config/checks/saving_checks.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/config/checks/rules.h"
#include "strata/config/derived.h"
#include "strata/config/recipes.h"

namespace strata::config {
namespace {

constexpr const char* kNoEvaluation = "eval_strategy is no";

class SavingRules : Rules {
 public:
  using Rules::Rules;

  void check() {
    if (train_.eval_strategy == Interval::kNo) warn_without_effect("eval_delay", kNoEvaluation);
    if (train_.eval_strategy == Interval::kNo && !train_.eval_on_start) warn_of_evaluation();
    if (train_.save_strategy == Interval::kNo) {
      warn_without_effect("save_only_model",
                          "save_strategy is no, and what is saved on request has the optimizer");
    }
    check_metric();
    check_early_stopping();
    if (train_.save_strategy == Interval::kBest) check_best();
    if (train_.load_best_model_at_end && train_.save_strategy != Interval::kBest) check_loading();
  }

 private:
  void warn_of_evaluation() {
    for (const char* name :
         {"dataset_test_split", "validation_file", "eval_packing", "per_device_eval_batch_size"}) {
      warn_without_effect(name, kNoEvaluation);
    }
  }

  void check_metric() {
    const std::string metric = best_metric(config_);
    if (metric.empty()) {
      return warn_without_effect("greater_is_better", "metric_for_best_model is not set");
    }
    std::vector<std::string> known = {"eval_loss", "eval_num_tokens", "eval_runtime",
                                      "eval_samples_per_second", "eval_steps_per_second"};
    if (train_.predict_with_generate) known.emplace_back("eval_accuracy");
    for (const std::string_view figure : recipe_of(config_).figures) {
      known.push_back("eval_" + std::string(figure));
    }
    if (std::ranges::find(known, metric) == known.end()) {
      throw ConfigError("{}: found {}, expected a metric that evaluations report, one of {}",
                        source("metric_for_best_model"), train_.metric_for_best_model,
                        fmt::join(known, ", "));
    }
    if (train_.eval_strategy == Interval::kNo) {
      warn_without_effect("metric_for_best_model", kNoEvaluation);
      warn_without_effect("greater_is_better", kNoEvaluation);
    }
  }

  // What transformers' callback asserts when training begins, and what it warns of.
  void check_early_stopping() {
    const int64_t patience = train_.early_stopping_patience.value_or(0);
    if (patience == 0) {
      return warn_without_effect("early_stopping_threshold", "early_stopping_patience is not set");
    }
    const std::string place = source("early_stopping_patience");
    if (train_.eval_strategy == Interval::kNo) {
      throw ConfigError(
          "{}: found {} with eval_strategy no, expected evaluations, which it counts; set "
          "eval_strategy to steps or epoch",
          place, patience);
    }
    if (best_metric(config_).empty()) {
      throw ConfigError(
          "{}: found {} without metric_for_best_model, expected a metric by which to compare "
          "evaluations; add --metric_for_best_model loss",
          place, patience);
    }
    if (train_.load_best_model_at_end) return;
    warnings_.push_back(fmt::format(
        "{}: found load_best_model_at_end false, so the result is the model of the last step, not "
        "of the best evaluation; add --load_best_model_at_end for that",
        place));
  }

  void check_best() {
    if (best_metric(config_).empty()) {
      throw ConfigError(
          "{}: found best without metric_for_best_model, expected a metric by which to compare "
          "evaluations; add --metric_for_best_model loss",
          source("save_strategy"));
    }
    if (train_.eval_strategy == Interval::kNo) {
      throw ConfigError(
          "{}: found best with eval_strategy no, expected evaluations, after which it saves; set "
          "eval_strategy to steps or epoch",
          source("save_strategy"));
    }
  }

  void check_loading() {
    const std::string place = source("load_best_model_at_end");
    if (train_.save_strategy != train_.eval_strategy) {
      throw ConfigError(
          "{}: found save_strategy {} with eval_strategy {}, expected the same, or save_strategy "
          "best: what is saved must have been evaluated; change one",
          place, train_.save_strategy, train_.eval_strategy);
    }
    if (train_.save_strategy == Interval::kNo) {
      return warn_without_effect("load_best_model_at_end", "save_strategy is no");
    }
    if (train_.save_strategy != Interval::kSteps) return;
    const double save = train_.save_steps;
    const double eval = train_.eval_steps.value_or(train_.logging_steps);
    const bool are_fractions = save < 1 && eval < 1;
    // Trainer's arithmetic: six digits of a fraction count.
    const double scale = are_fractions ? 1e6 : 1;
    const bool is_multiple =
        eval > 0 && std::fmod(std::round(save * scale), std::round(eval * scale)) == 0;
    if (is_multiple && (save < 1) == (eval < 1)) return;
    throw ConfigError(
        "{}: found save_steps {} with eval_steps {}, expected save_steps to be a multiple of "
        "eval_steps, both of them whole numbers or both fractions of the run; change one",
        place, save, eval);
  }

  const TrainConfig& train_ = config_.train;
};

}  // namespace

void check_saving(const RunConfig& config, const Merge& merge, std::vector<std::string>& warnings) {
  SavingRules(config, merge, warnings).check();
}

}  // namespace strata::config
