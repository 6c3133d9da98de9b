// Settings of Hunyuan's mixtures: the layer of its dense models, with experts and an MLP of all
// tokens in every one. Source: transformers configuration_hunyuan_v1_moe.py,
// modeling_hunyuan_v1_moe.py.
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/moe/config_parts.h"
#include "strata/models/moe/extended_mixture.h"

namespace strata::models {
namespace {

// One number, or one for each layer.
std::vector<int64_t> read_experts_per_token(const ConfigReader& config, int64_t num_layers) {
  const std::string key = config.has("moe_topk") ? "moe_topk" : "num_experts_per_tok";
  if (!config.has(key) || !config.at(key).is_array()) {
    const int64_t count = read_either(config, {"moe_topk", "num_experts_per_tok"}, 1);
    return std::vector<int64_t>(static_cast<size_t>(num_layers), count);
  }
  std::vector<int64_t> counts;
  for (const Json& entry : config.at(key)) {
    if (!entry.is_number_integer() || entry.get<int64_t>() < 1) break;
    counts.push_back(entry.get<int64_t>());
  }
  // The reference takes a longer list, too.
  if (static_cast<int64_t>(counts.size()) >= num_layers) return counts;
  throw FormatError(
      "config.json: found {} = {}, expected an integer of at least 1 or a list of such for "
      "num_hidden_layers = {} layers; fix the file",
      key, dump_python(config.at(key), /*indent=*/-1), num_layers);
}

}  // namespace

ExtendedMixtureConfig parse_hunyuan_v1_moe_config(const Json& json) {
  const ConfigReader config(json);
  ExtendedMixtureConfig c;
  c.layer = parse_hunyuan_v1_dense_config(json);
  MixtureConfig& mixture = c.mixture;
  mixture.llama = c.layer.llama;
  mixture.llama.layer_class = "HunYuanMoEV1DecoderLayer";
  mixture.llama.architecture = "HunYuanMoEV1ForCausalLM";
  mixture.llama.names_mean_experts = true;
  mixture.num_experts = read_num_experts(config, "num_experts", 1);
  mixture.intermediate_size = mixture.llama.intermediate_size;
  mixture.router.normalizes = true;
  mixture.router_name = "gate.wg";
  mixture.router_is_linear = true;
  mixture.wide_router = mixture.keeps_router = true;
  mixture.router_comes_first = true;
  mixture.shared_intermediate_size = mixture.llama.intermediate_size;
  mixture.shared_module = "shared_mlp";
  mixture.shared_has_gate = false;
  const int64_t num_layers = mixture.llama.num_hidden_layers;
  mixture.experts_per_token = read_experts_per_token(config, num_layers);
  for (int64_t i = 0; i < num_layers; ++i) {
    check_router(mixture.experts_per_token.at(static_cast<size_t>(i)), mixture.num_experts,
                 "num_experts");
  }
  mixture.has_experts.assign(static_cast<size_t>(num_layers), true);
  return c;
}

}  // namespace strata::models
