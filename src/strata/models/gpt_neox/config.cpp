#include "strata/models/gpt_neox/config.h"

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/plain_activation.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

void check_heads(const ConfigReader& config, const GptNeoXConfig& c) {
  if (c.hidden_size % c.num_attention_heads != 0) {
    throw FormatError(
        "config.json: found hidden_size = {}, expected a multiple of num_attention_heads = {}; fix "
        "the file",
        c.hidden_size, c.num_attention_heads);
  }
  // The reference would turn by frequencies of this width and part heads by the other.
  const int64_t head_dim = config.positive_integer("head_dim", c.head_dim());
  if (head_dim == c.head_dim()) return;
  throw ConfigError(
      "config.json: found head_dim = {}, expected hidden_size / num_attention_heads = {} in a "
      "GPT-NeoX model; remove the key",
      head_dim, c.head_dim());
}

}  // namespace

GptNeoXConfig parse_gpt_neox_config(const Json& json) {
  const ConfigReader config(json);
  GptNeoXConfig c;
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.hidden_size = config.positive_integer("hidden_size", c.hidden_size);
  c.intermediate_size = config.positive_integer("intermediate_size", c.intermediate_size);
  c.num_hidden_layers = config.num_layers("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = config.positive_integer("num_attention_heads", c.num_attention_heads);
  c.max_position_embeddings =
      config.positive_integer("max_position_embeddings", c.max_position_embeddings);
  c.activation = parse_activation(config, "hidden_act", "gelu");
  c.attention_dropout = config.dropout_rate("attention_dropout", c.attention_dropout);
  c.hidden_dropout = config.dropout_rate("hidden_dropout", c.hidden_dropout);
  c.layer_norm_eps = config.positive_number("layer_norm_eps", c.layer_norm_eps);
  c.initializer_range = config.positive_number("initializer_range", c.initializer_range);
  c.attention_bias = config.boolean("attention_bias", c.attention_bias);
  c.use_parallel_residual = config.boolean("use_parallel_residual", c.use_parallel_residual);
  c.tie_word_embeddings = config.boolean("tie_word_embeddings", c.tie_word_embeddings);
  check_heads(config, c);
  c.rope = parse_gpt_neox_rope(config, {c.head_dim(), c.max_position_embeddings});
  return c;
}

}  // namespace strata::models
