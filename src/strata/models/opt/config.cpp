#include "strata/models/opt/config.h"

#include <cmath>
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/padding_id.h"
#include "strata/models/plain_activation.h"
#include "strata/models/size_names.h"

namespace strata::models {
namespace {

// The reference's initialisation looks for other families' key first; null means the default there.
double parse_init_std(const ConfigReader& config, double fallback) {
  const bool has_other = config.json().contains("initializer_range");
  return config.positive_number(has_other ? "initializer_range" : "init_std", fallback);
}

// `width`, `heads`: the keys that say hidden_size and num_attention_heads.
void check(const ConfigReader& config, const OptConfig& c, const std::string& width,
           const std::string& heads) {
  if (c.hidden_size % c.num_attention_heads != 0) {
    throw FormatError("config.json: found {} = {}, expected a multiple of {} = {}; fix the file",
                      width, c.hidden_size, heads, c.num_attention_heads);
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
  check(config, c, "hidden_size", "num_attention_heads");
  return c;
}

OptConfig parse_xglm_config(const Json& json) {
  const ConfigReader config(json);
  OptConfig c{.layer_class = "XGLMDecoderLayer",
              .architecture = "XGLMForCausalLM",
              .body = "model",
              .final_norm = "layer_norm",
              .lora_targets = {},
              .ia3_targets = {},
              .ia3_feedforward = {},
              .has_modules_of_opt = false,
              .has_sinusoids = true};
  const std::string width = SizeNames{"d_model", "hidden_size"}.said(config);
  const std::string heads = SizeNames{"attention_heads", "num_attention_heads"}.said(config);
  const std::string layers = SizeNames{"num_layers", "num_hidden_layers"}.said(config);
  c.vocab_size = config.positive_integer("vocab_size", 256008);
  c.hidden_size = config.positive_integer(width, 1024);
  c.num_hidden_layers = config.num_layers(layers, 24);
  c.num_attention_heads = config.positive_integer(heads, 16);
  c.ffn_dim = config.positive_integer("ffn_dim", 4096);
  c.max_position_embeddings = config.positive_integer("max_position_embeddings", 2048);
  c.word_embed_proj_dim = c.hidden_size;
  c.activation = parse_activation(config, "activation_function", "gelu");
  c.dropout = c.embedding_dropout = config.dropout_rate("dropout", 0.1);
  c.attention_dropout = config.dropout_rate("attention_dropout", 0.1);
  c.hidden_dropout = config.dropout_rate("activation_dropout", 0.0);
  c.init_std = parse_init_std(config, c.init_std);
  if (config.boolean("scale_embedding", true)) {
    c.embedding_scale = std::sqrt(static_cast<double>(c.hidden_size));
  }
  c.tie_word_embeddings = config.boolean("tie_word_embeddings", true);
  c.pad_token_id = parse_padding_id(config, c.vocab_size, 1);
  check(config, c, width, heads);
  if (c.hidden_size < 4) {
    throw FormatError("config.json: found {} = {}, expected at least 4; fix the file", width,
                      c.hidden_size);
  }
  if (config.boolean("add_cross_attention", false)) {
    throw ConfigError(
        "config.json: found add_cross_attention true, expected false, a decoder alone; use a "
        "checkpoint without an encoder");
  }
  return c;
}

}  // namespace strata::models
