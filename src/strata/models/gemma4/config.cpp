#include "strata/models/gemma4/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

LlamaConfig defaults() {
  LlamaConfig c;
  c.layer_class = "Gemma4TextDecoderLayer";
  c.architecture = "Gemma4ForCausalLM";
  c.lora_targets = {};  // PEFT knows the whole model alone, by the names of its language model
  c.ia3_targets = {};
  c.ia3_feedforward = {};
  c.vocab_size = 262144;
  c.hidden_size = 2304;
  c.intermediate_size = 9216;
  c.num_hidden_layers = 30;
  c.num_attention_heads = 8;
  c.num_key_value_heads = 4;
  c.max_position_embeddings = 131072;
  c.norm_kind = ops::RmsNormKind::kOlmo;
  c.gate = ops::GateKind::kGeluTanh;
  c.attention_scale = 1.0;
  c.tie_word_embeddings = true;
  return c;
}

void refuse(const ConfigReader& config, const Gemma4Config& c) {
  require_activation(config, "hidden_activation", {"gelu_pytorch_tanh"});
  if (config.text("use_bidirectional_attention", "vision") != "vision") {
    throw ConfigError(
        "config.json: found use_bidirectional_attention = {}, expected null or \"vision\"; use a "
        "checkpoint that predicts the next token",
        config.at("use_bidirectional_attention").dump());
  }
  if (c.llama.attention_dropout != 0) {
    throw ConfigError("config.json: found attention_dropout = {}, expected 0; set it to 0",
                      c.llama.attention_dropout);
  }
}

// The last layer is a global one, whatever the list says.
std::vector<bool> parse_kinds(const ConfigReader& config, int64_t num_layers) {
  constexpr int64_t kPeriod = 6;
  std::vector<bool> is_global;
  const auto has_window = read_layer_types(config, num_layers);
  for (int64_t i = 0; i < num_layers; ++i) {
    is_global.push_back(has_window ? !has_window->at(static_cast<size_t>(i))
                                   : (i + 1) % kPeriod == 0);
  }
  is_global.back() = true;
  return is_global;
}

// What layers have in the place of the common heads, by their numbers, which transformers writes
// with zeros in front.
std::map<int64_t, Json> read_layer_overrides(const ConfigReader& config, int64_t num_layers) {
  const Json& all = config.at("per_layer_config");
  if (!all.is_object()) {
    throw FormatError("config.json: found per_layer_config = {}, expected an object; fix the file",
                      all.dump());
  }
  std::map<int64_t, Json> overrides;
  for (const auto& [name, entry] : all.items()) {
    int64_t layer = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
    if (error != std::errc() || end != name.data() + name.size() || layer < 0 ||
        layer >= num_layers || !entry.is_object()) {
      throw FormatError(
          "config.json: found per_layer_config.{} = {}, expected the number of a layer, 0 to {}, "
          "and an object; fix the file",
          name, entry.dump(), num_layers - 1);
    }
    for (const auto& [key, value] : entry.items()) {
      if (key == "head_dim" || key == "num_key_value_heads") continue;
      throw ConfigError(
          "config.json: found per_layer_config.{}.{}, expected head_dim or num_key_value_heads; "
          "use a checkpoint whose layers differ in these alone",
          name, key);
    }
    overrides[layer] = entry;
  }
  return overrides;
}

// Older files name what all global layers have; newer ones the layers that differ.
void parse_heads(const ConfigReader& config, Gemma4Config& c) {
  const bool shares_matrix = config.boolean("attention_k_eq_v", false);
  const int64_t common_heads = c.llama.num_key_value_heads;
  const int64_t global_heads =
      shares_matrix ? config.positive_integer("num_global_key_value_heads", common_heads)
                    : common_heads;
  const int64_t head_dim = config.positive_integer("head_dim", 256);
  const int64_t global_dim = config.positive_integer("global_head_dim", 512);
  const bool names_layers = config.has("per_layer_config");
  for (Gemma4Layer& layer : c.layers) {
    const bool is_other = layer.is_global && !names_layers;
    layer.head_dim = is_other ? global_dim : head_dim;
    layer.num_key_value_heads = is_other ? global_heads : common_heads;
    layer.has_values = !(shares_matrix && layer.is_global);
  }
  if (!names_layers) return;
  for (const auto& [index, entry] : read_layer_overrides(config, c.llama.num_hidden_layers)) {
    Gemma4Layer& layer = c.layers[static_cast<size_t>(index)];
    const ConfigReader own(entry, "per_layer_config." + std::to_string(index) + ".");
    layer.head_dim = own.positive_integer("head_dim", layer.head_dim);
    layer.num_key_value_heads =
        own.positive_integer("num_key_value_heads", layer.num_key_value_heads);
  }
}

