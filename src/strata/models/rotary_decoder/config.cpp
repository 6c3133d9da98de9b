#include "strata/models/rotary_decoder/config.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/models/padding_id.h"
#include "strata/models/rotary_decoder/config_parts.h"

namespace strata::models {

void parse_rotary_common(const ConfigReader& config, RotaryDecoderConfig& c,
                         const std::string& eps_key) {
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.hidden_size = config.positive_integer("hidden_size", c.hidden_size);
  c.intermediate_size = config.positive_integer("intermediate_size", c.intermediate_size);
  c.num_hidden_layers = config.num_layers("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = config.positive_integer("num_attention_heads", c.num_attention_heads);
  c.max_position_embeddings =
      config.positive_integer("max_position_embeddings", c.max_position_embeddings);
  if (!eps_key.empty()) c.norm_eps = config.positive_number(eps_key, c.norm_eps);
  c.initializer_range = config.positive_number("initializer_range", c.initializer_range);
  c.attention_dropout = config.dropout_rate("attention_dropout", c.attention_dropout);
  c.tie_word_embeddings = config.boolean("tie_word_embeddings", c.tie_word_embeddings);
  c.pad_token_id = parse_padding_id(config, c.vocab_size, c.pad_token_id);
}

void parse_rotary_heads(const ConfigReader& config, RotaryDecoderConfig& c) {
  const bool has_own_size = config.has("head_dim");
  if (!has_own_size && c.hidden_size % c.num_attention_heads != 0) {
    throw FormatError(
        "config.json: found hidden_size = {}, expected a multiple of num_attention_heads = {}; fix "
        "the file",
        c.hidden_size, c.num_attention_heads);
  }
  c.head_dim = config.positive_integer("head_dim",
                                       std::max<int64_t>(1, c.hidden_size / c.num_attention_heads));
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    throw FormatError(
        "config.json: found num_key_value_heads = {}, expected a divisor of num_attention_heads = "
        "{}; fix the file",
        c.num_key_value_heads, c.num_attention_heads);
  }
}

void split_hidden_size(RotaryDecoderConfig& c, const char* hidden_key, const char* heads_key) {
  c.num_key_value_heads = c.num_attention_heads;
  c.head_dim = c.hidden_size / c.num_attention_heads;
  if (c.head_dim * c.num_attention_heads == c.hidden_size) return;
  throw FormatError("config.json: found {} = {}, expected a multiple of {} = {}; fix the file",
                    hidden_key, c.hidden_size, heads_key, c.num_attention_heads);
}

void refuse_tie(const RotaryDecoderConfig& c, const std::string& family) {
  if (!c.tie_word_embeddings) return;
  throw ConfigError(
      "config.json: found tie_word_embeddings = True, expected False in a {} model, as in the "
      "published ones; use a checkpoint whose output layer has a weight of its own",
      family);
}

void refuse_other_head_dim(const RotaryDecoderConfig& c, const std::string& family) {
  if (c.head_dim * c.num_attention_heads == c.hidden_size) return;
  throw ConfigError(
      "config.json: found head_dim = {}, expected hidden_size = {} / num_attention_heads = {} in a "
      "{} model; remove the key",
      c.head_dim, c.hidden_size, c.num_attention_heads, family);
}

}  // namespace strata::models
