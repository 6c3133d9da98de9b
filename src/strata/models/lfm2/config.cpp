#include "strata/models/lfm2/config.h"

#include <algorithm>
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

constexpr double kTheta = 1000000.0;

// Without keys of Llama that mean nothing in this family.
Json own_keys(Json json) {
  for (const char* key : {"rms_norm_eps", "hidden_act", "attention_dropout"}) json.erase(key);
  return json;
}

LlamaConfig defaults(const std::string& family) {
  LlamaConfig c;
  c.layer_class = family + "DecoderLayer";
  c.architecture = family + "ForCausalLM";
  c.lora_targets = c.ia3_targets = {};  // PEFT has none
  c.ia3_feedforward = {};
  c.vocab_size = 65536;
  c.max_position_embeddings = 128000;
  c.tie_word_embeddings = true;
  c.final_norm = "model.embedding_norm";
  c.layer_norms = {{NormPlace::kAttentionInput, "operator_norm"},
                   {NormPlace::kMlpInput, "ffn_norm"}};
  c.has_states = true;
  return c;
}

// What both share. `c.llama` holds the family's defaults.
void parse_all(const ConfigReader& config, Lfm2Config& c) {
  LlamaConfig& llama = c.llama;
  parse_common(config, llama);
  parse_default_padding_id(config, llama, 0);
  llama.rms_norm_eps = config.positive_number("norm_eps", 1e-5);
  require_not_null(config, {"norm_eps", "tie_embedding", "num_key_value_heads", "head_dim",
                            "conv_L_cache", "conv_bias"});
  llama.tie_word_embeddings = config.boolean("tie_embedding", llama.tie_word_embeddings);
  llama.num_key_value_heads = config.positive_integer("num_key_value_heads", 8);
  parse_head_dim(config, llama);
  c.conv_size = config.positive_integer("conv_L_cache", 3);
  c.conv_bias = config.boolean("conv_bias", false);
  parse_positions(config, llama, /*splits_hidden_size=*/false, kTheta);
}

std::optional<std::vector<bool>> read_conv_layers(const ConfigReader& config, int64_t num_layers) {
  return read_two_kinds(config, "layer_types", num_layers, {"conv"},
                        {"full_attention", "attention"});
}

// Where layer_types says nothing: all but those that full_attn_idxs names, which are all by
// default.
std::vector<bool> other_layers(const ConfigReader& config, int64_t num_layers) {
  std::vector<bool> is_conv(static_cast<size_t>(num_layers), config.has("full_attn_idxs"));
  if (!config.has("full_attn_idxs")) return is_conv;
  const Json& list = config.at("full_attn_idxs");
  const auto is_integer = [](const Json& entry) { return entry.is_number_integer(); };
  if (!list.is_array() || !std::ranges::all_of(list, is_integer)) {
    throw FormatError(
        "config.json: found full_attn_idxs = {}, expected a list of numbers of layers; fix the "
        "file",
        dump_python(list, /*indent=*/-1));
  }
  for (const Json& entry : list) {
    const auto index = entry.get<int64_t>();
    if (index >= 0 && index < num_layers) is_conv[static_cast<size_t>(index)] = false;
  }
  return is_conv;
}

// Two thirds, times a factor, up to the next multiple.
int64_t adjusted_width(const ConfigReader& config, int64_t width) {
  require_not_null(config,
                   {"block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"});
  if (!config.boolean("block_auto_adjust_ff_dim", true)) return width;
  const double factor = config.positive_number("block_ffn_dim_multiplier", 1.0);
  const int64_t step = config.positive_integer("block_multiple_of", 256);
  const auto thirds = static_cast<int64_t>(static_cast<double>(2 * width) / 3);
  const auto scaled = static_cast<int64_t>(factor * static_cast<double>(thirds));
  const int64_t adjusted = (scaled + step - 1) / step * step;
  if (adjusted > 0 && adjusted < int64_t{1} << 31) return adjusted;
  throw FormatError(
      "config.json: found intermediate_size = {}, which block_auto_adjust_ff_dim makes {}, "
      "expected a width from 1 on and below 2^31; fix the file",
      width, adjusted);
}

MixtureConfig parse_mixture(const ConfigReader& config, const LlamaConfig& llama) {
  require_not_null(config, {"num_dense_layers", "num_experts", "num_experts_per_tok",
                            "use_expert_bias", "norm_topk_prob", "routed_scaling_factor"});
  MixtureConfig m;
  m.llama = llama;
  m.narrow_scores = true;
  m.gate_name = "w1";
  m.up_name = "w3";
  m.down_name = "w2";
  m.num_experts = config.integer_up_to(kMostExperts, "num_experts", 32);
  m.intermediate_size = config.positive_integer("moe_intermediate_size", 1792);
  m.sigmoid_router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 4),
                      .normalizes = config.boolean("norm_topk_prob", true),
                      .scale = config.positive_number("routed_scaling_factor", 1.0),
                      .least_sum = 1e-6};
  m.correction_name = config.boolean("use_expert_bias", true) ? "expert_bias" : "";
  m.is_no_target = true;
  check_router(m.sigmoid_router->experts_per_token, m.num_experts, "num_experts");
  m.has_experts =
      layers_from(config.optional_integer("num_dense_layers").value_or(2), llama.num_hidden_layers);
  return m;
}

}  // namespace

Lfm2Config parse_lfm2_config(const Json& json) {
  const Json own = own_keys(json);
  const ConfigReader config(own);
  Lfm2Config c;
  c.llama = defaults("Lfm2");
  c.llama.hidden_size = 2560;
  c.llama.intermediate_size = 12288;
  parse_all(config, c);
  require_not_null(config, "block_ff_dim");
  c.llama.intermediate_size =
      adjusted_width(config, config.positive_integer("block_ff_dim", c.llama.intermediate_size));
  const int64_t num_layers = c.llama.num_hidden_layers;
  c.is_conv = read_conv_layers(config, num_layers).value_or(other_layers(config, num_layers));
  return c;
}

Lfm2Config parse_lfm2_moe_config(const Json& json) {
  const Json own = own_keys(json);
  const ConfigReader config(own);
  Lfm2Config c;
  c.llama = defaults("Lfm2Moe");
  c.llama.hidden_size = 2048;
  c.llama.intermediate_size = 7168;
  parse_all(config, c);
  const auto is_conv = read_conv_layers(config, c.llama.num_hidden_layers);
  if (!is_conv) {
    throw FormatError(
        "config.json: found no layer_types, expected a list of conv and full_attention, one a "
        "layer; add it to the file");
  }
  c.is_conv = *is_conv;
  c.mixture = parse_mixture(config, c.llama);
  return c;
}

}  // namespace strata::models
