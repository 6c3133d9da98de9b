#include "strata/models/llama/config.h"

#include <algorithm>
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

// Kernels for windows drop nothing.
void check_dropout(const LlamaConfig& c) {
  if (c.attention_dropout < 0 || c.attention_dropout >= 1) {
    throw FormatError(
        "config.json: found attention_dropout = {}, expected a number from 0 on and below 1; fix "
        "the file",
        c.attention_dropout);
  }
  if (c.attention_dropout == 0 || std::ranges::count(c.windows, 0) == std::ssize(c.windows)) return;
  throw ConfigError(
      "config.json: found attention_dropout = {} with sliding-window layers, expected 0; set it to "
      "0",
      c.attention_dropout);
}

}  // namespace

void check_relations(const LlamaConfig& c, bool splits_hidden_size) {
  check_dropout(c);
  if (splits_hidden_size && c.hidden_size % c.num_attention_heads != 0) {
    throw FormatError(
        "config.json: found hidden_size = {}, expected a multiple of "
        "num_attention_heads = {}; fix the file",
        c.hidden_size, c.num_attention_heads);
  }
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    throw FormatError(
        "config.json: found num_key_value_heads = {}, expected a divisor of "
        "num_attention_heads = {}; fix the file",
        c.num_key_value_heads, c.num_attention_heads);
  }
}

namespace {

void refuse_dropout(const ConfigReader& config, const std::string& key) {
  const double dropout = config.number(key, 0.0);
  if (dropout == 0.0) return;
  throw ConfigError("config.json: found {} = {}, expected 0; set it to 0", key, dropout);
}

int64_t checked_padding_id(int64_t id, int64_t vocab_size) {
  if (id >= vocab_size || id < -vocab_size) {
    throw FormatError(
        "config.json: found pad_token_id = {}, expected a token of the vocabulary of "
        "{}; fix the file",
        id, vocab_size);
  }
  // Negative ids count from the end, as nn.Embedding's padding_idx.
  return id < 0 ? id + vocab_size : id;
}

std::optional<int64_t> parse_padding_id(const ConfigReader& config, int64_t vocab_size) {
  const std::optional<int64_t> id = config.optional_integer("pad_token_id");
  if (!id.has_value()) return id;
  return checked_padding_id(*id, vocab_size);
}

}  // namespace

void require_activation(const ConfigReader& config, const std::string& key,
                        const std::vector<std::string>& names) {
  const std::string found = config.text(key, names.front());
  if (std::ranges::find(names, found) != names.end()) return;
  throw ConfigError(
      "config.json: found {} \"{}\", expected \"{}\"; use a checkpoint with this activation", key,
      found, names.front());
}

void parse_common(const ConfigReader& config, LlamaConfig& c) {
  c.vocab_size = config.positive_integer("vocab_size", c.vocab_size);
  c.hidden_size = config.positive_integer("hidden_size", c.hidden_size);
  c.intermediate_size = config.positive_integer("intermediate_size", c.intermediate_size);
  c.num_hidden_layers = config.num_layers("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = config.positive_integer("num_attention_heads", c.num_attention_heads);
  c.max_position_embeddings =
      config.positive_integer("max_position_embeddings", c.max_position_embeddings);
  c.rms_norm_eps = config.positive_number("rms_norm_eps", c.rms_norm_eps);
  c.initializer_range = config.positive_number("initializer_range", c.initializer_range);
  c.attention_dropout = config.number("attention_dropout", 0.0);
  c.tie_word_embeddings = config.boolean("tie_word_embeddings", c.tie_word_embeddings);
  c.pad_token_id = parse_padding_id(config, c.vocab_size);
  if (c.gate == ops::GateKind::kSilu) require_activation(config, "hidden_act", {"silu", "swish"});
}

void parse_positions(const ConfigReader& config, LlamaConfig& c, bool splits_hidden_size,
                     double default_theta) {
  check_relations(c, splits_hidden_size);
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings, default_theta});
}

int64_t key_value_heads(const ConfigReader& config, const LlamaConfig& c, int64_t fallback) {
  const bool is_null = config.json().contains("num_key_value_heads");
  return config.positive_integer("num_key_value_heads", is_null ? c.num_attention_heads : fallback);
}

void parse_head_dim(const ConfigReader& config, LlamaConfig& c) {
  c.head_dim = config.positive_integer("head_dim",
                                       std::max<int64_t>(1, c.hidden_size / c.num_attention_heads));
}

