#include "strata/models/falcon_h1/config.h"

#include <cmath>
#include <string>
#include <vector>

#include "strata/base/error.h"
#include "strata/models/bamba/config.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

LlamaConfig defaults() {
  LlamaConfig c = bamba_defaults();
  c.layer_class = "FalconH1DecoderLayer";
  c.architecture = "FalconH1ForCausalLM";
  c.max_position_embeddings = 8192;
  return c;
}

double factor(const ConfigReader& config, const char* key) {
  require_not_null(config, key);
  return config.positive_number(key, 1.0);
}

// One of null is all of one.
std::vector<double> factors(const ConfigReader& config, const char* key, size_t count) {
  std::vector<double> list = config.positive_numbers(key);
  if (!config.has(key)) return std::vector<double>(count, 1.0);
  if (list.size() == count) return list;
  throw FormatError("config.json: found {} = {}, expected a list of {} numbers; fix the file", key,
                    config.at(key).dump(), count);
}

// The width of Mamba-2; null: that of other families.
MambaWidth parse_width(const ConfigReader& config, const LlamaConfig& llama) {
  const bool is_null = config.json().contains("mamba_d_ssm") && !config.has("mamba_d_ssm");
  if (is_null) return expanded_width(config, llama);
  return {config.positive_integer("mamba_d_ssm", 1024), "mamba_d_ssm"};
}

MambaEnd parse_end(const ConfigReader& config) {
  if (!config.boolean("mamba_rms_norm", false)) return MambaEnd::kGateAlone;
  const char* key = "mamba_norm_before_gate";
  const bool is_null = config.json().contains(key) && !config.has(key);
  return config.boolean(key, !is_null) ? MambaEnd::kNormThenGate : MambaEnd::kGateThenNorm;
}

MambaConfig parse_mamba(const ConfigReader& config, const LlamaConfig& llama) {
  MambaConfig c = parse_mamba_config(config, llama, parse_width(config, llama));
  c.out_bias = config.boolean("projectors_bias", false);
  c.end = parse_end(config);
  c.multipliers = factors(config, "ssm_multipliers", 5);
  c.residual_multiplier = factor(config, "ssm_out_multiplier");
  c.out_is_no_target = true;
  return c;
}

}  // namespace

FalconH1Config parse_falcon_h1_config(const Json& json) {
  const ConfigReader config(json);
  FalconH1Config c;
  LlamaConfig& llama = c.llama;
  llama = defaults();
  parse_common(config, llama);
  parse_default_padding_id(config, llama, 0);
  llama.num_key_value_heads = key_value_heads(config, llama, 8);
  parse_head_dim(config, llama);
  llama.input_bias = llama.output_bias = config.boolean("attention_bias", false);
  llama.mlp_bias = config.boolean("mlp_bias", false);
  parse_positions(config, llama);
  refuse_layer_lists(config, "none, all layers being alike");
  c.mamba = parse_mamba(config, llama);
  // Of keys it is one of all scores.
  llama.attention_scale =
      factor(config, "key_multiplier") / std::sqrt(static_cast<double>(llama.head_dim));
  llama.embedding_multiplier = factor(config, "embedding_multiplier");
  llama.logits_scaling = 1.0 / factor(config, "lm_head_multiplier");
  c.ssm_in = factor(config, "ssm_in_multiplier");
  c.attention_in = factor(config, "attention_in_multiplier");
  c.attention_out = factor(config, "attention_out_multiplier");
  const std::vector<double> of_mlp = factors(config, "mlp_multipliers", 2);
  c.gate = of_mlp[0];
  c.down = of_mlp[1];
  // The reference holds a factor of every channel.
  const nn::StateSpaceShape& shape = c.mamba.shape;
  llama.buffer_numel =
      llama.num_hidden_layers * (shape.channels() + c.mamba.conv_channels() + shape.num_heads);
  return c;
}

}  // namespace strata::models
