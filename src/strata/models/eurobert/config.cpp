#include "strata/models/eurobert/config.h"

#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"

namespace strata::models {
namespace {

EuroBertPooling parse_pooling(const ConfigReader& config) {
  const std::string pooling = config.text("classifier_pooling", "late");
  if (pooling == "bos") return EuroBertPooling::kFirst;
  if (pooling == "mean") return EuroBertPooling::kMean;
  if (pooling == "late") return EuroBertPooling::kLate;
  throw FormatError(
      "config.json: found classifier_pooling = \"{}\", expected bos, mean or late; fix the file",
      pooling);
}

}  // namespace

EuroBertConfig parse_eurobert_config(const Json& json) {
  const ConfigReader config(json);
  EuroBertConfig result;
  LlamaConfig& c = result.llama;
  c.layer_class = "EuroBertDecoderLayer";
  c.architecture = "EuroBertForSequenceClassification";
  c.lora_targets = c.ia3_targets = {};
  c.is_causal = false;
  c.vocab_size = 128256;
  c.hidden_size = 768;
  c.intermediate_size = 3072;
  c.num_hidden_layers = 12;
  c.num_attention_heads = 12;
  c.max_position_embeddings = 8192;
  c.rms_norm_eps = 1e-5;
  parse_common(config, c);
  parse_default_padding_id(config, c, 128001);
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.mlp_bias = config.boolean("mlp_bias", false);
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c, /*splits_hidden_size=*/true);
  result.pooling = parse_pooling(config);
  return result;
}

}  // namespace strata::models
