#include "strata/models/moe/config.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"

namespace strata::models {

std::optional<double> balancing_coefficient(const Json& json) {
  const ConfigReader config(json);
  const std::string type = config.text("model_type", "");
  const auto mixtures = {"ernie4_5_moe",     "flex_olmo",        "gpt_oss",         "granitemoe",
                         "granitemoehybrid", "granitemoeshared", "granitemoe_swa",  "mellum",
                         "minimax_m2",       "mixtral",          "olmoe",           "qwen2_moe",
                         "qwen3_moe",        "qwen3_next",       "qwen3_5_moe_text"};
  if (std::ranges::find(mixtures, type) == mixtures.end()) return {};
  if (type == "granitemoehybrid" && config.optional_integer("num_local_experts") == 0) return {};
  const bool is_olmo = type == "olmoe" || type == "flex_olmo";
  const double found = config.number("router_aux_loss_coef", is_olmo ? 0.01 : 0.001);
  if (found >= 0) return found;
  throw FormatError(
      "config.json: found router_aux_loss_coef = {}, expected at least 0; fix the file", found);
}

void describe_balancing(double coefficient, Json& config) {
  config["output_router_logits"] = coefficient != 0;
  config["router_aux_loss_coef"] = coefficient;
}

}  // namespace strata::models
