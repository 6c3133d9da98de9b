#include "strata/models/bert/names.h"

namespace strata::models {

BertNames bert_names() {
  return {.architecture = "BertForSequenceClassification",
          .body = "bert",
          .embedding_class = "BertEmbeddings",
          .layer_class = "BertLayer",
          .layers = "encoder.layer",
          .projection = "",
          .query = "attention.self.query",
          .key = "attention.self.key",
          .value = "attention.self.value",
          .attention_output = "attention.output.dense",
          .attention_norm = "attention.output.LayerNorm",
          .up = "intermediate.dense",
          .down = "output.dense",
          .output_norm = "output.LayerNorm",
          .head_dense = "bert.pooler.dense",
          .classifier = "classifier",
          .lora_targets = {"query", "value"},
          .ia3_targets = {"key", "value", "output.dense"}};
}

BertNames roberta_names(const std::string& prefix) {
  BertNames names = bert_names();
  names.architecture = prefix + "ForSequenceClassification";
  names.body = "roberta";
  names.embedding_class = prefix + "Embeddings";
  names.layer_class = prefix + "Layer";
  names.head_dense = "classifier.dense";
  names.classifier = "classifier.out_proj";
  const bool has_no_targets = prefix == "Camembert";
  if (has_no_targets) names.lora_targets = {};
  if (has_no_targets || prefix == "XLMRoberta") names.ia3_targets = {};
  return names;
}

BertNames distilbert_names() {
  return {.architecture = "DistilBertForSequenceClassification",
          .body = "distilbert",
          .embedding_class = "Embeddings",
          .layer_class = "TransformerBlock",
          .layers = "transformer.layer",
          .projection = "",
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

BertNames electra_names() {
  BertNames names = roberta_names("Electra");
  names.body = "electra";
  names.projection = "embeddings_project";
  names.lora_targets = {"query", "value"};
  names.ia3_targets = {};
  return names;
}

BertNames mpnet_names() {
  BertNames names = roberta_names("MPNet");
  names.body = "mpnet";
  names.query = "attention.attn.q";
  names.key = "attention.attn.k";
  names.value = "attention.attn.v";
  names.attention_output = "attention.attn.o";
  names.attention_norm = "attention.LayerNorm";
  names.lora_targets = names.ia3_targets = {};
  return names;
}

// Each layer of a group has its name after the group's.
BertNames albert_names() {
  return {.architecture = "AlbertForSequenceClassification",
          .body = "albert",
          .embedding_class = "AlbertEmbeddings",
          .layer_class = "AlbertLayer",
          .layers = "encoder.albert_layer_groups",
          .projection = "encoder.embedding_hidden_mapping_in",
          .query = "attention.query",
          .key = "attention.key",
          .value = "attention.value",
          .attention_output = "attention.dense",
          .attention_norm = "attention.LayerNorm",
          .up = "ffn",
          .down = "ffn_output",
          .output_norm = "full_layer_layer_norm",
          .head_dense = "albert.pooler",
          .classifier = "classifier"};
}

BertNames deberta_v2_names() {
  BertNames names = bert_names();
  names.architecture = "DebertaV2ForSequenceClassification";
  names.body = "deberta";
  names.embedding_class = "DebertaV2Embeddings";
  names.layer_class = "DebertaV2Layer";
  names.query = "attention.self.query_proj";
  names.key = "attention.self.key_proj";
  names.value = "attention.self.value_proj";
  names.head_dense = "pooler.dense";
  names.lora_targets = {"query_proj", "value_proj"};
  names.ia3_targets = {"key_proj", "value_proj", "output.dense"};
  return names;
}

// One layer gives queries, keys and values.
BertNames deberta_names() {
  BertNames names = bert_names();
  names.architecture = "DebertaForSequenceClassification";
  names.body = "deberta";
  names.embedding_class = "DebertaEmbeddings";
  names.layer_class = "DebertaLayer";
  names.query = "attention.self.in_proj";
  names.key = names.value = "";
  names.position_key = "pos_proj";
  names.position_query = "pos_q_proj";
  names.head_dense = "pooler.dense";
  names.lora_targets = {"in_proj"};
  names.ia3_targets = {"in_proj", "output.dense"};
  return names;
}

}  // namespace strata::models
