// Under which names the families over BERT's blocks have their modules, and what PEFT's tables say
// of these. Never: settings.
#pragma once

#include <string>
#include <vector>

namespace strata::models {

// Modules by their paths; those of a layer after that of the layer.
struct BertNames {
  std::string architecture;  // "BertForSequenceClassification"
  std::string body;          // "bert": what comes before the names of all weights but the head's
  std::string embedding_class, layer_class;
  std::string layers;      // "encoder.layer", after the body
  std::string projection;  // of tables of another width, after the body
  std::string query, key, value, attention_output, attention_norm;
  // Of vectors of relative positions, in the attention.
  std::string position_key = "pos_key_proj", position_query = "pos_query_proj";
  std::string up, down, output_norm;
  std::string head_dense, classifier;
  // PEFT's; none: it has none of the family.
  std::vector<std::string> lora_targets = {}, ia3_targets = {};
};

BertNames bert_names();
// `prefix`: of the classes.
BertNames roberta_names(const std::string& prefix);
BertNames distilbert_names();
BertNames electra_names();
BertNames mpnet_names();
BertNames albert_names();
BertNames deberta_v2_names();
BertNames deberta_names();

}  // namespace strata::models
