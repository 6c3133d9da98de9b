// Settings of CWM: Llama with a window in three layers of four. Source: transformers
// configuration_cwm.py.
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/relatives.h"

namespace strata::models {
namespace {

constexpr double kTheta = 1000000.0;

// Every fourth layer is global, the first one too, where the file says nothing.
void name_layers(Json& json) {
  const ConfigReader config(json);
  if (config.has("layer_types")) return;
  Json types = Json::array();
  for (int64_t i = 0; i < config.num_layers("num_hidden_layers", 64); ++i) {
    types.push_back(i % 4 == 0 ? "full_attention" : "sliding_attention");
  }
  json["layer_types"] = std::move(types);
}

}  // namespace

Json with_llama3_positions(const Json& json, double theta, double factor) {
  const auto scaling = json.find("rope_scaling"), parameters = json.find("rope_parameters");
  const bool says_scaling = scaling != json.end() && !scaling->is_null() && !scaling->empty();
  if (says_scaling || (parameters != json.end() && !parameters->is_null())) return json;
  Json result = json;
  result.erase("rope_scaling");
  result["rope_parameters"] = {{"rope_type", "llama3"},  {"rope_theta", theta},
                               {"factor", factor},       {"original_max_position_embeddings", 8192},
                               {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
  return result;
}

LlamaConfig parse_cwm_config(const Json& json) {
  Json complete = with_llama3_positions(json, kTheta, /*factor=*/16.0);
  name_layers(complete);
  const ConfigReader config(complete);
  LlamaConfig c;
  c.layer_class = "CwmDecoderLayer";
  c.architecture = "CwmForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.vocab_size = 128256;
  c.hidden_size = 6144;
  c.intermediate_size = 21504;
  c.num_hidden_layers = 64;
  c.num_attention_heads = 48;
  c.max_position_embeddings = 131072;
  c.rms_norm_eps = 1e-5;
  parse_common(config, c);
  c.num_key_value_heads = key_value_heads(config, c, 8);
  parse_head_dim(config, c);
  if (!json.contains("head_dim")) c.head_dim = 128;  // null is what remains
  c.mlp_bias = config.boolean("mlp_bias", false);
  c.windows = parse_windows(config, c.num_hidden_layers, /*period=*/4, /*default_window=*/8192);
  parse_positions(config, c, /*splits_hidden_size=*/true, kTheta);
  return c;
}

}  // namespace strata::models
