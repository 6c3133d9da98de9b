// What a result says of itself: the page with the curves, the model card, the line that a run ends
// with. Owns: what they name. Never: how they look (report/), nor weights.
#pragma once

#include <filesystem>
#include <string>

#include "strata/config/run_config.h"
#include "strata/train/loop/trainer.h"

namespace strata::train {

constexpr const char* kReportFile = "report.html";
constexpr const char* kModelCardFile = "README.md";

std::string report_page(const config::RunConfig& config, const Trainee& trainee,
                        const Trainer& trainer);

std::string model_card(const config::RunConfig& config, const Trainee& trainee,
                       const Trainer& trainer);
// Whether a README.md in the folder, if there is one, is a model card of an earlier result.
bool owns_model_card(const std::filesystem::path& folder);

}  // namespace strata::train
