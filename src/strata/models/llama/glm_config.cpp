// Settings of GLM (glm-4-9b-chat-hf) and GLM-4 (GLM-4-9B-0414, GLM-4-32B-0414): a part of a head's
// channels turns, each with its neighbour. Source: transformers configuration_{glm,glm4}.py.

#include <string>

#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

// What both generations share.
LlamaConfig parse_glm_family(const Json& json, const std::string& family) {
  const ConfigReader config(json);
  LlamaConfig c;
  c.layer_class = family + "DecoderLayer";
  c.architecture = family + "ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.fused_gate_up = true;
  c.vocab_size = 151552;
  c.intermediate_size = 13696;
  c.num_hidden_layers = 40;
  c.max_position_embeddings = 131072;
  c.rms_norm_eps = 1.5625e-7;
  parse_common(config, c);
  parse_default_padding_id(config, c, 151329);
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", 2);
  c.head_dim = config.positive_integer("head_dim", 128);
  c.input_bias = config.boolean("attention_bias", true);
  refuse_windows(config, c.num_hidden_layers);
  check_relations(c);
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings, /*default_theta=*/10000.0,
                               /*default_part=*/0.5});
  c.rope.pairs = ops::RopePairs::kNeighbours;
  return c;
}

}  // namespace

LlamaConfig parse_glm_config(const Json& json) { return parse_glm_family(json, "Glm"); }

LlamaConfig parse_glm4_config(const Json& json) {
  LlamaConfig c = parse_glm_family(json, "Glm4");
  c.layer_norms.insert(c.layer_norms.end(),
                       {{NormPlace::kAttentionOutput, "post_self_attn_layernorm"},
                        {NormPlace::kMlpOutput, "post_mlp_layernorm"}});
  return c;
}

}  // namespace strata::models
