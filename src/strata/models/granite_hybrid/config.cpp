#include "strata/models/granite_hybrid/config.h"

#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/granite_config.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

LlamaConfig defaults() {
  LlamaConfig c;
  c.layer_class = "GraniteMoeHybridDecoderLayer";
  c.architecture = "GraniteMoeHybridForCausalLM";
  c.lora_targets = c.ia3_targets = {};  // PEFT has none
  c.ia3_feedforward = {};
  c.has_states = true;
  return c;
}

// Whether heads turn says position_embedding_type; no other value but "rope" makes the reference do
// it.
void parse_turning(const ConfigReader& config, LlamaConfig& c) {
  if (config.text("position_embedding_type", "nope") == "rope") {
    parse_positions(config, c);
    return;
  }
  check_relations(c);
  c.has_rope_table = false;
  c.rotates.assign(static_cast<size_t>(c.num_hidden_layers), false);
  c.rope.head_dim = 2;  // of a table that nobody reads
  c.rope.max_position_embeddings = c.max_position_embeddings;
}

// Of the key and of the older one that the reference takes for it.
std::vector<bool> parse_kinds(const ConfigReader& config, int64_t num_layers) {
  const auto read = [&](const char* key) {
    return read_two_kinds(config, key, num_layers, {"linear_attention", "mamba"},
                          {"full_attention", "attention"});
  };
  const auto kinds = read("layer_types"), older = read("layers_block_type");
  if (kinds && older && *kinds != *older) {
    throw FormatError(
        "config.json: found layers_block_type with other layer_types, expected one list; remove "
        "layers_block_type");
  }
  if (kinds || older) return kinds ? *kinds : *older;
  return std::vector<bool>(static_cast<size_t>(num_layers), true);
}

std::optional<GraniteExperts> parse_experts(const ConfigReader& config, int64_t width) {
  require_not_null(config, "num_local_experts");
  if (config.optional_integer("num_local_experts") == 0) return std::nullopt;
  return parse_granite_experts(config, width);
}

}  // namespace

GraniteHybridConfig parse_granitemoehybrid_config(const Json& json) {
  const ConfigReader config(json);
  GraniteHybridConfig c;
  c.llama = defaults();
  parse_common(config, c.llama);
  c.llama.num_key_value_heads = key_value_heads(config, c.llama, c.llama.num_attention_heads);
  parse_head_dim(config, c.llama);
  c.llama.input_bias = c.llama.output_bias = config.boolean("attention_bias", false);
  require_not_null(config, {"embedding_multiplier", "residual_multiplier", "logits_scaling"});
  parse_granite_multipliers(config, c.llama);
  parse_turning(config, c.llama);
  c.experts = parse_experts(config, c.llama.intermediate_size);
  c.llama.intermediate_size = config.positive_integer("shared_intermediate_size", 1024);
  c.has_mamba = parse_kinds(config, c.llama.num_hidden_layers);
  c.mamba = parse_mamba_config(config, c.llama, expanded_width(config, c.llama));
  return c;
}

}  // namespace strata::models
