#include "strata/models/bert/config.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "strata/base/error.h"
#include "strata/models/bert/config_parts.h"
#include "strata/models/config_reader.h"
#include "strata/models/padding_id.h"
#include "strata/models/plain_activation.h"
#include "strata/models/size_names.h"

namespace strata::models {
namespace {

void check_heads(const BertConfig& c, const char* hidden, const char* heads) {
  if (c.hidden_size % c.num_attention_heads == 0) return;
  throw FormatError("config.json: found {} = {}, expected a multiple of {} = {}; fix the file",
                    hidden, c.hidden_size, heads, c.num_attention_heads);
}

// What makes a decoder of it, or other positions.
void require_encoder(const ConfigReader& config) {
  for (const char* key : {"is_decoder", "add_cross_attention"}) {
    if (!config.boolean(key, false)) continue;
    throw ConfigError(
        "config.json: found {} true, expected false, an encoder whose tokens see each other; use "
        "another checkpoint",
        key);
  }
  const std::string positions = config.text("position_embedding_type", "absolute");
  if (positions == "absolute") return;
  throw ConfigError(
      "config.json: found position_embedding_type \"{}\", expected absolute; use a checkpoint with "
      "a table of positions",
      positions);
}

void check_first_position(const BertConfig& c) {
  if (c.num_positions() >= 1) return;
  throw FormatError(
      "config.json: found max_position_embeddings = {}, expected more than pad_token_id + 1 = "
      "{}, from which positions count; fix the file",
      c.max_position_embeddings, c.first_position());
}

void parse_types(const ConfigReader& config, BertConfig& c) {
  c.type_vocab_size = config.positive_integer("type_vocab_size", c.type_vocab_size);
}

// `prefix`: of the classes; `vocab_size`: where the file says none.
BertConfig parse_roberta(const Json& json, const std::string& prefix, int64_t vocab_size) {
  const ConfigReader config(json);
  BertConfig c;
  c.names = roberta_names(prefix);
  c.vocab_size = vocab_size;
  c.pad_token_id = 1;
  parse_bert_body(config, c);
  parse_types(config, c);
  c.counts_from_padding = c.has_positions_last = true;
  c.head_input_dropout = c.classifier_dropout;
  if (!c.pad_token_id) {
    throw FormatError(
        "config.json: found no pad_token_id, expected a token, from which positions count; add it "
        "to the file");
  }
  check_first_position(c);
  return c;
}

}  // namespace

void parse_bert_body(const ConfigReader& config, BertConfig& c) {
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.hidden_size = config.positive_integer("hidden_size", c.hidden_size);
  c.embedding_size = c.hidden_size;
  c.num_hidden_layers = config.num_layers("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = config.positive_integer("num_attention_heads", c.num_attention_heads);
  c.intermediate_size = config.positive_integer("intermediate_size", c.intermediate_size);
  c.max_position_embeddings =
      config.positive_integer("max_position_embeddings", c.max_position_embeddings);
  c.hidden_act = parse_activation(config, "hidden_act", "gelu");
  c.hidden_dropout_prob = config.dropout_rate("hidden_dropout_prob", c.hidden_dropout_prob);
  c.attention_probs_dropout_prob =
      config.dropout_rate("attention_probs_dropout_prob", c.attention_probs_dropout_prob);
  c.classifier_dropout = config.dropout_rate("classifier_dropout", c.hidden_dropout_prob);
  c.layer_norm_eps = config.positive_number("layer_norm_eps", c.layer_norm_eps);
  c.initializer_range = config.positive_number("initializer_range", c.initializer_range);
  c.pad_token_id = parse_padding_id(config, c.vocab_size, c.pad_token_id);
  check_heads(c, "hidden_size", "num_attention_heads");
  require_encoder(config);
}

bool announces_no_pooler(const Json& config) {
  constexpr std::string_view kClasses[] = {
      "BertForMaskedLM",           "BertLMHeadModel",   "BertForTokenClassification",
      "BertForQuestionAnswering",  "AlbertForMaskedLM", "AlbertForTokenClassification",
      "AlbertForQuestionAnswering"};
  const auto classes = config.find("architectures");
  const bool is_named = classes != config.end() && classes->is_array() && !classes->empty() &&
                        classes->front().is_string();
  const std::string name = is_named ? classes->front().get<std::string>() : "";
  // No other model of DeBERTa has one, and published files name no class.
  if (ConfigReader(config).text("model_type", "") == "deberta-v2") {
    return name != deberta_v2_names().architecture;
  }
  return std::ranges::find(kClasses, name) != std::end(kClasses);
}

BertConfig parse_bert_config(const Json& json) {
  const ConfigReader config(json);
  BertConfig c;
  c.names = bert_names();
  c.reads_types = true;
  parse_bert_body(config, c);
  parse_types(config, c);
  return c;
}

BertConfig parse_roberta_config(const Json& json) { return parse_roberta(json, "Roberta", 50265); }

BertConfig parse_xlm_roberta_config(const Json& json) {
  BertConfig c = parse_roberta(json, "XLMRoberta", 30522);
  c.has_head_first = true;
  return c;
}

BertConfig parse_camembert_config(const Json& json) {
  BertConfig c = parse_roberta(json, "Camembert", 30522);
  c.has_head_first = true;
  return c;
}

BertConfig parse_electra_config(const Json& json) {
  const ConfigReader config(json);
  BertConfig c;
  c.names = electra_names();
  c.reads_types = true;
  c.hidden_size = 256;
  c.num_attention_heads = 4;
  c.intermediate_size = 1024;
  parse_bert_body(config, c);
  parse_types(config, c);
  c.embedding_size = config.positive_integer("embedding_size", 128);
  c.has_projection = c.embedding_size != c.hidden_size;
  c.head_input_dropout = c.classifier_dropout;
  c.head_act = nn::Activation::kGelu;
  return c;
}

BertConfig parse_albert_config(const Json& json) {
  const ConfigReader config(json);
  BertConfig c;
  c.names = albert_names();
  c.reads_types = true;
  c.vocab_size = 30000;
  c.hidden_size = 4096;
  c.num_attention_heads = 64;
  c.intermediate_size = 16384;
  c.hidden_dropout_prob = c.attention_probs_dropout_prob = 0;
  parse_bert_body(config, c);
  parse_types(config, c);
  c.hidden_act = parse_activation(config, "hidden_act", "gelu_new");
  c.embedding_size = config.positive_integer("embedding_size", 128);
  c.has_projection = c.has_output_norm_first = true;
  c.drops_mlp_output = false;
  c.num_hidden_groups = config.positive_integer("num_hidden_groups", 1);
  c.layers_of_group = config.num_layers("inner_group_num", 1);
  c.classifier_dropout = config.dropout_rate("classifier_dropout_prob", 0.1);
  if (c.num_hidden_groups <= c.num_hidden_layers) return c;
  throw FormatError(
      "config.json: found num_hidden_groups = {}, expected at most num_hidden_layers = {}; fix the "
      "file",
      c.num_hidden_groups, c.num_hidden_layers);
}

BertConfig parse_mpnet_config(const Json& json) {
  const ConfigReader config(json);
  BertConfig c;
  c.names = mpnet_names();
  c.vocab_size = 30527;
  c.type_vocab_size = 0;
  parse_bert_body(config, c);
  c.pad_token_id = 1;  // whatever the file says
  if (c.vocab_size < 2) {
    throw FormatError(
        "config.json: found vocab_size = {}, expected more than 1, which is the padding's token; "
        "fix the file",
        c.vocab_size);
  }
  c.counts_from_padding = true;
  check_first_position(c);
  c.classifier_dropout = c.head_input_dropout = c.hidden_dropout_prob;
  c.relative_bias = nn::RelativeBuckets{};
  const int64_t buckets = config.positive_integer("relative_attention_num_buckets", 32);
  if (buckets == c.relative_bias->count) return c;
  throw ConfigError(
      "config.json: found relative_attention_num_buckets = {}, expected {}, which the reference "
      "counts whatever the file says; use another checkpoint",
      buckets, c.relative_bias->count);
}

BertConfig parse_distilbert_config(const Json& json) {
  const ConfigReader config(json);
  BertConfig c;
  c.names = distilbert_names();
  c.type_vocab_size = 0;
  c.head_act = nn::Activation::kRelu;
  c.drops_attention_output = false;
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  const char* hidden = SizeNames{"dim", "hidden_size"}.said(config);
  const char* heads = SizeNames{"n_heads", "num_attention_heads"}.said(config);
  c.hidden_size = c.embedding_size = config.positive_integer(hidden, c.hidden_size);
  c.num_hidden_layers =
      config.num_layers(SizeNames{"n_layers", "num_hidden_layers"}.said(config), 6);
  c.num_attention_heads = config.positive_integer(heads, c.num_attention_heads);
  c.intermediate_size = config.positive_integer("hidden_dim", c.intermediate_size);
  c.max_position_embeddings =
      config.positive_integer("max_position_embeddings", c.max_position_embeddings);
  c.hidden_act = parse_activation(config, "activation", "gelu");
  c.hidden_dropout_prob = config.dropout_rate("dropout", c.hidden_dropout_prob);
  c.attention_probs_dropout_prob =
      config.dropout_rate("attention_dropout", c.attention_probs_dropout_prob);
  c.classifier_dropout = config.dropout_rate("seq_classif_dropout", 0.2);
  c.initializer_range = config.positive_number("initializer_range", c.initializer_range);
  c.has_sinusoidal_positions = config.boolean("sinusoidal_pos_embds", false);
  c.pad_token_id = parse_padding_id(config, c.vocab_size, c.pad_token_id);
  check_heads(c, hidden, heads);
  return c;
}

}  // namespace strata::models