void parse_default_padding_id(const ConfigReader& config, LlamaConfig& c, int64_t fallback) {
  if (!config.json().contains("pad_token_id")) {
    c.pad_token_id = checked_padding_id(fallback, c.vocab_size);
  }
}

void refuse_windows(const ConfigReader& config, int64_t num_hidden_layers) {
  const auto types = read_layer_types(config, num_hidden_layers);
  if (!types || std::ranges::count(*types, true) == 0) return;
  throw ConfigError(
      "config.json: found \"sliding_attention\" in layer_types, expected full_attention in a "
      "{} model, which has no window; fix the file",
      config.text("model_type", "llama"));
}

namespace {

FormatError no_window_for_types() {
  return FormatError(
      "config.json: found sliding_attention in layer_types and sliding_window = None, expected one "
      "of both; fix the file");
}

// A window where use_sliding_window says so, in the layers that layer_types names, else in those
// from max_window_layers on.
std::vector<int64_t> parse_qwen_windows(const ConfigReader& config, int64_t num_hidden_layers) {
  const auto types = read_layer_types(config, num_hidden_layers);
  if (!config.boolean("use_sliding_window", false)) {
    if (types && std::ranges::count(*types, true) > 0) {
      throw FormatError(
          "config.json: found sliding_attention in layer_types and use_sliding_window = false, "
          "expected one of both; fix the file");
    }
    return {};
  }
  if (config.json().contains("sliding_window") && !config.has("sliding_window")) {
    if (!types || std::ranges::count(*types, true) == 0) return {};
    throw no_window_for_types();
  }
  const int64_t window = config.positive_integer("sliding_window", 4096);
  const int64_t first = config.optional_integer("max_window_layers").value_or(28);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < num_hidden_layers; ++i) {
    const bool has_window = types ? types->at(static_cast<size_t>(i)) : i >= first;
    windows.push_back(has_window ? window : 0);
  }
  return windows;
}

// A window of all layers, or of those that layer_types names. A key that says null means none; only
// a missing one means the default.
std::vector<int64_t> parse_mistral_windows(const ConfigReader& config, int64_t num_hidden_layers) {
  const auto types = read_layer_types(config, num_hidden_layers);
  if (config.json().contains("sliding_window") && !config.has("sliding_window")) {
    if (!types || std::ranges::count(*types, true) == 0) return {};
    throw no_window_for_types();
  }
  const int64_t window = config.positive_integer("sliding_window", 4096);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < num_hidden_layers; ++i) {
    windows.push_back(!types || types->at(static_cast<size_t>(i)) ? window : 0);
  }
  return windows;
}

// What both generations of Qwen share.
LlamaConfig parse_qwen(const ConfigReader& config, const std::string& family) {
  LlamaConfig c;
  c.layer_class = family + "DecoderLayer";
  c.architecture = family + "ForCausalLM";
  c.ia3_targets = {"q_proj", "v_proj", "down_proj"};
  c.vocab_size = 151936;
  c.intermediate_size = 22016;
  c.max_position_embeddings = 32768;
  parse_common(config, c);
  c.num_key_value_heads = key_value_heads(config, c, 32);
  c.windows = parse_qwen_windows(config, c.num_hidden_layers);
  return c;
}

// Which layers of SmolLM3 have positions: no_rope_layers says 1 for those that have, or every layer
// has but those at the interval.
std::vector<bool> parse_rotating_layers(const ConfigReader& config, int64_t num_hidden_layers) {
  std::vector<bool> rotates;
  if (!config.has("no_rope_layers")) {
    const int64_t interval = config.positive_integer("no_rope_layer_interval", 4);
    for (int64_t i = 1; i <= num_hidden_layers; ++i) rotates.push_back(i % interval != 0);
    return rotates;
  }
  const Json& list = config.at("no_rope_layers");
  // The reference takes a longer list, too.
  const bool is_list = list.is_array() && static_cast<int64_t>(list.size()) >= num_hidden_layers;
  for (int64_t i = 0; is_list && i < num_hidden_layers; ++i) {
    const Json& entry = list.at(static_cast<size_t>(i));
    if (!entry.is_number_integer()) break;
    rotates.push_back(entry.get<int64_t>() != 0);
  }
  if (static_cast<int64_t>(rotates.size()) == num_hidden_layers) return rotates;
  throw FormatError(
      "config.json: found no_rope_layers = {}, expected a list of num_hidden_layers = {} integers; "
      "fix the file",
      dump_python(list, /*indent=*/-1), num_hidden_layers);
}

