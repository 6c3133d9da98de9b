#include "strata/models/llama4/config.h"

#include <algorithm>
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

// Which layers have positions: no_rope_layers says 1 for those that have, or every layer has but
// those at the interval.
std::vector<bool> read_rotating_layers(const ConfigReader& config, int64_t num_layers) {
  std::vector<bool> rotates;
  if (!config.has("no_rope_layers") || config.at("no_rope_layers") == Json::array()) {
    const int64_t interval = config.positive_integer("no_rope_layer_interval", 4);
    for (int64_t i = 1; i <= num_layers; ++i) rotates.push_back(i % interval != 0);
    return rotates;
  }
  const Json& list = config.at("no_rope_layers");
  for (const Json& entry : list) {
    if (!entry.is_number_integer()) break;
    rotates.push_back(entry.get<int64_t>() != 0);
  }
  // The reference takes a longer list, too.
  if (list.is_array() && static_cast<int64_t>(rotates.size()) >= num_layers) return rotates;
  throw FormatError(
      "config.json: found no_rope_layers = {}, expected a list of num_hidden_layers = {} integers; "
      "fix the file",
      dump_python(list, /*indent=*/-1), num_layers);
}

// The layers that layer_types names, or else those with positions.
std::vector<bool> read_chunked_layers(const ConfigReader& config, const LlamaConfig& c) {
  if (!config.has("layer_types")) return c.rotates;
  const Json& list = config.at("layer_types");
  if (!list.is_array() || static_cast<int64_t>(list.size()) != c.num_hidden_layers) {
    throw FormatError(
        "config.json: found layer_types = {}, expected a list of num_hidden_layers = {} texts; fix "
        "the file",
        dump_python(list, /*indent=*/-1), c.num_hidden_layers);
  }
  std::vector<bool> are_chunked;
  for (const Json& entry : list) {
    if (entry != "full_attention" && entry != "chunked_attention") {
      throw ConfigError(
          "config.json: found {} in layer_types, expected full_attention or chunked_attention; use "
          "a checkpoint with such layers",
          entry.dump());
    }
    are_chunked.push_back(entry == "chunked_attention");
  }
  return are_chunked;
}

std::vector<bool> read_expert_layers(const ConfigReader& config, int64_t num_layers) {
  std::vector<bool> has_experts;
  if (!config.has("moe_layers")) {
    const int64_t step = config.positive_integer("interleave_moe_layer_step", 1);
    for (int64_t i = 1; i <= num_layers; ++i) has_experts.push_back(i % step == 0);
    return has_experts;
  }
  const Json& list = config.at("moe_layers");
  if (!list.is_array() ||
      !std::ranges::all_of(list, [](const Json& entry) { return entry.is_number_integer(); })) {
    throw FormatError(
        "config.json: found moe_layers = {}, expected a list of numbers of layers; fix the file",
        dump_python(list, /*indent=*/-1));
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    has_experts.push_back(std::ranges::find(list, Json(i)) != list.end());
  }
  return has_experts;
}

LlamaConfig parse_layers(const ConfigReader& config) {
  LlamaConfig c;
  c.layer_class = "Llama4TextDecoderLayer";
  c.architecture = "Llama4ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.vocab_size = 202048;
  c.hidden_size = 5120;
  c.intermediate_size = 8192;
  c.num_hidden_layers = 48;
  c.num_attention_heads = 40;
  c.max_position_embeddings = 131072;
  c.rms_norm_eps = 1e-5;
  parse_common(config, c);
  c.num_key_value_heads = key_value_heads(config, c, 8);
  parse_head_dim(config, c);
  if (!config.json().contains("head_dim")) c.head_dim = 128;  // null is what remains
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.rotates = read_rotating_layers(config, c.num_hidden_layers);
  parse_positions(config, c, /*splits_hidden_size=*/false, /*default_theta=*/500000.0);
  c.rope.pairs = ops::RopePairs::kNeighbours;
  return c;
}

}  // namespace

Llama4Config parse_llama4_text_config(const Json& json) {
  const ConfigReader config(json);
  require_not_null(config,
                   {"no_rope_layer_interval", "interleave_moe_layer_step", "num_local_experts",
                    "num_experts_per_tok", "use_qk_norm", "attn_temperature_tuning", "attn_scale",
                    "floor_scale", "attention_chunk_size"});
  Llama4Config c;
  c.llama = parse_layers(config);
  c.has_experts = read_expert_layers(config, c.llama.num_hidden_layers);
  c.dense_intermediate_size = config.positive_integer("intermediate_size_mlp", 16384);
  c.num_experts = config.integer_up_to(kMostExperts, "num_local_experts", 16);
  c.router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 1),
              .normalizes = false,
              .chooses_by_logits = true};
  check_router(c.router.experts_per_token, c.num_experts, "num_local_experts");
  c.norms_heads = config.boolean("use_qk_norm", true);
  c.are_chunked = read_chunked_layers(config, c.llama);
  c.chunk = config.positive_integer("attention_chunk_size", 8192);
  if (config.boolean("attn_temperature_tuning", true)) {
    c.query_scale = nn::QueryScale{.beta = config.number("attn_scale", 0.1),
                                   .length = config.positive_integer("floor_scale", 8192),
                                   .first = 1};
  }
  return c;
}

}  // namespace strata::models
