#include "strata/models/gpt2/config.h"

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/plain_activation.h"
#include "strata/models/size_names.h"

namespace strata::models {
namespace {

int64_t parse_size(const ConfigReader& config, const char* key, const char* alias,
                   int64_t fallback) {
  return config.positive_integer(SizeNames{key, alias}.said(config), fallback);
}

void check_heads(const Gpt2Config& c) {
  if (c.n_embd % c.n_head == 0) return;
  throw FormatError(
      "config.json: found n_embd = {}, expected a multiple of n_head = {}; fix the file", c.n_embd,
      c.n_head);
}

// The reference knows fewer than in other families, and by `gelu` means that of tanh.
nn::Activation parse_afn(const ConfigReader& config) {
  const std::string name = config.text("afn", "gelu");
  if (name == "gelu") return nn::Activation::kGeluTanh;
  if (name == "relu") return nn::Activation::kRelu;
  if (name == "silu" || name == "swish") return nn::Activation::kSilu;
  throw ConfigError(
      "config.json: found afn \"{}\", expected gelu, relu, silu or swish; use a checkpoint with "
      "one "
      "of these",
      name);
}

void refuse_cross_attention(const ConfigReader& config) {
  if (!config.boolean("add_cross_attention", false)) return;
  throw ConfigError(
      "config.json: found add_cross_attention true, expected a model that reads one text; use a "
      "checkpoint without an encoder");
}

// The reference's other switches (reorder_and_upcast_attn, attention_softmax_in_fp32,
// scale_attention_softmax_in_fp32) ask for scores and softmax in fp32, which they always are here.
void parse_common(const ConfigReader& config, Gpt2Config& c) {
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.n_positions = parse_size(config, "n_positions", "max_position_embeddings", c.n_positions);
  c.n_embd = parse_size(config, "n_embd", "hidden_size", c.n_embd);
  c.n_layer = config.num_layers(SizeNames{"n_layer", "num_hidden_layers"}.said(config), c.n_layer);
  c.n_head = parse_size(config, "n_head", "num_attention_heads", c.n_head);
  c.n_inner = config.positive_integer("n_inner", 4 * c.n_embd);
  c.resid_pdrop = config.dropout_rate("resid_pdrop", c.resid_pdrop);
  c.embd_pdrop = config.dropout_rate("embd_pdrop", c.embd_pdrop);
  c.attn_pdrop = config.dropout_rate("attn_pdrop", c.attn_pdrop);
  c.layer_norm_epsilon = config.positive_number("layer_norm_epsilon", c.layer_norm_epsilon);
  c.initializer_range = config.positive_number("initializer_range", c.initializer_range);
  c.scale_attn_weights = config.boolean("scale_attn_weights", c.scale_attn_weights);
  c.tie_word_embeddings = config.boolean("tie_word_embeddings", c.tie_word_embeddings);
  check_heads(c);
  refuse_cross_attention(config);
}

}  // namespace

bool is_conv1d_weight(const Json& config, const std::string& name) {
  const Json type = config.is_object() ? config.value("model_type", Json()) : Json();
  if (type != "gpt2" && type != "openai-gpt") return false;
  return name.ends_with(".c_attn.weight") || name.ends_with(".c_proj.weight") ||
         name.ends_with(".c_fc.weight");
}

Gpt2Config parse_gpt2_config(const Json& json) {
  const ConfigReader config(json);
  Gpt2Config c;
  parse_common(config, c);
  c.activation = parse_activation(config, "activation_function", "gelu_new");
  c.scale_attn_by_inverse_layer_idx =
      config.boolean("scale_attn_by_inverse_layer_idx", c.scale_attn_by_inverse_layer_idx);
  return c;
}

Gpt2Config parse_gpt_bigcode_config(const Json& json) {
  const ConfigReader config(json);
  Gpt2Config c;
  c.layer_class = "GPTBigCodeBlock";
  c.architecture = "GPTBigCodeForCausalLM";
  parse_common(config, c);
  c.activation = parse_activation(config, "activation_function", "gelu_pytorch_tanh");
  c.has_conv1d = false;
  c.multi_query = config.boolean("multi_query", true);
  c.interleaved = !c.multi_query;
  c.keeps_mask = true;
  return c;
}

Gpt2Config parse_openai_gpt_config(const Json& json) {
  // Keys of GPT-2 that the reference does not read here.
  Json own = json;
  for (const char* key : {"n_inner", "scale_attn_weights", "add_cross_attention"}) own.erase(key);
  const ConfigReader config(own);
  Gpt2Config c;
  c.layer_class = "Block";
  c.architecture = "OpenAIGPTLMHeadModel";
  c.tokens = "transformer.tokens_embed";
  c.positions = "transformer.positions_embed";
  c.lora_targets = c.ia3_targets = c.ia3_feedforward = {};
  c.vocab_size = 40478;
  c.n_positions = 512;
  c.norms_come_last = true;
  c.matrix_range = 0.02;
  parse_common(config, c);
  c.activation = parse_afn(config);
  // A mask in each layer, and the numbers of positions.
  c.buffer_numel = c.n_layer * c.n_positions * c.n_positions;
  c.buffer_bytes = c.n_positions * 8;
  return c;
}

}  // namespace strata::models
