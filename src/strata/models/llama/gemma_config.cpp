// Settings of Gemma, Gemma 2, VaultGemma and of the text models of Gemma 3. Source: transformers
// configuration_{gemma,gemma2,vaultgemma,gemma3}.py.
#include <cmath>
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/relatives.h"

namespace strata::models {
namespace {

LlamaConfig start_gemma(const std::string& family) {
  LlamaConfig c;
  c.layer_class = family + "DecoderLayer";
  c.architecture = family + "ForCausalLM";
  c.ia3_targets = {"q_proj", "v_proj", "down_proj"};
  c.norm_kind = ops::RmsNormKind::kGemma;
  c.gate = ops::GateKind::kGeluTanh;
  c.tie_word_embeddings = true;
  return c;
}

// What both generations share. `c` holds the family's defaults.
void parse_gemma(const ConfigReader& config, LlamaConfig& c) {
  const int64_t key_value_heads = c.num_key_value_heads;
  parse_common(config, c);
  parse_default_padding_id(config, c, 0);
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", key_value_heads);
  c.head_dim = config.positive_integer("head_dim", 256);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.embedding_scale = std::sqrt(static_cast<double>(c.hidden_size));
  if (config.boolean("use_bidirectional_attention", false)) {
    throw ConfigError(
        "config.json: found use_bidirectional_attention = True, expected False; use a checkpoint "
        "that predicts the next token");
  }
}

double parse_query_scale(const ConfigReader& config) {
  return 1.0 /
         std::sqrt(static_cast<double>(config.positive_integer("query_pre_attn_scalar", 256)));
}

std::vector<LayerNorm> norms_on_both_sides() {
  return {{NormPlace::kAttentionInput, "input_layernorm"},
          {NormPlace::kAttentionOutput, "post_attention_layernorm"},
          {NormPlace::kMlpInput, "pre_feedforward_layernorm"},
          {NormPlace::kMlpOutput, "post_feedforward_layernorm"}};
}

// A key that says null means none; a missing one means the default.
double parse_softcap(const ConfigReader& config, const std::string& key, double fallback) {
  if (config.json().contains(key) && !config.has(key)) return 0;
  return config.positive_number(key, fallback);
}

void refuse_soft_caps(const ConfigReader& config) {
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    if (!config.has(key)) continue;
    throw ConfigError(
        "config.json: found {} = {}, expected null; use a checkpoint without it, such as the "
        "published ones of Gemma 3",
        key, config.at(key).dump());
  }
}

}  // namespace

LlamaConfig parse_gemma_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = start_gemma("Gemma");
  c.vocab_size = 256000;
  c.hidden_size = 3072;
  c.intermediate_size = 24576;
  c.num_hidden_layers = 28;
  c.num_attention_heads = c.num_key_value_heads = 16;
  c.max_position_embeddings = 8192;
  parse_gemma(config, c);
  // In a checkpoint of Gemma "gelu" means the approximation, too.
  require_activation(config, "hidden_act", {"gelu_pytorch_tanh", "gelu"});
  parse_positions(config, c);
  return c;
}

LlamaConfig parse_gemma2_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = start_gemma("Gemma2");
  c.vocab_size = 256000;
  c.hidden_size = 2304;
  c.intermediate_size = 9216;
  c.num_hidden_layers = 26;
  c.num_attention_heads = 8;
  c.num_key_value_heads = 4;
  c.max_position_embeddings = 8192;
  parse_gemma(config, c);
  require_activation(config, "hidden_activation", {"gelu_pytorch_tanh"});
  c.layer_norms = norms_on_both_sides();
  c.attention_scale = parse_query_scale(config);
  c.attention_softcap = parse_softcap(config, "attn_logit_softcapping", 50.0);
  c.logit_softcap = parse_softcap(config, "final_logit_softcapping", 30.0);
  c.windows = parse_windows(config, c.num_hidden_layers, /*period=*/2);
  parse_positions(config, c, /*splits_hidden_size=*/true);
  return c;
}

LlamaConfig parse_vaultgemma_config(const Json& json) {
  LlamaConfig c = parse_gemma2_config(json);
  c.layer_class = "VaultGemmaDecoderLayer";
  c.architecture = "VaultGemmaForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.layer_norms = {{NormPlace::kAttentionInput, "input_layernorm"},
                   {NormPlace::kMlpInput, "pre_feedforward_layernorm"}};
  return c;
}

LlamaConfig parse_gemma3_text_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = start_gemma("Gemma3");
  c.vocab_size = 262208;
  c.hidden_size = 2304;
  c.intermediate_size = 9216;
  c.num_hidden_layers = 26;
  c.num_attention_heads = 8;
  c.num_key_value_heads = 4;
  c.max_position_embeddings = 131072;
  parse_gemma(config, c);
  require_activation(config, "hidden_activation", {"gelu_pytorch_tanh"});
  refuse_soft_caps(config);
  c.head_norms = true;
  c.layer_norms = norms_on_both_sides();
  c.attention_scale = parse_query_scale(config);
  c.windows = parse_windows(config, c.num_hidden_layers,
                            config.positive_integer("sliding_window_pattern", 6));
  check_relations(c, /*splits_hidden_size=*/true);
  parse_rotations(config, c,
                  {.global = config.positive_number("rope_theta", 1e6),
                   .local = config.positive_number("rope_local_base_freq", 1e4)});
  return c;
}

}  // namespace strata::models
