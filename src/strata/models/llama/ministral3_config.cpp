// Settings of the text models of Ministral 3: YaRN, and queries that grow with their position.
// Source: transformers configuration_ministral3.py.
#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/extended_layer.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

// The reference's rope settings where the file says nothing.
Json with_default_rope(const Json& json) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) continue;
    if (key == std::string("rope_parameters") || !found->empty()) return json;
  }
  Json result = json;
  result.erase("rope_scaling");
  result["rope_parameters"] = {{"rope_type", "yarn"},
                               {"rope_theta", 1000000.0},
                               {"factor", 16.0},
                               {"original_max_position_embeddings", 16384},
                               {"beta_fast", 32.0},
                               {"beta_slow", 1.0},
                               {"mscale_all_dim", 1.0},
                               {"mscale", 1.0},
                               {"llama_4_scaling_beta", 0.1}};
  return result;
}

nn::QueryScale parse_query_scale(const ConfigReader& rope, const LlamaConfig& c) {
  const std::string beta = "llama_4_scaling_beta", length = "original_max_position_embeddings";
  // For yarn, longrope and llama3 it is known, from other keys too.
  const bool knows_length = c.rope.original_max_position_embeddings > 0 &&
                            c.rope.kind != nn::RopeKind::kLinear &&
                            c.rope.kind != nn::RopeKind::kDynamic;
  for (const std::string& key : {beta, length}) {
    if (rope.has(key) || (key == length && knows_length)) continue;
    throw FormatError(
        "config.json: found no {}{}, expected a number, with which queries grow; add it to the "
        "file",
        rope.prefix(), key);
  }
  return {.beta = rope.number(beta, 0),
          .length = knows_length ? c.rope.original_max_position_embeddings
                                 : rope.positive_integer(length, 1),
          .rounds_factor = true};
}

}  // namespace

ExtendedConfig parse_ministral3_config(const Json& json) {
  const Json complete = with_default_rope(json);
  const ConfigReader config(complete);
  ExtendedConfig result;
  LlamaConfig& c = result.llama;
  c.layer_class = "Ministral3DecoderLayer";
  c.architecture = "Ministral3ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.vocab_size = 131072;
  c.intermediate_size = 14336;
  c.num_hidden_layers = 34;
  c.max_position_embeddings = 262144;
  c.rms_norm_eps = 1e-5;
  parse_common(config, c);
  parse_default_padding_id(config, c, 11);
  c.num_key_value_heads = key_value_heads(config, c, 8);
  parse_head_dim(config, c);
  if (!config.json().contains("head_dim")) c.head_dim = 128;  // null is what remains
  if (config.has("sliding_window")) {  // of all layers, whatever layer_types says
    c.windows.assign(static_cast<size_t>(c.num_hidden_layers),
                     config.positive_integer("sliding_window", 1));
  }
  parse_positions(config, c);
  const std::string key = config.has("rope_scaling") && !config.at("rope_scaling").empty()
                              ? "rope_scaling"
                              : "rope_parameters";
  result.query_scale = parse_query_scale(ConfigReader(config.at(key), key + "."), c);
  return result;
}

}  // namespace strata::models
