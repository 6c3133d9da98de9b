// The settings of the families with multi-head latent attention (DeepSeek-V2, DeepSeek-V3,
// GLM-4.7-Flash, MiniCPM3, Youtu-LLM), read from config.json and checked. Owns: names, defaults and
// relations of the keys. Never: weights. Source: transformers
// configuration_{deepseek_v2,deepseek_v3,glm4_moe_lite,minicpm3,youtu}.py.
#pragma once

#include <cstdint>
#include <optional>

#include "strata/base/json.h"
#include "strata/models/moe/config.h"
#include "strata/nn/attention/latent_keys.h"

namespace strata::models {

struct LatentAttentionConfig {
  std::optional<int64_t> query_rank;  // none: queries are one product
  int64_t key_value_rank = 512;
  nn::LatentHeads heads{};
};

struct DeepseekConfig {
  MixtureConfig mixture;  // head_dim of its llama is a key's
  LatentAttentionConfig attention;
  // What the family's class reads beside these: another name of qk_rope_head_dim, and
  // partial_rotary_factor, with its default.
  const char* turned_key = nullptr;
  std::optional<double> rotary_part = {};
};

// Errors: as parse_llama_config().
DeepseekConfig parse_deepseek_v2_config(const Json& config);
DeepseekConfig parse_deepseek_v3_config(const Json& config);
DeepseekConfig parse_glm4_moe_lite_config(const Json& config);
DeepseekConfig parse_minicpm3_config(const Json& config);
DeepseekConfig parse_youtu_config(const Json& config);

}  // namespace strata::models
