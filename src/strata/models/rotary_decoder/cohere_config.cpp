// Settings of Cohere (Command R, Aya) and Cohere 2 (Command R7B, Command A): attention and MLP side
// by side, scaled logits, neighbouring channels that turn together. Source: transformers
// configuration_{cohere,cohere2}.py.
#include "strata/models/llama/config_parts.h"
#include "strata/models/rope_config.h"
#include "strata/models/rotary_decoder/config.h"
#include "strata/models/rotary_decoder/config_parts.h"

namespace strata::models {
namespace {

// What both generations share.
RotaryDecoderConfig parse_cohere_family(const ConfigReader& config, const std::string& family,
                                        double default_theta) {
  RotaryDecoderConfig c;
  c.layer_class = family + "DecoderLayer";
  c.architecture = family + "ForCausalLM";
  c.norm_affine = nn::LayerNormAffine::kWeight;
  c.is_parallel = true;
  c.vocab_size = 256000;
  c.hidden_size = 8192;
  c.intermediate_size = 22528;
  c.num_hidden_layers = 40;
  c.num_attention_heads = 64;
  c.max_position_embeddings = 8192;
  c.tie_word_embeddings = true;
  c.pad_token_id = 0;
  parse_rotary_common(config, c, "layer_norm_eps");
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", c.num_attention_heads);
  parse_rotary_heads(config, c);
  require_activation(config, "hidden_act", {"silu", "swish"});
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.logit_scale = config.positive_number("logit_scale", 0.0625);
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings, default_theta});
  c.rope->pairs = ops::RopePairs::kNeighbours;
  return c;
}

}  // namespace

RotaryDecoderConfig parse_cohere_config(const Json& json) {
  const ConfigReader config(json);
  RotaryDecoderConfig c = parse_cohere_family(config, "Cohere", /*default_theta=*/500000.0);
  if (config.boolean("use_qk_norm", false)) c.head_norms = nn::HeadNormWeights::kOfHeads;
  return c;
}

RotaryDecoderConfig parse_cohere2_config(const Json& json) {
  const ConfigReader config(json);
  RotaryDecoderConfig c = parse_cohere_family(config, "Cohere2", /*default_theta=*/10000.0);
  c.windows = parse_windows(config, c.num_hidden_layers,
                            config.positive_integer("sliding_window_pattern", 4));
  // Global layers have no positions.
  for (const int64_t window : c.windows) c.rotates.push_back(window != 0);
  return c;
}

}  // namespace strata::models
