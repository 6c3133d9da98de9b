#include "strata/models/gpt_oss/config.h"

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

constexpr double kTheta = 150000.0;

// Where the file says nothing of positions, those of the published models.
nn::RopeOptions parse_positions_of(const ConfigReader& config, const LlamaConfig& c) {
  const RopeShape shape{c.head_dim, c.max_position_embeddings, kTheta};
  if (config.has("rope_parameters") || config.has("rope_scaling")) return parse_rope(config, shape);
  Json keys = {{"rope_parameters",
                {{"rope_type", "yarn"},
                 {"factor", 32.0},
                 {"beta_fast", 32.0},
                 {"beta_slow", 1.0},
                 {"truncate", false},
                 {"original_max_position_embeddings", 4096}}}};
  keys["rope_theta"] = config.positive_number("rope_theta", kTheta);
  return parse_rope(ConfigReader(keys), shape);
}

void refuse_attention_dropout(double dropout) {
  if (dropout == 0) return;
  throw ConfigError(
      "config.json: found attention_dropout = {} in a model with attention sinks, expected 0; set "
      "it to 0",
      dropout);
}

}  // namespace

GptOssConfig parse_gpt_oss_config(const Json& json) {
  const ConfigReader config(json);
  GptOssConfig c;
  c.llama.layer_class = "GptOssDecoderLayer";
  c.llama.architecture = "GptOssForCausalLM";
  c.llama.lora_targets = c.llama.ia3_targets = {};
  c.llama.norm_kind = ops::RmsNormKind::kOlmo;
  c.llama.attention_sinks = true;
  c.llama.vocab_size = 201088;
  c.llama.hidden_size = 2880;
  c.llama.intermediate_size = 2880;
  c.llama.num_hidden_layers = 36;
  c.llama.num_attention_heads = 64;
  c.llama.max_position_embeddings = 131072;
  c.llama.rms_norm_eps = 1e-5;
  parse_common(config, c.llama);
  refuse_attention_dropout(c.llama.attention_dropout);
  c.llama.num_key_value_heads = key_value_heads(config, c.llama, 8);
  // A key that says null means what remains of the hidden size, a missing one the default.
  if (json.contains("head_dim")) {
    parse_head_dim(config, c.llama);
  } else {
    c.llama.head_dim = 64;
  }
  c.llama.input_bias = c.llama.output_bias = config.boolean("attention_bias", true);
  c.llama.windows =
      parse_windows(config, c.llama.num_hidden_layers, /*period=*/2, /*default_window=*/128);
  c.num_experts = read_num_experts(config, "num_local_experts", 128);
  c.router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 4),
              .normalizes = true};
  check_router(c.router.experts_per_token, c.num_experts, "num_local_experts");
  c.gate = {.alpha = static_cast<float>(config.positive_number("swiglu_alpha", 1.702)),
            .limit = static_cast<float>(config.positive_number("swiglu_limit", 7.0))};
  check_relations(c.llama);
  c.llama.rope = parse_positions_of(config, c.llama);
  return c;
}

}  // namespace strata::models
