// Settings of OLMo 2 and OLMo 3. Source: transformers configuration_{olmo2,olmo3}.py.
#include <string>

#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"
#include "strata/models/llama/config_parts.h"

namespace strata::models {
namespace {

constexpr double kOlmo3Theta = 500000.0;

// What both generations share.
LlamaConfig parse_olmo(const ConfigReader& config, const std::string& family) {
  LlamaConfig c;
  c.layer_class = family + "DecoderLayer";
  c.architecture = family + "ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.vocab_size = 50304;
  c.rms_norm_eps = 1e-5;
  c.norm_kind = ops::RmsNormKind::kOlmo;
  c.layer_norms = {{NormPlace::kAttentionOutput, "post_attention_layernorm"},
                   {NormPlace::kMlpOutput, "post_feedforward_layernorm"}};
  c.row_norms = true;
  parse_common(config, c);
  parse_default_padding_id(config, c, 1);
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  return c;
}

}  // namespace

LlamaConfig parse_olmo2_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = parse_olmo(config, "Olmo2");
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c);
  return c;
}

LlamaConfig parse_olmo3_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = parse_olmo(config, "Olmo3");
  c.windows = parse_windows(config, c.num_hidden_layers, /*period=*/4);
  check_relations(c);
  // The reference takes the key for global layers alone.
  parse_rotations(
      config, c,
      {.global = config.positive_number("rope_theta", kOlmo3Theta), .local = kOlmo3Theta});
  return c;
}

}  // namespace strata::models
