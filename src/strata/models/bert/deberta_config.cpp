// DeBERTa, v2 and v3: what their config.json says beside BERT's.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "strata/base/error.h"
#include "strata/models/bert/config_parts.h"
#include "strata/models/plain_activation.h"

namespace strata::models {
namespace {

// Keys that make another model of it.
void require_known_shape(const ConfigReader& config, const BertConfig& c) {
  for (const auto& [key, expected] :
       {std::pair{"embedding_size", c.hidden_size}, std::pair{"pooler_hidden_size", c.hidden_size},
        std::pair{"attention_head_size", c.head_dim()}}) {
    const int64_t found = config.positive_integer(key, expected);
    if (found == expected) continue;
    throw ConfigError("config.json: found {} = {}, expected {}; use another checkpoint", key, found,
                      expected);
  }
}

void require_no_convolution(const ConfigReader& config) {
  if (const auto size = config.optional_integer("conv_kernel_size"); size.value_or(0) > 0) {
    throw ConfigError(
        "config.json: found conv_kernel_size = {}, a convolution parallel to the first layer, "
        "expected 0; use a checkpoint without one (DeBERTa-v3)",
        *size);
  }
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::vector<std::string> split_at_bars(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('|', begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

std::string lowered(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

// A list, or one text with bars between.
std::vector<std::string> read_terms(const ConfigReader& config) {
  constexpr const char* kKey = "pos_att_type";
  if (!config.has(kKey) || !config.at(kKey).is_array()) {
    return split_at_bars(lowered(config.text(kKey, "")));
  }
  std::vector<std::string> terms;
  for (const Json& term : config.at(kKey))
    terms.push_back(term.is_string() ? term.get<std::string>() : term.dump());
  return terms;
}

// Which scores there are beside those of queries and keys.
void parse_terms(const ConfigReader& config, BertConfig& c, BertPositionVectors& positions) {
  for (const std::string& term : read_terms(config)) {
    if (term.empty()) continue;
    if (term != "c2p" && term != "p2c") {
      throw ConfigError(
          "config.json: found \"{}\" in pos_att_type, expected c2p and p2c; use another checkpoint",
          term);
    }
    (term == "c2p" ? positions.are_keys : positions.are_queries) = true;
  }
  c.num_score_terms = 1 + (positions.are_keys ? 1 : 0) + (positions.are_queries ? 1 : 0);
}

bool parse_norm(const ConfigReader& config) {
  bool has_norm = false;
  for (const std::string& part : split_at_bars(lowered(config.text("norm_rel_ebd", "none")))) {
    if (part == "layer_norm") has_norm = true;
    if (part == "layer_norm" || part == "none") continue;
    throw ConfigError("config.json: found norm_rel_ebd \"{}\", expected layer_norm or none", part);
  }
  return has_norm;
}

int64_t parse_reach(const ConfigReader& config, const BertConfig& c) {
  const int64_t most = config.optional_integer("max_relative_positions").value_or(-1);
  return most < 1 ? c.max_position_embeddings
                  : config.positive_integer("max_relative_positions", most);
}

nn::PositionVectors parse_vectors(const ConfigReader& config, const BertConfig& c) {
  nn::PositionVectors vectors;
  vectors.max_distance = parse_reach(config, c);
  const int64_t buckets = config.optional_integer("position_buckets").value_or(-1);
  if (buckets <= 0) return vectors;
  vectors.buckets = config.positive_integer("position_buckets", buckets);
  if (buckets >= 2 && vectors.max_distance - 1 > buckets / 2) return vectors;
  throw FormatError(
      "config.json: found position_buckets = {}, expected at least 2 and less than twice "
      "max_relative_positions - 1 = {}; fix the file",
      buckets, vectors.max_distance - 1);
}

// `positions` holds what the family's class reads of its own.
void parse_positions(const ConfigReader& config, BertConfig& c, BertPositionVectors positions) {
  parse_terms(config, c, positions);
  if (!config.boolean("relative_attention", false)) {
    if (!positions.has_norm) return;
    throw ConfigError(
        "config.json: found norm_rel_ebd layer_norm without relative_attention, expected a table "
        "that it normalises; use another checkpoint");
  }
  if (c.num_score_terms == 1) {
    throw ConfigError(
        "config.json: found relative_attention without pos_att_type, expected c2p, p2c or both, "
        "which read its table; use another checkpoint");
  }
  c.relative_positions = positions;
}

void parse_body(const ConfigReader& config, BertConfig& c) {
  parse_bert_body(config, c);
  require_known_shape(config, c);
  c.type_vocab_size = config.optional_integer("type_vocab_size").value_or(0);
  if (c.type_vocab_size != 0) c.type_vocab_size = config.positive_integer("type_vocab_size", 0);
  c.has_positions = config.boolean("position_biased_input", true);
}

void parse_head(const ConfigReader& config, BertConfig& c) {
  c.head_input_dropout = config.dropout_rate("pooler_dropout", 0);
  c.classifier_dropout = config.dropout_rate("cls_dropout", c.hidden_dropout_prob);
  c.head_act = parse_activation(config, "pooler_hidden_act", "gelu");
}

}  // namespace

BertConfig parse_deberta_v2_config(const Json& json) {
  const ConfigReader config(json);
  BertConfig c;
  c.names = deberta_v2_names();
  c.reads_types = true;
  c.vocab_size = 128100;
  c.hidden_size = 1536;
  c.num_hidden_layers = 24;
  c.num_attention_heads = 24;
  c.intermediate_size = 6144;
  c.layer_norm_eps = 1e-7;
  parse_body(config, c);
  require_no_convolution(config);
  BertPositionVectors positions;
  positions.has_norm = parse_norm(config);
  positions.shares_layers = config.boolean("share_att_key", false);
  positions.vectors = parse_vectors(config, c);
  parse_positions(config, c, positions);
  parse_head(config, c);
  return c;
}

BertConfig parse_deberta_config(const Json& json) {
  const ConfigReader config(json);
  BertConfig c;
  c.names = deberta_names();
  c.reads_types = c.has_one_projection = true;
  c.vocab_size = 50265;
  c.layer_norm_eps = 1e-7;
  parse_body(config, c);
  if (config.boolean("talking_head", false)) {
    throw ConfigError(
        "config.json: found talking_head true, products of heads among their scores, expected "
        "false; use another checkpoint");
  }
  BertPositionVectors positions;
  positions.has_key_bias = false;
  positions.vectors.max_distance = parse_reach(config, c);
  parse_positions(config, c, positions);
  parse_head(config, c);
  return c;
}

}  // namespace strata::models
