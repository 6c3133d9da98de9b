#include "strata/models/bamba/config.h"

#include <algorithm>
#include <string>

#include "strata/base/error.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

// The reference puts a half in the place of this key; among the rope's settings it says what it
// says.
Json own_keys(Json json) {
  json.erase("partial_rotary_factor");
  return json;
}

// The loss with it looks at tokens that do not train, too.
void refuse_z_loss(const ConfigReader& config) {
  require_not_null(config, "z_loss_coefficient");
  const double coefficient = config.number("z_loss_coefficient", 0.0);
  if (coefficient <= 0) return;
  throw ConfigError("config.json: found z_loss_coefficient = {}, expected 0; set it to 0",
                    coefficient);
}

// All layers but those that attn_layer_indices names.
std::vector<bool> parse_kinds(const ConfigReader& config, int64_t num_layers) {
  std::vector<bool> has_mamba(static_cast<size_t>(num_layers), true);
  if (!config.has("attn_layer_indices")) return has_mamba;
  const Json& list = config.at("attn_layer_indices");
  const auto is_integer = [](const Json& entry) { return entry.is_number_integer(); };
  if (!list.is_array() || !std::ranges::all_of(list, is_integer)) {
    throw FormatError(
        "config.json: found attn_layer_indices = {}, expected a list of numbers of layers; fix the "
        "file",
        dump_python(list, /*indent=*/-1));
  }
  for (const Json& entry : list) {
    const auto index = entry.get<int64_t>();
    if (index >= 0 && index < num_layers) has_mamba[static_cast<size_t>(index)] = false;
  }
  return has_mamba;
}

}  // namespace

LlamaConfig bamba_defaults() {
  LlamaConfig c;
  c.layer_class = "BambaDecoderLayer";
  c.architecture = "BambaForCausalLM";
  c.lora_targets = c.ia3_targets = {};  // PEFT has none
  c.ia3_feedforward = {};
  c.vocab_size = 128000;
  c.intermediate_size = 14336;
  c.max_position_embeddings = 262144;
  c.rms_norm_eps = 1e-5;
  c.final_norm = "model.final_layernorm";
  c.layer_norms = {{NormPlace::kAttentionInput, "input_layernorm"},
                   {NormPlace::kMlpInput, "pre_ff_layernorm"}};
  c.has_states = true;
  return c;
}

void refuse_layer_lists(const ConfigReader& config, const char* other) {
  for (const char* key : {"layer_types", "layers_block_type"}) {
    if (!config.has(key)) continue;
    throw FormatError("config.json: found {}, expected {}; remove {}", key, other, key);
  }
}

BambaConfig parse_bamba_config(const Json& json) {
  const Json own = own_keys(json);
  const ConfigReader config(own);
  BambaConfig c;
  LlamaConfig& llama = c.llama;
  llama = bamba_defaults();
  parse_common(config, llama);
  parse_default_padding_id(config, llama, 0);
  llama.num_key_value_heads = key_value_heads(config, llama, 8);
  parse_head_dim(config, llama);
  llama.input_bias = llama.output_bias = config.boolean("attention_bias", false);
  llama.mlp_bias = config.boolean("mlp_bias", false);
  check_relations(llama);
  llama.rope = parse_rope(config, {llama.head_dim, llama.max_position_embeddings,
                                   /*default_theta=*/10000.0, /*default_part=*/0.5});
  refuse_z_loss(config);
  refuse_layer_lists(config, "attn_layer_indices alone, the numbers of layers with attention");
  c.has_mamba = parse_kinds(config, llama.num_hidden_layers);
  c.mamba = parse_mamba_config(config, llama, expanded_width(config, llama));
  return c;
}

}  // namespace strata::models
