#include "strata/models/modernbert/config.h"

#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/padding_id.h"
#include "strata/models/plain_activation.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

Json object_at(const Json& json, const std::string& key, const std::string& shown) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return Json::object();
  if (found->is_object()) return *found;
  throw FormatError("config.json: found {} = {}, expected an object; fix the file", shown,
                    dump_python(*found, -1));
}

// Of the layers of a kind: `rope_parameters` by kinds, or the older key of its base.
nn::RopeOptions parse_rope_of(const ConfigReader& config, const std::string& kind,
                              const std::string& older_key, double theta, const RopeShape& shape) {
  const Json all = object_at(config.json(), "rope_parameters", "rope_parameters");
  Json rope = object_at(all, kind, "rope_parameters." + kind);
  // So that the older name "type" in rope_scaling does nothing, as in the reference.
  if (!config.has("rope_parameters")) rope["rope_type"] = "default";
  rope.update(object_at(config.json(), "rope_scaling", "rope_scaling"));
  if (!rope.contains("rope_theta")) {
    rope["rope_theta"] = config.positive_number(older_key, theta);
  }
  const Json keys = {{"rope_parameters", rope}};
  return parse_rope(ConfigReader(keys), shape);
}

std::vector<bool> parse_layers(const ConfigReader& config, int64_t num_layers) {
  if (auto found = read_layer_types(config, num_layers)) return *found;
  const int64_t every = config.positive_integer("global_attn_every_n_layers", 3);
  std::vector<bool> has_window;
  for (int64_t i = 0; i < num_layers; ++i) has_window.push_back(i % every != 0);
  return has_window;
}

// How far a token sees to either side. The second key counts in the reference where both are there.
int64_t parse_side(const ConfigReader& config) {
  const int64_t side = config.positive_integer("local_attention", 128) / 2;
  return config.has("sliding_window") ? config.positive_integer("sliding_window", side) : side;
}

bool parse_pooling(const ConfigReader& config) {
  const std::string pooling = config.text("classifier_pooling", "cls");
  if (pooling == "cls" || pooling == "mean") return pooling == "mean";
  throw FormatError("config.json: found classifier_pooling = \"{}\", expected cls or mean",
                    pooling);
}

}  // namespace

ModernBertConfig parse_modernbert_config(const Json& json) {
  const ConfigReader config(json);
  ModernBertConfig c;
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.hidden_size = config.positive_integer("hidden_size", c.hidden_size);
  c.intermediate_size = config.positive_integer("intermediate_size", c.intermediate_size);
  c.num_hidden_layers = config.num_layers("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = config.positive_integer("num_attention_heads", c.num_attention_heads);
  if (c.hidden_size % c.num_attention_heads != 0) {
    throw FormatError(
        "config.json: found hidden_size = {}, expected a multiple of num_attention_heads = {}; fix "
        "the file",
        c.hidden_size, c.num_attention_heads);
  }
  c.max_position_embeddings =
      config.positive_integer("max_position_embeddings", c.max_position_embeddings);
  c.has_window = parse_layers(config, c.num_hidden_layers);
  c.window = parse_side(config) + 1;
  const RopeShape shape{.head_dim = c.head_dim(),
                        .max_position_embeddings = c.max_position_embeddings};
  c.rope = parse_rope_of(config, "full_attention", "global_rope_theta", 160'000, shape);
  c.window_rope = parse_rope_of(config, "sliding_attention", "local_rope_theta", 10'000, shape);
  c.hidden_act = parse_activation(config, "hidden_activation", "gelu");
  c.classifier_act = parse_activation(config, "classifier_activation", "gelu");
  c.norm_eps = config.positive_number("norm_eps", c.norm_eps);
  c.norm_bias = config.boolean("norm_bias", false);
  c.attention_bias = config.boolean("attention_bias", false);
  c.mlp_bias = config.boolean("mlp_bias", false);
  c.classifier_bias = config.boolean("classifier_bias", false);
  c.reads_mean = parse_pooling(config);
  c.embedding_dropout = config.dropout_rate("embedding_dropout", 0);
  c.attention_dropout = config.dropout_rate("attention_dropout", 0);
  c.mlp_dropout = config.dropout_rate("mlp_dropout", 0);
  c.classifier_dropout = config.dropout_rate("classifier_dropout", 0);
  c.initializer_range = config.positive_number("initializer_range", c.initializer_range);
  c.initializer_cutoff = config.positive_number("initializer_cutoff_factor", c.initializer_cutoff);
  c.pad_token_id = parse_padding_id(config, c.vocab_size, c.pad_token_id);
  return c;
}

}  // namespace strata::models
