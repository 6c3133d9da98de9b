// The settings of a checkpoint of BERT and of what has its blocks, read from config.json and
// checked. Owns: names, defaults and relations of the keys. Never: weights; under which names a
// family has the blocks' modules (names.h). Source: transformers configuration_bert.py,
// configuration_roberta.py, configuration_distilbert.py, configuration_electra.py,
// configuration_mpnet.py, configuration_deberta_v2.py, configuration_deberta.py.
#pragma once

#include <cstdint>
#include <optional>

#include "strata/base/json.h"
#include "strata/models/bert/names.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/disentangled_attention.h"
#include "strata/nn/attention/relative_bias.h"

namespace strata::models {

// DeBERTa's attention: a table of vectors for relative positions, which all layers read.
struct BertPositionVectors {
  nn::PositionVectors vectors;
  bool has_norm = false;       // behind the table
  bool are_keys = false;       // a query meets them (c2p)
  bool are_queries = false;    // a key meets them (p2c)
  bool shares_layers = false;  // query and key make them of the table; else layers of their own
  bool has_key_bias = true;    // the layer of its own that makes keys
};

struct BertConfig {
  BertNames names;
  int64_t vocab_size = 30522;
  int64_t hidden_size = 768;
  int64_t embedding_size = 768;  // of the tables
  bool has_projection = false;   // a layer that makes hidden_size of it
  // ALBERT: layers in so many groups; those of one group are the same `layers_of_group` layers,
  // again and again. 0: each is its own.
  int64_t num_hidden_groups = 0;
  int64_t layers_of_group = 1;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;  // 0: no table of token types
  nn::Activation hidden_act = nn::Activation::kGelu;
  double hidden_dropout_prob = 0.1;           // of embeddings, and of what a layer adds
  bool drops_attention_output = true;         // of what a layer adds, that of attention
  bool drops_mlp_output = true;               // and of the MLP
  double attention_probs_dropout_prob = 0.1;  // of the probabilities
  double classifier_dropout = 0.1;            // before the head's layers; default: the hidden one
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
  std::optional<int64_t> pad_token_id = 0;  // this embedding row receives no gradient
  bool reads_types = false;                 // else all tokens are of the first type
  // RoBERTa: positions count from the one after the padding's, which tokens of padding have.
  bool counts_from_padding = false;
  bool has_positions_last = false;     // among the embeddings' parameters
  bool has_output_norm_first = false;  // among a layer's
  // DistilBERT: the table of positions begins as waves.
  bool has_sinusoidal_positions = false;
  bool has_positions = true;  // a table of them; else attention alone knows them
  std::optional<nn::RelativeBuckets> relative_bias;       // MPNet's, one table for all layers
  std::optional<BertPositionVectors> relative_positions;  // DeBERTa's
  // DeBERTa's first: one layer without a bias gives q, k and v of one head after the other; q and v
  // have biases behind it.
  bool has_one_projection = false;
  int64_t num_score_terms = 1;  // of scores, by whose number they are scaled
  // Between the head's two layers, in place of tanh.
  std::optional<nn::Activation> head_act;
  double head_input_dropout = 0;  // of what the head's first layer reads
  bool has_head_first = false;    // among the model's modules
  int64_t num_labels = 0;
  bool has_new_dense = false;  // the head's first layer is not in the files

  // In the chain.
  int64_t num_layers() const { return num_hidden_layers * layers_of_group; }
  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  // Rows of the table of positions that come before that of a document's first token.
  int64_t first_position() const { return counts_from_padding ? *pad_token_id + 1 : 0; }
  // The most tokens of a document, where positions have a table.
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
BertConfig parse_camembert_config(const Json& config);
BertConfig parse_distilbert_config(const Json& config);
BertConfig parse_albert_config(const Json& config);
BertConfig parse_electra_config(const Json& config);
BertConfig parse_mpnet_config(const Json& config);
BertConfig parse_deberta_v2_config(const Json& config);
BertConfig parse_deberta_config(const Json& config);

}  // namespace strata::models