// The last layers read the keys and values of the last one of their kind before them.
void parse_sharing(const ConfigReader& config, Gemma4Config& c) {
  const int64_t num_shared = config.optional_integer("num_kv_shared_layers").value_or(0);
  const auto count = static_cast<int64_t>(c.layers.size());
  if (num_shared < 0 || num_shared >= count) {
    throw FormatError(
        "config.json: found num_kv_shared_layers = {}, expected 0 to num_hidden_layers - 1 = {}; "
        "fix the file",
        num_shared, count - 1);
  }
  const bool is_wide = config.boolean("use_double_wide_mlp", false);
  for (int64_t i = 0; i < count; ++i) {
    Gemma4Layer& layer = c.layers[static_cast<size_t>(i)];
    layer.cache_layer = i;
    layer.intermediate_size = c.llama.intermediate_size;
    if (i < count - num_shared) continue;
    int64_t maker = count - num_shared - 1;
    while (maker >= 0 && c.layers[static_cast<size_t>(maker)].is_global != layer.is_global) --maker;
    if (maker < 0) {
      throw FormatError(
          "config.json: found num_kv_shared_layers = {}, expected a layer of each kind before "
          "those; fix the file",
          num_shared);
    }
    Gemma4Layer& source = c.layers[static_cast<size_t>(maker)];
    source.keys = KeysOf::kShared;
    layer.keys = KeysOf::kEarlier;
    layer.cache_layer = maker;
    if (is_wide) layer.intermediate_size *= 2;
    if (source.head_dim == layer.head_dim &&
        source.num_key_value_heads == layer.num_key_value_heads) {
      continue;
    }
    throw FormatError(
        "config.json: found layer {} with the keys of layer {} and heads of another shape, "
        "expected the same; fix per_layer_config",
        i, maker);
  }
}

void check_heads(const Gemma4Config& c) {
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const Gemma4Layer& layer = c.layers[i];
    const Gemma4Layer& first =
        *std::ranges::find(c.layers, layer.is_global, &Gemma4Layer::is_global);
    if (c.llama.num_attention_heads % layer.num_key_value_heads != 0) {
      throw FormatError(
          "config.json: found {} key-value heads in layer {}, expected a divisor of "
          "num_attention_heads = {}; fix the file",
          layer.num_key_value_heads, i, c.llama.num_attention_heads);
    }
    // One rotation serves all layers of a kind.
    if (layer.head_dim == first.head_dim && layer.head_dim % 2 == 0) continue;
    throw FormatError(
        "config.json: found head_dim = {} in layer {}, expected an even number, the same in all "
        "layers of its kind; fix the file",
        layer.head_dim, i);
  }
}

nn::RopeOptions proportional(const ConfigReader& rope, const RopeShape& shape) {
  const double part = rope.number("partial_rotary_factor", 1.0);
  if (part < 0 || part > 1) {
    throw FormatError(
        "config.json: found {}partial_rotary_factor = {}, expected 0 to 1; fix the file",
        rope.prefix(), part);
  }
  nn::RopeOptions options;
  options.kind = nn::RopeKind::kProportional;
  options.theta = rope.positive_number("rope_theta", shape.default_theta);
  options.head_dim = shape.head_dim;
  options.max_position_embeddings = shape.max_position_embeddings;
  options.factor = rope.positive_number("factor", 1.0);
  // As the reference rounds: down, before the halves are taken.
  options.turning_pairs =
      static_cast<int64_t>(std::floor(part * static_cast<double>(shape.head_dim) / 2));
  return options;
}

