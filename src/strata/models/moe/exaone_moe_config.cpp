// Settings of K-EXAONE: EXAONE 4's attention between norms before attention and MLP, DeepSeek-V3's
// experts in the place of some MLPs.
// Source: transformers configuration_exaone_moe.py, modeling_exaone_moe.py.
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/relatives.h"
#include "strata/models/moe/config.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

LlamaConfig parse_layers(const ConfigReader& config) {
  LlamaConfig c;
  c.layer_class = "ExaoneMoeDecoderLayer";
  c.architecture = "ExaoneMoeForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.never_quantized = {"mlp.gate"};
  c.names_mean_experts = true;
  c.ignored_prefixes = {"mtp."};  // layers that predict further tokens
  c.vocab_size = 102400;
  c.intermediate_size = 16384;
  c.rms_norm_eps = 1e-5;
  c.head_norms = true;
  parse_common(config, c);
  parse_default_padding_id(config, c, 0);
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", 32);
  parse_head_dim(config, c);
  parse_exaone_windows(config, c);
  parse_positions(config, c);
  return c;
}

}  // namespace

MixtureConfig parse_exaone_moe_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c;
  c.llama = parse_layers(config);
  c.num_experts = config.integer_up_to(kMostExperts, "num_experts", 64);
  c.intermediate_size = config.positive_integer("moe_intermediate_size", 1024);
  c.sigmoid_router = read_sigmoid_router(config, c.num_experts,
                                         {.experts_per_token = 8, .normalizes = true, .scale = 2.5},
                                         "num_experts");
  c.wide_router = true;
  add_shared_experts(c, config.positive_integer("num_shared_experts", 1));
  require_not_null(config, "first_k_dense_replace");
  c.has_experts = read_sparse_layers(config, c.llama.num_hidden_layers,
                                     config.optional_integer("first_k_dense_replace").value_or(1));
  return c;
}

}  // namespace strata::models
