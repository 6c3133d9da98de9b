#include "strata/models/granite_moe/config.h"

#include <string>

#include "strata/models/config_reader.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

GraniteMoeConfig parse(const Json& json, const std::string& family) {
  const ConfigReader config(json);
  GraniteMoeConfig c;
  c.llama = parse_granite_config(json);
  c.llama.layer_class = family + "DecoderLayer";
  c.llama.architecture = family + "ForCausalLM";
  c.num_experts = config.integer_up_to(kMostExperts, "num_local_experts", 8);
  c.router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 2),
              .normalizes = true,
              .scale = c.llama.residual_multiplier};
  check_router(c.router.experts_per_token, c.num_experts, "num_local_experts");
  return c;
}

}  // namespace

GraniteMoeConfig parse_granitemoe_config(const Json& json) { return parse(json, "GraniteMoe"); }

GraniteMoeConfig parse_granitemoeshared_config(const Json& json) {
  GraniteMoeConfig c = parse(json, "GraniteMoeShared");
  const ConfigReader config(json);
  require_not_null(config, "shared_intermediate_size");
  if (config.optional_integer("shared_intermediate_size").value_or(0) != 0) {
    c.shared_intermediate_size = config.positive_integer("shared_intermediate_size", 1);
  }
  return c;
}

}  // namespace strata::models