// `kind`: the key in rope_parameters.
nn::RopeOptions parse_rotation(const ConfigReader& config, const std::string& kind,
                               const Json& fallback, const RopeShape& shape) {
  Json settings = fallback;
  if (config.has("rope_parameters")) {
    const Json& all = config.at("rope_parameters");
    if (!all.is_object() || !all.contains(kind) || !all.at(kind).is_object()) {
      throw FormatError(
          "config.json: found rope_parameters = {}, expected an object with an object "
          "\"{}\"; fix the file",
          all.dump(), kind);
    }
    settings = all.at(kind);
    if (!settings.contains("rope_theta") && config.has("rope_theta")) {
      settings["rope_theta"] = config.at("rope_theta");
    }
  }
  const ConfigReader rope(settings, "rope_parameters." + kind + ".");
  if (rope.text("rope_type", "default") == "yarn" && !rope.boolean("truncate", true)) {
    throw ConfigError(
        "config.json: found {}truncate = False, expected none (the reference reads it only next to "
        "the kinds of layers, where it applies to none); remove it",
        rope.prefix());
  }
  settings.erase("truncate");
  if (rope.text("rope_type", "default") == "proportional") return proportional(rope, shape);
  const Json keys = {{"rope_parameters", settings}};
  nn::RopeOptions options = parse_rope(ConfigReader(keys), shape);
  if (options.length_of_change() == 0) return options;
  throw ConfigError(
      "config.json: found rope_type \"{}\" of {} layers, expected one that does not change with "
      "the text's length; use a checkpoint with default, linear, yarn, llama3 or proportional",
      rope.text("rope_type", ""), kind);
}

void parse_rotations(const ConfigReader& config, Gemma4Config& c) {
  const auto rotation = [&](bool is_global, const char* kind, const Json& fallback) {
    const auto layer = std::ranges::find(c.layers, is_global, &Gemma4Layer::is_global);
    const int64_t head_dim = layer == c.layers.end() ? c.layers.back().head_dim : layer->head_dim;
    return parse_rotation(config, kind, fallback, {head_dim, c.llama.max_position_embeddings});
  };
  c.llama.rope = rotation(
      true, "full_attention",
      {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}});
  if (std::ranges::find(c.layers, false, &Gemma4Layer::is_global) == c.layers.end()) return;
  c.llama.local_rope =
      rotation(false, "sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}});
}

int64_t required(const ConfigReader& config, const char* key) {
  if (config.has(key)) return config.positive_integer(key, 1);
  throw FormatError(
      "config.json: found enable_moe_block = True and no {}, expected a number; add it to the file",
      key);
}

std::optional<Gemma4Experts> parse_experts(const ConfigReader& config) {
  if (!config.boolean("enable_moe_block", false)) return {};
  const Gemma4Experts experts{.count = required(config, "num_experts"),
                              .per_token = required(config, "top_k_experts"),
                              .intermediate_size = required(config, "moe_intermediate_size")};
  if (experts.per_token <= experts.count) return experts;
  throw FormatError(
      "config.json: found top_k_experts = {}, expected at most num_experts = {}; fix the file",
      experts.per_token, experts.count);
}

int64_t parse_per_layer_size(const ConfigReader& config) {
  // 0 and null say that there is none.
  if (config.json().contains("hidden_size_per_layer_input")) {
    const Json& value = config.at("hidden_size_per_layer_input");
    if (value.is_null() || value == 0) return 0;
  }
  return config.positive_integer("hidden_size_per_layer_input", 256);
}

}  // namespace

Gemma4Config parse_gemma4_config(const Json& json) {
  const ConfigReader config(json);
  Gemma4Config c;
  c.llama = defaults();
  LlamaConfig& llama = c.llama;
  parse_common(config, llama);
  parse_default_padding_id(config, llama, 0);
  llama.num_key_value_heads = config.positive_integer("num_key_value_heads", 4);
  llama.input_bias = llama.output_bias = config.boolean("attention_bias", false);
  llama.embedding_scale = std::sqrt(static_cast<double>(llama.hidden_size));
  if (config.has("final_logit_softcapping")) {
    llama.logit_softcap = config.positive_number("final_logit_softcapping", 30.0);
  }
  refuse(config, c);
  const int64_t window = config.positive_integer("sliding_window", 512);
  for (const bool is_global : parse_kinds(config, llama.num_hidden_layers)) {
    c.layers.push_back({.is_global = is_global});
    llama.windows.push_back(is_global ? 0 : window);
  }
  parse_heads(config, c);
  check_heads(c);
  parse_sharing(config, c);
  parse_rotations(config, c);
  c.per_layer_size = parse_per_layer_size(config);
  c.experts = parse_experts(config);
  c.per_layer_vocab_size = config.positive_integer("vocab_size_per_layer_input", 262144);
  if (c.per_layer_size != 0 && c.per_layer_vocab_size < llama.vocab_size) {
    throw ConfigError(
        "config.json: found vocab_size = {} with vocab_size_per_layer_input = {}, expected no more "
        "tokens than have a vector for each layer; train without new tokens",
        llama.vocab_size, c.per_layer_vocab_size);
  }
  return c;
}

}  // namespace strata::models
