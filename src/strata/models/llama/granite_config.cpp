// Settings of Granite, Llama's layer with four multipliers, of HyperCLOVA X, which adds norms after
// attention and MLP, and of Granite with windows, which adds sinks and a rotation by layer. Source:
// transformers configuration_{granite,hyperclovax,granite_swa}.py.
#include "strata/models/llama/granite_config.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "strata/base/error.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/relatives.h"

namespace strata::models {

void parse_granite_multipliers(const ConfigReader& config, LlamaConfig& c) {
  // One of null is none: scores are scaled as usual then.
  const bool is_null =
      config.json().contains("attention_multiplier") && !config.has("attention_multiplier");
  if (!is_null) c.attention_scale = config.positive_number("attention_multiplier", 1.0);
  c.embedding_multiplier = config.positive_number("embedding_multiplier", 1.0);
  c.residual_multiplier = config.positive_number("residual_multiplier", 1.0);
  c.logits_scaling = config.positive_number("logits_scaling", 1.0);
}

namespace {

// `c` holds the family's defaults, of heads of keys those that it has where nothing says how many.
LlamaConfig parse_granite_family(const ConfigReader& config, const std::string& family,
                                 LlamaConfig c, std::optional<int64_t> default_key_heads = {}) {
  c.layer_class = family + "DecoderLayer";
  c.architecture = family + "ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  parse_common(config, c);
  c.num_key_value_heads =
      key_value_heads(config, c, default_key_heads.value_or(c.num_attention_heads));
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.mlp_bias = config.boolean("mlp_bias", false);
  parse_granite_multipliers(config, c);
  return c;
}

}  // namespace

LlamaConfig parse_granite_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = parse_granite_family(config, "Granite", {});
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c);
  return c;
}

LlamaConfig parse_hyperclovax_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = parse_granite_family(config, "HyperCLOVAX", {});
  refuse_windows(config, c.num_hidden_layers);
  if (!config.has("attention_multiplier")) c.attention_scale.reset();  // as usual
  c.logits_scaling = 1.0 / c.logits_scaling;                           // logits are multiplied
  if (config.boolean("use_post_norm", true)) {
    c.layer_norms.insert(c.layer_norms.end(), {{NormPlace::kAttentionOutput, "post_norm1"},
                                               {NormPlace::kMlpOutput, "post_norm2"}});
  }
  parse_positions(config, c, /*splits_hidden_size=*/true);
  return c;
}

namespace {

// Every fourth layer is global, from the first on, where no list says otherwise.
Json with_layer_types(const Json& json, int64_t num_layers) {
  Json result = json;
  if (ConfigReader(json).has("layer_types")) return result;
  result["layer_types"] = Json::array();
  for (int64_t i = 0; i < num_layers; ++i) {
    result["layer_types"].push_back(i % 4 == 0 ? "full_attention" : "sliding_attention");
  }
  return result;
}

// The base of each layer's rotation; 0: a layer without positions.
std::vector<double> read_layer_thetas(const ConfigReader& config, const LlamaConfig& c) {
  const auto num_layers = static_cast<size_t>(c.num_hidden_layers);
  if (!config.has("layer_rope_theta")) return std::vector<double>(num_layers, c.rope.theta);
  const Json& list = config.at("layer_rope_theta");
  std::vector<double> thetas;
  for (const Json& entry : list.is_array() ? list : Json::array()) {
    if (entry.is_number() && entry.get<double>() >= 0) thetas.push_back(entry.get<double>());
  }
  if (thetas.size() == num_layers && list.size() == num_layers) return thetas;
  throw FormatError(
      "config.json: found layer_rope_theta = {}, expected a list of num_hidden_layers = {} numbers "
      "of at least 0; fix the file",
      dump_python(list, /*indent=*/-1), num_layers);
}

// One rotation of the global layers that have positions, and one of those with a window.
void put_thetas(const std::vector<double>& thetas, LlamaConfig& c) {
  std::set<double> global, local, all;
  for (size_t i = 0; i < thetas.size(); ++i) {
    c.rotates.push_back(thetas[i] != 0);
    if (thetas[i] == 0) continue;
    (c.windows.at(i) == 0 ? global : local).insert(thetas[i]);
    all.insert(thetas[i]);
  }
  if (global.size() > 1 || local.size() > 1) {
    throw ConfigError(
        "config.json: found layer_rope_theta with several numbers above 0 for layers of one kind "
        "in layer_types, expected one for those of each; use a checkpoint with such layers");
  }
  if (!all.empty()) c.rope.theta = global.empty() ? *local.begin() : *global.begin();
  if (all.size() > 1) {
    c.local_rope = c.rope;
    c.local_rope->theta = *local.begin();
  }
  // The reference has one of all layers, which it uses nowhere, and one for each number.
  c.num_idle_tables = 1 + std::ssize(all) - (c.local_rope ? 2 : 1);
}

}  // namespace

LlamaConfig parse_granite_with_windows(const Json& json, const std::string& family, LlamaConfig c,
                                       std::optional<int64_t> default_key_heads) {
  const ConfigReader config(json);
  c.attention_sinks = true;
  c.zeros = ".sinks";
  c = parse_granite_family(config, family, std::move(c), default_key_heads);
  const Json listed = with_layer_types(json, c.num_hidden_layers);
  c.windows = parse_windows(ConfigReader(listed), c.num_hidden_layers, /*period=*/1,
                            /*default_window=*/128);
  parse_positions(config, c);
  put_thetas(read_layer_thetas(config, c), c);
  return c;
}

LlamaConfig parse_granite_swa_config(const Json& json) {
  LlamaConfig c;
  c.vocab_size = 100352;
  c.hidden_size = 2560;
  c.intermediate_size = 8192;
  c.num_hidden_layers = 24;
  c.num_attention_heads = 20;
  c.max_position_embeddings = 8192;
  c.rms_norm_eps = 1e-5;
  c.tie_word_embeddings = true;
  return parse_granite_with_windows(json, "GraniteSWA", std::move(c), /*default_key_heads=*/4);
}

}  // namespace strata::models
