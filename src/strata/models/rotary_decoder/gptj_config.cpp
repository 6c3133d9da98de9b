// Settings of GPT-J and CodeGen: attention and MLP side by side, the first channels of a head turn
// with their neighbours. Source: transformers configuration_{gptj,codegen}.py,
// modeling_{gptj,codegen}.py.
#include "strata/base/error.h"
#include "strata/models/plain_activation.h"
#include "strata/models/rotary_decoder/config.h"
#include "strata/models/rotary_decoder/config_parts.h"
#include "strata/models/size_names.h"

namespace strata::models {
namespace {

int64_t parse_size(const ConfigReader& config, const char* key, const char* alias,
                   int64_t fallback) {
  return config.positive_integer(SizeNames{key, alias}.said(config), fallback);
}

void parse_sizes(const ConfigReader& config, RotaryDecoderConfig& c) {
  c.vocab_size = config.positive_integer("vocab_size", 50400);
  c.hidden_size = parse_size(config, "n_embd", "hidden_size", 4096);
  c.intermediate_size = config.positive_integer("n_inner", 4 * c.hidden_size);
  c.num_hidden_layers =
      config.num_layers(SizeNames{"n_layer", "num_hidden_layers"}.said(config), 28);
  const SizeNames heads{"n_head", "num_attention_heads"};
  c.num_attention_heads = config.positive_integer(heads.said(config), 16);
  c.max_position_embeddings = parse_size(config, "n_positions", "max_position_embeddings", 2048);
  split_hidden_size(c, "n_embd", "n_head");
}

// How many channels of a head turn.
int64_t parse_rotary_dim(const ConfigReader& config, int64_t head_dim) {
  const int64_t channels = config.positive_integer("rotary_dim", 64);
  const bool is_null = config.json().contains("rotary_dim") && !config.has("rotary_dim");
  if (!is_null && channels <= head_dim && channels % 2 == 0) return channels;
  throw FormatError(
      "config.json: found rotary_dim = {}, expected an even number of at most n_embd / n_head = {} "
      "channels; fix the file",
      is_null ? "None" : std::to_string(channels), head_dim);
}

// What both share. `family`: as messages call it.
RotaryDecoderConfig parse_gptj_family(const ConfigReader& config, const std::string& family) {
  RotaryDecoderConfig c;
  c.embedding_name = "transformer.wte";
  c.layers_name = "transformer.h";
  c.attention_name = "attn";
  c.norm_names[0] = "ln_1";
  c.output_name = "out_proj";
  c.mlp_input_name = "fc_in";
  c.mlp_output_name = "fc_out";
  c.final_norm_name = "transformer.ln_f";
  c.norms_come_first = true;
  c.ignored_suffixes = {".attn.bias", ".attn.masked_bias", ".attn.causal_mask"};
  c.mlp_bias = c.head_bias = true;
  c.is_parallel = true;
  c.has_gated_mlp = false;
  parse_sizes(config, c);
  c.norm_eps = config.positive_number("layer_norm_epsilon", c.norm_eps);
  c.initializer_range = config.positive_number("initializer_range", c.initializer_range);
  c.activation = parse_activation(config, "activation_function", "gelu_new");
  c.attention_dropout = config.dropout_rate("attn_pdrop", 0.0);
  c.attention_output_dropout = c.mlp_dropout = config.dropout_rate("resid_pdrop", 0.0);
  c.embedding_dropout = config.dropout_rate("embd_pdrop", 0.0);
  c.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  refuse_tie(c, family);
  nn::RopeOptions& rope = c.rope.emplace();
  rope.head_dim = parse_rotary_dim(config, c.head_dim);
  rope.max_position_embeddings = c.max_position_embeddings;
  rope.pairs = ops::RopePairs::kNeighbours;
  // Sines and cosines of each layer's own.
  c.buffer_bytes = c.num_hidden_layers * c.max_position_embeddings * rope.head_dim * 4;
  return c;
}

}  // namespace

RotaryDecoderConfig parse_gptj_config(const Json& json) {
  RotaryDecoderConfig c = parse_gptj_family(ConfigReader(json), "GPT-J");
  c.layer_class = "GPTJBlock";
  c.architecture = "GPTJForCausalLM";
  c.lora_targets = c.vera_targets = {"q_proj", "v_proj"};
  c.ia3_targets = {"q_proj", "v_proj", "fc_out"};
  c.ia3_feedforward = {"fc_out"};
  c.queries_come_third = true;
  return c;
}

RotaryDecoderConfig parse_codegen_config(const Json& json) {
  RotaryDecoderConfig c = parse_gptj_family(ConfigReader(json), "CodeGen");
  c.layer_class = "CodeGenBlock";
  c.architecture = "CodeGenForCausalLM";
  c.lora_targets = c.vera_targets = {"qkv_proj"};
  c.fused_parts = 4;  // as many as the chips that the first code was spread over
  if (c.num_attention_heads % c.fused_parts == 0) return c;
  throw FormatError(
      "config.json: found n_head = {}, expected a multiple of {}, the parts of a CodeGen model's "
      "heads; fix the file",
      c.num_attention_heads, c.fused_parts);
}

}  // namespace strata::models
