#include "strata/models/falcon/config.h"

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/plain_activation.h"
#include "strata/models/rope_config.h"
#include "strata/models/size_names.h"

namespace strata::models {
namespace {

// Keys that both families have, `c` with the family's defaults. Sizes may have two names.
void parse_shared(const ConfigReader& config, FalconConfig& c) {
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.hidden_size =
      config.positive_integer(config.has("n_embed") ? "n_embed" : "hidden_size", c.hidden_size);
  c.layer_norm_eps = config.positive_number("layer_norm_epsilon", c.layer_norm_eps);
  c.initializer_range = config.positive_number("initializer_range", c.initializer_range);
  c.hidden_dropout = config.dropout_rate("hidden_dropout", c.hidden_dropout);
  c.tie_word_embeddings = config.boolean("tie_word_embeddings", c.tie_word_embeddings);
}

void check_heads(const FalconConfig& c, const char* hidden_key, const char* heads_key) {
  if (c.hidden_size % c.num_attention_heads != 0) {
    throw FormatError("config.json: found {} = {}, expected a multiple of {} = {}; fix the file",
                      hidden_key, c.hidden_size, heads_key, c.num_attention_heads);
  }
  if (c.num_attention_heads % c.num_key_value_heads == 0) return;
  throw FormatError(
      "config.json: found num_kv_heads = {}, expected a divisor of {} = {}; fix the file",
      c.num_key_value_heads, heads_key, c.num_attention_heads);
}

// The reference computes none of these: it asks a layer for norms or heads that it has not made.
FormatError contradiction(const std::string& found, const std::string& expected) {
  return FormatError("config.json: found {}, expected {}; fix the file", found, expected);
}

FalconNorms parse_norms(const ConfigReader& config, bool is_new) {
  const bool is_parallel = config.boolean("parallel_attn", true);
  const auto count = config.optional_integer("num_ln_in_parallel_attn");
  if (!is_parallel) {
    if (!is_new) return FalconNorms::kOneByOne;
    throw contradiction("parallel_attn = False with new_decoder_architecture", "True");
  }
  const int64_t norms = count.value_or(is_new ? 2 : 1);
  if (!is_new && norms == 2) {
    throw contradiction("num_ln_in_parallel_attn = 2 without new_decoder_architecture", "1");
  }
  if (norms != 1 && norms != 2) {
    throw contradiction("num_ln_in_parallel_attn = " + std::to_string(norms), "1 or 2");
  }
  return norms == 2 ? FalconNorms::kTwo : FalconNorms::kOne;
}

int64_t parse_key_value_heads(const ConfigReader& config, const FalconConfig& c, bool is_new) {
  const int64_t heads = config.positive_integer("num_kv_heads", c.num_attention_heads);
  if (is_new) return heads;
  if (config.boolean("multi_query", true)) return 1;
  if (heads == c.num_attention_heads) return heads;
  throw contradiction("num_kv_heads = " + std::to_string(heads) +
                          " with neither multi_query nor new_decoder_architecture",
                      "num_attention_heads = " + std::to_string(c.num_attention_heads));
}

void refuse_alibi(const ConfigReader& config) {
  if (!config.boolean("alibi", false)) return;
  throw ConfigError(
      "config.json: found alibi = True, expected False; use a checkpoint with rotary positions, "
      "such as falcon-7b (the reference rounds Falcon's biases to bfloat16, which is not "
      "computed)");
}

void refuse_other_head_dim(const ConfigReader& config, const FalconConfig& c) {
  const int64_t head_dim = config.positive_integer("head_dim", c.head_dim());
  if (head_dim == c.head_dim()) return;
  throw ConfigError(
      "config.json: found head_dim = {}, expected hidden_size / num_attention_heads = {} in a "
      "Falcon model; remove the key",
      head_dim, c.head_dim());
}

void refuse_slow_products(const ConfigReader& config) {
  const auto ranks = config.optional_integer("pretraining_tp");
  if (!ranks || *ranks <= 1 || !config.boolean("slow_but_exact", false)) return;
  throw ConfigError(
      "config.json: found slow_but_exact = True with pretraining_tp = {}, expected False; set it "
      "to false",
      *ranks);
}

}  // namespace

FalconConfig parse_falcon_config(const Json& json) {
  const ConfigReader config(json);
  FalconConfig c;
  parse_shared(config, c);
  c.num_hidden_layers = config.num_layers("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = config.positive_integer("num_attention_heads", c.num_attention_heads);
  c.max_position_embeddings =
      config.positive_integer("max_position_embeddings", c.max_position_embeddings);
  c.intermediate_size = config.positive_integer("ffn_hidden_size", 4 * c.hidden_size);
  c.activation = parse_activation(config, "activation", "gelu");
  c.has_biases = config.boolean("bias", c.has_biases);
  // With rotary positions the reference drops no probabilities, and takes the rate for what
  // attention adds.
  c.attention_output_dropout = config.dropout_rate("attention_dropout", 0.0);
  const bool is_new = config.boolean("new_decoder_architecture", false);
  c.norms = parse_norms(config, is_new);
  c.num_key_value_heads = parse_key_value_heads(config, c, is_new);
  check_heads(c, "hidden_size", "num_attention_heads");
  refuse_other_head_dim(config, c);
  refuse_alibi(config);
  c.rope = parse_rope(config, {c.head_dim(), c.max_position_embeddings});
  return c;
}

// BLOOM's ALiBi has no end; a plan and a cache must have one: the longest texts of other families.
constexpr int64_t kMostBloomTokens = 131072;

FalconConfig parse_bloom_config(const Json& json) {
  const ConfigReader config(json);
  FalconConfig c;
  c.layer_class = "BloomBlock";
  c.architecture = "BloomForCausalLM";
  c.ia3_targets = {"query_key_value", "mlp.dense_4h_to_h"};
  c.ia3_feedforward = {"mlp.dense_4h_to_h"};
  c.max_position_embeddings = kMostBloomTokens;
  c.vocab_size = 250880;
  c.hidden_size = 64;
  c.activation = nn::Activation::kGeluTanh;
  c.norms = FalconNorms::kOneByOne;
  c.norms_come_first = c.has_embedding_norm = c.has_biases = true;
  parse_shared(config, c);
  c.num_hidden_layers =
      config.num_layers(SizeNames{"n_layer", "num_hidden_layers"}.said(config), 2);
  const char* heads = SizeNames{"n_head", "num_attention_heads"}.said(config);
  c.num_attention_heads = c.num_key_value_heads = config.positive_integer(heads, 8);
  c.intermediate_size = 4 * c.hidden_size;
  c.adds_to_norms = config.boolean("apply_residual_connection_post_layernorm", false);
  c.score_dropout = config.dropout_rate("attention_dropout", 0.0);
  c.attention_output_dropout = c.hidden_dropout;
  check_heads(c, "hidden_size", heads);
  refuse_slow_products(config);
  return c;
}

}  // namespace strata::models
