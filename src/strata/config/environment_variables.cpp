// Variable names to settings.
#include "strata/config/environment_variables.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "strata/base/text_distance.h"

namespace strata::config {
namespace {

// Variables that are not the setting's name in capitals.
const std::map<std::string, std::string>& special_names() {
  static const std::map<std::string, std::string> kSpecial = {
      {"ACCELERATE_MIXED_PRECISION", "mixed_precision"},
      {"ACCELERATE_USE_FSDP", "use_fsdp"},
      {"ACCELERATE_USE_DEEPSPEED", "use_deepspeed"},
      {"ACCELERATE_DEEPSPEED_CONFIG_FILE", "deepspeed"},
      {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "zero_stage"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "offload_optimizer_device"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "offload_param_device"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "offload_optimizer_nvme_path"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "offload_param_nvme_path"},
      {"ACCELERATE_DEEPSPEED_ZERO3_INIT", "zero3_init_flag"},
      {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "zero3_save_16bit_model"},
      {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "gradient_accumulation_steps"},
      {"ACCELERATE_GRADIENT_CLIPPING", "max_grad_norm"},
      {"ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "deepspeed_moe_layer_cls_names"},
      {"ACCELERATE_USE_MEGATRON_LM", "use_megatron_lm"},
      {"ACCELERATE_USE_PARALLELISM_CONFIG", "use_parallelism_config"},
      {"ACCELERATE_USE_CPU", "use_cpu"},
      {"ACCELERATE_DEBUG_MODE", "debug"},
      {"ACCELERATE_CPU_AFFINITY", "enable_cpu_affinity"},
      {"FSDP_TRANSFORMER_CLS_TO_WRAP", "fsdp_transformer_layer_cls_to_wrap"},
  };
  return kSpecial;
}

std::string setting_name(const std::string& variable) {
  const auto& special = special_names();
  if (const auto found = special.find(variable); found != special.end()) return found->second;
  std::string name = variable;
  if (name.starts_with("ACCELERATE_DYNAMO_")) name = name.substr(sizeof("ACCELERATE_") - 1);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

// "; did you mean FSDP_VERSION?", or nothing.
std::string hint_for(const std::string& variable) {
  std::vector<std::string> known;
  for (const auto& [name, setting] : special_names()) known.push_back(name);
  for (const Setting& setting : settings_table()) {
    std::string name(setting.name);
    if (!name.starts_with("fsdp_") && !name.starts_with("parallelism_config_")) continue;
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
    known.push_back(name);
  }
  const auto near = closest(variable, known);
  return near ? "; did you mean " + *near + "?" : "";
}

// accelerate's launcher exports the strategy's name and the boolean of version 2 side by side, one
// of them at its default; its plugin reads the one of the version.
bool is_of_other_version(const Environment& environment, const std::string& variable) {
  constexpr const char *kName = "FSDP_SHARDING_STRATEGY", *kBoolean = "FSDP_RESHARD_AFTER_FORWARD";
  if (variable != kName && variable != kBoolean) return false;
  if (!environment.contains(kName) || !environment.contains(kBoolean)) return false;
  const auto version = environment.find("FSDP_VERSION");
  const bool is_version_2 = version != environment.end() && version->second == "2";
  return variable == (is_version_2 ? kName : kBoolean);
}

}  // namespace

std::vector<Given> read_environment(const Environment& environment,
                                    std::vector<std::string>& warnings) {
  std::vector<Given> given;
  for (const auto& [variable, text] : environment) {
    const bool is_known = variable.starts_with("ACCELERATE_") || variable.starts_with("FSDP_") ||
                          variable.starts_with("PARALLELISM_CONFIG_");
    // The last is a list that accelerate's launcher keeps for itself.
    if (!is_known || text.empty() || variable == "ACCELERATE_CONFIG_DS_FIELDS") continue;
    if (is_of_other_version(environment, variable)) continue;
    const std::string name = setting_name(variable);
    const std::string source = "environment variable " + variable;
    if (!find_setting(name)) {
      warnings.push_back(source + ": has no effect; no setting of this name is known" +
                         hint_for(variable));
      continue;
    }
    given.push_back(make_given(name, text, {Rank::kEnvironment, source}));
  }
  return given;
}

}  // namespace strata::config
