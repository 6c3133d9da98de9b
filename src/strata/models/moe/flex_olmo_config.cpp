// Settings of FlexOlmo: OLMo 2's attention and norms, OLMoE's experts in every layer. Source:
// transformers configuration_flex_olmo.py, modeling_flex_olmo.py.
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

LlamaConfig parse_layers(const ConfigReader& config) {
  LlamaConfig c;
  c.layer_class = "FlexOlmoDecoderLayer";
  c.architecture = "FlexOlmoForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.never_quantized = {"mlp.gate"};
  c.vocab_size = 100352;
  c.max_position_embeddings = 4096;
  c.norm_kind = ops::RmsNormKind::kOlmo;
  c.layer_norms = {{NormPlace::kAttentionOutput, "post_attention_layernorm"},
                   {NormPlace::kMlpOutput, "post_feedforward_layernorm"}};
  c.row_norms = true;
  parse_common(config, c);
  parse_default_padding_id(config, c, 100277);
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c, /*splits_hidden_size=*/false, /*default_theta=*/500000.0);
  return c;
}

}  // namespace

MixtureConfig parse_flex_olmo_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c;
  c.llama = parse_layers(config);
  c.num_experts = read_num_experts(config, "num_experts", 7);
  c.intermediate_size = c.llama.intermediate_size;
  c.router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 5),
              .normalizes = config.boolean("norm_topk_prob", false)};
  c.router_comes_first = true;
  c.has_experts.assign(static_cast<size_t>(c.llama.num_hidden_layers), true);
  check_router(c.router.experts_per_token, c.num_experts, "num_experts");
  return c;
}

}  // namespace strata::models
