#include "strata/models/qwen3_5/config.h"

#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

LlamaConfig defaults() {
  LlamaConfig c;
  c.layer_class = "Qwen3_5DecoderLayer";
  c.architecture = "Qwen3_5ForCausalLM";
  c.lora_targets = {};  // PEFT has none
  c.ia3_targets = {};
  c.ia3_feedforward = {};
  c.ignored_prefixes = {"mtp.", "model.visual."};
  c.has_states = true;
  c.vocab_size = 248320;
  c.hidden_size = 4096;
  c.intermediate_size = 12288;
  c.num_attention_heads = 16;
  c.max_position_embeddings = 32768;
  c.norm_kind = ops::RmsNormKind::kGemma;
  c.head_norms = true;
  return c;
}

std::vector<bool> parse_kinds(const ConfigReader& config, int64_t num_layers) {
  std::vector<bool> is_linear;
  if (!config.has("layer_types")) {
    const int64_t interval = config.positive_integer("full_attention_interval", 4);
    for (int64_t i = 1; i <= num_layers; ++i) is_linear.push_back(i % interval != 0);
    return is_linear;
  }
  const Json& list = config.at("layer_types");
  if (!list.is_array() || static_cast<int64_t>(list.size()) != num_layers) {
    throw FormatError(
        "config.json: found layer_types = {}, expected a list of num_hidden_layers = {} texts; fix "
        "the file",
        list.dump(), num_layers);
  }
  for (const Json& entry : list) {
    if (entry != "linear_attention" && entry != "full_attention") {
      throw ConfigError(
          "config.json: found {} in layer_types, expected linear_attention or full_attention; use "
          "a checkpoint with such layers",
          entry.dump());
    }
    is_linear.push_back(entry == "linear_attention");
  }
  return is_linear;
}

nn::DeltaShape parse_delta(const ConfigReader& config) {
  const nn::DeltaShape shape{
      .num_key_heads = config.positive_integer("linear_num_key_heads", 16),
      .num_value_heads = config.positive_integer("linear_num_value_heads", 32),
      .key_dim = config.positive_integer("linear_key_head_dim", 128),
      .value_dim = config.positive_integer("linear_value_head_dim", 128)};
  if (shape.num_value_heads % shape.num_key_heads == 0) return shape;
  throw FormatError(
      "config.json: found linear_num_value_heads = {}, expected a multiple of "
      "linear_num_key_heads = {}; fix the file",
      shape.num_value_heads, shape.num_key_heads);
}

}  // namespace

Qwen35Config parse_qwen3_5_config(const Json& json) {
  const ConfigReader config(json);
  Qwen35Config c;
  c.llama = defaults();
  LlamaConfig& llama = c.llama;
  parse_common(config, llama);
  llama.num_key_value_heads = config.positive_integer("num_key_value_heads", 4);
  llama.head_dim = config.positive_integer("head_dim", 256);
  llama.input_bias = llama.output_bias = config.boolean("attention_bias", false);
  c.is_linear = parse_kinds(config, llama.num_hidden_layers);
  c.delta = parse_delta(config);
  c.conv_size = config.positive_integer("linear_conv_kernel_dim", 4);
  check_relations(llama);
  llama.rope = parse_rope(config, {.head_dim = llama.head_dim,
                                   .max_position_embeddings = llama.max_position_embeddings,
                                   .default_part = 0.25});
  return c;
}

}  // namespace strata::models
