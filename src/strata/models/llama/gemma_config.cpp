// Settings of Gemma and of the text models of Gemma 3. Source: transformers
// configuration_{gemma,gemma3}.py.
#include <algorithm>
#include <cmath>
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/llama/config.h"
#include "strata/models/llama/config_parts.h"

namespace strata::models {
namespace {

constexpr const char* kLocal = "sliding_attention";
constexpr const char* kGlobal = "full_attention";

LlamaConfig start_gemma(const std::string& family) {
  LlamaConfig c;
  c.layer_class = family + "DecoderLayer";
  c.architecture = family + "ForCausalLM";
  c.ia3_targets = {"q_proj", "v_proj", "down_proj"};
  c.norm_kind = ops::RmsNormKind::kGemma;
  c.gate = ops::GateKind::kGeluTanh;
  c.tie_word_embeddings = true;
  return c;
}

// What both generations share. `c` holds the family's defaults.
void parse_gemma(const ConfigReader& config, const Json& json, LlamaConfig& c) {
  const int64_t key_value_heads = c.num_key_value_heads;
  parse_common(config, c);
  // A key that says null means none; a missing one means the default, the first token.
  if (!json.contains("pad_token_id")) c.pad_token_id = 0;
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", key_value_heads);
  c.head_dim = config.positive_integer("head_dim", 256);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.embedding_scale = std::sqrt(static_cast<double>(c.hidden_size));
  if (config.boolean("use_bidirectional_attention", false)) {
    throw ConfigError(
        "config.json: found use_bidirectional_attention = True, expected False; use a checkpoint "
        "that predicts the next token");
  }
}

void refuse_soft_caps(const ConfigReader& config) {
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    if (!config.has(key)) continue;
    throw ConfigError(
        "config.json: found {} = {}, expected null; use a checkpoint without it, such as the "
        "published ones of Gemma 3",
        key, config.at(key).dump());
  }
}

// The window of each layer, 0 for global ones. Where the file gives no types, every sixth is
// global, or as an older key says.
std::vector<int64_t> read_windows(const ConfigReader& config, int64_t num_layers) {
  const auto types = read_layer_types(config, num_layers);
  const int64_t pattern = config.positive_integer("sliding_window_pattern", 6);
  const int64_t window = config.positive_integer("sliding_window", 4096);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < num_layers; ++i) {
    const bool is_local = types ? types->at(static_cast<size_t>(i)) : (i + 1) % pattern != 0;
    windows.push_back(is_local ? window : 0);
  }
  return windows;
}

// The rotation of layers of one type: `rope_parameters` by type, or the older keys, of which
// rope_scaling is of global layers alone.
nn::RopeOptions parse_rope_of(const ConfigReader& config, LlamaConfig c, const std::string& type) {
  Json rope = {{"rope_type", "default"}};
  if (config.has("rope_parameters")) {
    const Json& all = config.at("rope_parameters");
    for (const auto& [key, value] : all.items()) {
      if (key == kLocal || key == kGlobal) continue;
      throw FormatError(
          "config.json: found rope_parameters.{}, expected {} and {} in a model with both kinds of "
          "layers; fix the file",
          key, kLocal, kGlobal);
    }
    if (all.contains(type) && all.at(type).is_object()) rope = all.at(type);
  }
  const bool is_global = type == kGlobal;
  if (is_global && config.has("rope_scaling") && config.at("rope_scaling").is_object()) {
    rope.update(config.at("rope_scaling"));
  }
  if (!rope.contains("rope_theta")) {
    rope["rope_theta"] = is_global ? config.positive_number("rope_theta", 1e6)
                                   : config.positive_number("rope_local_base_freq", 1e4);
  }
  const Json keys = {{"rope_parameters", rope}};
  parse_positions(ConfigReader(keys), c, /*splits_hidden_size=*/true);
  if (c.rope.length_of_change() != 0) {
    throw ConfigError(
        "config.json: found rope_type \"{}\" of {} layers, expected one that does not change with "
        "the text's length; use a checkpoint with default, linear, yarn or llama3",
        rope.value("rope_type", rope.value("type", "")), type);
  }
  return c.rope;
}

}  // namespace

LlamaConfig parse_gemma_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = start_gemma("Gemma");
  c.vocab_size = 256000;
  c.hidden_size = 3072;
  c.intermediate_size = 24576;
  c.num_hidden_layers = 28;
  c.num_attention_heads = c.num_key_value_heads = 16;
  c.max_position_embeddings = 8192;
  parse_gemma(config, json, c);
  // In a checkpoint of Gemma "gelu" means the approximation, too.
  require_activation(config, "hidden_act", {"gelu_pytorch_tanh", "gelu"});
  parse_positions(config, c);
  return c;
}

LlamaConfig parse_gemma3_text_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = start_gemma("Gemma3");
  c.vocab_size = 262208;
  c.hidden_size = 2304;
  c.intermediate_size = 9216;
  c.num_hidden_layers = 26;
  c.num_attention_heads = 8;
  c.num_key_value_heads = 4;
  c.max_position_embeddings = 131072;
  parse_gemma(config, json, c);
  require_activation(config, "hidden_activation", {"gelu_pytorch_tanh"});
  refuse_soft_caps(config);
  c.head_norms = c.output_norms = true;
  c.attention_scale =
      1.0 / std::sqrt(static_cast<double>(config.positive_integer("query_pre_attn_scalar", 256)));
  c.windows = read_windows(config, c.num_hidden_layers);
  c.rope = parse_rope_of(config, c, kGlobal);
  if (std::ranges::count(c.windows, 0) < std::ssize(c.windows)) {
    c.local_rope = parse_rope_of(config, c, kLocal);
  }
  return c;
}

}  // namespace strata::models
