#include "strata/models/nemotron_h/config.h"

#include <algorithm>
#include <limits>
#include <string>

#include "strata/base/error.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

LlamaConfig defaults() {
  LlamaConfig c;
  c.layer_class = "NemotronHBlock";
  c.architecture = "NemotronHForCausalLM";
  c.lora_targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
  c.ia3_targets = {};  // PEFT has none
  c.ia3_feedforward = {};
  c.vocab_size = 131072;
  c.intermediate_size = 21504;
  c.max_position_embeddings = 4096;
  c.norm_kind = ops::RmsNormKind::kOlmo;  // scaled before it is rounded
  c.embedding = "model.embeddings";
  c.final_norm = "model.norm_f";
  c.ignored_prefixes = {"mtp."};  // layers that predict further tokens
  c.has_states = true;
  return c;
}

// Without keys of Llama that mean nothing in this family; as many layers as the list has.
Json own_keys(Json json, const std::vector<NemotronLayerKind>& kinds) {
  for (const char* key : {"rms_norm_eps", "hidden_act", "pad_token_id", "tie_word_embeddings"}) {
    json.erase(key);
  }
  json["num_hidden_layers"] = kinds.size();
  return json;
}

LlamaConfig parse_layers(const ConfigReader& config) {
  LlamaConfig c = defaults();
  parse_common(config, c);
  require_not_null(config, {"layer_norm_epsilon", "num_key_value_heads", "head_dim", "mlp_bias"});
  c.rms_norm_eps = config.positive_number("layer_norm_epsilon", 1e-5);
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", 8);
  c.head_dim = config.positive_integer("head_dim", 128);
  c.mlp_bias = config.boolean("mlp_bias", false);
  require_activation(config, "mlp_hidden_act", {"relu2"});
  require_activation(config, "mamba_hidden_act", {"silu", "swish"});
  check_relations(c);
  // Attention knows the order of tokens by the states of other layers.
  c.has_rope_table = false;
  c.rotates.assign(static_cast<size_t>(c.num_hidden_layers), false);
  c.rope.head_dim = 2;  // of a table that nobody reads
  c.rope.max_position_embeddings = c.max_position_embeddings;
  return c;
}

// The names of Mamba-2's keys here, of which the reference takes older ones first.
struct MambaKey {
  const char *name, *older;
};
constexpr MambaKey kGroups{"n_groups", "mamba_n_groups"}, kConv{"conv_kernel", "mamba_d_conv"},
    kConvBias{"use_conv_bias", "mamba_conv_bias"}, kLeast{"time_step_min", "mamba_dt_min"},
    kMost{"time_step_max", "mamba_dt_max"}, kFloor{"time_step_floor", "mamba_dt_init_floor"};

std::string used(const ConfigReader& config, const MambaKey& key) {
  for (const char* each : {key.name, key.older}) require_not_null(config, each);
  if (!config.has(key.older)) return key.name;
  if (!config.has(key.name) || config.at(key.name) == config.at(key.older)) return key.older;
  throw FormatError("config.json: found {} = {} and {} = {}, expected one value; fix the file",
                    key.name, config.at(key.name).dump(), key.older, config.at(key.older).dump());
}

FirstSteps parse_first_steps(const ConfigReader& config) {
  const FirstSteps first{.least = config.positive_number(used(config, kLeast), 0.001),
                         .most = config.positive_number(used(config, kMost), 0.1),
                         .floor = config.positive_number(used(config, kFloor), 1e-4)};
  if (first.least <= first.most) return first;
  throw FormatError(
      "config.json: found time_step_min = {}, expected at most time_step_max = {}; "
      "fix the file",
      first.least, first.most);
}

MambaConfig parse_mamba(const ConfigReader& config, const LlamaConfig& llama) {
  require_not_null(config, {"mamba_num_heads", "mamba_head_dim", "ssm_state_size", "use_bias",
                            "rescale_prenorm_residual"});
  const FirstSteps first = parse_first_steps(config);
  MambaConfig c{.module = "mixer",
                .hidden_size = llama.hidden_size,
                .conv_size = config.positive_integer(used(config, kConv), 4),
                .conv_bias = config.boolean(used(config, kConvBias), true),
                .bias = config.boolean("use_bias", false),
                // The reference makes no use of time_step_limit.
                .limits = {.least = first.least, .most = std::numeric_limits<double>::infinity()},
                .eps = llama.rms_norm_eps,
                .first_steps = first,
                .out_is_no_target = true};
  c.out_bias = c.bias;
  c.shape.num_heads = config.positive_integer("mamba_num_heads", 128);
  c.shape.head_dim = config.positive_integer("mamba_head_dim", 64);
  const std::string groups = used(config, kGroups);
  c.shape.num_groups = config.positive_integer(groups, 8);
  c.shape.state_dim = config.positive_integer("ssm_state_size", 128);
  check_mamba_groups(c, groups, "mamba_num_heads");
  if (config.boolean("rescale_prenorm_residual", true)) c.narrowed_by = llama.num_hidden_layers;
  return c;
}

NemotronExperts parse_experts(const ConfigReader& config, const LlamaConfig& llama) {
  require_not_null(
      config, {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
               "moe_shared_expert_intermediate_size", "routed_scaling_factor", "norm_topk_prob"});
  NemotronExperts experts;
  experts.count = read_num_experts(config, "n_routed_experts", 8);
  experts.intermediate_size = config.positive_integer("moe_intermediate_size", 7688);
  // For zero the reference takes the width of other MLPs.
  const char* shared = "moe_shared_expert_intermediate_size";
  experts.shared_intermediate_size = config.optional_integer(shared) == 0
                                         ? llama.intermediate_size
                                         : config.positive_integer(shared, 7688);
  if (config.has("moe_latent_size")) {
    experts.latent_size = config.positive_integer("moe_latent_size", 1);
  }
  experts.router =
      read_sigmoid_router(config, experts.count, {.experts_per_token = 2, .normalizes = true});
  return experts;
}

}  // namespace

NemotronHConfig parse_nemotron_h_config(const Json& json) {
  NemotronHConfig c;
  c.kinds = parse_nemotron_kinds(ConfigReader(json));
  const Json own = own_keys(json, c.kinds);
  const ConfigReader config(own);
  c.llama = parse_layers(config);
  c.mamba = parse_mamba(config, c.llama);
  if (std::ranges::count(c.kinds, NemotronLayerKind::kMixture) > 0) {
    c.experts = parse_experts(config, c.llama);
  }
  return c;
}

}  // namespace strata::models
