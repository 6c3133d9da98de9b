#include "strata/models/bert/config.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/padding_id.h"
#include "strata/models/plain_activation.h"

namespace strata::models {
namespace {

BertNames bert_names() {
  return {.architecture = "BertForSequenceClassification",
          .body = "bert",
          .embedding_class = "BertEmbeddings",
          .layer_class = "BertLayer",
          .layers = "encoder.layer",
          .query = "attention.self.query",
          .key = "attention.self.key",
          .value = "attention.self.value",
          .attention_output = "attention.output.dense",
          .attention_norm = "attention.output.LayerNorm",
          .up = "intermediate.dense",
          .down = "output.dense",
          .output_norm = "output.LayerNorm",
          .head_dense = "bert.pooler.dense",
          .classifier = "classifier"};
}

// `prefix`: of the classes.
BertNames roberta_names(const std::string& prefix) {
  BertNames names = bert_names();
  names.architecture = prefix + "ForSequenceClassification";
  names.body = "roberta";
  names.embedding_class = prefix + "Embeddings";
  names.layer_class = prefix + "Layer";
  names.head_dense = "classifier.dense";
  names.classifier = "classifier.out_proj";
  return names;
}

BertNames distilbert_names() {
  return {.architecture = "DistilBertForSequenceClassification",
          .body = "distilbert",
          .embedding_class = "Embeddings",
          .layer_class = "TransformerBlock",
          .layers = "transformer.layer",
          .query = "attention.q_lin",
          .key = "attention.k_lin",
          .value = "attention.v_lin",
          .attention_output = "attention.out_lin",
          .attention_norm = "sa_layer_norm",
          .up = "ffn.lin1",
          .down = "ffn.lin2",
          .output_norm = "output_layer_norm",
          .head_dense = "pre_classifier",
          .classifier = "classifier"};
}

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

void parse_body(const ConfigReader& config, BertConfig& c) {
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.hidden_size = config.positive_integer("hidden_size", c.hidden_size);
  c.num_hidden_layers = config.num_layers("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = config.positive_integer("num_attention_heads", c.num_attention_heads);
  c.intermediate_size = config.positive_integer("intermediate_size", c.intermediate_size);
  c.max_position_embeddings =
      config.positive_integer("max_position_embeddings", c.max_position_embeddings);
  c.type_vocab_size = config.positive_integer("type_vocab_size", c.type_vocab_size);
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

// `prefix`: of the classes; `vocab_size`: where the file says none.
BertConfig parse_roberta(const Json& json, const std::string& prefix, int64_t vocab_size) {
  const ConfigReader config(json);
  BertConfig c;
  c.names = roberta_names(prefix);
  c.vocab_size = vocab_size;
  c.pad_token_id = 1;
  parse_body(config, c);
  c.counts_from_padding = c.head_drops_input = true;
  if (!c.pad_token_id) {
    throw FormatError(
        "config.json: found no pad_token_id, expected a token, from which positions count; add it "
        "to the file");
  }
  if (c.num_positions() < 1) {
    throw FormatError(
        "config.json: found max_position_embeddings = {}, expected more than pad_token_id + 1 = "
        "{}, from which positions count; fix the file",
        c.max_position_embeddings, c.first_position());
  }
  return c;
}

}  // namespace

bool announces_no_pooler(const Json& config) {
  constexpr std::string_view kClasses[] = {"BertForMaskedLM", "BertLMHeadModel",
                                           "BertForTokenClassification",
                                           "BertForQuestionAnswering"};
  const auto classes = config.find("architectures");
  if (classes == config.end() || !classes->is_array() || classes->empty()) return false;
  const Json& name = classes->front();
  return name.is_string() &&
         std::ranges::find(kClasses, name.get_ref<const std::string&>()) != std::end(kClasses);
}

BertConfig parse_bert_config(const Json& json) {
  const ConfigReader config(json);
  BertConfig c;
  c.names = bert_names();
  c.reads_types = true;
  parse_body(config, c);
  return c;
}

BertConfig parse_roberta_config(const Json& json) { return parse_roberta(json, "Roberta", 50265); }

BertConfig parse_xlm_roberta_config(const Json& json) {
  BertConfig c = parse_roberta(json, "XLMRoberta", 30522);
  c.has_head_first = true;
  return c;
}

BertConfig parse_distilbert_config(const Json& json) {
  const ConfigReader config(json);
  BertConfig c;
  c.names = distilbert_names();
  c.type_vocab_size = 0;
  c.head_is_relu = true;
  c.drops_attention_output = false;
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.hidden_size = config.positive_integer("dim", c.hidden_size);
  c.num_hidden_layers = config.num_layers("n_layers", 6);
  c.num_attention_heads = config.positive_integer("n_heads", c.num_attention_heads);
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
  check_heads(c, "dim", "n_heads");
  return c;
}

}  // namespace strata::models
