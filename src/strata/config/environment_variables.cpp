// Variable names to settings.
#include "strata/config/environment_variables.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

namespace strata::config {
namespace {

std::string setting_name(const std::string& variable) {
  static const std::map<std::string, std::string> kSpecial = {
      {"ACCELERATE_MIXED_PRECISION", "mixed_precision"},
      {"ACCELERATE_USE_FSDP", "use_fsdp"},
      {"ACCELERATE_USE_DEEPSPEED", "use_deepspeed"},
      {"ACCELERATE_USE_MEGATRON_LM", "use_megatron_lm"},
      {"ACCELERATE_USE_PARALLELISM_CONFIG", "use_parallelism_config"},
      {"ACCELERATE_USE_CPU", "use_cpu"},
      {"ACCELERATE_DEBUG_MODE", "debug"},
      {"ACCELERATE_CPU_AFFINITY", "enable_cpu_affinity"},
      {"FSDP_TRANSFORMER_CLS_TO_WRAP", "fsdp_transformer_layer_cls_to_wrap"},
  };
  if (auto found = kSpecial.find(variable); found != kSpecial.end()) return found->second;
  std::string name = variable;
  if (name.starts_with("ACCELERATE_DYNAMO_")) name = name.substr(sizeof("ACCELERATE_") - 1);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

}  // namespace

std::vector<Given> read_environment(const Environment& environment,
                                    std::vector<std::string>& warnings) {
  std::vector<Given> given;
  for (const auto& [variable, text] : environment) {
    if (!variable.starts_with("ACCELERATE_") && !variable.starts_with("FSDP_")) continue;
    if (text.empty()) continue;
    const std::string name = setting_name(variable);
    const std::string source = "environment variable " + variable;
    if (!find_setting(name)) {
      warnings.push_back(source + ": has no effect; no setting of this name is known");
      continue;
    }
    given.push_back(make_given(name, text, {Rank::kEnvironment, source}));
  }
  return given;
}

}  // namespace strata::config