// Of the layers that layer_types names, or else, where windows are used, of those without
// positions.
std::vector<int64_t> parse_smollm3_windows(const ConfigReader& config,
                                           const std::vector<bool>& rotates) {
  const auto num_layers = static_cast<int64_t>(rotates.size());
  const auto types = read_layer_types(config, num_layers);
  const bool is_used = config.boolean("use_sliding_window", false);
  if (!config.has("sliding_window")) {
    if (!types || std::ranges::count(*types, true) == 0) return {};
    throw FormatError(
        "config.json: found sliding_attention in layer_types and no sliding_window, expected both; "
        "fix the file");
  }
  const int64_t window = config.positive_integer("sliding_window", 1);
  std::vector<int64_t> windows;
  for (size_t i = 0; i < rotates.size(); ++i) {
    const bool has_window = types ? types->at(i) : is_used && !rotates[i];
    windows.push_back(has_window ? window : 0);
  }
  return windows;
}

}  // namespace

LlamaConfig parse_llama_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c;
  parse_common(config, c);
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.mlp_bias = config.boolean("mlp_bias", c.mlp_bias);
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c, /*splits_hidden_size=*/true);
  return c;
}

LlamaConfig parse_mistral_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c;
  // The reference takes a Mistral whose file lists its layers for this one.
  const bool is_ministral =
      json.contains("layer_types") || config.text("model_type", "") == "ministral";
  c.layer_class = is_ministral ? "MinistralDecoderLayer" : "MistralDecoderLayer";
  c.architecture = is_ministral ? "MinistralForCausalLM" : "MistralForCausalLM";
  c.intermediate_size = 14336;
  c.max_position_embeddings = 131072;
  parse_common(config, c);
  c.num_key_value_heads = key_value_heads(config, c, 8);
  parse_head_dim(config, c);
  c.windows = parse_mistral_windows(config, c.num_hidden_layers);
  parse_positions(config, c);
  return c;
}

LlamaConfig parse_qwen2_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = parse_qwen(config, "Qwen2");
  c.input_bias = true;
  parse_head_dim(config, c);
  parse_positions(config, c);
  return c;
}

LlamaConfig parse_qwen3_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = parse_qwen(config, "Qwen3");
  c.head_norms = true;
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.head_dim = config.positive_integer("head_dim", 128);
  parse_positions(config, c);
  return c;
}

LlamaConfig parse_phi3_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c;
  c.layer_class = "Phi3DecoderLayer";
  c.architecture = "Phi3ForCausalLM";
  c.fused_gate_up = true;
  c.lora_targets = c.ia3_targets = {};
  c.vocab_size = 32064;
  c.hidden_size = 3072;
  c.intermediate_size = 8192;
  c.max_position_embeddings = 4096;
  c.rms_norm_eps = 1e-5;
  parse_common(config, c);
  parse_default_padding_id(config, c, 32000);
  refuse_dropout(config, "attention_dropout");
  refuse_dropout(config, "resid_pdrop");  // of embd_pdrop the reference makes no use
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  if (config.has("sliding_window")) {
    c.windows.assign(static_cast<size_t>(c.num_hidden_layers),
                     config.positive_integer("sliding_window", 1));
  }
  c.rope = parse_phi3_rope(config, {c.head_dim, c.max_position_embeddings});
  check_relations(c, /*splits_hidden_size=*/false);
  return c;
}

LlamaConfig parse_smollm3_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c;
  c.layer_class = "SmolLM3DecoderLayer";
  c.architecture = "SmolLM3ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.vocab_size = 128256;
  c.hidden_size = 2048;
  c.num_hidden_layers = 36;
  c.num_attention_heads = 16;
  c.max_position_embeddings = 32768;
  c.tie_word_embeddings = true;
  parse_common(config, c);
  parse_default_padding_id(config, c, 128004);
  c.num_key_value_heads = key_value_heads(config, c, 4);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.mlp_bias = config.boolean("mlp_bias", false);
  c.rotates = parse_rotating_layers(config, c.num_hidden_layers);
  c.windows = parse_smollm3_windows(config, c.rotates);
  check_relations(c, /*splits_hidden_size=*/false);
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings, /*default_theta=*/2000000.0});
  return c;
}

}  // namespace strata::models
