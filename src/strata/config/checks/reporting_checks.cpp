#include "strata/config/checks/reporting_checks.h"

#include <algorithm>
#include <array>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/text_distance.h"

namespace strata::config {
namespace {

constexpr const char* kNone = "none";
constexpr const char* kAll = "all";
constexpr const char* kTensorboard = "tensorboard";

// Trainer's other integrations (transformers integrations/integration_utils.py).
constexpr std::array kOthers = {"azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub",
                                "dvclive",  "flyte",   "kubeflow",   "mlflow",   "neptune",
                                "swanlab",  "trackio", "wandb"};

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

bool reports_to_tensorboard(const TrainConfig& train) {
  return has(train.report_to, kTensorboard) || has(train.report_to, kAll);
}

void check_reporting(const RunConfig& config, const Merge& merge,
                     std::vector<std::string>& warnings) {
  const std::vector<std::string>& names = config.train.report_to;
  for (const std::string& name : names) {
    if (name == kTensorboard || name == kAll) continue;
    if (name == kNone && names.size() == 1) continue;
    if (name == kNone) {
      throw ConfigError("{}: found none with {}, expected one of them; remove one",
                        merge.source("report_to"), names[0] == kNone ? names[1] : names[0]);
    }
    if (std::ranges::find(kOthers, name) != kOthers.end()) {
      warnings.push_back(fmt::format(
          "{}: {} has no effect here; metrics go to metrics.jsonl in output_dir, and with "
          "tensorboard to event files",
          merge.source("report_to"), name));
      continue;
    }
    std::vector<std::string> known = {kNone, kAll, kTensorboard};
    known.insert(known.end(), kOthers.begin(), kOthers.end());
    const auto near = closest(name, known);
    throw ConfigError("{}: found \"{}\", expected one of {}; {}", merge.source("report_to"), name,
                      fmt::join(known, ", "),
                      near ? "did you mean " + *near + "?" : "correct or remove it");
  }
  const Given* folder = merge.find_given("logging_dir");
  if (folder != nullptr && !config.train.logging_dir.empty() &&
      !reports_to_tensorboard(config.train)) {
    warnings.push_back(named_source(*folder) + ": has no effect; report_to is not tensorboard");
  }
}

}  // namespace strata::config
