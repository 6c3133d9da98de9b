// Settings of Mixtral: Mistral's layer with experts in each.
// Source: transformers configuration_mixtral.py.
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {

MixtureConfig parse_mixtral_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c;
  c.llama.layer_class = "MixtralDecoderLayer";
  c.llama.architecture = "MixtralForCausalLM";
  c.llama.ia3_targets = {"k_proj", "v_proj"};
  c.llama.ia3_feedforward = {};
  c.llama.never_quantized = {"block_sparse_moe.gate"};
  c.llama.intermediate_size = 14336;
  c.llama.max_position_embeddings = 131072;
  c.llama.rms_norm_eps = 1e-5;
  parse_common(config, c.llama);
  c.llama.num_key_value_heads = key_value_heads(config, c.llama, 8);
  parse_head_dim(config, c.llama);
  c.llama.windows = same_windows(config, c.llama, read_window(config, std::nullopt));
  name_as_mixtral(c);
  c.num_experts = read_num_experts(config, "num_local_experts", 8);
  c.intermediate_size = c.llama.intermediate_size;
  c.router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 2),
              .normalizes = true,
              .rounds = false};
  c.router_comes_first = true;
  c.has_experts.assign(static_cast<size_t>(c.llama.num_hidden_layers), true);
  check_router(c.router.experts_per_token, c.num_experts, "num_local_experts");
  refuse_router_noise(config);
  parse_positions(config, c.llama, /*splits_hidden_size=*/false, /*default_theta=*/1000000.0);
  return c;
}

}  // namespace strata::models
