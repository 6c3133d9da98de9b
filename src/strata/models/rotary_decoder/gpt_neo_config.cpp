// Settings of GPT-Neo (and of the models of TinyStories): learned positions, scores that are not
// scaled, a window in some layers. Source: transformers configuration_gpt_neo.py,
// modeling_gpt_neo.py.
#include <string>

#include "strata/base/error.h"
#include "strata/models/plain_activation.h"
#include "strata/models/rotary_decoder/config.h"
#include "strata/models/rotary_decoder/config_parts.h"
#include "strata/models/size_names.h"

namespace strata::models {
namespace {

void parse_sizes(const ConfigReader& config, RotaryDecoderConfig& c) {
  c.vocab_size = config.positive_integer("vocab_size", 50257);
  c.hidden_size = config.positive_integer("hidden_size", 2048);
  c.intermediate_size = config.positive_integer("intermediate_size", 4 * c.hidden_size);
  c.num_hidden_layers =
      config.num_layers(SizeNames{"num_layers", "num_hidden_layers"}.said(config), 24);
  const SizeNames heads{"num_heads", "num_attention_heads"};
  c.num_attention_heads = config.positive_integer(heads.said(config), 16);
  c.max_position_embeddings = config.positive_integer("max_position_embeddings", 2048);
  split_hidden_size(c, "hidden_size", "num_heads");
}

FormatError wrong_types(const ConfigReader& config, const std::string& key,
                        const std::string& expected) {
  return FormatError("config.json: found {} = {}, expected {}; fix the file", key,
                     dump_python(config.at(key), /*indent=*/-1), expected);
}

constexpr size_t kMostLayers = 100000;  // whatever a file says

// The kinds of the layers: the list of all of them, which counts where a file has both, or groups
// [[kinds], how often].
Json list_kinds(const ConfigReader& config) {
  if (config.has("attention_layers")) return config.at("attention_layers");
  const Json fallback = Json::parse(R"([[["global", "local"], 12]])");
  const std::string key = "attention_types";
  Json kinds = Json::array();
  for (const Json& group : config.has(key) ? config.at(key) : fallback) {
    const bool is_group = group.is_array() && group.size() == 2 && group[0].is_array() &&
                          group[1].is_number_integer() && group[1] <= kMostLayers;
    if (!is_group) throw wrong_types(config, key, "a list of [[kinds of layers], how often]");
    for (int64_t i = 0; i < group[1].get<int64_t>(); ++i) {
      kinds.insert(kinds.end(), group[0].begin(), group[0].end());
      if (kinds.size() > kMostLayers) {
        throw wrong_types(config, key, "as many layers as a model has");
      }
    }
  }
  return kinds;
}

std::vector<int64_t> parse_gpt_neo_windows(const ConfigReader& config, int64_t num_layers) {
  const Json kinds = list_kinds(config);
  if (!kinds.is_array() || static_cast<int64_t>(kinds.size()) != num_layers) {
    throw FormatError(
        "config.json: found {} kinds of layers in attention_types or attention_layers, expected "
        "num_layers = {}; fix the file",
        kinds.size(), num_layers);
  }
  const int64_t window = config.positive_integer("window_size", 256);
  std::vector<int64_t> windows;
  for (const Json& kind : kinds) {
    if (kind != "global" && kind != "local") {
      throw FormatError(
          "config.json: found a layer of kind {}, expected global or local; fix the file",
          dump_python(kind, /*indent=*/-1));
    }
    windows.push_back(kind == "local" ? window : 0);
  }
  return windows;
}

}  // namespace

RotaryDecoderConfig parse_gpt_neo_config(const Json& json) {
  const ConfigReader config(json);
  RotaryDecoderConfig c;
  c.layer_class = "GPTNeoBlock";
  c.architecture = "GPTNeoForCausalLM";
  c.lora_targets = c.vera_targets = {"q_proj", "v_proj"};
  c.ia3_targets = {"q_proj", "v_proj", "c_proj"};
  c.ia3_feedforward = {"c_proj"};
  c.embedding_name = "transformer.wte";
  c.layers_name = "transformer.h";
  c.attention_name = "attn.attention";
  c.norm_names[0] = "ln_1";
  c.norm_names[1] = "ln_2";
  c.output_name = "out_proj";
  c.mlp_input_name = "c_fc";
  c.mlp_output_name = "c_proj";
  c.final_norm_name = "transformer.ln_f";
  c.norms_come_first = c.queries_come_third = true;
  c.ignored_suffixes = {".attn.attention.bias", ".attn.attention.masked_bias"};
  c.output_bias = c.mlp_bias = true;
  c.has_gated_mlp = false;
  c.attention_scale = 1.0;
  parse_sizes(config, c);
  c.norm_eps = config.positive_number("layer_norm_epsilon", c.norm_eps);
  c.initializer_range = config.positive_number("initializer_range", c.initializer_range);
  c.activation = parse_activation(config, "activation_function", "gelu_new");
  c.attention_dropout = config.dropout_rate("attention_dropout", 0.0);
  c.attention_output_dropout = c.mlp_dropout = config.dropout_rate("resid_dropout", 0.0);
  c.embedding_dropout = config.dropout_rate("embed_dropout", 0.0);
  c.tie_word_embeddings = config.boolean("tie_word_embeddings", true);
  c.windows = parse_gpt_neo_windows(config, c.num_hidden_layers);
  // A mask of each layer's own, a byte for each pair of positions.
  c.buffer_bytes = c.num_hidden_layers * c.max_position_embeddings * c.max_position_embeddings;
  return c;
}

}  // namespace strata::models
