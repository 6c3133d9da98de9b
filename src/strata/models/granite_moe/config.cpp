#include "strata/models/granite_moe/config.h"

#include <string>
#include <utility>

#include "strata/models/llama/granite_config.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

GraniteMoeConfig with_experts(const Json& json, LlamaConfig llama) {
  const GraniteExperts experts = parse_granite_experts(ConfigReader(json), llama.intermediate_size);
  return {.llama = std::move(llama), .experts = experts};
}

GraniteMoeConfig parse(const Json& json, const std::string& family) {
  LlamaConfig llama = parse_granite_config(json);
  llama.layer_class = family + "DecoderLayer";
  llama.architecture = family + "ForCausalLM";
  return with_experts(json, std::move(llama));
}

void parse_shared_mlp(const ConfigReader& config, GraniteMoeConfig& c) {
  require_not_null(config, "shared_intermediate_size");
  if (config.optional_integer("shared_intermediate_size").value_or(0) != 0) {
    c.shared_intermediate_size = config.positive_integer("shared_intermediate_size", 1);
  }
}

}  // namespace

GraniteExperts parse_granite_experts(const ConfigReader& config, int64_t intermediate_size) {
  require_not_null(config, {"num_local_experts", "num_experts_per_tok"});
  const GraniteExperts experts{
      .count = config.integer_up_to(kMostExperts, "num_local_experts", 8),
      .intermediate_size = intermediate_size,
      .router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 2),
                 .normalizes = true}};
  check_router(experts.router.experts_per_token, experts.count, "num_local_experts");
  return experts;
}

GraniteMoeConfig parse_granitemoe_config(const Json& json) { return parse(json, "GraniteMoe"); }

GraniteMoeConfig parse_granitemoeshared_config(const Json& json) {
  GraniteMoeConfig c = parse(json, "GraniteMoeShared");
  parse_shared_mlp(ConfigReader(json), c);
  return c;
}

GraniteMoeConfig parse_granitemoe_swa_config(const Json& json) {
  GraniteMoeConfig c =
      with_experts(json, parse_granite_with_windows(json, "GraniteMoeSWA", LlamaConfig{}));
  parse_shared_mlp(ConfigReader(json), c);
  return c;
}

}  // namespace strata::models
