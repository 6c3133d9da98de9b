#include "strata/models/t5/config.h"

#include <optional>
#include <string>
#include <string_view>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/size_names.h"

namespace strata::models {
namespace {

constexpr std::string_view kOwnActivation = "dense_act_fn";

nn::Activation parse_activation(const std::string& name, const std::string& key,
                                const std::string& value) {
  if (name == "relu") return nn::Activation::kRelu;
  if (name == "gelu") return nn::Activation::kGelu;
  if (name == "gelu_new") return nn::Activation::kGeluTanh;
  if (name == "silu" || name == "swish") return nn::Activation::kSilu;
  throw ConfigError(
      "config.json: found {} \"{}\", expected relu, gelu, gelu_new or silu{}; use a checkpoint "
      "with one of these",
      key, value, key == kOwnActivation ? "" : ", or one of them after \"gated-\"");
}

// `fallback`: where the file says none.
void parse_feed_forward(const ConfigReader& config, const char* fallback, T5Config& t5) {
  const std::string proj = config.text("feed_forward_proj", fallback);
  const std::string gated = "gated-";
  const bool names_gate = proj.starts_with(gated);
  const std::string name = names_gate ? proj.substr(gated.size()) : proj;
  // The name of T5 v1.1 means the other formula.
  t5.activation = proj == "gated-gelu" ? nn::Activation::kGeluTanh
                                       : parse_activation(name, "feed_forward_proj", proj);
  // What the reference makes of the text and saves beside it; it counts where the two differ.
  t5.is_gated = config.boolean("is_gated_act", names_gate);
  const std::string key(kOwnActivation);
  if (!config.has(key)) return;
  const std::string own = config.text(key, "");
  t5.activation = parse_activation(own, key, own);
}

void check_buckets(const T5Config& c) {
  // The decoder looks back only and has twice as many buckets for it.
  if (c.relative_attention_num_buckets < 4 || c.relative_attention_num_buckets % 2 != 0) {
    throw FormatError(
        "config.json: found relative_attention_num_buckets = {}, expected an even number of at "
        "least 4; fix the file",
        c.relative_attention_num_buckets);
  }
  if (c.relative_attention_max_distance <= c.relative_attention_num_buckets / 2) {
    throw FormatError(
        "config.json: found relative_attention_max_distance = {}, expected more than half of "
        "relative_attention_num_buckets = {}; fix the file",
        c.relative_attention_max_distance, c.relative_attention_num_buckets);
  }
}

int64_t parse_start_id(const ConfigReader& config, int64_t vocab_size,
                       std::optional<int64_t> fallback) {
  const bool is_silent = !config.json().contains("decoder_start_token_id");
  const auto id = is_silent ? fallback : config.optional_integer("decoder_start_token_id");
  if (!id.has_value()) {
    throw FormatError(
        "config.json: found no decoder_start_token_id, expected the id that the decoder starts "
        "from (of T5 the padding token's, 0); add it to the file");
  }
  if (*id >= 0 && *id < vocab_size) return *id;
  throw FormatError(
      "config.json: found decoder_start_token_id = {}, expected a token of the vocabulary of {}; "
      "fix the file",
      *id, vocab_size);
}

// What all have, over the family's defaults in `c`.
void parse_stacks(const ConfigReader& config, const char* feed_forward, T5Config& c) {
  const auto size = [&](const SizeNames& names, int64_t fallback) {
    return config.positive_integer(names.said(config), fallback);
  };
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.d_model = size({"d_model", "hidden_size"}, c.d_model);
  c.d_kv = size({"d_kv", "head_dim"}, c.d_kv);
  c.d_ff = config.positive_integer("d_ff", c.d_ff);
  // As many in the decoder as the first of the two names says.
  c.num_decoder_layers =
      config.num_layers("num_decoder_layers", config.num_layers("num_layers", c.num_layers));
  c.num_layers =
      config.num_layers(SizeNames{"num_layers", "num_hidden_layers"}.said(config), c.num_layers);
  c.num_heads = size({"num_heads", "num_attention_heads"}, c.num_heads);
  c.relative_attention_num_buckets =
      config.positive_integer("relative_attention_num_buckets", c.relative_attention_num_buckets);
  c.relative_attention_max_distance =
      config.positive_integer("relative_attention_max_distance", c.relative_attention_max_distance);
  c.dropout_rate = config.number("dropout_rate", c.dropout_rate);
  c.layer_norm_epsilon = config.positive_number("layer_norm_epsilon", c.layer_norm_epsilon);
  c.initializer_factor = config.positive_number("initializer_factor", c.initializer_factor);
  parse_feed_forward(config, feed_forward, c);
  check_buckets(c);
  if (!(c.dropout_rate >= 0 && c.dropout_rate < 1)) {
    throw FormatError(
        "config.json: found dropout_rate = {}, expected at least 0 and less than 1; fix the file",
        c.dropout_rate);
  }
  if (!config.boolean("is_encoder_decoder", true)) {
    throw ConfigError(
        "config.json: found is_encoder_decoder false, expected a T5 with encoder and decoder; use "
        "a checkpoint of T5ForConditionalGeneration");
  }
}

// Their classes tie the output layer whatever the key says. mT5's scales nothing.
T5Config parse_multilingual(const Json& json, const char* prefix) {
  const ConfigReader config(json);
  T5Config c;
  c.prefix = prefix;
  c.vocab_size = 250112;
  c.d_ff = 1024;
  c.num_layers = 8;
  c.num_heads = 6;
  c.scales_output = false;
  parse_stacks(config, "gated-gelu", c);
  c.decoder_start_token_id = parse_start_id(config, c.vocab_size, 0);
  return c;
}

}  // namespace

T5Config parse_t5_config(const Json& json) {
  const ConfigReader config(json);
  T5Config c;
  parse_stacks(config, "relu", c);
  // The second name is that of original checkpoints, the first what transformers 5 makes of it.
  c.scales_output =
      config.boolean("scale_decoder_outputs", config.boolean("tie_word_embeddings", true));
  c.decoder_start_token_id = parse_start_id(config, c.vocab_size, std::nullopt);
  return c;
}

T5Config parse_mt5_config(const Json& json) { return parse_multilingual(json, "MT5"); }

T5Config parse_umt5_config(const Json& json) {
  T5Config c = parse_multilingual(json, "UMT5");
  c.has_bias_in_all = true;
  c.scales_output = true;
  return c;
}

}  // namespace strata::models
