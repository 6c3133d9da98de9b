#include "strata/models/opt/config.h"

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/padding_id.h"
#include "strata/models/plain_activation.h"

namespace strata::models {
namespace {

// The reference's initialisation looks for other families' key first; null means the default there.
double parse_init_std(const ConfigReader& config, double fallback) {
  const bool has_other = config.json().contains("initializer_range");
  return config.positive_number(has_other ? "initializer_range" : "init_std", fallback);
}

void check(const ConfigReader& config, const OptConfig& c) {
  if (c.hidden_size % c.num_attention_heads != 0) {
    throw FormatError(
        "config.json: found hidden_size = {}, expected a multiple of num_attention_heads = {}; fix "
        "the file",
        c.hidden_size, c.num_attention_heads);
  }
  const double layerdrop = config.dropout_rate("layerdrop", 0.0);
  if (layerdrop == 0) return;
  throw ConfigError(
      "config.json: found layerdrop = {}, expected 0, a model that passes every layer; set it to 0",
      layerdrop);
}

}  // namespace

OptConfig parse_opt_config(const Json& json) {
  const ConfigReader config(json);
  OptConfig c;
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.hidden_size = config.positive_integer("hidden_size", c.hidden_size);
  c.num_hidden_layers = config.num_layers("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = config.positive_integer("num_attention_heads", c.num_attention_heads);
  c.ffn_dim = config.positive_integer("ffn_dim", c.ffn_dim);
  c.max_position_embeddings =
      config.positive_integer("max_position_embeddings", c.max_position_embeddings);
  c.word_embed_proj_dim = config.positive_integer("word_embed_proj_dim", c.hidden_size);
  c.activation = parse_activation(config, "activation_function", "relu");
  c.dropout = config.dropout_rate("dropout", c.dropout);
  c.attention_dropout = config.dropout_rate("attention_dropout", c.attention_dropout);
  c.init_std = parse_init_std(config, c.init_std);
  c.do_layer_norm_before = config.boolean("do_layer_norm_before", c.do_layer_norm_before);
  c.remove_final_layer_norm = config.boolean("_remove_final_layer_norm", c.remove_final_layer_norm);
  c.enable_bias = config.boolean("enable_bias", c.enable_bias);
  c.layer_norm_elementwise_affine =
      config.boolean("layer_norm_elementwise_affine", c.layer_norm_elementwise_affine);
  c.tie_word_embeddings = config.boolean("tie_word_embeddings", c.tie_word_embeddings);
  c.pad_token_id = parse_padding_id(config, c.vocab_size, c.pad_token_id);
  check(config, c);
  return c;
}

}  // namespace strata::models
