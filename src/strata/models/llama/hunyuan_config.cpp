// Settings of the dense Hunyuan models: norms of heads that have turned, and rotary positions whose
// base a fixed `alpha` stretches. Source: transformers configuration_hunyuan_v1_dense.py and
// modeling_hunyuan_v1_dense.py (compute_ntk_alpha_rope_parameters).
#include <cmath>
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/extended_layer.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

// The key that holds the rope's settings; empty: none does.
std::string rope_key(const ConfigReader& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (config.has(key) && !(config.at(key).is_object() && config.at(key).empty())) return key;
  }
  return "";
}

// Beside "dynamic" it takes the place of the text's length; 0: there is none.
double parse_alpha(const ConfigReader& rope) {
  if (rope.text("rope_type", rope.text("type", "default")) != "dynamic") return 0;
  return rope.number("alpha", 0) == 0 ? 0 : rope.positive_number("alpha", 1);
}

nn::RopeOptions parse_hunyuan_rope(const ConfigReader& config, const LlamaConfig& c) {
  const RopeShape shape{c.head_dim, c.max_position_embeddings};
  const std::string key = rope_key(config);
  const double alpha = key.empty() ? 0 : parse_alpha(ConfigReader(config.at(key), key + "."));
  if (alpha == 0) return parse_rope(config, shape);
  Json plain = config.json();
  plain[key]["rope_type"] = "default";
  nn::RopeOptions rope = parse_rope(ConfigReader(plain), shape);
  if (rope.head_dim == 2) {
    throw FormatError(
        "config.json: found head_dim = 2 with rope_type \"dynamic\", expected at least 4; fix the "
        "file");
  }
  const auto dim = static_cast<double>(rope.head_dim);
  rope.theta *= std::pow(alpha, dim / (dim - 2));
  return rope;
}

}  // namespace

ExtendedConfig parse_hunyuan_v1_dense_config(const Json& json) {
  const ConfigReader config(json);
  ExtendedConfig result;
  LlamaConfig& c = result.llama;
  c.layer_class = "HunYuanDenseV1DecoderLayer";
  c.architecture = "HunYuanDenseV1ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.vocab_size = 290943;
  c.rms_norm_eps = 1e-5;
  result.norms_turned_heads = true;
  parse_common(config, c);
  parse_default_padding_id(config, c, 0);
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  refuse_windows(config, c.num_hidden_layers);
  check_relations(c);
  c.rope = parse_hunyuan_rope(config, c);
  return result;
}

}  // namespace strata::models
