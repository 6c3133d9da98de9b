// Keys of the families whose experts sigmoids choose (GLM-4.5, DeepSeek-V3, dots.llm1, K-EXAONE).
// Source: transformers modeling_{glm4_moe,deepseek_v3,glm4_moe_lite,dots1,exaone_moe}.py.
#include <algorithm>

#include "strata/base/error.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {

void require_not_null(const ConfigReader& config, const std::string& key) {
  if (!config.json().contains(key) || config.has(key)) return;
  throw FormatError("config.json: found {} = None, expected a value; fix the file", key);
}

void require_not_null(const ConfigReader& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) require_not_null(config, std::string(key));
}

void require_text(const ConfigReader& config, const std::string& key, const std::string& expected) {
  const std::string found = config.text(key, expected);
  if (found == expected) return;
  throw ConfigError(
      "config.json: found {} \"{}\", expected \"{}\"; use a checkpoint whose experts are chosen so",
      key, found, expected);
}

nn::ExpertGroups read_expert_groups(const ConfigReader& config, int64_t num_experts,
                                    int64_t experts_per_token, const nn::ExpertGroups& defaults,
                                    int64_t least_size, const std::string& key) {
  for (const char* each : {"n_group", "topk_group"}) require_not_null(config, each);
  const nn::ExpertGroups groups{.count = config.positive_integer("n_group", defaults.count),
                                .chosen = config.positive_integer("topk_group", defaults.chosen)};
  const int64_t size = num_experts / groups.count;
  if (num_experts % groups.count != 0 || size < least_size) {
    throw FormatError(
        "config.json: found n_group = {}, expected groups of {} or more of {} = {}; fix the file",
        groups.count, least_size == 1 ? "one" : "two", key, num_experts);
  }
  if (groups.chosen > groups.count) {
    throw FormatError(
        "config.json: found topk_group = {}, expected at most n_group = {}; fix the file",
        groups.chosen, groups.count);
  }
  if (experts_per_token > groups.chosen * size) {
    throw FormatError(
        "config.json: found num_experts_per_tok = {}, expected at most {}, the experts of "
        "topk_group = {} groups; fix the file",
        experts_per_token, groups.chosen * size, groups.chosen);
  }
  return groups;
}

nn::SigmoidRouterOptions read_sigmoid_router(const ConfigReader& config, int64_t num_experts,
                                             const nn::SigmoidRouterOptions& defaults,
                                             const std::string& key) {
  nn::SigmoidRouterOptions router{
      .experts_per_token =
          config.positive_integer("num_experts_per_tok", defaults.experts_per_token),
      .normalizes = config.boolean("norm_topk_prob", defaults.normalizes),
      .scale = config.positive_number("routed_scaling_factor", defaults.scale)};
  check_router(router.experts_per_token, num_experts, key);
  router.groups = read_expert_groups(config, num_experts, router.experts_per_token, defaults.groups,
                                     /*least_size=*/2, key);
  return router;
}

// The reference knows the key by two names.
int64_t read_num_prediction_layers(const ConfigReader& config) {
  const auto other = config.optional_integer("num_mtp_layers");
  const int64_t found =
      config.optional_integer("num_nextn_predict_layers").value_or(other.value_or(1));
  if (found >= 0) return found;
  throw FormatError(
      "config.json: found num_nextn_predict_layers = {}, expected at least 0; fix the file", found);
}

std::vector<bool> read_sparse_layers(const ConfigReader& config, int64_t num_layers,
                                     int64_t num_dense) {
  std::vector<bool> is_sparse;
  if (!config.has("mlp_layer_types")) {
    for (int64_t i = 0; i < num_layers; ++i) is_sparse.push_back(i >= num_dense);
    return is_sparse;
  }
  const Json& list = config.at("mlp_layer_types");
  const auto is_kind = [](const Json& entry) { return entry == "dense" || entry == "sparse"; };
  if (!list.is_array() || static_cast<int64_t>(list.size()) != num_layers ||
      !std::ranges::all_of(list, is_kind)) {
    throw FormatError(
        "config.json: found mlp_layer_types = {}, expected a list of num_hidden_layers = {} texts, "
        "dense or sparse; fix the file",
        dump_python(list, /*indent=*/-1), num_layers);
  }
  for (const Json& entry : list) is_sparse.push_back(entry == "sparse");
  return is_sparse;
}

}  // namespace strata::models
