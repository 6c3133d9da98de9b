// The settings of a checkpoint of BERT and of what has its blocks (RoBERTa, XLM-RoBERTa,
// DistilBERT), read from config.json and checked. Owns: names, defaults and relations of the keys,
// under which names a family has the blocks' modules. Never: weights. Source: transformers
// configuration_bert.py, configuration_roberta.py, configuration_distilbert.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "strata/base/json.h"
#include "strata/nn/activation.h"

namespace strata::models {

// Modules by their paths; those of a layer behind that of the layer.
struct BertNames {
  std::string architecture;  // "BertForSequenceClassification"
  std::string body;          // "bert": what comes before the names of all weights but the head's
  std::string embedding_class, layer_class;
  std::string layers;  // "encoder.layer", behind the body
  std::string query, key, value, attention_output, attention_norm;
  std::string up, down, output_norm;
  std::string head_dense, classifier;
};

struct BertConfig {
  BertNames names;
  int64_t vocab_size = 30522;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;  // 0: no table of token types
  nn::Activation hidden_act = nn::Activation::kGelu;
  double hidden_dropout_prob = 0.1;           // of embeddings, and of what a layer adds
  bool drops_attention_output = true;         // else of what a layer adds the MLP's alone
  double attention_probs_dropout_prob = 0.1;  // of the probabilities
  double classifier_dropout = 0.1;            // before the head's layers; default: the hidden one
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
  std::optional<int64_t> pad_token_id = 0;  // this embedding row receives no gradient
  bool reads_types = false;                 // else all tokens are of the first type
  // RoBERTa: positions count from the one behind the padding's, which tokens of padding have.
  bool counts_from_padding = false;
  // DistilBERT: the table of positions begins as waves.
  bool has_sinusoidal_positions = false;
  // Between the head's two layers: max(x, 0) in place of tanh.
  bool head_is_relu = false;
  // The head drops what its first layer reads, too.
  bool head_drops_input = false;
  bool has_head_first = false;  // among the model's modules
  int64_t num_labels = 0;
  bool has_new_dense = false;  // the head's first layer is not in the files

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  // Rows of the table of positions that come before that of a document's first token.
  int64_t first_position() const { return counts_from_padding ? *pad_token_id + 1 : 0; }
  // The most tokens of a document.
  int64_t num_positions() const { return max_position_embeddings - first_position(); }
};

// Whether files of this config.json have no pooler, as those of transformers' classes that predict
// something of each token; what is not BERT's has none by that name.
bool announces_no_pooler(const Json& config);

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot.
BertConfig parse_bert_config(const Json& config);
BertConfig parse_roberta_config(const Json& config);
BertConfig parse_xlm_roberta_config(const Json& config);
BertConfig parse_distilbert_config(const Json& config);

}  // namespace strata::models
