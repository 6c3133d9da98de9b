#include "strata/models/bart/config.h"

#include <string>
#include <utility>

#include "strata/base/error.h"
#include "strata/base/labels.h"
#include "strata/models/config_reader.h"
#include "strata/models/padding_id.h"
#include "strata/models/plain_activation.h"
#include "strata/models/size_names.h"

namespace strata::models {
namespace {

// The shared names of sizes are the encoder's.
BartStackConfig parse_stack(const ConfigReader& config, const std::string& name, int64_t d_model,
                            BartStackConfig c) {
  const auto said = [&](const std::string& own, const char* shared) {
    return name == "encoder" ? SizeNames{own.c_str(), shared}.said(config) : own;
  };
  const std::string heads = said(name + "_attention_heads", "num_attention_heads");
  c.layers = config.num_layers(said(name + "_layers", "num_hidden_layers"), c.layers);
  c.ffn_dim = config.positive_integer(name + "_ffn_dim", c.ffn_dim);
  c.heads = config.positive_integer(heads, c.heads);
  if (d_model % c.heads != 0) {
    throw FormatError(
        "config.json: found d_model = {}, expected a multiple of {} = {}; fix the file", d_model,
        heads, c.heads);
  }
  c.layerdrop = config.dropout_rate(name + "_layerdrop", c.layerdrop);
  return c;
}

void require_generator(const ConfigReader& config, const std::string& prefix) {
  for (const auto& [key, expected] :
       {std::pair{"is_encoder_decoder", true}, std::pair{"tie_word_embeddings", true},
        std::pair{"is_decoder", false}}) {
    if (config.boolean(key, expected) == expected) continue;
    throw ConfigError(
        "config.json: found {} {}, expected {}, encoder and decoder over one embedding; use a "
        "checkpoint of {}ForConditionalGeneration",
        key, !expected, expected, prefix);
  }
}

// The reference's initialisation looks for other families' key first; null means the default there.
double parse_init_std(const ConfigReader& config, double fallback) {
  const bool has_other = config.json().contains("initializer_range");
  return config.positive_number(has_other ? "initializer_range" : "init_std", fallback);
}

int64_t parse_start_id(const ConfigReader& config, int64_t vocab_size, int64_t fallback) {
  if (fallback == kStartsWithLastToken) return fallback;
  const bool is_silent = !config.json().contains("decoder_start_token_id");
  const auto id = is_silent ? fallback : config.optional_integer("decoder_start_token_id");
  if (id && *id >= 0 && *id < vocab_size) return *id;
  throw FormatError(
      "config.json: found decoder_start_token_id = {}, expected a token of the vocabulary of {}, "
      "from which the decoder starts; fix the file",
      id ? std::to_string(*id) : "null", vocab_size);
}

// `c`: the family's defaults.
BartConfig parse(const Json& json, BartConfig c) {
  const ConfigReader config(json);
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.d_model = config.positive_integer(SizeNames{"d_model", "hidden_size"}.said(config), c.d_model);
  c.max_position_embeddings =
      config.positive_integer("max_position_embeddings", c.max_position_embeddings);
  c.encoder = parse_stack(config, "encoder", c.d_model, c.encoder);
  c.decoder = parse_stack(config, "decoder", c.d_model, c.decoder);
  const bool is_relu = c.activation == nn::Activation::kRelu;
  c.activation = parse_activation(config, "activation_function", is_relu ? "relu" : "gelu");
  c.dropout = config.dropout_rate("dropout", c.dropout);
  c.attention_dropout = config.dropout_rate("attention_dropout", c.attention_dropout);
  c.activation_dropout = config.dropout_rate("activation_dropout", c.activation_dropout);
  c.init_std = parse_init_std(config, c.init_std);
  c.scale_embedding = config.boolean("scale_embedding", c.scale_embedding);
  c.pad_token_id = parse_padding_id(config, c.vocab_size, c.pad_token_id);
  c.decoder_start_token_id = parse_start_id(config, c.vocab_size, c.decoder_start_token_id);
  require_generator(config, c.prefix);
  return c;
}

// Whose decoder's input is padded with it, and cannot be without it.
void require_padding(const BartConfig& c) {
  if (c.pad_token_id) return;
  throw FormatError("config.json: found pad_token_id = null, expected a token; fix the file");
}

}  // namespace

BartConfig parse_bart_config(const Json& json) { return parse(json, {}); }

BartConfig parse_mbart_config(const Json& json) {
  BartConfig c{
      .prefix = "MBart", .has_norms_first = true, .decoder_start_token_id = kStartsWithLastToken};
  c = parse(json, std::move(c));
  require_padding(c);
  return c;
}

BartConfig parse_m2m_100_config(const Json& json) {
  BartConfig c{.prefix = "M2M100",
               .has_norms_first = true,
               .has_embedding_norm = false,
               .positions = BartPositions::kM2m100,
               .activation = nn::Activation::kRelu,
               .attention_dropout = 0.1,
               .scale_embedding = true};
  c.encoder.layerdrop = c.decoder.layerdrop = 0.05;
  c = parse(json, std::move(c));
  require_padding(c);
  if (c.d_model < 4) {
    throw FormatError("config.json: found d_model = {}, expected at least 4; fix the file",
                      c.d_model);
  }
  return c;
}

BartConfig parse_pegasus_config(const Json& json) {
  return parse(json, {.prefix = "Pegasus",
                      .has_norms_first = true,
                      .has_embedding_norm = false,
                      .positions = BartPositions::kMarian,
                      .pad_token_id = 0,
                      .decoder_start_token_id = 0});
}

BartConfig parse_marian_config(const Json& json) {
  const ConfigReader config(json);
  BartConfig c = parse(json, {.prefix = "Marian",
                              .has_embedding_norm = false,
                              .has_logits_bias = true,
                              .positions = BartPositions::kMarian,
                              .vocab_size = 58101,
                              .pad_token_id = 58100,
                              .decoder_start_token_id = 58100});
  if (!config.boolean("share_encoder_decoder_embeddings", true)) {
    throw ConfigError(
        "config.json: found share_encoder_decoder_embeddings false, expected true, encoder and "
        "decoder over one embedding; use a checkpoint that shares it");
  }
  const int64_t of_decoder = config.optional_integer("decoder_vocab_size").value_or(0);
  if (of_decoder == 0 || of_decoder == c.vocab_size) return c;
  throw FormatError(
      "config.json: found decoder_vocab_size = {}, expected that of vocab_size = {}, as encoder "
      "and "
      "decoder share one embedding; fix the file",
      of_decoder, c.vocab_size);
}

}  // namespace strata::models
